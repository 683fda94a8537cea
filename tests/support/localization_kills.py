"""Kill `hf-multisource localize` at random moments, until it is finished.

    python tests/support/localization_kills.py KILLS SEED SECONDS ARGUMENTS ...

starts the command with ARGUMENTS, kills it by signal 9 after a random time of up to SECONDS seconds, KILLS times, then
lets it finish, and prints how many of the kills came while the output was missing. The processes are forks of this one,
which has imported everything.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from hf_multisource.cli.localize import main
from hf_multisource.evaluation import localization_run


def run(arguments: list[str], seconds: float | None) -> bool:
    """Run the command in a fork, for so many seconds at most; return whether it ended by itself."""
    if process := os.fork():
        if seconds is not None:
            time.sleep(seconds)
            os.kill(process, signal.SIGKILL)
        return os.waitpid(process, 0)[1] == 0
    status = 1
    try:
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        main(arguments)
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    torch.set_num_threads(1)
    localization_run.WINDOW = 4
    kills, seed, longest, command = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
    out, rng = Path(command[command.index("--out") + 1]), random.Random(seed)
    within = 0
    for _ in range(kills):
        run(command, rng.uniform(0, longest))
        within += not out.exists()
    assert run(command, None)
    print(within)
