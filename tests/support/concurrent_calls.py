"""Run the same function in several threads at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

THREADS = 8
SWITCH_INTERVAL = 1e-4  # seconds between thread switches; Python's default of 5 ms hides most races

Result = TypeVar("Result")


def in_threads(work: Callable[[int, Barrier], Result], number: int = THREADS) -> list[Result]:
    """Call a function once in each of several threads, and wait for all of them.

    Args:
        work: Takes the number of its thread and a barrier that all threads can wait at.
        number: How many threads.

    Returns:
        The results in the order of the threads. The first exception is raised again.
    """
    barrier = Barrier(number)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)

    def guarded(i: int) -> Result:
        try:
            return work(i, barrier)
        except BaseException:
            barrier.abort()  # nobody waits for a thread that has failed
            raise

    try:
        with ThreadPoolExecutor(number) as pool:
            futures = [pool.submit(guarded, i) for i in range(number)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:  # the cause, rather than the broken barriers that follow from it
            raise next((error for error in errors if type(error).__name__ != "BrokenBarrierError"), errors[0])
        return [future.result() for future in futures]
    finally:
        sys.setswitchinterval(interval)
