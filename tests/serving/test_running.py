"""Where the service may listen, and with which token; how it starts and ends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import uvicorn

from fake_translator import SECONDS, FakeTranslator
from hf_multisource.cli import serve as command
from hf_multisource.cli.app import main
from hf_multisource.data.masking import SYNTAX_KEY
from hf_multisource.evaluation.text_translator import TextTranslator
from hf_multisource.serving import running
from hf_multisource.serving.running import Serving, bind, read_token, serve
from hf_multisource.serving.service import Limits, Service

TOKEN = "a-secret-of-many-letters"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_a_public_address_without_a_token_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match=r"host is '.*', which other machines can reach: give --token_file"):
        Serving("run", host=host)
    assert Serving("run", host=host, token_file=Path("token")).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_an_address_of_this_machine_needs_no_token(host: str) -> None:
    assert Serving("run", host=host).token_file is None


def test_the_first_line_of_a_file_is_the_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"  {TOKEN} \nnot this\n")
    assert read_token(file) == TOKEN


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the token has 0 characters; it must have at least 16"),
        ("\n" + TOKEN, "the token has 0 characters; it must have at least 16"),
        ("short", "the token has 5 characters; it must have at least 16"),
        ("a secret of many letters", "visible ASCII characters without blanks"),
        ("ein geheimes Wörtchen", "visible ASCII characters without blanks"),
        ("x" * 5000, "at most 4,096 are read"),
    ],
)
def test_a_bad_token_is_refused_and_not_shown(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "token"
    file.write_text(content, "utf-8")
    with pytest.raises(ValueError) as error:
        read_token(file)
    assert str(file) in str(error.value)
    assert message in str(error.value)
    assert content.strip() == "" or content.strip() not in str(error.value)


def test_an_address_that_cannot_be_used_is_named() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"^cannot listen at 127\.0\.0\.1, port {port}: Address already in use"):
            bind("127.0.0.1", port)
    with pytest.raises(OSError, match=r"cannot listen at 192\.0\.2\.1, port 0: "):
        bind("192.0.2.1", 0)


def test_options_are_checked_before_the_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["--host", "0.0.0.0"], "hf-multisource serve: host is '0.0.0.0', which other machines can reach"),
        (["--port", "99999"], "hf-multisource serve: port is 99999; it must be at least 0 and at most 65535"),
        (["--max_rows", "0"], "hf-multisource serve: max_rows is 0; it must be at least 1"),
        (["--max_new_tokens", "0"], "hf-multisource serve: max_new_tokens is 0; it must be at least 1"),
        (["--max_new_tokens", "-5"], "hf-multisource serve: max_new_tokens is -5; it must be at least 1"),
        (["--num_beams", "1"], "hf-multisource serve: num_beams is 1; it must be at least 2 and at most max_beams, 10"),
        (["--num_beams", "11"], "hf-multisource serve: num_beams is 11; it must be at least 2 and at most max_beams"),
        (["--optimize", "int3"], "hf-multisource serve: optimize is 'int3'; allowed are"),
        (["--token_file", "/nowhere"], "No such file"),
    ):
        with pytest.raises(SystemExit) as end:
            main(["serve", "no-such-run", *arguments])
        assert message in str(end.value)
    with pytest.raises(SystemExit, match="no-such-run"):
        main(["serve", "./no-such-run", "--port", "0"])


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "MODULES", ("fastapi", "not_installed"))
    message = r'run pip install "\.\[serve\]" in a clone of the repository \(not_installed is missing\)'
    with pytest.raises(SystemExit, match=message):
        main(["serve", "run"])


@contextmanager
def started(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Run the service in a thread, and give its port."""
    servers: list[uvicorn.Server] = []
    run_server = uvicorn.Server.run

    def run(server: uvicorn.Server, sockets: list[socket.socket] | None = None) -> None:
        servers.append(server)
        run_server(server, sockets)

    monkeypatch.setattr(uvicorn.Server, "run", run)
    said = threading.Event()
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        said.set()

    job = Serving(str(folder), port=0, limits=Limits(time_limit=SECONDS))
    service = threading.Thread(target=serve, args=(job, say, FakeTranslator()))
    service.start()
    assert said.wait(SECONDS)
    try:
        yield int(lines[0].split()[0].rpartition(":")[2])
    finally:
        servers[0].should_exit = True
        service.join(SECONDS)


def health(connection: socket.socket) -> bytes:
    """Return the first bytes of the answer to a request; nothing if the connection is closed."""
    try:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return connection.recv(12)
    except ConnectionError:
        return b""


def test_connections_beyond_the_limit_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "CONNECTIONS", 3)
    with started(tmp_path, monkeypatch) as port, ExitStack() as stack:

        def connect() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=2))

        allowed = [connect() for _ in range(3)]
        assert [health(connection) for connection in allowed] == [b"HTTP/1.1 200"] * 3
        silent = connect()
        assert silent.recv(1) == b""
        assert health(connect()) == b""
        allowed[0].close()
        for _ in range(100):  # the service learns of the end a moment later
            if health(connect()):
                break
        else:
            raise AssertionError("no connection is free again")


def test_the_loaded_model_decodes_whole_batches_with_its_own_syntax(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake: Any = FakeTranslator()
    fake.batch_size = 16
    fake.processor = SimpleNamespace(tokenizer=SimpleNamespace(init_kwargs={SYNTAX_KEY: "gtk"}))
    services: list[Service] = []
    monkeypatch.setattr(TextTranslator, "from_run", lambda name, **options: fake)
    monkeypatch.setattr(running, "make_app", lambda service, token: services.append(service))
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: None)
    serve(Serving(str(tmp_path), port=0, limits=Limits(max_batch=24)), print)
    assert fake.batch_size == services[0].batcher.max_batch == 24
    assert services[0].syntax == "gtk"


def test_a_connection_without_headers_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "HEAD_SECONDS", 0.3)
    with started(tmp_path, monkeypatch) as port:
        body = b'{"sources": {"en": "a"}}'
        head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        for sent in (b"", b"GET /health HTTP/1.1\r\nHost: loc"):
            with socket.create_connection(("127.0.0.1", port), SECONDS) as silent:
                silent.sendall(sent)
                assert silent.recv(1000) == b""
        with socket.create_connection(("127.0.0.1", port), SECONDS) as slow:  # the body has a limit of its own
            slow.sendall(head + f"Content-Length: {len(body)}\r\n\r\n".encode())
            assert not threading.Event().wait(0.6)
            slow.sendall(body)
            answer = b""
            while not answer.endswith(b"]}"):
                piece = slow.recv(1000)
                assert piece
                answer += piece
            assert answer.startswith(b"HTTP/1.1 200")
            slow.sendall(b"GET /he")  # the next request of the same connection
            assert slow.recv(1000) == b""


def test_it_answers_at_its_address_and_finishes_what_has_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends as at SIGTERM, whose handler of uvicorn sets `should_exit` too."""
    servers: list[uvicorn.Server] = []
    started = uvicorn.Server.run

    def run(server: uvicorn.Server, sockets: list[socket.socket] | None = None) -> None:
        servers.append(server)
        started(server, sockets)

    monkeypatch.setattr(uvicorn.Server, "run", run)
    (tmp_path / "token").write_text(TOKEN)
    fake, said = FakeTranslator(), threading.Event()
    lines: list[str] = []
    fake.hold()
    job = Serving(str(tmp_path), port=0, token_file=tmp_path / "token", target="dsb", limits=Limits(time_limit=SECONDS))

    def say(line: str) -> None:
        lines.append(line)
        said.set()

    service = threading.Thread(target=serve, args=(job, say, fake))
    service.start()
    assert said.wait(SECONDS)
    address = lines[0].split()[0]
    assert lines == [f"{address} translates en, de to dsb (without confidence, with token)"]
    answers: list[Any] = []

    def ask() -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        answers.append(
            httpx2.post(f"{address}/translate", json={"sources": {"en": "a"}}, headers=headers, timeout=SECONDS)
        )

    client = threading.Thread(target=ask)
    client.start()
    fake.wait_until_busy()
    servers[0].should_exit = True
    assert not threading.Event().wait(0.3)
    assert service.is_alive()
    fake.free.set()
    client.join(SECONDS)
    service.join(SECONDS)
    assert not service.is_alive()
    assert answers[0].json()["translations"][0]["candidates"][0]["text"] == "A"
    assert "server" not in answers[0].headers
