"""What the decoder looked at: cross-attention by source and by token.

`cross_attentions`, from `model(..., output_attentions=True)` or from `generate`, has one (B, H, T, S) a layer, the
states of all sources joined on the last axis. It takes eager attention (`model.set_attn_implementation("eager")`);
other implementations never hold the weights. What a row of it sums to depends on the combiner:

    serial, parallel    1 over each source that is present, 0 over an absent one: says where in a source the decoder
                        looked, and nothing of how much one source counted against another
    flat                1 over all sources together: a source's part of the sum is its weight
    hierarchical        1 over each source that is present; `source_weights` (B, H', T, n), from the second attention,
                        sum to 1 over the sources; H' is its number of heads

So does that of any other combiner: `joint_weights` tells the second kind, and `weighs_sources` the third, from the
first. LSTMs give one layer of one head, of the first kind; with `attention="local_p"` a row sums to 1 or less. A source
that is absent counts as present where a vector stands for it (`absent_vectors`). Weights are where the decoder looked,
not why it wrote what it wrote; `hf-multisource score --adversarial --absent` puts a source to the test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .collation import LABEL_PADDING
from .source_kinds import MASK, source_key

REPLACEMENT = "\ufffd"  # what a tokenizer writes for half a character
ABSENT = "(absent)"  # in place of the tokens of an absent source, where the model has a vector for it


def split_by_source(attention: Tensor, source_lengths: Sequence[int], source_names: Sequence[str]) -> dict[str, Tensor]:
    """Split weights over the joined states into the sources.

    Args:
        attention: Anything over all states.
        source_lengths: How S divides, as outputs have it; 0 for a source that the whole batch lacks.
        source_names: The model's sources, in order.

    Shape:
        attention (..., S). Returns (..., S_i) by source.

    Returns:
        Views, in the order of the sources.

    Raises:
        ValueError: If the lengths are not one per source, or do not sum to S; the message gives them.
    """
    lengths = list(source_lengths)
    if len(lengths) != len(source_names) or sum(lengths) != attention.shape[-1]:
        raise ValueError(
            f"source_lengths {lengths} must be one number per source ({', '.join(source_names)}) and sum to the last "
            f"dimension of attention, {attention.shape[-1]}."
        )
    return dict(zip(source_names, attention.split(lengths, dim=-1), strict=True))


def returned_attentions(steps: Sequence[Sequence[Tensor]], beam_indices: Tensor | None = None) -> Tensor:
    """Attentions of the hypotheses that `generate` returned, from the steps in which it found them.

    Args:
        steps: `cross_attentions` of its output: per step, per layer.
        beam_indices: Of the same output, which has them if it searched with beams: a hypothesis has come from row to
            row on its way.

    Shape:
        steps: each (rows, H, T_step, S); beam_indices (B, T). Returns (B, L, H, T, S).

    Returns:
        Weights by which token t of the hypothesis was found, counted without the prompt: `sequences[:, -T:]`. After a
        hypothesis has ended they mean nothing.

    Example:
        >>> output = model.generate(**batch, return_dict_in_generate=True, output_attentions=True)  # doctest: +SKIP
        >>> weights = returned_attentions(output.cross_attentions, output.get("beam_indices"))  # doctest: +SKIP
    """
    found = []
    for t, layers in enumerate(steps):
        if beam_indices is not None and t == beam_indices.shape[1]:
            break  # the search went on after the last hypothesis that it returned
        weights = torch.stack([layer[:, :, -1] for layer in layers], dim=1)  # only the last position is new
        if beam_indices is not None:
            weights = weights[beam_indices[:, t].clamp(min=0)]  # -1: it has ended
        found.append(weights)
    return torch.stack(found, dim=3)


@dataclass
class TokenAttention:
    """Attention of one example, over its tokens; padding is gone.

    Args:
        target_tokens: Texts of the target's tokens, T of them; joined they give the target. A token that ends within
            a character is "", and the character stands with the token that completes it.
        source_tokens: Texts of the sources' tokens by source, in order; of an absent one none, or "(absent)" if the
            model has a vector for it.
        weights: Rows are target tokens, columns the tokens of all sources, joined in order.
        source_weights: Weights over the sources, from combiners that weigh them.

    Shape:
        weights (..., T, S); source_weights (..., T, n).
    """

    target_tokens: list[str]
    source_tokens: dict[str, list[str]]
    weights: Tensor
    source_weights: Tensor | None = None

    def by_source(self) -> dict[str, Tensor]:
        """The weights, split.

        Returns:
            (..., T, S_i) by source.
        """
        lengths = [len(tokens) for tokens in self.source_tokens.values()]
        return split_by_source(self.weights, lengths, list(self.source_tokens))


def attention_to_tokens(
    attention: Tensor,
    inputs: Mapping[str, Tensor],
    target_ids: Tensor,
    processor: Any,
    example: int = 0,
    source_weights: Tensor | None = None,
    encoded: Any = None,
) -> TokenAttention:
    """Say which tokens the weights of one example belong to, and leave out padding.

    States of a source that is no text are numbered from 1: places of a map row by row, moments of speech in time.

    Args:
        attention: Weights of the whole batch: of one layer, or whatever else begins with B and ends with T and S.
        inputs: The batch, as the processor or the collator made it.
        target_ids: The tokens that were found with these weights: `labels`, or what was generated, without what
            started it.
        processor: The model's.
        example: Which one, counted from 0.
        source_weights: Weights over the sources, if there are any.
        encoded: What the model's encoder returned for the batch; needed where a source is no text, or an absent one is
            a vector (`absent_vectors`).

    Shape:
        attention (B, ..., T, S); target_ids (B, T); source_weights (B, ..., T, n).

    Returns:
        Tokens and their weights.

    Raises:
        ValueError: If attention does not fit the tokens (the message gives the numbers), or a source is no text and
            `encoded` is not given.
    """
    masks, tokens = [], {}
    state_masks = None if encoded is None else encoded.attention_mask.split(encoded.source_lengths, dim=1)
    for i, name in enumerate(processor.source_names):
        mask = inputs[source_key(i, name, MASK)][example].bool()
        seen = mask if state_masks is None else state_masks[i][example]
        if seen.any() and not mask.any():
            tokens[name] = [ABSENT]
        elif processor.kind_of(name).has_vocabulary:
            ids = inputs[source_key(i, name, processor.main_input(name))][example][mask]
            tokens[name] = token_texts(processor.get_tokenizer(name), ids)
        elif encoded is None:
            raise ValueError(f"source {name!r} is no text: give what the encoder returned, as `encoded`.")
        else:
            tokens[name] = [str(state + 1) for state in range(int(seen.sum()))]
        masks.append(seen)
    columns = torch.cat(masks)
    if tuple(attention.shape[-2:]) != (target_ids.shape[1], len(columns)):
        raise ValueError(
            f"attention ends with {tuple(attention.shape[-2:])}; {target_ids.shape[1]} target positions and "
            f"{len(columns)} positions of all sources were expected."
        )
    target = target_ids[example]
    rows = (target != LABEL_PADDING) & (target != processor.pad_token_id)
    return TokenAttention(
        target_tokens=token_texts(processor.tokenizer, target[rows]),
        source_tokens=tokens,
        weights=attention[example][..., rows, :][..., columns],
        source_weights=None if source_weights is None else source_weights[example][..., rows, :],
    )


def token_texts(tokenizer: Any, ids: Tensor) -> list[str]:
    """What each token adds to the text, white space included; special tokens stand as themselves.

    Args:
        tokenizer: The tokenizer.
        ids: Of one sequence.

    Shape:
        ids (T,).

    Returns:
        T texts that give the whole when joined.
    """
    texts: list[str] = []
    before = ""
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:end].tolist(), clean_up_tokenization_spaces=False)
        whole = text if end == len(ids) else text.rstrip(REPLACEMENT)
        texts.append(whole[len(before) :])
        before = whole
    return texts
