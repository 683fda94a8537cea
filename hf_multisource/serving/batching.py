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

SMOOTHING = 0.2  # weight of the newest batch in the running mean of the seconds a row takes
LONGEST_DELAY = 60  # seconds after which a refused request is told to come again, at most


class Measures(Protocol):
    """What the batcher tells about its work."""

    def batch(self, rows: int, seconds: float) -> None:
        """Count a batch."""

    def failure(self, rows: int) -> None:
        """Count rows whose translation raised an error."""


class OverloadedError(RuntimeError):
    """Raised if the queue has no place for the rows of a request.

    Args:
        message: What to tell the client.
        delay: Seconds after which the queue has probably been worked off.
    """

    def __init__(self, message: str, delay: int) -> None:
        super().__init__(message)
        self.delay = delay


@dataclass(frozen=True)
class Options:
    """How rows are searched; rows with equal options can share a batch.

    Args:
        n_best: As `TextTranslator.translate` has it.
        num_beams: As `TextTranslator.translate` has it.
        max_new_tokens: As `TextTranslator.translate` has it.
        syntax: As `TextTranslator.translate` has it.
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
        options: How they are searched.

    Attributes:
        future: The translations of all rows, or the error.
        results: Translations by number of the row, as far as they are there.
    """

    rows: Sequence[Row]
    options: Options
    future: Future[list[Translation]] = field(default_factory=Future)
    results: dict[int, Translation] = field(default_factory=dict)

    def finish(self, number: int, translation: Translation) -> None:
        """Take the translation of a row.

        Args:
            number: Number of the row.
            translation: Its translation.
        """
        self.results[number] = translation
        if len(self.results) == len(self.rows):
            with suppress(InvalidStateError):  # the request was cancelled, or another row of it failed
                self.future.set_result([self.results[i] for i in range(len(self.rows))])

    def fail(self, error: Exception) -> None:
        """Take an error in place of a translation.

        Args:
            error: The error.
        """
        with suppress(InvalidStateError):
            self.future.set_exception(error)


Item = tuple[Job, int]  # a row: its request, and its number there


class Batcher:
    """A queue of rows, and a thread that translates them in batches in the order in which they came.

    The worker takes the first row of the queue and further ones with the same options, and waits a moment for more if
    there are fewer than `max_batch`. If a batch raises an error, its rows are translated one by one, so that only the
    requests fail whose rows raise it.

    Args:
        translator: Translates the rows; only the worker thread calls it.
        max_batch: Largest number of rows of a batch.
        max_wait: Seconds that the worker waits for further rows.
        max_queue: Largest number of rows in the queue; those in the running batch do not count.
        measures: Counts batches and failures; None: nothing is counted.
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
            timeout: Seconds to wait for the thread; None: until it has ended.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout)

    @property
    def is_alive(self) -> bool:
        """Whether the worker thread runs."""
        return self._thread.is_alive()

    @property
    def is_full(self) -> bool:
        """Whether the queue takes no further row."""
        with self._changed:
            return self._closed or len(self._waiting) >= self.max_queue

    @property
    def waiting(self) -> int:
        """Number of rows in the queue."""
        with self._changed:
            return len(self._waiting)

    def submit(self, rows: Sequence[Row], options: Options) -> Job:
        """Put the rows of a request into the queue: all of them, or none.

        Args:
            rows: The rows, at least one.
            options: How they are searched.

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
        """Take the rows of a request out of the queue; those in the running batch are translated in vain.

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
        """Wait for rows and take those of a batch; none if the batcher is closed and all rows are translated."""
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
                if batch := self._take():  # none if the requests were cancelled meanwhile
                    return batch

    def _count_alike(self) -> int:
        """Number of rows in the queue that have the options of the first one."""
        return sum(job.options == self._waiting[0][0].options for job, _ in self._waiting)

    def _take(self) -> list[Item]:
        """Take the first row and those with the same options, as many as a batch may have."""
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
