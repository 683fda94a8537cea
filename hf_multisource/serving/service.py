"""Check translation requests, queue their rows, and return candidates, scores and confidences."""

from __future__ import annotations

import asyncio
import math
import re
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import HTTPException
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictInt,
    StrictStr,
    Tag,
    model_validator,
)
from starlette.types import Receive

from hf_multisource.data.checks import check_at_least, check_choice
from hf_multisource.data.placeholders import ANY, SYNTAXES
from hf_multisource.evaluation.confidence import CANDIDATES, Confidence
from hf_multisource.evaluation.text_translator import Translation, Translator
from hf_multisource.json_files import JsonObject
from hf_multisource.messages import shown
from hf_multisource.serving.batching import Batcher, Job, Options, OverloadedError
from hf_multisource.serving.metrics import Metrics
from hf_multisource.source_kinds import is_absent

SURROGATE = re.compile("[\ud800-\udfff]")  # JSON may contain unpaired surrogates such as "\\ud800", UTF-8 not


def first_wrong_text(row: Any) -> Any:
    """Reduce a row with wrong values to the first of them.

    Pydantic creates an error for each wrong value of a dict, which takes seconds for a body of 1 MiB. The response
    names only the first one.

    Args:
        row: A value of the parsed JSON.

    Returns:
        The row; if it has values that are neither texts nor null, a dict with the first of them alone.
    """
    if isinstance(row, dict):
        for name, text in row.items():
            if not isinstance(text, str | None):
                return {name: text}
    return row


SourceRow = Annotated[dict[StrictStr, StrictStr | None], BeforeValidator(first_wrong_text)]


class TranslateBody(BaseModel):
    """The body of `POST /translate`.

    Args:
        sources: Source name -> text of one row, or a list of such rows. A source is absent if its value is null, an
            empty text or missing.
        n_best: Largest number of candidates.
        num_beams: Beam width. Defaults to the beam width of the service.
        syntax: Syntax of the placeholders. Defaults to the syntax of the service.
    """

    model_config = ConfigDict(extra="forbid")

    sources: Annotated[
        Annotated[SourceRow, Tag("row")] | Annotated[list[SourceRow], Field(fail_fast=True), Tag("rows")],
        Discriminator(lambda value: "rows" if isinstance(value, list) else "row"),
    ]
    n_best: StrictInt = Field(default=1, ge=1)
    num_beams: StrictInt | None = Field(default=None, ge=2)
    syntax: StrictStr | None = None

    @model_validator(mode="before")
    @classmethod
    def first_unknown_field(cls, body: Any) -> Any:
        """Remove all unknown fields except the first one, for the reason that `first_wrong_text` gives.

        Args:
            body: The parsed JSON.

        Returns:
            The body, with at most one unknown field.
        """
        if not isinstance(body, dict):
            return body
        unknown = [name for name in body if name not in cls.model_fields]
        return {name: body[name] for name in (*cls.model_fields, *unknown[:1]) if name in body}


@dataclass(frozen=True)
class Limits:
    """Limits of a request and of the service.

    Args:
        max_body: Largest size of a request's body in bytes.
        max_rows: Largest number of rows of a request.
        max_characters: Largest number of characters of a text.
        max_beams: Largest beam width, and largest number of candidates.
        max_queue: Largest number of rows, of all requests together, that wait for the model.
        max_batch: Largest number of rows that are translated at once.
        max_wait: Seconds that a batch waits for further rows.
        time_limit: Seconds in which the body of a request must arrive, and seconds in which it must then be answered.

    Raises:
        ValueError: If a value is not allowed; the message names the setting.
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


def check_beams(num_beams: int, limits: Limits) -> None:
    """Check the default beam width of requests.

    Args:
        num_beams: The beam width.
        limits: Limits of requests.

    Raises:
        ValueError: If it is smaller than `CANDIDATES` or larger than `max_beams`.
    """
    if not CANDIDATES <= num_beams <= limits.max_beams:
        raise ValueError(
            f"num_beams is {num_beams}; it must be at least {CANDIDATES} and at most max_beams, {limits.max_beams}"
        )


class FieldError(ValueError):
    """Raised for a field of a request that is not allowed.

    Args:
        field: Name of the field, such as "sources[0].de".
        message: The error message.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class Service:
    """Translation service: a translator with its queue, limits and metrics.

    Args:
        translator: Translator of the rows.
        confidence: The calibrated confidence. With None, translations have no confidence.
        target: Name of the target language, if it is known.
        num_beams: Default beam width of requests. Defaults to the beam width of the confidence, or else to 5.
        max_new_tokens: See `TextTranslator.translate`.
        syntax: Placeholder syntax of the model's training. Defaults to "any". If the confidence was fitted with another
            syntax, that one is the default of requests.
        limits: Limits of requests.

    Raises:
        ValueError: If the confidence was fitted for other sources, or an option is not allowed.
    """

    def __init__(
        self,
        translator: Translator,
        *,
        confidence: Confidence | None = None,
        target: str | None = None,
        num_beams: int | None = None,
        max_new_tokens: int | None = None,
        syntax: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.sources = tuple(translator.sources)
        self.confidence = confidence
        self.target = target
        self.num_beams = (confidence.num_beams if confidence else 5) if num_beams is None else num_beams
        self.max_new_tokens = max_new_tokens
        self.syntax = (confidence.facts.get("syntax") if confidence else None) or syntax or ANY
        check_choice(list(SYNTAXES), syntax=self.syntax)
        if confidence and confidence.sources != self.sources:
            raise ValueError(
                f"the confidence is for the sources {', '.join(confidence.sources)}; the model's are "
                f"{', '.join(self.sources)}"
            )
        search = translator.search_settings(max_new_tokens)  # raises ValueError if the model allows fewer tokens
        if confidence:
            confidence.warn_of_other_search("this model", search)
        check_beams(self.num_beams, self.limits)
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
        """Check the decoding options of a request.

        Args:
            body: The request.

        Returns:
            The options, with at least `CANDIDATES` candidates if the service has a confidence.

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
        return Options(n_best, beams, self.max_new_tokens, body.syntax or self.syntax)

    def answer(self, row: SourceRow, translation: Translation, n_best: int, options: Options) -> JsonObject:
        """Return the translation of a row as JSON values.

        Args:
            row: The row.
            translation: Translation of the row.
            n_best: Largest number of candidates.
            options: Decoding options of the translation.

        Returns:
            The entry of the row in the response. It has a confidence only if beam width and syntax are those of the
            calibration, because they change the scores.
        """
        calibrated = self.confidence
        if calibrated and (options.num_beams, options.syntax) != (calibrated.num_beams, self.syntax):
            calibrated = None
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
            receive: ASGI channel that reports when the client disconnects.

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
            self.answer(row, translation, body.n_best, options)
            for row, translation in zip(rows, translations, strict=True)
        ]

    async def wait(self, job: Job, receive: Receive) -> list[Translation] | None:
        """Wait for the translations of a request, and remove its rows from the queue if the client disconnects.

        Args:
            job: The request.
            receive: ASGI channel that reports when the client disconnects.

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
    """Wait until the client has disconnected.

    Args:
        receive: ASGI channel of a request whose body has been read.
    """
    while (await receive())["type"] != "http.disconnect":
        pass
