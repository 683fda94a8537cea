"""The processor time of a call, for tests that a call takes linear time."""

import time
from collections.abc import Callable
from typing import Any

ATTEMPTS = 5


def cpu_seconds(call: Callable[[], Any], enough: float = 0.0) -> float:
    """Call a function up to five times and return the least time of one call.

    The time is that of this thread. One call is no measurement: a collection of the garbage of all earlier tests may
    fall into it, which takes ten times as long as the call.

    Args:
        call (`Callable`): The function, without arguments.
        enough (`float`, *optional*, defaults to 0.0): Seconds. If a call takes less, no further one is made.

    Returns:
        `float`: Seconds.
    """
    least = float("inf")
    for _ in range(ATTEMPTS):
        start = time.thread_time()
        call()
        least = min(least, time.thread_time() - start)
        if least < enough:
            break
    return least
