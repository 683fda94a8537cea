"""Processes forked from a server that has imported heavy libraries already: importing them takes seconds.

The server imports the given modules and then waits for requests on a Unix socket. A request holds code, arguments, a
working folder, an environment and three open files; a fork of the server runs the code and ends. Variables
of the environment that a library reads when it is imported have no effect on the modules of the server.

`python warm.py SOCKET MODULE...` is the server; `start_server` starts it.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

CLIENT = """#!{python} -SE
import sys
sys.path.insert(0, {support!r})
import os, warm
sys.exit(warm.request({server!r}, {code!r}, sys.argv[1:], os.getcwd(), dict(os.environ), (0, 1, 2)))
"""


@cache
def start_server(*modules: str) -> str:
    """Start the server of this process that imports the given modules, or return the one that runs.

    Args:
        *modules: Their names.

    Returns:
        Path of the server's socket.
    """
    folder = tempfile.TemporaryDirectory(prefix="warm-")
    place = os.path.join(folder.name, "socket")
    process = subprocess.Popen(
        [sys.executable, "-P", __file__, place, *modules],
        cwd=folder.name,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(folder.cleanup)
    atexit.register(process.wait)
    atexit.register(process.kill)  # the last one is called first
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(f"the server of {', '.join(modules)} did not start")
    return place


def request(
    server: str, code: str, arguments: Sequence[str], folder: str, environment: Mapping[str, str], files: Sequence[int]
) -> int:
    """Run code in a fork of a server and wait for its end.

    Args:
        server: Path of the server's socket.
        code: What to run, as `python -c`.
        arguments: `sys.argv[1:]`.
        folder: The current folder.
        environment: All variables of the environment.
        files: Descriptors of standard input, output and error.

    Returns:
        The exit status; 70 if the process did not come to its end.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(server)
        socket.send_fds(connection, [b"files"], list(files))
        content = {"code": code, "arguments": [*arguments], "folder": folder, "environment": {**environment}}
        connection.sendall(json.dumps(content).encode())
        connection.shutdown(socket.SHUT_WR)
        return int(connection.makefile().read() or 70)


def write_client(path: Path, server: str, code: str) -> None:
    """Write a program that runs code in forks of a server, with its own arguments, folder, environment and files.

    Args:
        path: The program.
        server: Path of the server's socket.
        code: What it runs.
    """
    support = str(Path(__file__).parent)
    path.write_text(CLIENT.format(python=sys.executable, support=support, server=server, code=code), "utf-8")
    path.chmod(0o755)


def serve(place: str, modules: Sequence[str]) -> None:
    """Import modules, then answer requests until the process is killed or its parent is gone.

    Args:
        place: Path of the socket.
        modules: Names of the modules.
    """
    for module in modules:
        __import__(module)
    parent = os.getppid()
    forks: set[int] = set()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen()
        listener.settimeout(5)
        print("ready", flush=True)
        while os.getppid() == parent:
            with suppress(TimeoutError):
                connection = listener.accept()[0]
                fork = os.fork()
                if fork == 0:
                    listener.close()
                    answer(connection)
                forks.add(fork)
                connection.close()
            forks -= {fork for fork in forks if os.waitpid(fork, os.WNOHANG)[0]}


def answer(connection: socket.socket) -> None:
    """Run the code of a request in this process, and end the process.

    Args:
        connection: Brings the request and takes the exit status.
    """
    connection.setblocking(True)
    _, files, _, _ = socket.recv_fds(connection, 5, 3)
    with connection.makefile("rb") as stream:
        content = json.loads(stream.read())
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(content["folder"])
    os.environ.clear()
    os.environ.update(content["environment"])
    sys.path[:0] = ["", *filter(None, content["environment"].get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = ["-c", *content["arguments"]]
    status = run(content["code"])
    sys.stdout.flush()
    sys.stderr.flush()
    connection.sendall(str(status).encode())
    os._exit(status)


def run(code: str) -> int:
    """Run code as a program, and return its exit status.

    Args:
        code: The code.
    """
    status = 0
    try:
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = 1 if isinstance(end.code, str) else end.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    atexit._run_exitfuncs()
    return status


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
