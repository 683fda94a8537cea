"""`generate` for several sources: beams share the encoded sources, and length normalization is an option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, EncoderDecoderCache, GenerationConfig, GenerationMixin, LogitsProcessorList
from transformers.generation import GenerationMode
from transformers.utils import ModelOutput

from .beam_cache import BeamCache
from .beam_search import beam_search
from .configuration_multisource import SourcesConfig
from .inference import keep_freed_memory
from .messages import shown
from .rnn_cache import MultiSourceRNNCache
from .vocabulary import Shortlist

# Names of options of `generate`, and of keyword arguments that are passed to `forward`.
OPTION = "length_normalization"
FOLD = "fold_beams"
COLLECTED = "decoder_by_source"  # keyword of the dict that collects outputs by source; "decoder_": not for the encoder
EXPANSION = "decoder_expansion"
BEST = "decoder_best_tokens"
SHORTLIST = "decoder_shortlist"
#: Keyword arguments of a step of beam search if only token ids are requested.
STEP_KEYWORDS = frozenset({BEST, COLLECTED, EXPANSION, SHORTLIST, "encoder_outputs", "past_key_values", "use_cache"})
LARGEST_EXPONENT = 20  # bound of `length_normalization`: far above values in use; powers of all lengths stay finite


def check_present(masks: Sequence[Tensor | None]) -> None:
    """Check that every example has a source.

    Args:
        masks: Attention masks of the sources; None if a mask is not known.

    Shape:
        (B, S_i) bool.

    Raises:
        ValueError: If an example has no source; the message lists the examples.
    """
    known = [mask.any(dim=1) for mask in masks if mask is not None]
    if known and not (present := torch.stack(known).any(dim=0)).all():
        rows = (~present).nonzero().flatten().tolist()
        raise ValueError(f"every example needs at least one source that is present; examples {rows} have none.")


def unfold_cache(output: Any) -> None:
    """Replace a [`BeamCache`] in the output of a search by Transformers' cache, whose layout callers expect.

    Args:
        output: Output of a search, which is changed in place; token ids have no cache.
    """
    cache: Any = output.get("past_key_values") if isinstance(output, ModelOutput) else None
    for one in getattr(cache, "caches", (cache,)):  # an ensemble has a cache of each member
        if isinstance(one, EncoderDecoderCache) and isinstance(one.self_attention_cache, BeamCache):
            one.self_attention_cache = one.self_attention_cache.unfold()


class MultiSourceGenerationMixin(GenerationMixin):
    """Adds `generate` for several sources, with the options `fold_beams`, `length_normalization` and `shortlist`.

    `fold_beams` (default True): encoder states and cross-attention keys and values are stored once per example; the
    beams or returned sequences of an example are folded into the query dimension of the attention. Beam search uses a
    self-attention cache that is not copied when beams are reordered ([`BeamCache`]), unless attentions or a
    `cache_implementation` are requested. Greedy search and sampling use it, too, if the attention implementation is
    `sdpa` and the model, its body and its decoder have no hooks, have their own `forward` and are not compiled. With
    False, states and caches are repeated and reordered as in Transformers, for decoding code that expects this layout,
    such as `custom_generate`; the tokens are the same, but decoding is slower and needs `num_beams` times the memory.

    With folded beams, beam search is [`beam_search`], which removes an example from the batch when its search is
    finished, unless outputs of each step, sampling or a `cache_implementation` are requested, or there are logits
    processors or stopping criteria that may depend on the number of rows. `past_key_values` is returned only if no
    example can be removed; `sequences_scores` is always returned.

    `length_normalization=α` selects the beam search of Neural Monkey (Libovický et al. 2018): the score of a hypothesis
    of L tokens, including the end token, is its sum of log-probabilities / ((5 + L) / 6)**α, and finished hypotheses
    stay in the beam and compete with running hypotheses at each step. The search stops when all hypotheses in the beam
    are finished. Without the option, the search follows Transformers, where finished hypotheses are kept in a separate
    list. None disables a value stored in `generation_config`.

    `fold_beams` and `length_normalization` can be stored in `generation_config`.

    `max_new_tokens` overrides a `max_length` stored in `generation_config`, which training scripts often store, without
    Transformers' warning about two lengths.

    `shortlist` contains the ids (V',) of all tokens that can be generated, for instance the tokens of the target
    language in a multilingual model. The probability of all other tokens is zero, and their rows of the output layer,
    which dominate the computation with a large vocabulary, are not computed. The list should include the end token.
    """

    config: SourcesConfig
    main_input_name: str
    model: Any

    @property
    def finds_best_tokens(self) -> bool:
        """Whether beam search may ask `forward` for the most probable tokens only, in place of all logits."""
        return False

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate token ids, as [`GenerationMixin.generate`] does; calls [`keep_freed_memory`] on a CPU.

        Args:
            *args: As [`GenerationMixin.generate`].
            **kwargs: As [`GenerationMixin.generate`], including the inputs of all sources, `length_normalization`,
                `fold_beams` and `shortlist`.

        Returns:
            Token ids; with `return_dict_in_generate` Transformers' output. If attentions are requested and the model
            has several sources, the output also contains `source_lengths`, and, from combiners that weigh the sources,
            `source_weights`: for each step one tensor (rows, H', T_step, n) per layer, with the rows of
            `cross_attentions`; for H', see [`MultiSourceDecoderOutput`]. Assisted decoding returns no `source_weights`,
            because Transformers removes rejected tokens only from its own fields.
        """
        collected: dict[str, list[object]] = {}
        model: Any = self
        if model.device.type == "cpu":
            keep_freed_memory()
        if (ids := kwargs.pop("shortlist", None)) is not None:
            kwargs[SHORTLIST] = self._make_shortlist(ids)
        output: Any = super().generate(*args, **{**kwargs, COLLECTED: collected})  # type: ignore[misc]
        if isinstance(output, ModelOutput):
            for name, value in collected.items():
                output[name] = tuple(value)
        return output

    def _make_shortlist(self, ids: Tensor) -> Any:
        model: Any = self
        bias = model.final_logits_bias[0] if self.config.final_logits_bias else None
        return Shortlist(ids, model.get_output_embeddings(), bias)

    def load_custom_generate(
        self, pretrained_model_name_or_path: Any = None, trust_remote_code: bool | None = None, **kwargs: Any
    ) -> Any:
        """Load the code of a `custom_generate` function without an interactive prompt for confirmation.

        Args:
            pretrained_model_name_or_path: Folder or Hub id.
            trust_remote_code: Whether the code may be executed; None: no.
            **kwargs: As [`GenerationMixin.load_custom_generate`].

        Returns:
            The function.

        Raises:
            ValueError: If `trust_remote_code` is not True.
        """
        if trust_remote_code is not True:
            raise ValueError(
                f"{pretrained_model_name_or_path}: custom_generate runs code only with trust_remote_code=True."
            )
        return super().load_custom_generate(pretrained_model_name_or_path, trust_remote_code=True, **kwargs)

    def _update_model_kwargs_for_generation(
        self, outputs: ModelOutput, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        collected = model_kwargs.get(COLLECTED, {})
        if outputs.get("source_lengths") is not None:
            collected["source_lengths"] = outputs["source_lengths"]
        if outputs.get("source_weights") is not None and "num_new_tokens" not in kwargs:  # not in assisted decoding
            collected.setdefault("source_weights", []).append(outputs["source_weights"])
        return super()._update_model_kwargs_for_generation(outputs, model_kwargs, *args, **kwargs)

    def _prepare_generation_config(
        self, generation_config: GenerationConfig | None, **kwargs: Any
    ) -> tuple[GenerationConfig, dict[str, Any]]:
        prepared, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)  # type: ignore[misc]
        given = {**(generation_config.to_dict() if generation_config else {}), **kwargs}
        if given.get("max_new_tokens") is not None and given.get("max_length") is None:
            prepared.max_length = None  # overridden; Transformers would warn about two lengths
        for name in (OPTION, FOLD):  # the configuration only updates attributes that it has
            if name in model_kwargs:
                setattr(prepared, name, model_kwargs.pop(name))
        fold = getattr(prepared, FOLD, True)
        if not isinstance(fold, bool):
            raise ValueError(f"{FOLD} is {shown(fold)}; it must be True or False.")
        for name in ("num_beams", "num_return_sequences"):
            number = getattr(prepared, name)
            if number is not None and (not isinstance(number, Integral) or number < 1):
                raise ValueError(f"{name} is {shown(number)}; it must be a whole number of at least 1.")
        model_kwargs[EXPANSION] = max(prepared.num_beams or 1, prepared.num_return_sequences or 1) if fold else 1
        return prepared, model_kwargs

    def _expand_inputs_for_generation(  # type: ignore[override]
        self,
        expand_size: int = 1,
        is_encoder_decoder: bool = False,
        input_ids: Tensor | None = None,
        **model_kwargs: Any,
    ) -> tuple[Tensor | None, dict[str, Any]]:
        if expand_size > 1:
            # The sources are already encoded here, so their raw inputs need not be repeated for each beam.
            kept = {key: value for key, value in model_kwargs.items() if key not in self.config.source_keywords}
            shared = {"encoder_outputs": kept.pop("encoder_outputs")} if kept[EXPANSION] > 1 else {}
            expand: Any = super()._expand_inputs_for_generation  # type: ignore[misc]
            input_ids, kept = expand(
                expand_size=expand_size,
                is_encoder_decoder=is_encoder_decoder and not shared,
                input_ids=input_ids,
                **kept,
            )
            model_kwargs = {**kept, **shared}
        if (encoded := model_kwargs.get("encoder_outputs")) is not None:
            mask, expansion = model_kwargs.get("attention_mask"), model_kwargs[EXPANSION]
            model_kwargs["encoder_outputs"] = self.model.prepare_sources(encoded, mask, expansion)
        return input_ids, model_kwargs

    def _reorder_cache(self, past_key_values: Cache, beam_idx: torch.LongTensor) -> Cache:
        # The beams of an example attend to the same sources, so only the self-attention cache is reordered.
        if isinstance(past_key_values, EncoderDecoderCache):
            past_key_values.self_attention_cache.reorder_cache(beam_idx)
        else:
            past_key_values.reorder_cache(beam_idx)
        return past_key_values

    def _validate_generation_mode(
        self,
        generation_mode: GenerationMode,
        generation_config: GenerationConfig,
        generation_mode_kwargs: dict[str, object],
    ) -> None:
        super()._validate_generation_mode(generation_mode, generation_config, generation_mode_kwargs)  # type: ignore[misc]
        alpha = getattr(generation_config, OPTION, None)
        if alpha is None:
            return
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 <= alpha <= LARGEST_EXPONENT:
            raise ValueError(
                f"{OPTION} is {shown(alpha)}; it must be a number from 0 to {LARGEST_EXPONENT}, or None for "
                "Transformers' rule."
            )
        if generation_mode not in (GenerationMode.BEAM_SEARCH, GenerationMode.BEAM_SAMPLE):
            raise ValueError(
                f"{OPTION}={alpha} requires beam search, but num_beams={generation_config.num_beams} selects "
                f"{generation_mode.value}: set num_beams to at least 2, or {OPTION} to None."
            )
        for name, neutral in (("length_penalty", 1.0), ("early_stopping", False)):
            if (value := getattr(generation_config, name)) != neutral:
                raise ValueError(
                    f"{OPTION} is {alpha} and {name} is {value}: each asks for another rule. Leave {name} at "
                    f"{neutral}, or set {OPTION} to None."
                )

    def _validate_model_kwargs(self, model_kwargs: dict[str, Any]) -> None:
        # Sources are passed to `forward` through **kwargs, so Transformers would reject their keywords; all other names
        # are still checked.
        known = {COLLECTED, EXPANSION, BEST, SHORTLIST, *self.config.source_keywords}
        super()._validate_model_kwargs({key: value for key, value in model_kwargs.items() if key not in known})  # type: ignore[misc]

    def _prepare_model_inputs(
        self, inputs: Tensor | None, bos_token_id: Tensor | None, model_kwargs: dict[str, Any]
    ) -> tuple[Tensor, str | None, dict[str, Any]]:
        # Transformers reads the batch size from source 0, and would create inputs of BOS tokens if source 0 is absent.
        encoder_outputs = model_kwargs.get("encoder_outputs")
        if encoder_outputs is not None:
            # A copy, because the output may be repeated for the beams in place. Outputs of other encoders have no mask,
            # so the mask is passed separately.
            complete = self.model.complete_encoder_outputs(encoder_outputs, model_kwargs.get("attention_mask"))
            check_present([complete.attention_mask])
            model_kwargs["encoder_outputs"] = complete
        else:
            sources = self.model.encoder.inputs_by_source(
                model_kwargs if inputs is None else {**model_kwargs, self.main_input_name: inputs}
            )
            masks = list(self.model.encoder.input_masks(sources).values())
            check_present(masks)
            if self.config.source_names[0] not in sources:
                nothing = torch.zeros(len(masks[0]), 0, dtype=torch.long, device=masks[0].device)
                model_kwargs[self.main_input_name] = model_kwargs["attention_mask"] = nothing
        return super()._prepare_model_inputs(inputs, bos_token_id, model_kwargs)  # type: ignore[misc]

    def prepare_inputs_for_generation(  # type: ignore[override]
        self, input_ids: Any, next_sequence_length: int | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        kwargs.pop(COLLECTED, None)
        best = kwargs.pop(BEST, None)
        inputs = super().prepare_inputs_for_generation(  # type: ignore[misc]
            input_ids, next_sequence_length=next_sequence_length, **kwargs
        )
        if best is not None:
            inputs["num_best_tokens"] = best
        if inputs.get("encoder_outputs") is not None:
            for key in self.config.source_keywords:
                inputs.pop(key, None)
        return inputs

    def _run_beam_step(self, tokens: Tensor, model_kwargs: Mapping[str, Any]) -> ModelOutput | None:
        """Compute the next step of beam search without calling `forward`; return None if `forward` must be called.

        `tokens` (B, K, T) are the running texts, `model_kwargs` the arguments of `prepare_inputs_for_generation`.
        """
        return None

    def _beam_search(  # type: ignore[override]
        self,
        input_ids: torch.LongTensor,
        *,
        logits_processor: LogitsProcessorList,
        generation_config: GenerationConfig,
        **kwargs: Any,
    ) -> Any:
        alpha = getattr(generation_config, OPTION, None)
        if not getattr(generation_config, FOLD, True) and alpha is None:
            return super()._beam_search(  # type: ignore[misc]
                input_ids, logits_processor=logits_processor, generation_config=generation_config, **kwargs
            )
        asks = generation_config.return_dict_in_generate and (
            generation_config.output_scores or generation_config.output_logits
        )
        reads_all = logits_processor or generation_config.do_sample or asks
        ends: Tensor | None = getattr(generation_config, "_eos_token_tensor", None)
        needed = max(
            2, 1 + (0 if ends is None else len(ends))
        )  # continuations of each beam, at least one of which does not end
        if self.config.vocab_size < needed:
            raise ValueError(
                f"beam search needs at least {needed} tokens with eos_token_id={generation_config.eos_token_id!r}; the "
                f"vocabulary has vocab_size={self.config.vocab_size}."
            )
        # With a shorter list the search also selects tokens of probability 0, whose ids are only known from all logits.
        if (
            self.finds_best_tokens
            and not reads_all
            and (SHORTLIST not in kwargs or len(kwargs[SHORTLIST].ids) >= needed)
        ):
            kwargs[BEST] = needed * generation_config.num_beams
        output: Any = beam_search(
            self,
            input_ids,
            logits_processor=logits_processor,
            generation_config=generation_config,
            length_normalization=alpha,
            **kwargs,
        )
        unfold_cache(output)
        return output

    def _examples_can_leave(self, cache: Any) -> bool:
        """Return whether examples can be removed from a cache: it was created by this call and has no fixed size."""
        if isinstance(cache, EncoderDecoderCache):
            return isinstance(cache.self_attention_cache, BeamCache)
        return cache is None or isinstance(cache, MultiSourceRNNCache)

    def _select_examples(self, model_kwargs: dict[str, Any], kept: Tensor, num_beams: int) -> dict[str, Any]:
        """Select examples in all keyword arguments of a step of beam search."""
        rows = (kept[:, None] * num_beams + torch.arange(num_beams, device=kept.device)).flatten()
        folded = model_kwargs[EXPANSION] > 1
        chosen = dict(model_kwargs)
        for key, value in model_kwargs.items():
            if isinstance(value, Tensor) and key not in self.config.source_keywords:
                chosen[key] = value[rows.to(value.device)]
        encoded = model_kwargs["encoder_outputs"]
        chosen["encoder_outputs"] = self.model.select_examples(encoded, kept if folded else rows)
        if (cache := model_kwargs.get("past_key_values")) is not None:
            self._select_in_cache(cache, kept, rows)
        return chosen

    def _select_in_cache(self, cache: Any, kept: Tensor, rows: Tensor) -> None:
        if not isinstance(cache, EncoderDecoderCache):
            cache.batch_select_indices(rows)
            return
        cache.self_attention_cache.batch_select_indices(kept)  # a BeamCache, which has one row per example
        cache.cross_attention_cache.batch_select_indices(kept)


__all__ = ["MultiSourceGenerationMixin", "unfold_cache"]
