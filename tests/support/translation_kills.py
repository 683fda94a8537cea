"""Kill two processes that share a translation at random moments, until it is finished.

    python tests/support/translation_kills.py KILLS SEED SECONDS ARGUMENTS ...

starts `hf-multisource translate ARGUMENTS` on two processes, kills both by signal 9 after a random time of up to
SECONDS seconds, KILLS times, then lets them finish, and prints how many of the kills came while lines were missing. The
processes are forks of this one, which has imported everything.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from hf_multisource.cli.translate import main


def start(index: int, arguments: list[str]) -> int:
    """Fork one of two processes."""
    if process := os.fork():
        return process
    os.environ.update(RANK=str(index), LOCAL_RANK=str(index), WORLD_SIZE="2")
    status = 1
    try:
        sys.stderr = open(os.devnull, "w") if index == 0 else sys.stderr  # noqa: SIM115  # the progress bar
        main(arguments)
        status = 0
    finally:
        os._exit(status)


def run(arguments: list[str], seconds: float | None) -> bool:
    """Translate on two processes, for so many seconds at most; return whether both ended by themselves."""
    processes = [start(index, arguments) for index in range(2)]
    if seconds is not None:
        time.sleep(seconds)
        for process in processes:
            os.kill(process, signal.SIGKILL)
    ends = [os.waitpid(process, 0)[1] for process in processes]
    return ends == [0, 0]


if __name__ == "__main__":
    torch.set_num_threads(1)
    kills, seed, longest, command = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
    out, rng = Path(command[command.index("--out") + 1]), random.Random(seed)
    within = 0
    for _ in range(kills):
        run(command, rng.uniform(0, longest))
        within += not out.exists()
    assert run(command, None)
    print(within)
