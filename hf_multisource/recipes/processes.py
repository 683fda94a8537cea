"""Run work on the processes of a distributed training so that all of them raise the error of any one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from accelerate.utils import gather_object
from torch import distributed
from transformers import TrainingArguments

Result = TypeVar("Result")

# Exception types that are preserved on the other processes, most specific first. All can be constructed from a message.
KINDS: tuple[type[Exception], ...] = (
    FileExistsError,
    FileNotFoundError,
    NotADirectoryError,
    PermissionError,
    BlockingIOError,
    OSError,
    ImportError,
    FloatingPointError,
    ValueError,
)


def together(args: TrainingArguments, work: Callable[[], Result], *, everywhere: bool = False) -> Result:
    """Run a function on the main process or on all processes; if it fails on any process, raise an error on all.

    Every process of the training must call this function. Without it, the other processes would wait for the failed
    process and end in an unrelated error.

    Args:
        args: Training arguments of the run.
        work: The function to run.
        everywhere: Whether every process runs `work`; otherwise only the main process does.

    Returns:
        The return value of `work` on this process if `everywhere` is true, otherwise on the main process. The latter is
        sent to all processes, so it must be small and picklable.

    Raises:
        Exception: The error of this process, or an error with the message of the first process that failed.
    """
    result: Any = None
    failure: Exception | None = None
    told: tuple[type[Exception], str] | None = None
    if everywhere or args.process_index == 0:
        try:
            result = work()
        except Exception as error:
            failure = error
            told = next((kind for kind in KINDS if isinstance(error, kind)), RuntimeError), str(error)
    if args.world_size > 1:
        outcomes = gather_object([(None if everywhere else result, told)])
        result = result if everywhere else outcomes[0][0]
        told = next((message for _, message in outcomes if message is not None), None)
    if failure is not None:
        raise failure
    if told is not None:
        raise told[0](told[1])
    final: Result = result
    return final


def leave() -> None:
    """End the communication with the other processes, at the end of the program; does nothing in a single process.

    Without it, a thread of PyTorch's communication may abort the process when Python exits. The launcher then ends the
    other processes, too, and reports that the training has failed.
    """
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
