"""Check requests for translations, queue their rows, and answer with candidates, scores and confidences."""

from __future__ import annotations

import asyncio
import math
import re
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import HTTPException
from pydantic import BaseModel, ConfigDict, Discriminator, Field, StrictInt, StrictStr, Tag
from starlette.types import Receive

from hf_multisource.data.checks import check_at_least
from hf_multisource.data.placeholders import SYNTAXES
from hf_multisource.evaluation.confidence import CANDIDATES, Confidence
from hf_multisource.evaluation.text_translator import Translation, Translator
from hf_multisource.json_files import JsonObject
from hf_multisource.messages import shown
from hf_multisource.serving.batching import Batcher, Job, Options, OverloadedError
from hf_multisource.serving.metrics import Metrics
from hf_multisource.source_kinds import is_absent

SURROGATE = re.compile("[\ud800-\udfff]")  # JSON can write one alone, as "\\ud800"; UTF-8 cannot

SourceRow = dict[StrictStr, StrictStr | None]


class TranslateBody(BaseModel):
    """The body of `POST /translate`.

    Args:
        sources: The texts of one row by name of the source, or a list of rows; null, an empty text or a name left out:
            absent.
        n_best: Largest number of candidates.
        num_beams: Beam width; null: the service's.
        syntax: Syntax of the placeholders; null: that of the model's training, or else any.
    """

    model_config = ConfigDict(extra="forbid")

    sources: Annotated[
        Annotated[SourceRow, Tag("row")] | Annotated[list[SourceRow], Tag("rows")],
        Discriminator(lambda value: "rows" if isinstance(value, list) else "row"),
    ]
    n_best: StrictInt = Field(default=1, ge=1)
    num_beams: StrictInt | None = Field(default=None, ge=2)
    syntax: StrictStr | None = None


@dataclass(frozen=True)
class Limits:
    """Bounds on what one request, and all together, may cost.

    Args:
        max_body: Bytes of a request's body.
        max_rows: Rows of a request.
        max_characters: Characters of a text.
        max_beams: Beam width, and number of candidates.
        max_queue: Rows that wait for the model, of all requests together.
        max_batch: Rows that are translated at once.
        max_wait: Seconds that a batch waits for further rows.
        time_limit: Seconds until a request must have been read, and after that seconds until it is answered.

    Raises:
        ValueError: If a value is not allowed; the message names it.
    """

    max_body: int = 2**20
    max_rows: int = 128
    max_characters: int = 5000
    max_beams: int = 10
    max_queue: int = 1024
    max_batch: int = 32
    max_wait: float = 0.01
    time_limit: float = 60.0

    def __post_init__(self) -> None:
        check_at_least(1, max_body=self.max_body, max_rows=self.max_rows, max_characters=self.max_characters)
        check_at_least(1, max_batch=self.max_batch)
        check_at_least(CANDIDATES, max_beams=self.max_beams)
        check_at_least(0, max_wait=self.max_wait)
        check_at_least(self.max_rows, max_queue=self.max_queue)
        check_at_least(0.01, time_limit=self.time_limit)


class FieldError(ValueError):
    """Raised for a field of a request that is not allowed.

    Args:
        field: Its place, such as "sources[0].de".
        message: What is wrong.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class Service:
    """A translator with its queue, limits and metrics.

    Args:
        translator: Translates rows.
        confidence: The calibrated confidence; None: translations have none.
        target: Name of the target language; None: unknown.
        num_beams: Beam width where a request sets none; None: that of the confidence, or else 5.
        max_new_tokens: As `TextTranslator.translate` has it.
        limits: Bounds on requests.

    Raises:
        ValueError: If the confidence belongs to other sources, or the beam is wider than the limits allow.
    """

    def __init__(
        self,
        translator: Translator,
        *,
        confidence: Confidence | None = None,
        target: str | None = None,
        num_beams: int | None = None,
        max_new_tokens: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.sources = tuple(translator.sources)
        self.confidence = confidence
        self.target = target
        self.num_beams = (confidence.num_beams if confidence else 5) if num_beams is None else num_beams
        self.max_new_tokens = max_new_tokens
        if confidence and confidence.sources != self.sources:
            raise ValueError(
                f"the confidence is for the sources {', '.join(confidence.sources)}; the model's are "
                f"{', '.join(self.sources)}"
            )
        if confidence:
            confidence.warn_of_other_search("this model", translator.search_settings(max_new_tokens))
        if not CANDIDATES <= self.num_beams <= self.limits.max_beams:
            raise ValueError(
                f"num_beams is {self.num_beams}; it must be at least {CANDIDATES} and at most max_beams, "
                f"{self.limits.max_beams}"
            )
        self.metrics = Metrics(lambda: self.batcher.waiting)
        self.batcher: Batcher = Batcher(
            translator,
            max_batch=self.limits.max_batch,
            max_wait=self.limits.max_wait,
            max_queue=self.limits.max_queue,
            measures=self.metrics,
        )

    def read_rows(self, body: TranslateBody) -> list[SourceRow]:
        """Check the rows of a request.

        Args:
            body: The request.

        Returns:
            The rows.

        Raises:
            FieldError: If a row is not allowed.
        """
        several = isinstance(body.sources, list)
        rows = body.sources if isinstance(body.sources, list) else [body.sources]
        if not 1 <= len(rows) <= self.limits.max_rows:
            raise FieldError("sources", f"there are {len(rows)} rows; allowed are 1 to {self.limits.max_rows}")
        for number, row in enumerate(rows):
            place = f"sources[{number}]" if several else "sources"
            for name, text in row.items():
                if name not in self.sources:
                    raise FieldError(
                        f"{place}.{name}",
                        f"{shown(name)} is no source of this model; its sources are {', '.join(self.sources)}",
                    )
                if text is not None and len(text) > self.limits.max_characters:
                    raise FieldError(
                        f"{place}.{name}",
                        f"the text has {len(text)} characters; at most {self.limits.max_characters} are allowed",
                    )
                if text is not None and SURROGATE.search(text):
                    raise FieldError(f"{place}.{name}", "the text has half of a surrogate pair, which is no character")
            if all(map(is_absent, row.values())):
                raise FieldError(place, "no source has a text; give at least one")
        return rows

    def read_options(self, body: TranslateBody) -> Options:
        """Check how a request wants its rows to be searched.

        Args:
            body: The request.

        Returns:
            The options; with a confidence, at least `CANDIDATES` candidates.

        Raises:
            FieldError: If a value is not allowed.
        """
        beams = self.num_beams if body.num_beams is None else body.num_beams
        if beams > self.limits.max_beams:
            raise FieldError("num_beams", f"num_beams is {shown(beams)}; it must be at most {self.limits.max_beams}")
        if body.n_best > beams:
            raise FieldError("n_best", f"n_best is {shown(body.n_best)}; it must be at most num_beams, {beams}")
        if body.syntax is not None and body.syntax not in SYNTAXES:
            raise FieldError("syntax", f"syntax is {shown(body.syntax)}; allowed are {', '.join(SYNTAXES)}")
        n_best = max(body.n_best, CANDIDATES) if self.confidence else body.n_best
        return Options(n_best, beams, self.max_new_tokens, body.syntax)

    def answer(self, row: SourceRow, translation: Translation, n_best: int, num_beams: int) -> JsonObject:
        """Return the translation of a row as the client gets it.

        Args:
            row: The row.
            translation: Its translation.
            n_best: Largest number of candidates.
            num_beams: Beam width of the search.

        Returns:
            JSON values.
        """
        calibrated = self.confidence if self.confidence and self.confidence.num_beams == num_beams else None
        return {
            "candidates": [
                {"text": one.text, "score": one.score if math.isfinite(one.score) else None}
                for one in translation.candidates[:n_best]
            ],
            "confidence": calibrated.probability(row, translation) if calibrated else None,
            "refused": translation.refused or None,
        }

    async def translate(self, body: TranslateBody, receive: Receive) -> list[JsonObject] | None:
        """Translate the rows of a request.

        Args:
            body: The request.
            receive: The channel on which the client's disconnection is reported.

        Returns:
            The answer for each row; None if the client has disconnected.

        Raises:
            FieldError: If a field is not allowed.
            HTTPException: If the queue is full, or the time limit has passed.
        """
        rows, options = self.read_rows(body), self.read_options(body)
        try:
            job = self.batcher.submit(rows, options)
        except OverloadedError as error:
            raise HTTPException(503, str(error), {"Retry-After": str(error.delay)}) from error
        translations = await self.wait(job, receive)
        if translations is None:
            return None
        refused = sum(not translation.candidates for translation in translations)
        self.metrics.rows.labels("refused").inc(refused)
        self.metrics.rows.labels("translated").inc(len(rows) - refused)
        return [
            self.answer(row, translation, body.n_best, options.num_beams)
            for row, translation in zip(rows, translations, strict=True)
        ]

    async def wait(self, job: Job, receive: Receive) -> list[Translation] | None:
        """Wait for the translations of a request; its rows leave the queue when nobody waits for them any more.

        Args:
            job: The request.
            receive: The channel on which the client's disconnection is reported.

        Returns:
            The translations; None if the client has disconnected.

        Raises:
            HTTPException: If the time limit has passed, or a row cannot be translated.
        """
        done = asyncio.wrap_future(job.future)
        gone = asyncio.ensure_future(disconnection(receive))
        try:
            first: set[asyncio.Future[Any]] = {done, gone}
            await asyncio.wait(first, timeout=self.limits.time_limit, return_when=asyncio.FIRST_COMPLETED)
            if done.done():
                return done.result()
            self.metrics.rows.labels("dropped").inc(len(job.rows))
            if gone.done():
                return None
            raise HTTPException(504, f"the translation took longer than {self.limits.time_limit:g} seconds")
        except HTTPException:
            raise
        except Exception as error:
            raise HTTPException(500, "the translation failed; the log of the service says why") from error
        finally:
            gone.cancel()
            self.batcher.cancel(job)


async def disconnection(receive: Receive) -> None:
    """Return when the client has disconnected.

    Args:
        receive: The channel of a request whose body has been read.
    """
    while (await receive())["type"] != "http.disconnect":
        pass
