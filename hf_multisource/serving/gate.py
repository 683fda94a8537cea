"""ASGI middleware that refuses requests without a token, for another host, or with a too large or slow body."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import time
from collections.abc import Mapping
from contextlib import suppress

import anyio
from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hf_multisource.serving.metrics import Metrics

OPEN_PATHS = ("/health", "/ready")  # paths that need no token, because service managers have no token
PATHS = ("/translate", "/languages", "/metrics", *OPEN_PATHS)  # labels in the metrics; all other paths are "other"
GONE = 499  # HTTP status in the metrics for requests whose client has disconnected
CHALLENGE = {"WWW-Authenticate": "Bearer"}


class Gate:
    """ASGI middleware that refuses requests without the token, and requests with a too large or too slow body.

    If no token is needed, the `Host` header of a request must name this machine. This protects against DNS rebinding,
    where the host name of a web page changes to the address of this machine.

    Args:
        app: The application behind the gate.
        token: The token. With None, no token is needed.
        max_body: Largest size of a body in bytes.
        time_limit: Seconds in which a body must arrive.
        metrics: Metrics that count all requests.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, max_body: int, time_limit: float, metrics: Metrics) -> None:
        self.app = app
        self.digest = None if token is None else hashlib.sha256(token.encode()).digest()
        self.max_body = max_body
        self.time_limit = time_limit
        self.metrics = metrics

    def is_allowed(self, scope: Scope) -> bool:
        """Return whether a request has the token; the comparison takes constant time.

        Args:
            scope: The request.

        Returns:
            Whether the request has the token or needs none.
        """
        if self.digest is None or scope["path"] in OPEN_PATHS:
            return True
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        kind, _, token = (given[0] if len(given) == 1 else b"").partition(b" ")
        right = hmac.compare_digest(hashlib.sha256(token.strip()).digest(), self.digest)
        return right and kind.lower() == b"bearer"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or refuse it.

        Args:
            scope: The request.
            receive: ASGI channel of the request's body.
            send: ASGI channel of the response.
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
            if self.digest is None and not is_local(scope):
                message = (
                    "without a token, the service answers requests to localhost and to addresses of this machine only"
                )
                await failure(403, message)(scope, receive, counted)
            elif not self.is_allowed(scope):
                refusal = failure(401, "this service needs the header Authorization: Bearer TOKEN", headers=CHALLENGE)
                await refusal(scope, receive, counted)
            elif announced(scope) > self.max_body:
                await failure(413, self.too_large)(scope, receive, counted)
            else:
                await self.app(scope, self.bounded(receive), counted)
        except Exception:  # Starlette's outermost middleware sends the response
            status = 500
            raise
        finally:
            path = scope["path"] if scope["path"] in PATHS else "other"
            self.metrics.requests.labels(path, str(status)).inc()

    @property
    def too_large(self) -> str:
        """The error message for a body that is too large."""
        return f"the body is larger than {self.max_body} bytes"

    def bounded(self, receive: Receive) -> Receive:
        """Return a channel that raises an error if the body is too large or too slow.

        Args:
            receive: ASGI channel of the body.

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


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this machine.

    Args:
        host: A name or an IP address.

    Returns:
        Whether it is "localhost" or a loopback address.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_local(scope: Scope) -> bool:
    """Return whether a request names this machine as its host.

    Args:
        scope: The request.

    Returns:
        Whether all `Host` headers of the request name this machine; browsers always send one such header.
    """
    hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    return all(is_loopback(re.sub(r":\d*\Z", "", host).removeprefix("[").removesuffix("]")) for host in hosts)


def announced(scope: Scope) -> int:
    """Return the body size in the `Content-Length` header of a request; 0 without a valid header.

    Args:
        scope: The request.

    Returns:
        Size in bytes.
    """
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    with suppress(ValueError):
        return int(lengths[0]) if lengths else 0
    return 0


def failure(
    status: int, message: str, field: str | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return the response to a request that fails.

    Args:
        status: HTTP status.
        message: The error message.
        field: Name of the invalid field, if there is one.
        headers: Further headers.

    Returns:
        The response.
    """
    content = {"error": message if field is None else f"{field}: {message}"}
    if field is not None:
        content["field"] = field
    return JSONResponse(content, status, dict(headers or {}))
