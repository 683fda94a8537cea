"""A translator without a model, for tests of the service: it can be held back, and it can fail."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from hf_multisource.evaluation.confidence import Confidence
from hf_multisource.evaluation.text_translator import Candidate, Translation
from hf_multisource.json_files import JsonObject

SECONDS = 20.0  # after which a test gives up waiting


class FakeTranslator:
    """Joins the present texts of a row, in capitals; "refuse …" is refused, and "fail …" raises an error."""

    sources = ("en", "de")

    def __init__(self) -> None:
        self.batches: list[list[Mapping[str, str | None]]] = []
        self.options: list[dict[str, Any]] = []
        self.entered = threading.Semaphore(0)  # released when a batch begins
        self.free = threading.Event()  # batches wait for it
        self.free.set()

    def translate(self, rows: Sequence[Mapping[str, str | None]], **options: Any) -> list[Translation]:
        self.batches.append(list(rows))
        self.options.append(options)
        self.entered.release()
        assert self.free.wait(SECONDS)
        texts = [" | ".join(text for name in self.sources if (text := row.get(name))) for row in rows]
        if failing := [text for text in texts if text.startswith("fail")]:
            raise ValueError(f"cannot translate {failing[0]}")
        return [translated(text, options["n_best"]) for text in texts]

    def search_settings(self, max_new_tokens: int | None = None) -> JsonObject:
        return {"length_penalty": 1.0, "max_new_tokens": max_new_tokens or 128, "optimize": None}

    def hold(self) -> None:
        """Let the next batches wait until `free` is set."""
        self.free.clear()

    def wait_until_busy(self) -> None:
        """Wait until the next batch begins."""
        assert self.entered.acquire(timeout=SECONDS)


def translated(text: str, n_best: int) -> Translation:
    if text.startswith("refuse"):
        return Translation(refused="the placeholder %S is missing")
    scores = [-0.1 * (i + 1) for i in range(n_best)]
    return Translation(tuple(Candidate(text.upper() + "!" * i, score) for i, score in enumerate(scores)))


def make_confidence(**fields: Any) -> Confidence:
    values: dict[str, Any] = {
        "sources": FakeTranslator.sources,
        "num_beams": 4,
        "search": FakeTranslator().search_settings(),
        "weights": (1.0, 0.5, 0.25),
        "bias": -1.0,
        "weights_sha256": "0" * 64,
        "facts": {},
    }
    return Confidence(**{**values, **fields})
