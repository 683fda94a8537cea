"""Logits processor that forces each generated text to contain exactly the placeholders of its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import FloatTensor, LongTensor, Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedTokenizerBase

from hf_multisource.data.checks import check_at_least
from hf_multisource.data.placeholders import MASK_TOKENS, OPENING_TOKENS, OPTIONAL_TOKENS, PlaceholderTable

#: Score of a required token that has no probability according to the model or another option, such as a shortlist. It
#: is low enough for any other hypothesis to win, and finite, so that beam scores can be compared.
FORBIDDEN_SCORE = -1e4


class PlaceholderConstraint(LogitsProcessor):
    """Logits processor that makes each text contain the mask tokens of its placeholder table and no other mask tokens.

    Each token must occur as often as in the table. Tokens of escape sequences (`<char1>`, …) may also be left out,
    because another language may write another character.

    The score of a mask token is minus infinity if the token is not in the table or has occurred often enough. The score
    of the end token is minus infinity while a mask token is missing. A closing tag is allowed only if its opening tag
    is the innermost open tag, and the tokens of a chain are allowed only in their order. When the length limit leaves
    room only for the missing tokens and an end token, the scores of all other tokens are minus infinity. If the missing
    tokens leave no room for an end token, the text ends without one.

    The scores depend only on the tokens generated so far. Beams may therefore be reordered, and the rows of an example
    may be beams or samples. The scores of finished rows stay unchanged.

    Args:
        tables: Placeholder table of each example of the batch. With None or a refused table, the text must not contain
            mask tokens.
        token_ids: Mask token -> id in the vocabulary. It contains all `MASK_TOKENS`, or at least the tokens of the
            tables and both tags of each pair.
        end_token_ids: Ids of the tokens that end a text.
        max_new_tokens: Largest number of tokens that are generated.
        prompt_length: Number of tokens that the decoder is given.

    Raises:
        ValueError: If a text must contain more placeholders than `max_new_tokens`, a token of a table has no id, there
            is no example, or `max_new_tokens` or `prompt_length` is below 1.
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
        self.counts = torch.zeros(len(tables), self.number, dtype=torch.long)  # (B, M): largest number of occurrences
        self.is_required = torch.tensor([token not in OPTIONAL_TOKENS for token in token_ids])  # (M,)
        # (B, M): column of the token that must precede each token; M if there is no such token.
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
        # (M + 1,): column of the opening tag that each token closes; M if the token is not a closing tag.
        self.openings = torch.full((self.number + 1,), self.number)
        for token, column in columns.items():
            if token in OPENING_TOKENS:
                self.openings[column] = columns[OPENING_TOKENS[token]]
        self.columns = torch.empty(0, dtype=torch.long)  # (V,): column of each token id; M if it is not a mask token

    def __call__(self, input_ids: LongTensor, scores: FloatTensor) -> FloatTensor:
        """Set the scores of the tokens that must not come next to minus infinity.

        Args:
            input_ids: (R, t) the tokens so far; the rows of an example are adjacent, and R is a multiple of B.
            scores: (R, V) the scores of the next token.

        Returns:
            (R, V) the scores, with minus infinity for the forbidden tokens.

        Raises:
            ValueError: If the number of rows is not a multiple of the number of tables, or the vocabulary of the model
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
        # Reserve one position for the end token, which is forbidden while a required token is missing.
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
        """Move the tables to the device of the scores, and build the map from token ids to columns."""
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
        """Return whether the required predecessor of each mask token has occurred, (R, M)."""
        predecessors = self.predecessors.repeat_interleave(len(counts) // len(self.predecessors), dim=0)
        came = torch.cat([counts[:, :-1] > 0, torch.ones_like(counts[:, :1], dtype=torch.bool)], dim=1)
        return came.gather(1, predecessors)

    def _closes(self, columns: Tensor) -> Tensor:
        """Return whether each mask token closes the innermost open tag or is not a closing tag, (R, M)."""
        none = self.number
        is_opening = torch.isin(columns, self.openings[self.openings < none])
        is_closing = self.openings[columns] < none
        depth = (is_opening.long() - is_closing.long()).cumsum(dim=1)
        # The innermost open tag is the last opening tag that reached the present depth.
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
    """Return the argument `logits_processor` of `generate` that forces the placeholders of every text.

    Args:
        tables: Placeholder table of the reference source of each example, see [`PlaceholderConstraint`].
        tokenizer: The tokenizer of the target, with the mask tokens.
        end_token_ids: `eos_token_id` of the model's generation configuration.
        max_new_tokens: The argument `max_new_tokens` of `generate`.

    Returns:
        A list with one [`PlaceholderConstraint`].

    Raises:
        ValueError: If the tokenizer lacks the mask tokens, or a text must contain more mask tokens than
            `max_new_tokens`.
    """
    vocabulary = tokenizer.get_vocab()
    if absent := [token for token in MASK_TOKENS if token not in vocabulary]:
        raise ValueError(f"the tokenizer has no token {absent[0]}; call add_mask_tokens before the model is trained")
    ends = [end_token_ids] if isinstance(end_token_ids, int) else end_token_ids
    ids = {token: vocabulary[token] for token in MASK_TOKENS}
    return LogitsProcessorList([PlaceholderConstraint(tables, ids, ends, max_new_tokens)])
