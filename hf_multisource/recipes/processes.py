"""Work that the processes of one training share: an error of one process is raised by all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from accelerate.utils import gather_object
from transformers import TrainingArguments

Result = TypeVar("Result")

# The types that an error keeps on the other processes; all can be made from a message alone. More special ones first.
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
    """Do something on the main process, or on all processes; if it fails on any of them, raise an error on all.

    Every process of the training must call this function. Without it, the others would wait for a process that has
    failed, and end in an error of their own that explains nothing.

    Args:
        args: The run's arguments.
        work: What to do.
        everywhere: Whether every process does it; else only the main process.

    Returns:
        What `work` returns on this process if it is done everywhere, else what it returns on the main process; that
        must be small and picklable then.

    Raises:
        Exception: The error of this process; else one with the message of the first process that failed.
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
