"""Generate exactly the placeholders that a text must have, whatever the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import FloatTensor, LongTensor, Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedTokenizerBase

from hf_multisource.data.checks import check_at_least
from hf_multisource.data.placeholders import MASK_TOKENS, OPENING_TOKENS, OPTIONAL_TOKENS, PlaceholderTable

#: Score of a required token to which the model, or another option such as a shortlist, gives no probability: low enough
#: for any other continuation to win, and finite, so that scores can be compared.
FORBIDDEN_SCORE = -1e4


class PlaceholderConstraint(LogitsProcessor):
    """Lets every text have the mask tokens of its table, each as often as the table says, and no other mask token.

    Tokens of escape sequences (`<char1>`, …) may also be left out, since a language may write another character.

    A token that is used up, or that the table lacks, gets minus infinity. So does the end token while a token is
    missing. A closing tag is allowed when its opening tag is the last one that is open, and the tokens of a chain are
    allowed in their order. When there is only room for the missing tokens and an end token before the length limit, all
    other tokens get minus infinity. A text whose tokens leave no room for an end token has none.

    All this follows from the tokens so far, so that beams may be reordered, and rows that share an example may be beams
    or samples. Rows that are finished keep their scores.

    Args:
        tables: For each example of the batch, what its text must have; None, or a table of a text that was refused: no
            mask tokens.
        token_ids: The ids of the mask tokens that the vocabulary has: of all `MASK_TOKENS`, or of those that the tables
            name, and of both tags of a pair.
        end_token_ids: Ids of the tokens that end a text.
        max_new_tokens: Largest number of tokens that are generated.
        prompt_length: Number of tokens that the decoder is given.

    Raises:
        ValueError: If a text must have more placeholders than `max_new_tokens`, a token of a table has no id, or there
            is no example.
    """

    def __init__(
        self,
        tables: Sequence[PlaceholderTable | None],
        token_ids: Mapping[str, int],
        end_token_ids: Sequence[int],
        max_new_tokens: int,
        prompt_length: int = 1,
    ) -> None:
        check_at_least(1, max_new_tokens=max_new_tokens, prompt_length=prompt_length)
        if not tables:
            raise ValueError("tables is empty; it must have one table for each example of the batch")
        self.number = len(token_ids)  # M
        self.token_ids = torch.tensor([*token_ids.values()])
        self.end_token_ids = torch.tensor(end_token_ids)
        self.prompt_length = prompt_length
        self.max_length = prompt_length + max_new_tokens
        columns = {token: column for column, token in enumerate(token_ids)}
        self.counts = torch.zeros(len(tables), self.number, dtype=torch.long)  # (B, M): how often at most
        self.is_required = torch.tensor([token not in OPTIONAL_TOKENS for token in token_ids])  # (M,)
        # (B, M): of each token, the column of the one that must come before; M stands for none.
        self.predecessors = torch.full((len(tables), self.number), self.number)
        for row, table in enumerate(tables):
            if table is None:
                continue
            if absent := [token for token in table.counts if token not in token_ids]:
                raise ValueError(f"token_ids has no id of {absent[0]}, which the text of example {row} must have")
            for token, count in table.counts.items():
                self.counts[row, columns[token]] = count
            for before, after in pairwise(table.chain):
                self.predecessors[row, columns[after]] = columns[before]
            if (needed := table.required) > max_new_tokens:
                raise ValueError(
                    f"max_new_tokens is {max_new_tokens}, but the text of example {row} must have {needed} placeholders"
                )
        # (M + 1,): of each column, the column of the opening tag that it closes; M stands for none.
        self.openings = torch.full((self.number + 1,), self.number)
        for token, column in columns.items():
            if token in OPENING_TOKENS:
                self.openings[column] = columns[OPENING_TOKENS[token]]
        self.columns = torch.empty(0, dtype=torch.long)  # (V,): of each token id, its column; M: no mask token

    def __call__(self, input_ids: LongTensor, scores: FloatTensor) -> FloatTensor:
        """Forbid the tokens that must not come next.

        Args:
            input_ids: (R, t) the tokens so far; the rows of an example stand together, and R is a multiple of B.
            scores: (R, V) the scores of the next token.

        Returns:
            (R, V) the scores, minus infinity at the tokens that must not come.

        Raises:
            ValueError: If the number of rows is no multiple of the number of tables, or the vocabulary of the model
                lacks the mask tokens.
        """
        rows, examples = len(input_ids), len(self.counts)
        if rows % examples:
            raise ValueError(f"there are {rows} rows for {examples} tables; each example must have as many rows")
        self._prepare(scores)
        most = self.counts.repeat_interleave(rows // examples, dim=0)
        columns = self.columns[input_ids]
        counts = torch.zeros(rows, self.number + 1, dtype=torch.long, device=scores.device)
        counts.scatter_add_(1, columns, torch.ones_like(columns))
        left = (most - counts[:, :-1]).clamp(min=0)
        allowed = (left > 0) & self._follows(counts) & self._closes(columns)
        needed = (left * self.is_required).sum(dim=1, keepdim=True)
        is_finished = torch.isin(input_ids[:, self.prompt_length :], self.end_token_ids).any(dim=1, keepdim=True)
        # One place is left for the end token, which is forbidden until nothing is missing.
        is_forced = ~is_finished & (needed > 0) & (needed + 1 >= self.max_length - input_ids.shape[1])
        allowed &= self.is_required | ~is_forced
        result = scores.clone()
        masks, ends = scores[:, self.token_ids], scores[:, self.end_token_ids]
        masks = masks.masked_fill(~is_finished & ~allowed, float("-inf"))
        if is_forced.any():
            result.masked_fill_(is_forced, float("-inf"))
        result[:, self.end_token_ids] = ends.masked_fill(~is_finished & (needed > 0), float("-inf"))
        result[:, self.token_ids] = masks
        is_stuck = ~is_finished & (result.amax(dim=1, keepdim=True) == float("-inf"))
        result[:, self.token_ids] = masks.masked_fill(allowed & is_stuck, FORBIDDEN_SCORE)
        return result  # type: ignore[return-value]

    def _prepare(self, scores: Tensor) -> None:
        """Move the tables to the device of the scores, and make the table of columns for their vocabulary."""
        if self.columns.shape[0] == scores.shape[1] and self.columns.device == scores.device:
            return
        if (largest := int(self.token_ids.max())) >= scores.shape[1]:
            raise ValueError(
                f"the model has scores for {scores.shape[1]} tokens, but a mask token has the id {largest}: "
                "call resize_token_embeddings after add_mask_tokens"
            )
        self.columns = torch.full((scores.shape[1],), self.number, device=scores.device)
        for name in ("token_ids", "end_token_ids", "counts", "is_required", "predecessors", "openings"):
            setattr(self, name, getattr(self, name).to(scores.device))
        self.columns[self.token_ids] = torch.arange(self.number, device=scores.device)

    def _follows(self, counts: Tensor) -> Tensor:
        """Return where the predecessor of a token has come, (R, M)."""
        predecessors = self.predecessors.repeat_interleave(len(counts) // len(self.predecessors), dim=0)
        came = torch.cat([counts[:, :-1] > 0, torch.ones_like(counts[:, :1], dtype=torch.bool)], dim=1)
        return came.gather(1, predecessors)

    def _closes(self, columns: Tensor) -> Tensor:
        """Return which tokens close the last tag that is open, or close none, (R, M)."""
        none = self.number
        is_opening = torch.isin(columns, self.openings[self.openings < none])
        is_closing = self.openings[columns] < none
        depth = (is_opening.long() - is_closing.long()).cumsum(dim=1)
        # The last opening tag that reached the present depth is the one that is still open.
        positions = torch.arange(1, columns.shape[1] + 1, device=columns.device)
        last = ((is_opening & (depth == depth[:, -1:])) * positions).amax(dim=1, keepdim=True)
        innermost = torch.where(last > 0, columns.gather(1, (last - 1).clamp(min=0)), none)
        closes = self.openings[:-1]
        return (closes == none) | (closes == innermost)


def placeholder_constraint(
    tables: Sequence[PlaceholderTable | None],
    tokenizer: PreTrainedTokenizerBase,
    end_token_ids: int | Sequence[int],
    max_new_tokens: int,
) -> LogitsProcessorList:
    """Return what makes `generate` write the placeholders of every text, as its `logits_processor`.

    Args:
        tables: As [`PlaceholderConstraint`] has it: of each example, the table of its reference source.
        tokenizer: The tokenizer of the target, with the mask tokens.
        end_token_ids: `eos_token_id` of the model's generation configuration.
        max_new_tokens: As `generate` is given it.

    Returns:
        A list with one [`PlaceholderConstraint`].

    Raises:
        ValueError: If the tokenizer lacks the mask tokens, or a text must have more of them than `max_new_tokens`.
    """
    vocabulary = tokenizer.get_vocab()
    if absent := [token for token in MASK_TOKENS if token not in vocabulary]:
        raise ValueError(f"the tokenizer has no token {absent[0]}; call add_mask_tokens before the model is trained")
    ends = [end_token_ids] if isinstance(end_token_ids, int) else end_token_ids
    ids = {token: vocabulary[token] for token in MASK_TOKENS}
    return LogitsProcessorList([PlaceholderConstraint(tables, ids, ends, max_new_tokens)])
