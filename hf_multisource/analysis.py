"""Cross-attention weights of the decoder by source and by token.

`cross_attentions`, returned by `model(..., output_attentions=True)` and by `generate`, holds one tensor (B, H, T, S)
per layer, with the states of all sources joined on the last axis. Attention weights need eager attention
(`model.set_attn_implementation("eager")`); other implementations never store them. The sum of a row of weights depends
on the combiner:

    serial, parallel    1 over each source that is present, 0 over an absent one: the weights show to which positions of
                        a source the decoder attends, but do not compare the sources
    flat                1 over all sources together: the sum over a source's positions is the weight of the source
    hierarchical        1 over each source that is present; `source_weights` (B, H', T, n), from the second attention,
                        sum to 1 over the sources; H' is the number of heads of the second attention

Every other combiner belongs to one of these three groups: `joint_weights` is True in the second group, `weighs_sources`
in the third, and both are False in the first. LSTM models return one layer with one head, of the first group; with
`attention="local_p"` a row sums to 1 or less. With `absent_vectors`, an absent source that is represented by a vector
counts as present. Attention weights do not explain why the decoder chose a token; `hf-multisource score --adversarial
--absent` measures how much the output depends on a source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .collation import LABEL_PADDING
from .source_kinds import MASK, source_key

REPLACEMENT = "\ufffd"  # Unicode replacement character, which tokenizers decode an incomplete character to
ABSENT = "(absent)"  # token text of an absent source that the model represents by a vector (`absent_vectors`)


def split_by_source(attention: Tensor, source_lengths: Sequence[int], source_names: Sequence[str]) -> dict[str, Tensor]:
    """Split attention weights over the joined states by source.

    Args:
        attention: A tensor whose last dimension is the states of all sources.
        source_lengths: Number of states of each source, as in the model's output; 0 for a source that no example of
            the batch has.
        source_names: The model's sources, in order.

    Shape:
        attention (..., S). Returns (..., S_i) by source.

    Returns:
        Views of `attention` by source name, in the order of the sources.

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
    """Collect the cross-attention weights of the hypotheses that `generate` returned.

    Args:
        steps: `cross_attentions` of the output of `generate`: per step, per layer.
        beam_indices: `beam_indices` of the same output, with beam search: the row in which each token of a hypothesis
            was generated.

    Shape:
        steps: each (rows, H, T_step, S); beam_indices (B, T). Returns (B, L, H, T, S).

    Returns:
        The attention weights with which each generated token, `sequences[:, -T:]`, was predicted. Weights after the
        end of a hypothesis are meaningless.

    Example:
        >>> output = model.generate(**batch, return_dict_in_generate=True, output_attentions=True)  # doctest: +SKIP
        >>> weights = returned_attentions(output.cross_attentions, output.get("beam_indices"))  # doctest: +SKIP
    """
    found = []
    for t, layers in enumerate(steps):
        if beam_indices is not None and t == beam_indices.shape[1]:
            break  # the search continued after the last returned hypothesis had ended
        weights = torch.stack([layer[:, :, -1] for layer in layers], dim=1)  # only the last position is new
        if beam_indices is not None:
            weights = weights[beam_indices[:, t].clamp(min=0)]  # -1: the hypothesis has ended
        found.append(weights)
    return torch.stack(found, dim=3)


@dataclass
class TokenAttention:
    """Attention weights of one example over its tokens, without padding.

    Args:
        target_tokens: Texts of the T target tokens; joined they give the target. The text of a token that ends within
            a character is "", and the character belongs to the token that completes it.
        source_tokens: Texts of the tokens of each source, in order. The list of an absent source is empty, or
            "(absent)" if the model represents the source by a vector.
        weights: Attention weights; rows are target tokens, columns the tokens of all sources, joined in order.
        source_weights: Weights over the sources, if the combiner computes them.

    Shape:
        weights (..., T, S); source_weights (..., T, n).
    """

    target_tokens: list[str]
    source_tokens: dict[str, list[str]]
    weights: Tensor
    source_weights: Tensor | None = None

    def by_source(self) -> dict[str, Tensor]:
        """Split the weights by source.

        Returns:
            Weights (..., T, S_i) by source name.
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
    """Label the attention weights of one example with its tokens and remove padding.

    The states of a source that is not text are numbered from 1: the positions of a map row by row, the frames of speech
    in time.

    Args:
        attention: Attention weights of the whole batch, of one layer or of several.
        inputs: The batch, as the processor or the collator made it.
        target_ids: The tokens that were predicted with these weights: `labels`, or the generated ids without the
            decoder's prompt. What follows the first end token is padding.
        processor: The model's processor.
        example: Index of the row of `target_ids`, from 0. With `num_return_sequences` K, the rows of an example are
            K consecutive ones.
        source_weights: Weights over the sources, if the combiner computes them.
        encoded: Output of the model's encoder for the batch; required if a source is not text or an absent source is
            represented by a vector (`absent_vectors`).

    Shape:
        attention (B * K, ..., T, S); target_ids (B * K, T); source_weights (B * K, ..., T, n).

    Returns:
        The tokens and their weights.

    Raises:
        ValueError: If attention does not fit the tokens (the message gives the numbers), or a source is not text and
            `encoded` is not given.
    """
    first = inputs[source_key(0, processor.source_names[0], MASK)]
    copies, rest = divmod(len(target_ids), len(first))
    if rest or not copies or len(attention) != len(target_ids):
        raise ValueError(
            f"attention has {len(attention)} rows and target_ids {len(target_ids)}, for a batch of {len(first)}; both "
            "need one row for each example, or K with num_return_sequences K."
        )
    row = example // copies
    masks, tokens = [], {}
    state_masks = None if encoded is None else encoded.attention_mask.split(encoded.source_lengths, dim=1)
    for i, name in enumerate(processor.source_names):
        mask = inputs[source_key(i, name, MASK)][row].bool()
        seen = mask if state_masks is None else state_masks[i][row]
        if seen.any() and not mask.any():
            tokens[name] = [ABSENT]
        elif processor.kind_of(name).has_vocabulary:
            ids = inputs[source_key(i, name, processor.main_input(name))][row][mask]
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
    if (end := processor.tokenizer.eos_token_id) is not None:
        ends = (target == end).long()
        rows &= ends.cumsum(0) == ends  # up to the first end token; beam search may pad with further ones
    return TokenAttention(
        target_tokens=token_texts(processor.tokenizer, target[rows]),
        source_tokens=tokens,
        weights=attention[example][..., rows, :][..., columns],
        source_weights=None if source_weights is None else source_weights[example][..., rows, :],
    )


def token_texts(tokenizer: Any, ids: Tensor) -> list[str]:
    """Return the text that each token adds to the decoded sequence, with white space and special tokens.

    Args:
        tokenizer: The tokenizer.
        ids: Token ids of one sequence.

    Shape:
        ids (T,).

    Returns:
        T texts; joined they give the decoded sequence.
    """
    texts: list[str] = []
    before = ""
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:end].tolist(), clean_up_tokenization_spaces=False)
        whole = text if end == len(ids) else text.rstrip(REPLACEMENT)
        if len(whole) < len(before):  # byte fallback decodes all tokens of an incomplete character to REPLACEMENT
            whole = before
        texts.append(whole[len(before) :])
        before = whole
    return texts
