"""Refuse requests without a token or for another host, and too large or slow bodies, before the application does."""

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

OPEN_PATHS = ("/health", "/ready")  # need no token: what starts and watches services has none
PATHS = ("/translate", "/languages", "/metrics", *OPEN_PATHS)  # counted under their names; all others as one
GONE = 499  # status, in the metrics, of a request whose client has disconnected
CHALLENGE = {"WWW-Authenticate": "Bearer"}


class Gate:
    """Refuses requests without the token, and bodies that are too large or too slow, before they are read.

    Where no token is needed, requests must name this machine as their host: a page in a browser whose name suddenly
    leads to this machine (DNS rebinding) is refused.

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


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from this machine only.

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
        Whether all headers `Host` do; browsers always send one.
    """
    hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    return all(is_loopback(re.sub(r":\d*\Z", "", host).removeprefix("[").removesuffix("]")) for host in hosts)


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
