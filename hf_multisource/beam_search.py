"""Beam search over texts whose sources their beams share.

It finds what the beam search of Transformers finds, in less time: only the likeliest tokens of each beam are looked at,
sources and their keys are kept once for each example, and an example leaves the batch when its search is over. It also
has a second rule of length, [`normalize_length`].

The search keeps two lists for each example: `running`, the K best beginnings of a text, and `finished`, the K best
texts that have ended. In a step

1. the model scores the next token of each running text;
2. the best 2 K continuations of all running texts together become candidates (more if there are several end tokens, so
   that K of them do not end);
3. candidates that end, and are among the first K, enter `finished` if they are better than what is there;
4. the best K candidates that do not end are the new running texts.

The search of an example is over when no running text can become better than the finished ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput

GONE = -1e9  # the score of a place in a list that holds no text, as in Transformers
# Examples whose search is over leave when they are so large a share of the batch: what stays has to be copied.
LEAVING_SHARE = 0.25
# Logits processors and stopping criteria of Transformers that treat each row alike, whatever its number. With others,
# such as one that has a list of allowed tokens for each row, no example leaves the batch.
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
    """A list of texts of each example, best first.

    Args:
        tokens: Their tokens, those of the beginning that was given included.
        scores: Sum of the log-probabilities of their tokens, or that sum after the rule of length.
        rows: Of each generated token, the row of the whole batch that it was generated in.

    Shape:
        tokens (B, N, T), scores (B, N), rows (B, N, T').
    """

    tokens: Tensor
    scores: Tensor
    rows: Tensor

    def pick(self, chosen: Tensor) -> Texts:
        """Choose texts of each example.

        Args:
            chosen: Their numbers.

        Shape:
            chosen (B, M).

        Returns:
            The chosen texts.
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
        """Fill up to a number of tokens.

        Args:
            length: The number.
            fill: The token that is appended.

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
        """Put the texts of another list behind these.

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
        """Choose examples.

        Args:
            kept: Their numbers.

        Shape:
            kept (B',).

        Returns:
            Their texts.
        """
        return Texts(self.tokens[kept], self.scores[kept], self.rows[kept])


def penalize_length(scores: Tensor, length: int, exponent: float) -> Tensor:
    """Divide by a power of the length, as Transformers does.

    Args:
        scores: Sums of log-probabilities.
        length: Number of generated tokens, the end included.
        exponent: `length_penalty` of the generation configuration.

    Returns:
        scores / length ** exponent, of the same shape.
    """
    return scores / length**exponent


def normalize_length(scores: Tensor, length: int, exponent: float) -> Tensor:
    """Divide by the length normalisation of Wu et al. 2016, https://arxiv.org/abs/1609.08144, Eq. 14.

    Args:
        scores: Sums of log-probabilities.
        length: Number of generated tokens, the end included.
        exponent: α.

    Returns:
        scores / ((5 + length) / 6) ** exponent, of the same shape.
    """
    return scores / ((5 + length) / 6) ** exponent


def may_become_better(
    running: Texts, finished: Texts, ended: Tensor, length: int, longest: int, config: GenerationConfig
) -> Tensor:
    """Whether a running text can still become better than the worst finished one, by Transformers' heuristic.

    Args:
        running: The running texts.
        finished: The finished texts.
        ended: Which places of `finished` hold a text.
        length: Tokens generated so far.
        longest: Most tokens that may be generated.
        config: `early_stopping` "never" with a positive `length_penalty` assumes the longest text, all else the
            present length.

    Shape:
        ended (B, K). Returns (B,).

    Returns:
        Whether the search of each example goes on.
    """
    assumed = longest if config.early_stopping == "never" and config.length_penalty > 0.0 else length
    best = penalize_length(running.scores[:, :1], assumed, config.length_penalty)
    worst = torch.where(ended, finished.scores.amin(dim=1, keepdim=True), GONE)
    return (best > worst).any(dim=1)


def compete(
    running: Texts, finished: Texts, ended: Tensor, length: int, exponent: float
) -> tuple[Texts, Texts, Tensor]:
    """Keep K texts of each example, running and finished ones together, as Neural Monkey does.

    Args:
        running: The running texts.
        finished: The finished texts.
        ended: Which places of `finished` hold a text.
        length: Tokens generated so far.
        exponent: α of `normalize_length`.

    Shape:
        ended (B, K).

    Returns:
        Both lists with a score of `GONE` where a text fell out of the beam, and the new `ended`.
    """
    width = finished.scores.shape[1]
    there = running.scores > GONE / 2
    worth = normalize_length(running.scores, length, exponent).masked_fill(~there, -torch.inf)
    both = torch.cat([finished.scores.masked_fill(~ended, -torch.inf), worth], dim=1)
    stays = torch.zeros_like(both, dtype=torch.bool).scatter(1, both.topk(width).indices, True)
    ended = ended & stays[:, :width]
    return (
        replace(running, scores=running.scores.masked_fill(~stays[:, width:], GONE)),
        replace(finished, scores=finished.scores.masked_fill(~ended, GONE)),
        ended,
    )


def best_continuations(
    running: Texts, log_probs: Tensor, ids: Tensor | None, examples: Tensor, count: int, do_sample: bool
) -> tuple[Texts, Tensor]:
    """Choose the continuations of all running texts of an example that have the highest scores, or draw them.

    Args:
        running: The running texts.
        log_probs: Of the next token of each text.
        ids: Which tokens the columns of `log_probs` are; None: all, in order.
        examples: Number of each example in the whole batch.
        count: How many, N.
        do_sample: Whether they are drawn, without replacement, by their probabilities.

    Shape:
        log_probs (B, K, V); ids (B, K, V); examples (B,). Returns N texts and (B, N).

    Returns:
        The continuations, and the number of the running text that each continues.
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
    """Whether rows may change their numbers during the search.

    Args:
        processors: The logits processors.
        criteria: The stopping criteria.

    Returns:
        Whether all of them are in `ROW_BY_ROW`.
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
    """Search for the best texts of each example.

    Args:
        model: A model with [`MultiSourceGenerationMixin`], in which `generate` has prepared everything else.
        input_ids: Beginnings of the texts, one row for each beam.
        logits_processor: Changes log-probabilities.
        stopping_criteria: Says which candidates end.
        generation_config: Settings of `generate`.
        length_normalization: α of [`normalize_length`], with which finished texts stay in the beam and compete with the
            running ones; None: the rule of Transformers.
        synced_gpus: Whether all processes take part until the last one is done (FSDP, ZeRO stage 3).
        **model_kwargs: What every step reads.

    Shape:
        input_ids (B * K, T). Returns ids (B * num_return_sequences, T').

    Returns:
        The texts, or with `return_dict_in_generate` an output that also has `sequences_scores`, `beam_indices` and what
        was asked for of each step. `past_key_values` is None where examples may have left the batch.

    Raises:
        ValueError: If `low_memory` is set, which beam search no longer has in Transformers either.
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
    found: list[_Lists] = []  # the lists of examples that have left
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
        if synced_gpus and over:  # other processes go on, and wait for this one at each layer
            outputs = None
            continue
        log_probs, ids = _next_log_probs(outputs, lists.running, logits_processor, record)
        outputs = None  # its logits need not live through the next step

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
        if may_leave and not over and len(active) - number >= LEAVING_SHARE * len(active):
            found.append(lists.select((~active).nonzero().flatten()))
            kept = active.nonzero().flatten()
            lists = lists.select(kept)
            model_kwargs = model._select_examples(model_kwargs, kept, num_beams)

    texts = _in_order([*found, lists], fill)
    texts = texts.pick(torch.arange(config.num_return_sequences, device=beams.device).expand(len(texts.scores), -1))
    length = int((texts.rows >= 0).sum(dim=2).max())  # of the longest text that is returned
    sequences = texts.tokens[:, :, : start + length].flatten(0, 1)
    if not config.return_dict_in_generate:
        return sequences
    cache = None if may_leave else model_kwargs.get("past_key_values")
    return record.output(sequences, texts.scores.flatten(), texts.rows[:, :, :length].flatten(0, 1), cache)


@dataclass
class _Lists:
    """The lists of all examples that are in the batch.

    Args:
        examples: (B,) number of each example in the whole batch.
        running: K beginnings of texts.
        finished: K texts that have ended; places without a text have a score of about `GONE`.
        ended: (B, K) bool, which places of `finished` hold a text.
        going_on: (B,) bool, whether a running text may still become better than the finished ones.
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
    """Return the lists before the first step. All beams of an example are alike: only the first one is continued."""
    tokens = input_ids.unflatten(0, (-1, num_beams))
    batch, device = len(tokens), tokens.device
    rows = torch.empty(batch, num_beams, 0, dtype=torch.int32, device=device)
    empty = torch.full((batch, num_beams), GONE, device=device)
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
    """Return the best candidates that do not end, and their numbers (B, K)."""
    scores = candidates.scores + ends * GONE
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
    """Let those of the first K candidates that end into the list of finished texts, if they are among the best."""
    num_beams, total = config.num_beams, candidates.tokens.shape[2]
    new = ends.clone()
    new[:, num_beams:] = False
    if length_normalization is None:
        worth = penalize_length(candidates.scores, total - start, config.length_penalty)
    else:
        worth = normalize_length(candidates.scores, total - start, length_normalization)
        new &= candidates.scores > GONE / 2
    closed = ~lists.going_on | (lists.ended.all(dim=1) & (config.early_stopping is True))
    worth = worth + closed[:, None] * GONE + ~new * GONE
    merged = lists.finished.pad(total, fill).join(replace(candidates, scores=worth))
    best = merged.scores.topk(num_beams).indices
    lists.finished, lists.ended = merged.pick(best), torch.cat([lists.ended, new], dim=1).gather(1, best)


def _find_active(lists: _Lists, ends: Tensor, start: int, config: Any, length_normalization: float | None) -> Tensor:
    """Return (B,) whether the search of each example goes on; with a normalisation, running texts may fall out."""
    length = lists.running.tokens.shape[2] - start
    if length_normalization is None:
        lists.going_on = lists.going_on & may_become_better(
            lists.running, lists.finished, lists.ended, length, config.max_length - start, config
        )
    else:
        lists.running, lists.finished, lists.ended = compete(
            lists.running, lists.finished, lists.ended, length, length_normalization
        )
        lists.going_on = (lists.running.scores > GONE / 2).any(dim=1)
    lists.going_on = lists.going_on & ~ends.all(dim=1)
    return lists.going_on & ~(lists.ended.all(dim=1) & (config.early_stopping is True))


def _in_order(found: Sequence[_Lists], fill: int) -> Texts:
    """Return the finished texts of all examples, in the order of the whole batch."""
    order = torch.cat([lists.examples for lists in found]).argsort()
    longest = max(lists.finished.tokens.shape[2] for lists in found)
    texts = [lists.finished.pad(longest, fill) for lists in found]
    return Texts(
        torch.cat([one.tokens for one in texts])[order],
        torch.cat([one.scores for one in texts])[order],
        torch.cat([one.rows for one in texts])[order],
    )


def _fill_value(config: Any) -> int:
    """What stands behind the end of a text: the padding token, or the first end token, as in Transformers."""
    pad, ends = config._pad_token_tensor, config._eos_token_tensor
    if ends is None:
        return -1
    return int(pad) if pad is not None and int(pad) else int(ends[0])


def _next_log_probs(outputs: Any, running: Texts, processors: Any, record: _Record) -> tuple[Tensor, Tensor | None]:
    """Return log-probabilities of the next token (B, K, V), and which tokens the columns are if not all, in order."""
    beams, device = running.tokens.shape[1], running.tokens.device
    record.keep_attentions(outputs)
    if outputs.get("best_token_ids") is not None:
        log_probs = outputs.logits[:, 0, :-1].to(device)  # without that of all other tokens together
        return log_probs.unflatten(0, (-1, beams)), outputs.best_token_ids.to(device).unflatten(0, (-1, beams))
    logits = outputs.logits[:, -1].to(copy=True, dtype=torch.float32, device=device)
    log_probs = processors(running.tokens.flatten(0, 1), logits.log_softmax(dim=-1))
    record.keep_scores(logits, log_probs)
    return log_probs.unflatten(0, (-1, beams)), None


class _Record:
    """What was asked for of each step.

    Args:
        config: Says what.
        encoder_outputs: What the encoders returned.
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
        """Whether anything of each step was asked for, with a row for each beam of the whole batch."""
        return self.scores is not None or self.logits is not None or bool(self.attentions)

    def keep_scores(self, logits: Tensor, log_probs: Tensor) -> None:
        """Keep what was asked for of one step's logits."""
        if self.scores is not None:
            self.scores += (log_probs.clone(),)
        if self.logits is not None:
            self.logits += (logits.clone(),)

    def keep_attentions(self, outputs: Any) -> None:
        """Keep what was asked for of the model's output in one step."""
        for name in self.attentions:
            self.attentions[name] += (outputs.get(name),)

    def output(self, sequences: Any, scores: Any, beam_indices: Any, cache: Any) -> GenerateBeamEncoderDecoderOutput:
        """Return all of it."""
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
