"""Encoded texts in a file that is mapped into memory: processes on one machine share it, and later runs read it again.

The files lie in the cache of `datasets` (`HF_DATASETS_CACHE`), in the folder `hf_multisource`. The name of a file is a
digest of everything that its content follows from, this code included. A file that is deleted is made again when a run
needs it.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_multisource import processing_multisource, source_kinds, text_encoding
from hf_multisource.data import encoding
from hf_multisource.data.encoding import ROWS_PER_CALL, Example, Processor, encode_batch, text_keys
from hf_multisource.data.files import write_json
from hf_multisource.data.rows import Row


class StoredExamples(Sequence[Example]):
    """Encoded texts of rows, read from a file when they are asked for.

    Args:
        path: The file that `store_rows` wrote.
        text_keys: Keys of the ids of every text source, in order.

    Attributes:
        text_lengths: Of each row, the tokens of every text source; nothing is read to know them.
        label_lengths: Of each row, the tokens of its target.
    """

    def __init__(self, path: Path, text_keys: Sequence[str]) -> None:
        from datasets import Dataset

        self.dataset = Dataset.from_file(str(path))
        self.text_lengths = self._lengths(text_keys)
        self.label_lengths = self._lengths(["labels"])[:, 0]

    def _lengths(self, keys: Sequence[str]) -> np.ndarray:
        """(N, K) lengths of the lists in some columns; 0 where a column or a row of it is missing."""
        import pyarrow.compute

        lengths = np.zeros((len(self.dataset), len(keys)), np.int32)
        for place, key in enumerate(keys):
            if key in self.dataset.column_names:
                of_rows = pyarrow.compute.list_value_length(self.dataset.data.column(key))
                lengths[:, place] = of_rows.fill_null(0).to_numpy()
        return lengths

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.__getitems__(list(range(*index.indices(len(self)))))
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Example]:
        """Return the examples of a batch at once; a DataLoader calls this.

        Args:
            indices: Numbers of rows.

        Returns:
            One dict per row; None where the row lacks a source.
        """
        columns = self.dataset[list(indices)]
        rows = zip(*columns.values(), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in rows]


def place_of(identity: object) -> Path:
    """Return the file that holds the encoding of certain rows, whether it exists or not.

    Args:
        identity: Everything that the content of the file follows from, ready for JSON: the rows, the processor, and
            settings.

    Returns:
        The path.
    """
    import datasets
    import tokenizers
    import transformers

    kinds = {inspect.getmodule(type(kind)) for kind in source_kinds.FORMS.values() if kind.has_vocabulary}
    modules = {sys.modules[__name__], encoding, processing_multisource, text_encoding, *filter(None, kinds)}
    code = sorted(inspect.getsource(module) for module in modules)
    made_by = [transformers.__version__, tokenizers.__version__, code]
    digest = hashlib.sha256(json.dumps([made_by, identity], sort_keys=True).encode()).hexdigest()
    return Path(datasets.config.HF_DATASETS_CACHE) / "hf_multisource" / f"{digest[:32]}.arrow"


def store_rows(
    path: Path, processor: Processor, rows: Sequence[Row], target: str | None, max_length: int, *, drop: bool = False
) -> None:
    """Encode the texts of rows into a file, unless it exists.

    Args:
        path: The file. The counts are written to a file beside it, `.json` in place of `.arrow`, which marks the
            encoding as whole.
        processor: As `encode_rows` has it.
        rows: As `encode_rows` has it.
        target: As `encode_rows` has it.
        max_length: As `encode_rows` has it.
        drop: As `encode_batch` has it.
    """
    import pyarrow

    if read_report(path) is not None:
        return
    keys = text_keys(processor).values()
    kinds = {ids: pyarrow.int32() for ids, _ in keys} | {mask: pyarrow.int8() for _, mask in keys}
    kinds |= {} if target is None else {"labels": pyarrow.int32()}
    schema = pyarrow.schema([(key, pyarrow.list_(kind)) for key, kind in kinds.items()])
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")  # several runs may begin at once
    report: dict[str, int] = {}
    try:
        with pyarrow.OSFile(str(partial), "wb") as file, pyarrow.ipc.new_stream(file, schema) as writer:
            for start in range(0, max(len(rows), 1), ROWS_PER_CALL):
                part = rows[start : start + ROWS_PER_CALL]
                examples, counts = encode_batch(processor, part, target, max_length, drop=drop)
                report = {name: report.get(name, 0) + count for name, count in counts.items()}
                columns = [pyarrow.array(_column(examples, key), schema.field(key).type) for key in kinds]
                writer.write_batch(pyarrow.record_batch(columns, schema=schema))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    write_json(path.with_suffix(".json"), report)


def _column(examples: Iterable[Example], key: str) -> list[Any]:
    return [example.get(key) for example in examples]


def read_report(path: Path) -> dict[str, int] | None:
    """Return the counts that belong to a file of `store_rows`.

    Args:
        path: The file.

    Returns:
        As `encode_batch` has them; None if the file is not there, or not whole.
    """
    try:
        report: dict[str, int] = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return report if path.is_file() else None


def stored_rows(processor: Processor, path: Path) -> StoredExamples:
    """Open a file of `store_rows`.

    Args:
        processor: The processor that encoded the rows.
        path: The file.

    Returns:
        The examples.
    """
    return StoredExamples(path, [ids for ids, _ in text_keys(processor).values()])
