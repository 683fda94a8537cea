"""Translate the rows of concurrent requests in batches: a queue, and one worker thread that owns the model."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from hf_multisource.evaluation.text_translator import Translation, Translator

logger = logging.getLogger(__name__)

Row = Mapping[str, str | None]

SMOOTHING = 0.2  # weight of the newest batch in the moving average of the seconds per row
LONGEST_DELAY = 60  # largest number of seconds after which a refused client is asked to retry


class Measures(Protocol):
    """Interface of the metrics to which the batcher reports."""

    def batch(self, rows: int, seconds: float) -> None:
        """Count a batch."""

    def failure(self, rows: int) -> None:
        """Count rows whose translation raised an error."""


class OverloadedError(RuntimeError):
    """Raised if the queue has not enough free places for the rows of a request.

    Args:
        message: Error message for the client.
        delay: Estimated number of seconds until the queue is empty.
    """

    def __init__(self, message: str, delay: int) -> None:
        super().__init__(message)
        self.delay = delay


@dataclass(frozen=True)
class Options:
    """Decoding options of rows; rows with equal options can share a batch.

    Args:
        n_best: See `TextTranslator.translate`.
        num_beams: See `TextTranslator.translate`.
        max_new_tokens: See `TextTranslator.translate`.
        syntax: See `TextTranslator.translate`.
    """

    n_best: int = 1
    num_beams: int = 5
    max_new_tokens: int | None = None
    syntax: str | None = None


@dataclass(eq=False)
class Job:
    """The rows of one request.

    Args:
        rows: The rows.
        options: The decoding options.

    Attributes:
        future: Future of the translations of all rows, or of the error.
        results: Number of a row -> translation, for the rows translated so far.
    """

    rows: Sequence[Row]
    options: Options
    future: Future[list[Translation]] = field(default_factory=Future)
    results: dict[int, Translation] = field(default_factory=dict)

    def finish(self, number: int, translation: Translation) -> None:
        """Store the translation of a row, and complete the future after the last row.

        Args:
            number: Number of the row.
            translation: Translation of the row.
        """
        self.results[number] = translation
        if len(self.results) == len(self.rows):
            with suppress(InvalidStateError):  # the request was cancelled, or another row of it failed
                self.future.set_result([self.results[i] for i in range(len(self.rows))])

    def fail(self, error: Exception) -> None:
        """Complete the future with an error.

        Args:
            error: The error.
        """
        with suppress(InvalidStateError):
            self.future.set_exception(error)


Item = tuple[Job, int]  # a row in the queue: its request, and its number in the request


class Batcher:
    """Queue of rows with a worker thread that translates them in batches, in the order of arrival.

    A batch consists of the first row of the queue and further rows with the same options. If there are fewer than
    `max_batch` such rows, the worker waits up to `max_wait` seconds for more. If a batch raises an error, the rows are
    translated one by one, so that only the requests with failing rows fail.

    Args:
        translator: Translator of the rows; only the worker thread calls it.
        max_batch: Largest number of rows of a batch.
        max_wait: Seconds that the worker waits for further rows.
        max_queue: Largest number of rows in the queue, without the rows of the running batch.
        measures: Metrics that count batches and failures. With None, nothing is counted.
    """

    def __init__(
        self,
        translator: Translator,
        *,
        max_batch: int = 32,
        max_wait: float = 0.01,
        max_queue: int = 1024,
        measures: Measures | None = None,
    ) -> None:
        self.translator = translator
        self.max_batch = max_batch
        self.max_wait = max_wait
        self.max_queue = max_queue
        self.measures = measures
        self._waiting: deque[Item] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._seconds_per_row = 0.0
        self._thread = threading.Thread(target=self._run, name="translator", daemon=True)

    def start(self) -> None:
        """Start the worker thread."""
        self._thread.start()

    def close(self, timeout: float | None = None) -> None:
        """Refuse further rows, translate those in the queue, and end the worker thread.

        Args:
            timeout: Seconds to wait for the thread. None waits until the thread has ended.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout)

    @property
    def is_alive(self) -> bool:
        """Whether the worker thread is running."""
        return self._thread.is_alive()

    @property
    def is_full(self) -> bool:
        """Whether the queue is full or closed."""
        with self._changed:
            return self._closed or len(self._waiting) >= self.max_queue

    @property
    def waiting(self) -> int:
        """Number of rows in the queue."""
        with self._changed:
            return len(self._waiting)

    def submit(self, rows: Sequence[Row], options: Options) -> Job:
        """Put the rows of a request into the queue, or raise an error if there are not enough places for all rows.

        Args:
            rows: The rows, at least one.
            options: The decoding options.

        Returns:
            The request, whose `future` receives the translations.

        Raises:
            OverloadedError: If the queue has not enough places, or the batcher is closed.
        """
        with self._changed:
            if self._closed:
                raise OverloadedError("the service is shutting down", 1)
            if len(self._waiting) + len(rows) > self.max_queue:
                raise OverloadedError(
                    f"{len(self._waiting)} rows are waiting; with the {len(rows)} of this request there would be more "
                    f"than {self.max_queue}",
                    min(max(1, round(len(self._waiting) * self._seconds_per_row)), LONGEST_DELAY),
                )
            job = Job(rows, options)
            self._waiting.extend((job, number) for number in range(len(rows)))
            self._changed.notify_all()
        return job

    def cancel(self, job: Job) -> int:
        """Remove the rows of a request from the queue. Rows in the running batch are still translated.

        Args:
            job: The request.

        Returns:
            Number of rows that were still in the queue.
        """
        job.future.cancel()
        with self._changed:
            before = len(self._waiting)
            self._waiting = deque(item for item in self._waiting if item[0] is not job)
            return before - len(self._waiting)

    def _run(self) -> None:
        while batch := self._next_batch():
            self._translate(batch)

    def _next_batch(self) -> list[Item]:
        """Wait for the rows of the next batch; the list is empty if the batcher is closed and the queue is empty."""
        with self._changed:
            while True:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if not self._waiting:
                    return []
                end = time.monotonic() + self.max_wait
                while (
                    0 < self._count_alike() < self.max_batch
                    and not self._closed
                    and (left := end - time.monotonic()) > 0
                ):
                    self._changed.wait(left)
                if batch := self._take():  # empty if the requests were cancelled meanwhile
                    return batch

    def _count_alike(self) -> int:
        """Return the number of rows in the queue that have the options of the first row."""
        return sum(job.options == self._waiting[0][0].options for job, _ in self._waiting)

    def _take(self) -> list[Item]:
        """Remove up to `max_batch` rows with the options of the first row from the queue, and return them."""
        batch: list[Item] = []
        others: deque[Item] = deque()
        for item in self._waiting:
            fits = len(batch) < self.max_batch and (not batch or item[0].options == batch[0][0].options)
            (batch if fits else others).append(item)
        self._waiting = others
        return batch

    def _translate(self, batch: Sequence[Item]) -> None:
        """Translate a batch and hand the translations to the requests."""
        began = time.monotonic()
        try:
            translations = self._call(batch)
        except Exception as error:
            if len(batch) > 1:
                logger.warning("a batch of %d rows failed (%s); its rows are translated one by one", len(batch), error)
                for item in batch:
                    if not item[0].future.done():
                        self._translate([item])
                return
            logger.exception("a row cannot be translated")
            if self.measures:
                self.measures.failure(len(batch))
            batch[0][0].fail(error)
            return
        seconds = time.monotonic() - began
        per_row = seconds / len(batch)
        self._seconds_per_row += (per_row - self._seconds_per_row) * (SMOOTHING if self._seconds_per_row else 1.0)
        if self.measures:
            self.measures.batch(len(batch), seconds)
        for (job, number), translation in zip(batch, translations, strict=True):
            job.finish(number, translation)

    def _call(self, batch: Sequence[Item]) -> list[Translation]:
        options = batch[0][0].options
        translations = self.translator.translate(
            [job.rows[number] for job, number in batch],
            n_best=options.n_best,
            num_beams=options.num_beams,
            max_new_tokens=options.max_new_tokens,
            syntax=options.syntax,
        )
        if len(translations) != len(batch):
            raise RuntimeError(f"the translator gave {len(translations)} translations for {len(batch)} rows")
        return translations
