"""Evaluate a training on masked texts: restore the placeholders of hypotheses and compare unmasked texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_multisource import DataCollatorForMultiSource
from hf_multisource.data.encoding import Example
from hf_multisource.data.masking import REFERENCE, TABLE, refusal, restore_masked
from hf_multisource.data.placeholders import PlaceholderTable
from hf_multisource.data.rows import Row

# Key of the index of an example in the evaluated split; it is needed because samplers and processes may reorder
# examples
NUMBER = "row_number"


@dataclass(frozen=True)
class MaskedReferences:
    """Unmasked references of a split, and the placeholder tables with which its hypotheses are restored.

    Args:
        references: The unmasked target of each row.
        tables: The placeholders that the hypothesis of each row must have.
    """

    references: Sequence[str]
    tables: Sequence[PlaceholderTable]

    @classmethod
    def of_rows(cls, rows: Sequence[Row]) -> MaskedReferences:
        """Collect references and tables from rows.

        Args:
            rows: Rows of `mask_evaluated`.

        Returns:
            The references and tables.
        """
        return cls([row[REFERENCE] for row in rows], [row[TABLE] for row in rows])

    def tables_of(self, numbers: Sequence[int], max_new_tokens: int) -> list[PlaceholderTable | None]:
        """Return the placeholders that the hypotheses of some rows must have.

        Args:
            numbers: The indices of the rows.
            max_new_tokens: Longest hypothesis, in tokens.

        Returns:
            The tables; None for a row whose hypothesis cannot contain its placeholders.
        """
        tables = [self.tables[number] for number in numbers]
        return [None if refusal(table, max_new_tokens) else table for table in tables]

    def restored(self, masked: Sequence[str], numbers: Sequence[int]) -> tuple[list[str], list[str]]:
        """Restore the hypotheses of some rows.

        Args:
            masked: The masked hypotheses.
            numbers: The indices of their rows. A row that several processes have evaluated is used only once.

        Returns:
            The hypotheses with their placeholders, and the references, in the order of the rows. A hypothesis is empty
            if its row cannot be masked or the placeholders of hypothesis and source differ.
        """
        texts = {}
        for number, text in sorted(zip(numbers, masked, strict=True)):
            try:
                texts[number] = "" if self.tables[number].refused else restore_masked(text, self.tables[number])
            except ValueError:
                texts[number] = ""
        return [*texts.values()], [self.references[number] for number in texts]


class NumberedExamples(Sequence[Example]):
    """Examples to which their index is added under the key `NUMBER`.

    Args:
        examples: The examples.
    """

    def __init__(self, examples: Sequence[Example]) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return {**self.examples[index], NUMBER: index}


class NumberingCollator(DataCollatorForMultiSource):
    """Data collator that also collates the indices of `NumberedExamples`."""

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Collate examples into a batch.

        Args:
            examples: See `DataCollatorForMultiSource`; either all examples or none are from `NumberedExamples`.

        Shape:
            See `DataCollatorForMultiSource`; `NUMBER` (B,).

        Returns:
            The batch.
        """
        batch = super().__call__(examples)
        if examples and NUMBER in examples[0]:
            batch[NUMBER] = torch.tensor([example[NUMBER] for example in examples])
        return batch
