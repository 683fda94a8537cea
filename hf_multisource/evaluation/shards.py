"""Decode rows into a text file in shards, so that several processes share the work and can be killed safely.

A shard is a window of rows. Its lines are written atomically into the folder `<out>.parts`, so that a killed process
neither loses nor repeats finished lines. A process that finds all shards complete joins them into the file, also
atomically: the file is either complete or absent. The assignment of rows to windows and batches does not depend on the
number of processes, so the lines do not depend on it either.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tqdm import tqdm

from hf_multisource import MultiSourceProcessor
from hf_multisource.data.interfaces import Model
from hf_multisource.data.rows import Row
from hf_multisource.evaluation.decoding import (
    WINDOW,
    Search,
    check_output,
    decode_window,
    fingerprint,
    format_lines,
    report_counts,
    restore_window,
)
from hf_multisource.json_files import JsonObject, load_json, read_json
from hf_multisource.recipes.processor import digest_of_part

INPUT = ("rows", "rows_sha256")  # settings that depend only on the input
MODEL = ("weights_sha256", "config_sha256", "processor_sha256")  # settings that depend only on the models
OF_THE_VERSION = {"transformers_version", "_name_or_path"}  # configuration fields about the origin of a model


@dataclass(frozen=True)
class Share:
    """Share of a process: it decodes every `count`-th shard, beginning with shard number `index`.

    Args:
        index: Number of the process, from 0.
        count: Number of processes.
    """

    index: int = 0
    count: int = 1

    @classmethod
    def of_this_process(cls) -> Share:
        """Return the share of this process, from the environment variables of `accelerate launch` or torchrun.

        Returns:
            The share; all shards if the process was started without a launcher.
        """
        return cls(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))


@dataclass(frozen=True)
class ShardedFile:
    """A text file that is written in shards.

    Args:
        path: The file. `<path>.json` beside it holds the settings, and the folder `<path>.parts` holds the shards.
        settings: Everything that determines the lines.
        rows: Number of rows.
        lines_per_row: Number of lines per row.
    """

    path: Path
    settings: JsonObject = field(repr=False)
    rows: int
    lines_per_row: int

    @property
    def sidecar(self) -> Path:
        """Path of the JSON file with the settings."""
        return self.path.with_name(self.path.name + ".json")

    @property
    def parts(self) -> Path:
        """Path of the folder of the shards."""
        return self.path.with_name(self.path.name + ".parts")

    def begin(self, shard_rows: int) -> int | None:
        """Start the file or continue it.

        Args:
            shard_rows: Number of rows per shard, if the file is new.

        Returns:
            Number of rows per shard; None if the file is finished.

        Raises:
            FileExistsError: If the file exists but was not written by this class.
            ValueError: If it was begun with other settings, or was changed afterwards; the message says so. Nothing is
                overwritten.
        """
        check_output(self.path)
        stored = read_json(self.sidecar) if self.sidecar.exists() else {}
        if self.path.exists():
            if not stored:
                raise FileExistsError(
                    f"{self.path} exists, but {self.sidecar.name} is missing, so it cannot be continued: give another "
                    "--out"
                )
            self.check(stored)
            if stored.get("sha256") != hashlib.sha256(self.path.read_bytes()).hexdigest():
                raise ValueError(
                    f"{self.path} is not the file that {self.sidecar.name} describes: it was changed or cut. It is "
                    f"unchanged now; give another --out, or delete it and {self.sidecar.name}"
                )
            shutil.rmtree(self.parts, ignore_errors=True)
            return None
        if any(self.parts.glob("*.json")):
            if not stored:
                raise FileExistsError(
                    f"{self.parts} exists, but {self.sidecar.name} is missing, so it cannot be continued: give another "
                    "--out, or delete the folder"
                )
            self.check(stored)
            rows: int = stored["shard_rows"]
            return rows
        if self.path.exists():  # another process has meanwhile joined and removed the shards
            return self.begin(shard_rows)
        self.parts.mkdir(parents=True, exist_ok=True)
        begun = {"settings": self.settings, "lines_per_row": self.lines_per_row, "shard_rows": shard_rows}
        self._write(self.sidecar, json.dumps(begun, indent=1, ensure_ascii=False) + "\n")
        return shard_rows

    def check(self, stored: Mapping[str, Any]) -> None:
        """Raise an error if the settings differ from the stored ones.

        Args:
            stored: Content of the JSON file beside the output.

        Raises:
            ValueError: If they differ; the message names each setting that does.
        """
        before = stored.get("settings", {})
        if changed := [key for key in {**before, **self.settings} if before.get(key) != self.settings.get(key)]:
            differences = "; ".join(f"{key} was {before.get(key)!r}, is {self.settings.get(key)!r}" for key in changed)
            what = [("the input", INPUT), ("the model", MODEL)]
            causes = [name for name, keys in what if set(keys) & set(changed)]
            hint = f" ({' and '.join(causes)} changed)" if causes else ""
            raise ValueError(
                f"{self.path} was begun with other settings: {differences}{hint}. It is unchanged; go back to those "
                f"settings, give another --out, or delete {self.path.name}, {self.sidecar.name} and {self.parts.name}"
            )

    def starts(self, shard_rows: int) -> range:
        """Return the index of the first row of every shard; a file without rows has one empty shard.

        Args:
            shard_rows: Number of rows per shard.

        Returns:
            The row indices.
        """
        return range(0, max(self.rows, 1), shard_rows)

    def shard(self, first: int) -> Path:
        """Return the path of a shard.

        Args:
            first: Index of the first row of the shard.

        Returns:
            The file.
        """
        return self.parts / f"{first:010d}.json"

    def read_shard(self, first: int, rows: int) -> JsonObject | None:
        """Read a shard.

        Args:
            first: Index of the first row of the shard.
            rows: Number of rows of the shard.

        Returns:
            The content that was passed to [`write_shard`]; None if the shard is missing or damaged.
        """
        try:
            content = load_json(self.shard(first))
        except (FileNotFoundError, ValueError):
            return None
        whole = isinstance(content, dict) and len(content.get("lines", ())) == rows
        return content if whole else None

    def write_shard(self, first: int, content: JsonObject) -> None:
        """Write a shard atomically.

        Args:
            first: Index of the first row of the shard.
            content: `lines` (one text per row, line ends included), `seconds` and `counts`.

        Raises:
            ValueError: If another process has meanwhile begun the file with other settings.
        """
        try:
            self.check(read_json(self.sidecar))
            self._write(self.shard(first), json.dumps(content, ensure_ascii=False))
        except FileNotFoundError:  # other processes have also decoded this shard and joined all of them
            if not self.path.exists():
                raise

    def join(self, shard_rows: int, facts: JsonObject) -> JsonObject | None:
        """Join the shards into the file if all shards are complete.

        Several processes may call this at the same time, because they write the same content.

        Args:
            shard_rows: Number of rows per shard.
            facts: Further facts to record in the JSON file beside the output.

        Returns:
            The content of the JSON file beside the output; None if shards are missing.
        """
        shards = []
        for first in self.starts(shard_rows):
            content = self.read_shard(first, min(shard_rows, self.rows - first))
            if content is None:
                return None
            shards.append(content)
        text = "".join(line for content in shards for line in content["lines"])
        counts: Counter[str] = Counter()
        for content in shards:
            counts.update(content["counts"])
        record = {
            "synthetic": True,
            "settings": self.settings,
            "lines_per_row": self.lines_per_row,
            "shard_rows": shard_rows,
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            **facts,
            "counts": {"rows": self.rows, "empty": 0, **{name: n for name, n in sorted(counts.items()) if n}},
            "seconds": round(sum(content["seconds"] for content in shards), 3),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }
        try:
            # The record is written first. If the process is killed before the file is written, the shards remain and
            # are joined again.
            self._write(self.sidecar, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
            self._write(self.path, text)
        except FileNotFoundError:  # another process has joined the shards and removed the folder
            if not self.path.exists():
                raise
        shutil.rmtree(self.parts, ignore_errors=True)
        return record

    def _write(self, path: Path, content: str) -> None:
        """Write a file atomically: write it in the folder of shards, then rename it."""
        partial = self.parts / f"{path.name}.{os.getpid()}.partial"
        partial.write_text(content, encoding="utf-8", newline="\n")
        os.replace(partial, path)


def describe_settings(model: Model, processor: MultiSourceProcessor, rows: Sequence[Row], search: Search) -> JsonObject:
    """Return everything that determines the hypotheses: search, rows, weights, configuration and processor.

    Args:
        model: The model, or an ensemble.
        processor: The processor.
        rows: The rows.
        search: The search.

    Returns:
        Settings and digests by name. The batch size is not included, because it may change between two starts.
    """
    members = getattr(model, "members", None) or [model]
    config: Any = [member.config.to_dict() for member in members]
    stored: Any = [generation.to_dict() for one in members if (generation := getattr(one, "generation_config", None))]
    kept = [{key: value for key, value in one.items() if key not in OF_THE_VERSION} for one in (*config, *stored)]
    return {
        **fingerprint(model, processor, rows, search),
        "config_sha256": hash_json(kept),
        "processor_sha256": hash_json([digest_of_part(processor, name) for name in (None, *processor.source_names)]),
    }


def hash_json(value: object) -> str:
    """Return a digest of a JSON value.

    Args:
        value: The value; objects that JSON cannot represent are converted to strings.

    Returns:
        The SHA-256 in hexadecimal digits; the order of keys does not matter.
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def decode_shards(
    model: Model,
    processor: MultiSourceProcessor,
    rows: Sequence[Row],
    out: Path,
    search: Search,
    *,
    batch_size: int,
    facts: JsonObject,
    share: Share | None = None,
) -> bool:
    """Decode this process's shards of a text file, and join all shards once they are complete.

    Args:
        model: Model with `generate`, `state_dict`, `device` and `config`.
        processor: Processor with `source_names`, `__call__` and `batch_decode`.
        rows: One dict per sentence; a source is absent if it is None, "" or left out.
        out: The file.
        search: The search and its limits.
        batch_size: Number of sentences per batch; may change between starts.
        facts: Further facts to record in `<out>.json`.
        share: The shards of this process; None: from the environment, see [`Share.of_this_process`].

    Returns:
        True if the file is complete.

    Raises:
        FileExistsError: See [`ShardedFile.begin`].
        ValueError: See [`ShardedFile.begin`].
    """
    share = share or Share.of_this_process()
    file = ShardedFile(out, describe_settings(model, processor, rows, search), len(rows), max(1, search.n_best))
    shard_rows = file.begin(WINDOW * batch_size)
    if shard_rows is None:
        return True
    starts = file.starts(shard_rows)[share.index :: share.count]
    sizes = {first: min(shard_rows, len(rows) - first) for first in starts}
    missing = [first for first in starts if file.read_shard(first, sizes[first]) is None]
    done = sum(sizes.values()) - sum(sizes[first] for first in missing)
    bar = tqdm(
        total=sum(sizes.values()),
        initial=done,
        desc=str(out),
        unit="sent",
        dynamic_ncols=True,
        disable=share.index > 0,
    )
    with bar:
        for first in missing:
            began = time.perf_counter()
            window = rows[first : first + shard_rows]
            results, counts = decode_window(
                model, processor, window, search, batch_size=batch_size, first=first, advance=bar.update
            )
            results = restore_window(results, window, counts)
            counts["empty"] = sum(not hypotheses[0].text for hypotheses in results)
            lines = [format_lines(first + i, hypotheses) for i, hypotheses in enumerate(results)]
            seconds = time.perf_counter() - began
            file.write_shard(first, {"lines": lines, "seconds": seconds, "counts": counts})
    record = file.join(shard_rows, {**facts, "processes": share.count})
    if record is not None:
        report_counts(record["counts"], processor.source_names, search.max_length, str(out))
    return record is not None
