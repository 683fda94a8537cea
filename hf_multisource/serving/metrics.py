"""Prometheus metrics of the service."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)  # upper limits of the histogram buckets of times, in seconds
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)  # upper limits of the histogram buckets of batch sizes, in rows


class Metrics:
    """Counters of requests, rows and batches, and facts about the process.

    Args:
        queue: Function that returns the number of rows in the queue.
    """

    def __init__(self, queue: Callable[[], float]) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # memory, CPU time, open files
        self.requests = Counter(
            "hf_multisource_requests",
            "Requests by path and status; 499: the client disconnected.",
            ["path", "status"],
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "hf_multisource_request_seconds",
            "Seconds from a request for translations to its answer.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.rows = Counter(
            "hf_multisource_rows",
            "Rows by outcome: translated, refused (placeholders, length), failed (an error), dropped (unanswered).",
            ["outcome"],
            registry=self.registry,
        )
        self.batch_rows = Histogram(
            "hf_multisource_batch_rows", "Rows of a batch.", buckets=ROWS, registry=self.registry
        )
        self.batch_seconds = Histogram(
            "hf_multisource_batch_seconds", "Seconds of a batch.", buckets=SECONDS, registry=self.registry
        )
        Gauge("hf_multisource_queue_rows", "Rows that wait.", registry=self.registry).set_function(queue)

    def batch(self, rows: int, seconds: float) -> None:
        """Count a batch.

        Args:
            rows: Number of rows in the batch.
            seconds: Translation time of the batch in seconds.
        """
        self.batch_rows.observe(rows)
        self.batch_seconds.observe(seconds)

    def failure(self, rows: int) -> None:
        """Count rows whose translation raised an error.

        Args:
            rows: Number of rows.
        """
        self.rows.labels("failed").inc(rows)
