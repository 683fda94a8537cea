"""Cache of encoded texts in memory-mapped files, which processes of one machine share and later runs reuse.

The files are in the folder `hf_multisource` of the cache of `datasets` (`HF_DATASETS_CACHE`). The name of a file is a
digest of everything that determines its content, including the code. A deleted file is created again when a run needs
it.
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
    """Encoded texts of rows, which are read from a file on access.

    Args:
        path: The file that `store_rows` wrote.
        text_keys: Keys of the ids of every text source, in order.

    Attributes:
        text_lengths: Number of tokens of every text source in each row, known without decoding the rows.
        label_lengths: Number of tokens of the target in each row.
    """

    def __init__(self, path: Path, text_keys: Sequence[str]) -> None:
        from datasets import Dataset

        self.dataset = Dataset.from_file(str(path))
        self.text_lengths = self._lengths(text_keys)
        self.label_lengths = self._lengths(["labels"])[:, 0]

    def _lengths(self, keys: Sequence[str]) -> np.ndarray:
        """Return the lengths of the lists in some columns, (N, K); 0 for a missing column or value."""
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
        """Return the examples of a batch at once; the fetcher of PyTorch's DataLoader calls this method.

        Args:
            indices: Numbers of rows.

        Returns:
            One dict per row, with None for absent sources.
        """
        columns = self.dataset[list(indices)]
        rows = zip(*columns.values(), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in rows]


def place_of(identity: object) -> Path:
    """Return the path of the cache file for the encoding of given rows; the file need not exist.

    Args:
        identity: JSON-serializable value that determines the content of the file: the rows, the processor and the
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
        path: The file. The counts are written to a file next to it with the suffix `.json` instead of `.arrow`, which
            marks the encoding as complete.
        processor: See `encode_rows`.
        rows: See `encode_rows`.
        target: See `encode_rows`.
        max_length: See `encode_rows`.
        drop: See `encode_batch`.
    """
    import pyarrow

    if read_report(path) is not None:
        return
    keys = text_keys(processor).values()
    kinds = {ids: pyarrow.int32() for ids, _ in keys} | {mask: pyarrow.int8() for _, mask in keys}
    kinds |= {} if target is None else {"labels": pyarrow.int32()}
    schema = pyarrow.schema([(key, pyarrow.list_(kind)) for key, kind in kinds.items()])
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")  # several runs may start at the same time
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
    """Return the counts of a file of `store_rows`.

    Args:
        path: The file.

    Returns:
        The counts of `encode_batch`; None if the file does not exist or is incomplete.
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
