"""Run the service with uvicorn: its address, its token, its start and its end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from hf_multisource.evaluation.confidence import Confidence
from hf_multisource.evaluation.text_translator import TextTranslator, Translator
from hf_multisource.recipes.provenance import find_device
from hf_multisource.recipes.recipe import load_recipe
from hf_multisource.regular_files import read_regular
from hf_multisource.serving.application import make_app
from hf_multisource.serving.gate import is_loopback
from hf_multisource.serving.service import Limits, Service

SHORTEST_TOKEN = 16  # characters
LARGEST_TOKEN_FILE = 4096  # bytes
CONNECTIONS = 256  # open at once; further ones get the status 503
HEAD_SECONDS = 10  # seconds until the headers of a request must be there; silent connections would use up all of them
LAST_SECONDS = 5  # seconds, beyond the time limit of requests, in which the service must have ended


@dataclass(frozen=True)
class Serving:
    """What to serve, and where.

    Args:
        run: Run folder, model folder or Hub id.
        host: Address to listen at.
        port: Port to listen at; 0: a free one.
        token_file: File whose first line is the token that requests must have; None: none, which only addresses of
            this machine allow.
        target: Name of the target language; None: the recipe's.
        num_beams: As [`Service`] has it.
        max_new_tokens: As [`Service`] has it.
        limits: Bounds on requests.
        optimize: As `TextTranslator.from_run` has it.
        device: As `TextTranslator.from_run` has it.

    Raises:
        ValueError: If the address can be reached from other machines and there is no token, or the port is none.
    """

    run: str
    host: str = "127.0.0.1"
    port: int = 8000
    token_file: Path | None = None
    target: str | None = None
    num_beams: int | None = None
    max_new_tokens: int | None = None
    limits: Limits = field(default_factory=Limits)
    optimize: str | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port is {self.port}; it must be at least 0 and at most 65535")
        if self.token_file is None and not is_loopback(self.host):
            raise ValueError(
                f"host is {self.host!r}, which other machines can reach: give --token_file FILE with a secret of at "
                f"least {SHORTEST_TOKEN} characters, or listen at 127.0.0.1"
            )


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 of uvicorn, which closes a connection whose request has no complete headers in time."""

    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request.

        Args:
            transport: The connection.
        """
        super().connection_made(transport)
        self.watch()

    def data_received(self, data: bytes) -> None:
        """Read a piece of a request.

        Args:
            data: The bytes.
        """
        super().data_received(data)
        self.watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait.

        Args:
            exc: Why the connection has ended.
        """
        if self.deadline is not None:
            self.deadline.cancel()
        super().connection_lost(exc)

    def watch(self) -> None:
        """Start the clock if the headers of a request are awaited, and stop it if they are there."""
        is_waiting = self.cycle is None or self.cycle.response_complete
        if is_waiting and self.deadline is None:
            self.deadline = self.loop.call_later(HEAD_SECONDS, self.transport.close)
        elif not is_waiting and self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None


def read_token(path: Path) -> str:
    """Read a token.

    Args:
        path: The file; its first line is the token.

    Returns:
        The token.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If the token is too short or has characters that no header can have; the message names the file and
            does not show the token.
    """
    lines = read_regular(path, LARGEST_TOKEN_FILE).splitlines()
    token = lines[0].strip() if lines else b""
    if len(token) < SHORTEST_TOKEN:
        raise ValueError(f"{path}: the token has {len(token)} characters; it must have at least {SHORTEST_TOKEN}")
    if not all(33 <= byte <= 126 for byte in token):
        raise ValueError(f"{path}: the token must consist of visible ASCII characters without blanks")
    return token.decode("ascii")


def bind(host: str, port: int) -> socket.socket:
    """Reserve an address; nobody can connect to it yet.

    Args:
        host: Address.
        port: Port; 0: a free one.

    Returns:
        The socket.

    Raises:
        OSError: If the address is not one of this machine, or in use; the message names it.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except BaseException:
            bound.close()
            raise
    except OSError as error:
        raise OSError(f"cannot listen at {host}, port {port}: {error.strerror or error}") from error
    return bound


def target_of(run: str) -> str | None:
    """Return the target language of a run.

    Args:
        run: Run folder, model folder or Hub id.

    Returns:
        Name of the target in its recipe; None if it has none.

    Raises:
        ValueError: If the recipe is damaged.
    """
    recipe = Path(run) / "recipe.yaml"
    return load_recipe(recipe).data.target if recipe.exists() else None


def serve(job: Serving, say: Callable[[str], object], translator: Translator | None = None) -> None:
    """Answer requests until SIGTERM or Ctrl-C; requests that have arrived by then are finished.

    Args:
        job: What to serve, and where.
        say: Receives what the user is told.
        translator: Translates; None: the run's own.

    Raises:
        ValueError: If the model, its confidence or an option does not allow it.
        OSError: If the address cannot be used.
    """
    token = None if job.token_file is None else read_token(job.token_file)
    find_device(job.device)
    with bind(job.host, job.port) as bound:
        translator = translator or TextTranslator.from_run(job.run, device=job.device, optimize=job.optimize)
        service = Service(
            translator,
            confidence=Confidence.load(job.run),
            target=job.target or target_of(job.run),
            num_beams=job.num_beams,
            max_new_tokens=job.max_new_tokens,
            limits=job.limits,
        )
        config = uvicorn.Config(
            make_app(service, token),
            log_config=None,  # warnings and errors go to standard error; requests are counted, not logged
            log_level="warning",
            access_log=False,
            server_header=False,
            http=BoundedProtocol,
            ws="none",
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=round(job.limits.time_limit) + LAST_SECONDS,
        )
        bound.listen(config.backlog)  # from here on, who connects waits until uvicorn answers
        host, port = bound.getsockname()[:2]
        place = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        say(
            f"{place} translates {', '.join(service.sources)} to {service.target or 'the target'} "
            f"({'with' if service.confidence else 'without'} confidence, {'with' if token else 'without'} token)"
        )
        try:
            uvicorn.Server(config).run(sockets=[bound])
        except KeyboardInterrupt:  # uvicorn repeats the signal after it has finished all requests
            say("all requests are finished")
