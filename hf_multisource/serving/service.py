"""The web application of `hf-multisource serve`, in FastAPI.

A request passes the [`Gate`] first, which checks its token and the size of its body; then pydantic checks the types of
its fields and [`Service.read_rows`] what the model allows; the rest is done by [`Batcher`].
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated, Any

import anyio
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Discriminator, Field, StrictInt, StrictStr, Tag
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hf_multisource.data.checks import check_at_least
from hf_multisource.data.placeholders import SYNTAXES
from hf_multisource.evaluation.confidence import CANDIDATES, Confidence
from hf_multisource.evaluation.text_translator import Translation
from hf_multisource.json_files import JsonObject
from hf_multisource.messages import shown
from hf_multisource.serving.batching import Batcher, Job, Options, OverloadedError, Translator
from hf_multisource.source_kinds import is_absent

OPEN_PATHS = ("/health", "/ready")  # need no token: what starts and watches services has none
GONE = 499  # status, in the metrics, of a request whose client has disconnected
SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)  # limits of the histograms of times
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)  # limits of the histogram of batches

SURROGATE = re.compile("[\ud800-\udfff]")  # JSON can write one alone, as "\\ud800"; UTF-8 cannot

SourceRow = dict[StrictStr, StrictStr | None]


class TranslateBody(BaseModel):
    """The body of `POST /translate`.

    Args:
        sources: The texts of one row by name of the source, or a list of rows; null, an empty text or a name left out:
            absent.
        n_best: Largest number of candidates.
        num_beams: Beam width; null: the service's.
        syntax: Syntax of the placeholders; null: any.
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


class Metrics:
    """The numbers behind `/metrics`.

    Args:
        queue: Returns the number of rows in the queue.
    """

    def __init__(self, queue: Any) -> None:
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
            rows: Its rows.
            seconds: The time it took.
        """
        self.batch_rows.observe(rows)
        self.batch_seconds.observe(seconds)

    def failure(self, rows: int) -> None:
        """Count rows whose translation raised an error.

        Args:
            rows: Their number.
        """
        self.rows.labels("failed").inc(rows)


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
        self.num_beams = num_beams or (confidence.num_beams if confidence else 5)
        self.max_new_tokens = max_new_tokens
        if confidence and confidence.sources != self.sources:
            raise ValueError(
                f"the confidence is for the sources {', '.join(confidence.sources)}; the model's are "
                f"{', '.join(self.sources)}"
            )
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


class Gate:
    """Refuses requests without the token, and bodies that are too large or too slow, before they are read.

    Args:
        app: The application behind the gate.
        token: The token; None: none is needed.
        max_body: Bytes of a body.
        time_limit: Seconds until the body must be there.
        metrics: Counts all requests.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, max_body: int, time_limit: float, metrics: Metrics) -> None:
        self.app = app
        self.digest = None if token is None else hashlib.sha256(token.encode()).digest()
        self.max_body = max_body
        self.time_limit = time_limit
        self.metrics = metrics

    def is_allowed(self, scope: Scope) -> bool:
        """Return whether a request has the token, in a time that does not depend on it.

        Args:
            scope: The request.

        Returns:
            Whether it may pass.
        """
        if self.digest is None or scope["path"] in OPEN_PATHS:
            return True
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        kind, _, token = (given[0] if len(given) == 1 else b"").partition(b" ")
        right = hmac.compare_digest(hashlib.sha256(token.strip()).digest(), self.digest)
        return right and kind.lower() == b"bearer"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it.

        Args:
            scope: The request.
            receive: The channel of its body.
            send: The channel of the answer.
        """
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = GONE

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if not self.is_allowed(scope):
                refusal = failure(401, "this service needs the header Authorization: Bearer TOKEN", headers=CHALLENGE)
                await refusal(scope, receive, counted)
            elif announced(scope) > self.max_body:
                await failure(413, self.too_large)(scope, receive, counted)
            else:
                await self.app(scope, self.bounded(receive), counted)
        except Exception:  # answered by the outermost layer
            status = 500
            raise
        finally:
            path = scope["path"] if scope["path"] in PATHS else "other"
            self.metrics.requests.labels(path, str(status)).inc()

    @property
    def too_large(self) -> str:
        """What a client is told whose body is too large."""
        return f"the body is larger than {self.max_body} bytes"

    def bounded(self, receive: Receive) -> Receive:
        """Return a channel that ends with an error if the body is too large or too slow.

        Args:
            receive: The channel of the body.

        Returns:
            The channel.
        """
        size, end, reads_body = 0, time.monotonic() + self.time_limit, True

        async def read() -> Message:
            nonlocal size, reads_body
            if not reads_body:
                return await receive()
            message: Message | None = None
            with anyio.move_on_after(end - time.monotonic()):
                message = await receive()
            if message is None:
                raise HTTPException(408, f"the body took longer than {self.time_limit:g} seconds")
            size += len(message.get("body", b""))
            if size > self.max_body:
                raise HTTPException(413, self.too_large)
            reads_body = bool(message.get("more_body"))
            return message

        return read


CHALLENGE = {"WWW-Authenticate": "Bearer"}
PATHS = ("/translate", "/languages", "/health", "/ready", "/metrics")


def announced(scope: Scope) -> int:
    """Return the size that a request announces for its body; 0 if it announces none.

    Args:
        scope: The request.

    Returns:
        Bytes.
    """
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    with suppress(ValueError):
        return int(lengths[0]) if lengths else 0
    return 0


def failure(
    status: int, message: str, field: str | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return the answer to a request that fails.

    Args:
        status: HTTP status.
        message: What is wrong.
        field: Place of the field that is wrong; None: no field is.
        headers: Further headers.

    Returns:
        The answer.
    """
    content = {"error": message if field is None else f"{field}: {message}"}
    if field is not None:
        content["field"] = field
    return JSONResponse(content, status, dict(headers or {}))


def place_of(location: Sequence[int | str]) -> str:
    """Return the place of a field as messages name it.

    Args:
        location: Such as ("body", "sources", "rows", 0, "de").

    Returns:
        Such as "sources[0].de"; "body" for the whole body.
    """
    parts = list(location[1:])
    if len(parts) > 1 and parts[0] == "sources" and parts[1] in ("row", "rows"):
        del parts[1]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{shown(part)[1:-1]}" for part in parts)
    return place.removeprefix(".") or "body"


def describe_invalid(error: RequestValidationError) -> JSONResponse:
    """Return the answer to a request whose fields have the wrong types; the first of them is named.

    Args:
        error: What pydantic found.

    Returns:
        The answer, with status 422; 400 for a body that is no JSON.
    """
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return failure(400, f"no valid JSON: {first['ctx']['error']} at character {first['loc'][-1]}", "body")
    place = place_of([part for part in first["loc"] if part != "[key]"])
    if first["type"] == "missing":
        return failure(422, "the field is missing", place)
    return failure(422, f"{first['msg']}; got {shown(first['input'])}", place)


def make_app(service: Service, token: str | None = None) -> FastAPI:
    """Return the web application.

    Args:
        service: What answers.
        token: The token that requests must have; None: none.

    Returns:
        The application; its worker thread runs while its lifespan lasts.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.batcher.start()
        yield
        await asyncio.to_thread(service.batcher.close, service.limits.time_limit)

    # No pages of documentation: they would load scripts from another place.
    app = FastAPI(lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None)
    app.add_middleware(
        Gate,
        token=token,
        max_body=service.limits.max_body,
        time_limit=service.limits.time_limit,
        metrics=service.metrics,
    )

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return describe_invalid(error)

    @app.exception_handler(FieldError)
    async def refused(request: Request, error: FieldError) -> JSONResponse:
        return failure(422, str(error), shown(error.field)[1:-1])

    @app.exception_handler(StarletteHTTPException)
    async def failed(request: Request, error: StarletteHTTPException) -> JSONResponse:
        return failure(error.status_code, error.detail, headers=error.headers)

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> JSONResponse:
        return failure(500, "the service has an error; its log says more")

    @app.post("/translate")
    async def translate(body: TranslateBody, request: Request) -> Response:
        began = time.monotonic()
        answers = await service.translate(body, request.receive)
        service.metrics.request_seconds.observe(time.monotonic() - began)
        return Response(status_code=GONE) if answers is None else JSONResponse({"translations": answers})

    @app.get("/languages")
    async def languages() -> JSONResponse:
        return JSONResponse({"sources": list(service.sources), "target": service.target})

    @app.get("/health")
    async def health() -> JSONResponse:
        if not service.batcher.is_alive:
            return failure(503, "the worker thread has ended")
        return JSONResponse({"status": "ok", "version": version("hf-multisource")})

    @app.get("/ready")
    async def ready() -> JSONResponse:
        if not service.batcher.is_alive or service.batcher.is_full:
            return failure(503, "the queue is full" if service.batcher.is_alive else "the worker thread has ended")
        return JSONResponse({"status": "ok"})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app
