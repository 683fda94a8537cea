"""Load test of a running `hf-multisource serve`: check that all translations are correct and memory does not grow.

    hf-multisource serve runs/mine --port 8000 &
    python benchmarks/serve_load.py http://127.0.0.1:8000 --clients 64 --minutes 10

First, one client translates some rows, one per request. Then all clients request random rows of these concurrently,
one to four per request. Some requests are invalid and must be answered with status 422 and the name of the field, and
some clients disconnect before the response. After status 503, a client waits for the time in Retry-After and sends the
request again. The script prints a JSON object with the number of translated rows; the numbers of requests that were
sent, answered, temporarily refused, lost, and answered with other translations than the first time; the seconds until
the response; and the memory of the service after a quarter of the time and at the end.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import socket
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

WORDS = "open close file window settings the of all new old not a in page print save".split()  # noqa: SIM905
ROWS = 48  # number of different rows
BAD = {"sources": {"no such source": "a"}}
BAD_SHARE, RUDE_SHARE = 0.05, 0.05  # shares of invalid requests, and of requests whose client disconnects
TOLERANCE = 1e-3  # largest difference of equal scores; rounding depends on the padding of the batch
SECONDS = 120.0  # seconds after which a request counts as lost
RESIDENT = re.compile(r"^process_resident_memory_bytes (\S+)$", re.MULTILINE)


@dataclass
class Load:
    """Clients of a service, with their counts and measurements.

    Args:
        address: Address of the service, such as "http://127.0.0.1:8000".
        token: Token of the requests; "" sends no token.
        counts: Number of requests by outcome.
        seconds: Seconds until the answer of each request that was answered by status 200.
        problems: The first unexpected answers.
    """

    address: str
    token: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def connect(self) -> http.client.HTTPConnection:
        """Open a connection to the service."""
        parts = urlsplit(self.address)
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=SECONDS)

    def headers(self) -> dict[str, str]:
        """Return the headers of a request."""
        token = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return {"Content-Type": "application/json", **token}

    def get(self, path: str) -> str:
        """Return the body of the response to a GET request."""
        connection = self.connect()
        connection.request("GET", path, headers=self.headers())
        body = connection.getresponse().read().decode()
        connection.close()
        return body

    def memory(self) -> float:
        """Return the resident memory of the service in MiB."""
        found = RESIDENT.search(self.get("/metrics"))
        return round(float(found[1]) / 2**20, 1) if found else 0.0

    def post(self, connection: http.client.HTTPConnection, body: Any) -> tuple[int, Any, str]:
        """Send a translation request; return status, content and Retry-After of the response."""
        connection.request("POST", "/translate", json.dumps(body), self.headers())
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), answer.headers.get("Retry-After", "1")

    def count(self, outcome: str, problem: str = "") -> None:
        """Count a request."""
        with self.lock:
            self.counts[outcome] += 1
            if problem and len(self.problems) < 5:
                self.problems.append(problem)

    def client(self, seed: int, rows: Sequence[Any], alone: Sequence[Any], end: float, requests: int) -> None:
        """Send requests one after the other until the end time or the number of requests is reached."""
        rng = random.Random(seed)
        connection = self.connect()
        for _ in range(requests):
            if time.monotonic() > end:
                break
            chosen = rng.sample(range(len(rows)), rng.randint(1, 4))
            self.count("sent")
            try:
                if (kind := rng.random()) < BAD_SHARE:
                    status, content, _ = self.post(connection, BAD)
                    right = status == 422 and content["field"] == "sources.no such source"
                    self.count("bad" if right else "unexpected", "" if right else f"{status} {content}")
                elif kind < BAD_SHARE + RUDE_SHARE:
                    self.leave([rows[i] for i in chosen])
                else:
                    self.ask(connection, [rows[i] for i in chosen], [alone[i] for i in chosen])
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.count("lost", f"{type(error).__name__}: {error}")
                connection.close()
                connection = self.connect()
        connection.close()

    def ask(self, connection: http.client.HTTPConnection, rows: Sequence[Any], alone: Sequence[Any]) -> None:
        """Request translations, retrying after status 503, and compare them with the first translations of the rows."""
        began = time.monotonic()
        while (answer := self.post(connection, {"sources": rows}))[0] == 503:
            self.count("again")
            time.sleep(float(answer[2]))
        status, content, _ = answer
        if status != 200:
            self.count("unexpected", f"{status} {content}")
        elif all(map(same, content["translations"], alone)) and len(content["translations"]) == len(rows):
            self.count("answered")
            with self.lock:
                self.seconds.append(time.monotonic() - began)
        else:
            self.count("different", f"{content['translations']} in place of {alone}")

    def leave(self, rows: Sequence[Any]) -> None:
        """Send a request, and disconnect before the response."""
        connection = self.connect()
        connection.request("POST", "/translate", json.dumps({"sources": rows}), self.headers())
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
        self.count("left")


def same(one: Any, other: Any) -> bool:
    """Return whether two translations of a row are equal except for rounding."""
    if len(one["candidates"]) != len(other["candidates"]) or one["refused"] != other["refused"]:
        return False
    pairs = zip(one["candidates"], other["candidates"], strict=True)
    return all(a["text"] == b["text"] and abs(a["score"] - b["score"]) < TOLERANCE for a, b in pairs)


def run(address: str, *, token: str = "", clients: int = 64, minutes: float = 10.0, requests: int = 10**9) -> Any:
    """Put load on a service.

    Args:
        address: Address of the service.
        token: Token of the service; "" sends no token.
        clients: Number of clients.
        minutes: Minutes of load.
        requests: Largest number of requests of a client.

    Returns:
        The JSON object that the script prints.
    """
    load, rng = Load(address, token), random.Random(0)
    sources = json.loads(load.get("/languages"))["sources"]
    rows = []
    for _ in range(ROWS):
        row = {name: " ".join(rng.choices(WORDS, k=rng.randint(1, 6))) for name in sources if rng.random() < 0.8}
        rows.append(row or {sources[0]: "open"})
    alone = [load.post(load.connect(), {"sources": row})[1]["translations"][0] for row in rows]
    began = time.monotonic()
    end = began + 60 * minutes
    threads = [
        threading.Thread(target=load.client, args=(number, rows, alone, end, requests)) for number in range(clients)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and time.monotonic() < began + 15 * minutes:
        time.sleep(0.05)
    early = load.memory()
    for thread in threads:
        thread.join()
    ordered = sorted(load.seconds)
    first = [one["candidates"][0] for one in alone if one["candidates"]]
    distinct = {(one["text"], round(one["score"], 2)) for one in first}
    return {
        "rows": {"all": len(rows), "translated": len(first), "distinct by text and score": len(distinct)},
        **{name: load.counts[name] for name in ("sent", "answered", "bad", "left", "again")},
        **{name: load.counts[name] for name in ("lost", "different", "unexpected")},
        "problems": load.problems,
        "seconds": {
            "median": round(statistics.median(ordered), 3) if ordered else None,
            "95 %": round(ordered[int(0.95 * len(ordered))], 3) if ordered else None,
        },
        "minutes": round((time.monotonic() - began) / 60, 2),
        "memory_mib": {"after a quarter": early, "at the end": load.memory()},
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script.

    Args:
        argv: The command line without the program.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="address of the service")
    parser.add_argument("--token_file", type=Path, help="file with the token of the service")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=10.0)
    args = parser.parse_args(argv)
    token = args.token_file.read_text("ascii").splitlines()[0].strip() if args.token_file else ""
    seen = run(args.address, token=token, clients=args.clients, minutes=args.minutes)
    print(json.dumps(seen, indent=1))
    sys.exit(bool(seen["lost"] or seen["different"] or seen["unexpected"]))


if __name__ == "__main__":
    main()
