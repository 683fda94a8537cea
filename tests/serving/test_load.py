"""64 concurrent clients against a real service: nothing is lost or exchanged, memory is flat, SIGTERM ends it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scored import make_run
from serve_load import run


@pytest.mark.slow
def test_many_clients_lose_nothing_and_memory_is_flat(tmp_path: Path) -> None:
    make_run(tmp_path / "run", tmp_path)
    settings = json.loads((tmp_path / "run/generation_config.json").read_text("utf-8"))
    settings["exponential_decay_length_penalty"] = [2, 9.0]  # a translation without an end is refused
    (tmp_path / "run/generation_config.json").write_text(json.dumps(settings), "utf-8")
    command = [sys.executable, "-P", "-m", "hf_multisource", "serve", str(tmp_path / "run"), "--port", "0"]
    command += ["--device", "cpu", "--max_new_tokens", "6", "--num_beams", "2", "--max_queue", "128"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as service:
        try:
            assert service.stdout is not None
            address = service.stdout.readline().split()[0]
            seen = run(address, clients=64, minutes=0.3, requests=6)
            assert seen["rows"]["distinct by text and score"] >= 10  # so many that exchanged answers would be seen
            assert seen["problems"] == []
            assert seen["sent"] == 64 * 6 == seen["answered"] + seen["bad"] + seen["left"]
            assert seen["lost"] == seen["different"] == seen["unexpected"] == 0
            assert seen["memory_mib"]["at the end"] < seen["memory_mib"]["after a quarter"] + 100
            service.send_signal(signal.SIGTERM)
            assert service.wait(60) == 0
            assert service.stdout.read() == "all requests are finished\n"
        finally:
            service.kill()
