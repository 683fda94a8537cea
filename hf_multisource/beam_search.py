"""Beam search in which all beams of an example share its encoded sources.

The search returns the same texts as the beam search of Transformers in less time: it considers only the most probable
tokens of each beam, stores the encoder states and cross-attention keys and values once per example, and removes an
example from the batch when its search is finished. It also offers a second length rule, [`normalize_length`].

The search keeps two lists of hypotheses per example: `running`, the K best incomplete texts (the beams), and
`finished`, the K best complete texts. In each step

1. the model scores the next token of each running text;
2. the best 2 K continuations of all running texts together become candidates (more with several end tokens, so that at
   least K candidates do not end);
3. candidates that end and are among the first K enter `finished` if they are better than the texts in that list;
4. the best K candidates that do not end become the new running texts.

The search of an example is finished when no running text can become better than the finished texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput

INACTIVE_BEAM_SCORE = -1e9  # score of an unused slot in a list of hypotheses, as in Transformers
# Smallest share of finished examples at which they are removed from the batch. Removing them copies the states and
# caches of the remaining examples, which costs more than it saves if only a few examples are finished.
LEAVING_SHARE = 0.25
# Logits processors and stopping criteria of Transformers whose result for a batch row does not depend on the row index.
# With any others, such as a processor with a list of allowed tokens per row, no example is removed from the batch.
ROW_BY_ROW = frozenset(
    {
        "EosTokenCriteria",
        "EpsilonLogitsWarper",
        "EtaLogitsWarper",
        "ExponentialDecayLengthPenalty",
        "ForcedBOSTokenLogitsProcessor",
        "ForcedEOSTokenLogitsProcessor",
        "InfNanRemoveLogitsProcessor",
        "LogitNormalization",
        "MaxLengthCriteria",
        "MaxTimeCriteria",
        "MinLengthLogitsProcessor",
        "MinNewTokensLengthLogitsProcessor",
        "NoBadWordsLogitsProcessor",
        "NoRepeatNGramLogitsProcessor",
        "RepetitionPenaltyLogitsProcessor",
        "SequenceBiasLogitsProcessor",
        "StopStringCriteria",
        "SuppressTokensAtBeginLogitsProcessor",
        "SuppressTokensLogitsProcessor",
    }
)


@dataclass
class Texts:
    """Hypotheses of each example, ordered from best to worst.

    Args:
        tokens: Token ids, including those of the decoder's prompt.
        scores: Sum of the log-probabilities of the tokens, or this sum after the length rule.
        rows: For each generated token, the row of the original batch in which it was generated.

    Shape:
        tokens (B, N, T), scores (B, N), rows (B, N, T').
    """

    tokens: Tensor
    scores: Tensor
    rows: Tensor

    def pick(self, chosen: Tensor) -> Texts:
        """Select texts of each example.

        Args:
            chosen: Indices of the texts.

        Shape:
            chosen (B, M).

        Returns:
            The selected texts.
        """
        places = chosen[:, :, None]
        return Texts(
            self.tokens.gather(1, places.expand(-1, -1, self.tokens.shape[2])),
            self.scores.gather(1, chosen),
            self.rows.gather(1, places.expand(-1, -1, self.rows.shape[2])),
        )

    def extend(self, tokens: Tensor, rows: Tensor) -> Texts:
        """Append a token to each text.

        Args:
            tokens: The tokens.
            rows: The rows in which they were generated.

        Shape:
            (B, N).

        Returns:
            The longer texts, with the same scores.
        """
        return Texts(
            torch.cat([self.tokens, tokens[:, :, None]], dim=2),
            self.scores,
            torch.cat([self.rows, rows[:, :, None].to(self.rows.dtype)], dim=2),
        )

    def pad(self, length: int, fill: int) -> Texts:
        """Pad the texts on the right.

        Args:
            length: Number of tokens after padding.
            fill: Padding token.

        Returns:
            Texts of this length.
        """
        missing = length - self.tokens.shape[2]
        return Texts(
            nn.functional.pad(self.tokens, (0, missing), value=fill),
            self.scores,
            nn.functional.pad(self.rows, (0, missing), value=-1),
        )

    def join(self, other: Texts) -> Texts:
        """Append the texts of another list.

        Args:
            other: Texts of the same examples and of the same length.

        Returns:
            The longer list.
        """
        return Texts(
            torch.cat([self.tokens, other.tokens], dim=1),
            torch.cat([self.scores, other.scores], dim=1),
            torch.cat([self.rows, other.rows], dim=1),
        )

    def select(self, kept: Tensor) -> Texts:
        """Select examples.

        Args:
            kept: Indices of the examples.

        Shape:
            kept (B',).

        Returns:
            The texts of these examples.
        """
        return Texts(self.tokens[kept], self.scores[kept], self.rows[kept])


def penalize_length(scores: Tensor, length: int, exponent: float) -> Tensor:
    """Divide scores by a power of the length, as Transformers does.

    Args:
        scores: Sums of log-probabilities.
        length: Number of generated tokens, including the end token.
        exponent: `length_penalty` of the generation configuration.

    Returns:
        scores / length ** exponent, of the same shape.
    """
    return scores / length**exponent


def normalize_length(scores: Tensor, length: int, exponent: float) -> Tensor:
    """Divide scores by the length normalization of Wu et al. 2016, https://arxiv.org/abs/1609.08144, Eq. 14.

    Args:
        scores: Sums of log-probabilities.
        length: Number of generated tokens, including the end token.
        exponent: α.

    Returns:
        scores / ((5 + length) / 6) ** exponent, of the same shape.
    """
    return scores / ((5 + length) / 6) ** exponent


def may_become_better(
    running: Texts, finished: Texts, ended: Tensor, length: int, longest: int, config: GenerationConfig
) -> Tensor:
    """Return whether a running text can become better than the worst finished text, by Transformers' heuristic.

    Args:
        running: The running texts.
        finished: The finished texts.
        ended: Whether each slot of `finished` holds a text.
        length: Number of tokens generated so far.
        longest: Maximum number of generated tokens.
        config: Generation configuration. `early_stopping="never"` with a positive `length_penalty` estimates the best
            score at the maximum length, all other settings at the current length.

    Shape:
        ended (B, K). Returns (B,).

    Returns:
        Whether the search of each example continues.
    """
    assumed = longest if config.early_stopping == "never" and config.length_penalty > 0.0 else length
    best = penalize_length(running.scores[:, :1], assumed, config.length_penalty)
    worst = torch.where(ended, finished.scores.amin(dim=1, keepdim=True), INACTIVE_BEAM_SCORE)
    return (best > worst).any(dim=1)


def compete(
    running: Texts, finished: Texts, ended: Tensor, length: int, exponent: float
) -> tuple[Texts, Texts, Tensor]:
    """Keep the K best texts of each example among running and finished texts, as Neural Monkey does.

    Args:
        running: The running texts.
        finished: The finished texts.
        ended: Whether each slot of `finished` holds a text.
        length: Number of tokens generated so far.
        exponent: α of `normalize_length`.

    Shape:
        ended (B, K).

    Returns:
        Both lists, with a score of `INACTIVE_BEAM_SCORE` for texts that are not kept, and the new `ended`.
    """
    width = finished.scores.shape[1]
    there = running.scores > INACTIVE_BEAM_SCORE / 2
    worth = normalize_length(running.scores, length, exponent).masked_fill(~there, -torch.inf)
    both = torch.cat([finished.scores.masked_fill(~ended, -torch.inf), worth], dim=1)
    stays = torch.zeros_like(both, dtype=torch.bool).scatter(1, both.topk(width).indices, True)
    ended = ended & stays[:, :width]
    return (
        replace(running, scores=running.scores.masked_fill(~stays[:, width:], INACTIVE_BEAM_SCORE)),
        replace(finished, scores=finished.scores.masked_fill(~ended, INACTIVE_BEAM_SCORE)),
        ended,
    )


def best_continuations(
    running: Texts, log_probs: Tensor, ids: Tensor | None, examples: Tensor, count: int, do_sample: bool
) -> tuple[Texts, Tensor]:
    """Select, or sample, the best continuations of the running texts of each example.

    Args:
        running: The running texts.
        log_probs: Log-probabilities of the next token of each text.
        ids: Token ids of the columns of `log_probs`; None: the columns are the whole vocabulary, in order.
        examples: Index of each example in the original batch.
        count: Number of continuations per example, N.
        do_sample: Whether continuations are sampled by their probabilities, without replacement.

    Shape:
        log_probs (B, K, V); ids (B, K, V); examples (B,). Returns N texts and (B, N).

    Returns:
        The continuations, and the index of the running text that each of them continues.
    """
    total = (log_probs + running.scores[:, :, None]).flatten(1)
    if do_sample:
        chosen = torch.multinomial(total.softmax(dim=-1), count)
        scores = total.gather(1, chosen)
    else:
        scores, chosen = total.topk(count)
    beams = chosen // log_probs.shape[2]
    tokens = chosen % log_probs.shape[2] if ids is None else ids.flatten(1).gather(1, chosen)
    rows = examples[:, None] * log_probs.shape[1] + beams
    return replace(running.pick(beams).extend(tokens, rows), scores=scores), beams


def treats_rows_alike(processors: LogitsProcessorList, criteria: StoppingCriteriaList) -> bool:
    """Return whether examples can be removed from the batch without affecting processors and criteria.

    Args:
        processors: The logits processors.
        criteria: The stopping criteria.

    Returns:
        Whether all logits processors and stopping criteria are in `ROW_BY_ROW`.
    """
    kinds = {type(one) for one in (*processors, *criteria)}
    return all(kind.__module__.startswith("transformers.") and kind.__name__ in ROW_BY_ROW for kind in kinds)


def beam_search(
    model: Any,
    input_ids: Tensor,
    *,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    length_normalization: float | None,
    synced_gpus: bool = False,
    **model_kwargs: Any,
) -> GenerateBeamEncoderDecoderOutput | Tensor:
    """Search for the most probable texts of each example with beam search.

    Args:
        model: A model with [`MultiSourceGenerationMixin`]; `generate` has prepared the other arguments.
        input_ids: Decoder prompts, one row per beam.
        logits_processor: Processors applied to the log-probabilities.
        stopping_criteria: Criteria that determine which candidates end.
        generation_config: Settings of `generate`.
        length_normalization: α of [`normalize_length`], with which finished texts stay in the beam and compete with
            running texts; None: the length rule of Transformers.
        synced_gpus: Whether each process continues to call the model until all processes are finished (FSDP, ZeRO
            stage 3).
        **model_kwargs: Keyword arguments of the model in every step.

    Shape:
        input_ids (B * K, T). Returns ids (B * num_return_sequences, T').

    Returns:
        The token ids, or with `return_dict_in_generate` an output with `sequences_scores`, `beam_indices` and the
        requested outputs of each step. `past_key_values` is None if examples may have been removed from the batch.

    Raises:
        ValueError: If `low_memory` is set; Transformers' beam search no longer supports it either.
    """
    config: Any = generation_config
    if config.low_memory:
        raise ValueError("low_memory is True; beam search has no such mode. Set a smaller batch or num_beams.")
    num_beams, start = config.num_beams, input_ids.shape[1]
    record = _Record(config, model_kwargs.get("encoder_outputs"))
    may_leave = (
        not (record.steps or config.do_sample)
        and treats_rows_alike(logits_processor, stopping_criteria)
        and model._examples_can_leave(model_kwargs.get("past_key_values"))
    )
    ends_with = config._eos_token_tensor
    width = num_beams * max(2, 1 + (0 if ends_with is None else len(ends_with)))
    lists, fill = _begin(input_ids, num_beams), _fill_value(config)
    found: list[_Lists] = []  # the lists of examples removed from the batch
    over = False
    outputs = model._prefill(input_ids, config, model_kwargs, is_first_iteration=not config.is_assistant)
    while model._has_unfinished_sequences(over, synced_gpus, device=input_ids.device):
        if outputs is None:
            outputs = model._run_beam_step(lists.running.tokens, model_kwargs)
        if outputs is None:
            inputs = model.prepare_inputs_for_generation(
                lists.running.tokens.flatten(0, 1),
                next_sequence_length=1 if model_kwargs["use_cache"] else None,
                **model_kwargs,
            )
            outputs = model(**inputs, return_dict=True)
        model_kwargs = model._update_model_kwargs_for_generation(outputs, model_kwargs, is_encoder_decoder=True)
        if synced_gpus and over:  # other processes continue and need this one to take part in each layer
            outputs = None
            continue
        log_probs, ids = _next_log_probs(outputs, lists.running, logits_processor, record)
        outputs = None  # free the logits before the next step

        candidates, beams = best_continuations(lists.running, log_probs, ids, lists.examples, width, config.do_sample)
        ends = stopping_criteria(candidates.tokens.flatten(0, 1), record.scores).view_as(beams)
        lists.running, best = _keep_running(candidates, ends, num_beams)
        if ends[:, :num_beams].any():
            _keep_finished(lists, candidates, ends, start, fill, config, length_normalization)
        if (cache := model_kwargs.get("past_key_values")) is not None:
            first = torch.arange(0, beams.shape[0] * num_beams, num_beams, device=beams.device)
            order = (first[:, None] + beams.gather(1, best)).flatten()
            model_kwargs["past_key_values"] = model._reorder_cache(cache, order)

        active = _find_active(lists, ends, start, config, length_normalization)
        number = int(active.sum())
        over = number == 0
        # PEFT replaces the cache of the call in the first step, for prefix tuning.
        may_leave = may_leave and model._examples_can_leave(model_kwargs.get("past_key_values"))
        if may_leave and not over and len(active) - number >= LEAVING_SHARE * len(active):
            found.append(lists.select((~active).nonzero().flatten()))
            kept = active.nonzero().flatten()
            lists = lists.select(kept)
            model_kwargs = model._select_examples(model_kwargs, kept, num_beams)

    texts = _in_order([*found, lists], fill)
    texts = texts.pick(torch.arange(config.num_return_sequences, device=beams.device).expand(len(texts.scores), -1))
    length = int((texts.rows >= 0).sum(dim=2).max())  # length of the longest returned text
    sequences = texts.tokens[:, :, : start + length].flatten(0, 1)
    if not config.return_dict_in_generate:
        return sequences
    cache = None if may_leave else model_kwargs.get("past_key_values")
    return record.output(sequences, texts.scores.flatten(), texts.rows[:, :, :length].flatten(0, 1), cache)


@dataclass
class _Lists:
    """Running and finished texts of all examples in the batch.

    Args:
        examples: (B,) index of each example in the original batch.
        running: K incomplete texts.
        finished: K complete texts; unused slots have a score of about `INACTIVE_BEAM_SCORE`.
        ended: (B, K) bool, whether each slot of `finished` holds a text.
        going_on: (B,) bool, whether a running text may still become better than the finished texts.
    """

    examples: Tensor
    running: Texts
    finished: Texts
    ended: Tensor
    going_on: Tensor

    def select(self, kept: Tensor) -> _Lists:
        return _Lists(
            self.examples[kept],
            self.running.select(kept),
            self.finished.select(kept),
            self.ended[kept],
            self.going_on[kept],
        )


def _begin(input_ids: Tensor, num_beams: int) -> _Lists:
    """Return the initial lists. All beams of an example are identical at first, so only the first one is continued."""
    tokens = input_ids.unflatten(0, (-1, num_beams))
    batch, device = len(tokens), tokens.device
    rows = torch.empty(batch, num_beams, 0, dtype=torch.int32, device=device)
    empty = torch.full((batch, num_beams), INACTIVE_BEAM_SCORE, device=device)
    first = empty.clone()
    first[:, 0] = 0.0
    return _Lists(
        examples=torch.arange(batch, device=device),
        running=Texts(tokens, first, rows),
        finished=Texts(tokens, empty, rows),
        ended=torch.zeros(batch, num_beams, dtype=torch.bool, device=device),
        going_on=torch.ones(batch, dtype=torch.bool, device=device),
    )


def _keep_running(candidates: Texts, ends: Tensor, num_beams: int) -> tuple[Texts, Tensor]:
    """Return the best candidates that do not end, and their indices (B, K)."""
    scores = candidates.scores + ends * INACTIVE_BEAM_SCORE
    best = scores.topk(num_beams).indices
    return replace(candidates, scores=scores).pick(best), best


def _keep_finished(
    lists: _Lists,
    candidates: Texts,
    ends: Tensor,
    start: int,
    fill: int,
    config: Any,
    length_normalization: float | None,
) -> None:
    """Merge candidates that end, and are among the first K, into the list of the K best finished texts."""
    num_beams, total = config.num_beams, candidates.tokens.shape[2]
    new = ends.clone()
    new[:, num_beams:] = False
    if length_normalization is None:
        worth = penalize_length(candidates.scores, total - start, config.length_penalty)
    else:
        worth = normalize_length(candidates.scores, total - start, length_normalization)
        new &= candidates.scores > INACTIVE_BEAM_SCORE / 2
    closed = ~lists.going_on | (lists.ended.all(dim=1) & (config.early_stopping is True))
    worth = worth + closed[:, None] * INACTIVE_BEAM_SCORE + ~new * INACTIVE_BEAM_SCORE
    merged = lists.finished.pad(total, fill).join(replace(candidates, scores=worth))
    best = merged.scores.topk(num_beams).indices
    lists.finished, lists.ended = merged.pick(best), torch.cat([lists.ended, new], dim=1).gather(1, best)


def _find_active(lists: _Lists, ends: Tensor, start: int, config: Any, length_normalization: float | None) -> Tensor:
    """Return (B,) whether the search of each example continues; `length_normalization` may first remove texts."""
    length = lists.running.tokens.shape[2] - start
    if length_normalization is None:
        lists.going_on = lists.going_on & may_become_better(
            lists.running, lists.finished, lists.ended, length, config.max_length - start, config
        )
    else:
        lists.running, lists.finished, lists.ended = compete(
            lists.running, lists.finished, lists.ended, length, length_normalization
        )
        lists.going_on = (lists.running.scores > INACTIVE_BEAM_SCORE / 2).any(dim=1)
    lists.going_on = lists.going_on & ~ends.all(dim=1)
    return lists.going_on & ~(lists.ended.all(dim=1) & (config.early_stopping is True))


def _in_order(found: Sequence[_Lists], fill: int) -> Texts:
    """Return the finished texts of all examples, in the order of the original batch."""
    order = torch.cat([lists.examples for lists in found]).argsort()
    longest = max(lists.finished.tokens.shape[2] for lists in found)
    texts = [lists.finished.pad(longest, fill) for lists in found]
    return Texts(
        torch.cat([one.tokens for one in texts])[order],
        torch.cat([one.scores for one in texts])[order],
        torch.cat([one.rows for one in texts])[order],
    )


def _fill_value(config: Any) -> int:
    """Return the id that pads texts after their end: the padding id, or the first end token id, as in Transformers."""
    pad, ends = config._pad_token_tensor, config._eos_token_tensor
    if ends is None:
        return -1
    return int(pad) if pad is not None and int(pad) else int(ends[0])


def _next_log_probs(outputs: Any, running: Texts, processors: Any, record: _Record) -> tuple[Tensor, Tensor | None]:
    """Return log-probabilities of the next token (B, K, V), and the token ids of the columns (None: all, in order)."""
    beams, device = running.tokens.shape[1], running.tokens.device
    record.keep_attentions(outputs)
    if outputs.get("best_token_ids") is not None:
        log_probs = outputs.logits[:, 0, :-1].to(device)  # the last column is the sum over all other tokens
        return log_probs.unflatten(0, (-1, beams)), outputs.best_token_ids.to(device).unflatten(0, (-1, beams))
    logits = outputs.logits[:, -1].to(copy=True, dtype=torch.float32, device=device)
    log_probs = processors(running.tokens.flatten(0, 1), logits.log_softmax(dim=-1))
    record.keep_scores(logits, log_probs)
    return log_probs.unflatten(0, (-1, beams)), None


class _Record:
    """Collects the outputs of each step that the caller requested.

    Args:
        config: Generation configuration with the `output_...` settings.
        encoder_outputs: Output of the encoders.
    """

    def __init__(self, config: Any, encoder_outputs: Any) -> None:
        kept = config.return_dict_in_generate
        self.scores: Any = () if kept and config.output_scores else None
        self.logits: Any = () if kept and config.output_logits else None
        self.attentions: dict[str, tuple[Any, ...]] = {}
        if kept and config.output_attentions:
            self.attentions.update(decoder_attentions=(), cross_attentions=())
        if kept and config.output_hidden_states:
            self.attentions.update(decoder_hidden_states=())
        self.encoder: dict[str, Any] = {}
        if kept and config.output_attentions:
            self.encoder["encoder_attentions"] = encoder_outputs.get("attentions")
        if kept and config.output_hidden_states:
            self.encoder["encoder_hidden_states"] = encoder_outputs.get("hidden_states")

    @property
    def steps(self) -> bool:
        """Whether outputs of each step were requested; these need a row for each beam of the original batch."""
        return self.scores is not None or self.logits is not None or bool(self.attentions)

    def keep_scores(self, logits: Tensor, log_probs: Tensor) -> None:
        """Append the scores and logits of one step, if they were requested."""
        if self.scores is not None:
            self.scores += (log_probs.clone(),)
        if self.logits is not None:
            self.logits += (logits.clone(),)

    def keep_attentions(self, outputs: Any) -> None:
        """Append the attentions and hidden states of one step, if they were requested."""
        for name in self.attentions:
            self.attentions[name] += (outputs.get(name),)

    def output(self, sequences: Any, scores: Any, beam_indices: Any, cache: Any) -> GenerateBeamEncoderDecoderOutput:
        """Return the output of `generate` with everything that was collected."""
        return GenerateBeamEncoderDecoderOutput(
            sequences=sequences,
            sequences_scores=scores,
            scores=self.scores,
            logits=self.logits,
            beam_indices=beam_indices,
            past_key_values=cache,
            **self.attentions,
            **self.encoder,
        )


__all__ = ["beam_search", "normalize_length", "penalize_length"]
