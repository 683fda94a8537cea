"""FastAPI application of `hf-multisource serve`.

The [`Gate`] first checks the token and the body size of a request. Then pydantic checks the types of the fields, and
[`Service`] checks the limits and the requirements of the model.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException as StarletteHTTPException

from hf_multisource.messages import shown
from hf_multisource.serving.gate import GONE, Gate, failure
from hf_multisource.serving.service import FieldError, Service, TranslateBody


def place_of(location: Sequence[int | str]) -> str:
    """Return the name of a field for error messages.

    Args:
        location: Location of the field in pydantic's errors, such as ("body", "sources", "rows", 0, "de").

    Returns:
        The name, such as "sources[0].de"; "body" for the whole body.
    """
    parts = list(location[1:])
    if len(parts) > 1 and parts[0] == "sources" and parts[1] in ("row", "rows"):
        del parts[1]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{shown(part)[1:-1]}" for part in parts)
    return place.removeprefix(".") or "body"


def describe_invalid(error: RequestValidationError) -> JSONResponse:
    """Return the response to a request whose fields have wrong types; it names the first of these fields.

    Args:
        error: The error of pydantic.

    Returns:
        The response with status 422; 400 if the body is not valid JSON, and 415 if it is not declared as JSON.
    """
    first = error.errors()[0]
    if tuple(first["loc"]) == ("body",) and isinstance(first["input"], bytes):  # FastAPI did not parse the body
        return failure(415, "send the header Content-Type: application/json", "body")
    if first["type"] == "json_invalid":
        return failure(400, f"no valid JSON: {first['ctx']['error']} at character {first['loc'][-1]}", "body")
    place = place_of([part for part in first["loc"] if part != "[key]"])
    if first["type"] == "missing":
        return failure(422, "the field is missing", place)
    return failure(422, f"{first['msg']}; got {shown(first['input'])}", place)


def describe_unread(cause: BaseException) -> str:
    """Return the message for a body that raises an unexpected error in Python's JSON parser.

    Args:
        cause: The error of the parser.

    Returns:
        The error message for the client.
    """
    if isinstance(cause, RecursionError):
        return "no valid JSON: nested too deeply"
    if isinstance(cause, UnicodeDecodeError):
        return f"no valid JSON: not in UTF-8 at byte {cause.start}"
    return "no valid JSON: a number has too many digits" if isinstance(cause, ValueError) else "it cannot be read"


def make_app(service: Service, token: str | None = None) -> FastAPI:
    """Return the web application.

    Args:
        service: Service that translates the rows of requests.
        token: The token that requests must have. With None, requests need no token but must be sent to a loopback
            address or name of this machine.

    Returns:
        The application. The worker thread of the service runs during the lifespan of the application.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.batcher.start()
        yield
        await asyncio.to_thread(service.batcher.close, service.limits.time_limit)

    # FastAPI's documentation pages are switched off, because they load scripts from an external server.
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
        if error.status_code == 400 and error.__cause__ is not None:
            return failure(400, describe_unread(error.__cause__), "body")
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
