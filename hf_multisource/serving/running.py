"""Run the service with uvicorn: read the token, bind the address, and shut down after the last request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from hf_multisource.data.checks import check_at_least, check_choice
from hf_multisource.data.masking import remembered_syntax
from hf_multisource.evaluation.confidence import Confidence
from hf_multisource.evaluation.decoding import OPTIMIZATIONS
from hf_multisource.evaluation.text_translator import TextTranslator, Translator
from hf_multisource.recipes.provenance import find_device
from hf_multisource.recipes.run_folder import data_of_run
from hf_multisource.regular_files import read_regular
from hf_multisource.serving.application import make_app
from hf_multisource.serving.gate import is_loopback
from hf_multisource.serving.service import Limits, Service, check_beams

SHORTEST_TOKEN = 16  # smallest number of characters of a token
LARGEST_TOKEN_FILE = 4096  # bytes of a token file
CONNECTIONS = 256  # number of open connections; further connections are closed
HEAD_SECONDS = 10  # seconds in which headers must arrive; otherwise silent connections could use up `CONNECTIONS`
LAST_SECONDS = 5  # seconds, in addition to the time limit of requests, after which a shutdown is forced


@dataclass(frozen=True)
class Serving:
    """Settings of the service: model, address and limits.

    Args:
        run: Run folder, model folder or Hub id.
        host: Address to listen on.
        port: Port to listen on; 0 chooses a free port.
        token_file: File whose first line is the token that requests must have. With None, no token is needed, which is
            allowed only for loopback addresses.
        target: Name of the target language. Defaults to the target of the recipe.
        num_beams: See [`Service`].
        max_new_tokens: See [`Service`].
        limits: Limits of requests.
        optimize: See `TextTranslator.from_run`.
        device: See `TextTranslator.from_run`.

    Raises:
        ValueError: If the address can be reached from other machines and there is no token, or an option is not
            allowed.
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
        check_at_least(1, max_new_tokens=self.max_new_tokens)
        check_choice(OPTIMIZATIONS, optimize=self.optimize)
        if self.num_beams is not None:
            check_beams(self.num_beams, self.limits)
        if self.token_file is None and not is_loopback(self.host):
            raise ValueError(
                f"host is {self.host!r}, which other machines can reach: give --token_file FILE with a secret of at "
                f"least {SHORTEST_TOKEN} characters, or listen at 127.0.0.1"
            )


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 protocol of uvicorn with bounds on the connections.

    A connection is closed if `CONNECTIONS` others are open, or if the headers of a request do not arrive in time.
    """

    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer for the first request, or close the connection if there are too many.

        Args:
            transport: The connection.
        """
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.abort()
        else:
            self.watch()

    def data_received(self, data: bytes) -> None:
        """Read a piece of a request, and update the timer.

        Args:
            data: The bytes.
        """
        super().data_received(data)
        self.watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer.

        Args:
            exc: The error that ended the connection, if there is one.
        """
        if self.deadline is not None:
            self.deadline.cancel()
        super().connection_lost(exc)

    def watch(self) -> None:
        """Start the timer if the connection waits for the headers of a request, and cancel it after they arrived."""
        is_waiting = self.cycle is None or self.cycle.response_complete
        if is_waiting and self.deadline is None:
            self.deadline = self.loop.call_later(HEAD_SECONDS, self.transport.close)
        elif not is_waiting and self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None


def read_token(path: Path) -> str:
    """Read the token from a file.

    Args:
        path: The file, whose first line is the token.

    Returns:
        The token.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If the token is too short or contains characters that are not allowed in a header. The message names
            the file and does not contain the token.
    """
    lines = read_regular(path, LARGEST_TOKEN_FILE).splitlines()
    token = lines[0].strip() if lines else b""
    if len(token) < SHORTEST_TOKEN:
        raise ValueError(f"{path}: the token has {len(token)} characters; it must have at least {SHORTEST_TOKEN}")
    if not all(33 <= byte <= 126 for byte in token):
        raise ValueError(f"{path}: the token must consist of visible ASCII characters without blanks")
    return token.decode("ascii")


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket to an address without listening, so that clients cannot connect yet.

    Args:
        host: Address.
        port: Port; 0 chooses a free port.

    Returns:
        The socket.

    Raises:
        OSError: If the address does not belong to this machine or is in use; the message names the address.
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
        Name of the target in the recipe of the run; None if there is no recipe.

    Raises:
        ValueError: If the recipe is damaged.
    """
    data = data_of_run(run)
    return None if data is None else data.target


def serve(job: Serving, say: Callable[[str], object], translator: Translator | None = None) -> None:
    """Answer requests until SIGTERM or Ctrl-C, and finish the requests that have arrived by then.

    Args:
        job: Settings of the service.
        say: Function that prints messages for the user.
        translator: The translator. Defaults to the model of the run.

    Raises:
        ValueError: If the model, the confidence or an option is not supported.
        OSError: If the address cannot be used.
    """
    token = None if job.token_file is None else read_token(job.token_file)
    find_device(job.device)
    with bind(job.host, job.port) as bound:
        syntax = None
        if translator is None:
            translator = loaded = TextTranslator.from_run(job.run, device=job.device, optimize=job.optimize)
            loaded.batch_size = job.limits.max_batch
            syntax = remembered_syntax(loaded.processor.tokenizer)
        service = Service(
            translator,
            confidence=Confidence.load(job.run),
            target=job.target or target_of(job.run),
            num_beams=job.num_beams,
            max_new_tokens=job.max_new_tokens,
            syntax=syntax,
            limits=job.limits,
        )
        config = uvicorn.Config(
            make_app(service, token),
            log_config=None,  # log warnings and errors to standard error; requests are counted but not logged
            log_level="warning",
            access_log=False,
            server_header=False,
            http=BoundedProtocol,
            ws="none",
            backlog=CONNECTIONS,  # asyncio accepts up to this many connections before the protocol can close them
            timeout_graceful_shutdown=round(job.limits.time_limit) + LAST_SECONDS,
        )
        bound.listen(config.backlog)  # from here on, connections are queued until uvicorn accepts them
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
