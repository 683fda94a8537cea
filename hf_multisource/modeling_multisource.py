"""Transformer models with several encoders and one decoder, whose cross-attention is a combiner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, EncoderDecoderCache, GenerationConfig
from transformers.generation import GenerationMode
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention import AttentionMask, MultiHeadAttention, SourceMemory, self_attention_cache
from .beam_cache import BeamCache
from .combiners import Combiner, build_combiner
from .configuration_multisource import MultiSourceConfig
from .conversion import FromSourcesMixin
from .decoder_step import is_bound, run_layers
from .dropout import dropout
from .encoders import ENCODERS, EncodedSource, TextEncoder
from .generation import BEST, EXPANSION, FOLD, SHORTLIST, STEP_KEYWORDS, MultiSourceGenerationMixin, unfold_cache
from .inference import is_bare
from .layers import Bias, FeedForward, TextEmbeddings, modules_of_sources
from .modeling_sources import (
    MultiSourceDecoderOutput,
    MultiSourceLMOutput,
    SourcesEncoder,
    SourcesForConditionalGeneration,
    SourcesModel,
)
from .packing import examples_with, packing_pays
from .pretrained_model import MultiSourceTransformerPreTrainedModel

SOURCE_VECTORS = "source_vectors"  # name of the argument of text encoders for the source embeddings


class MultiSourceEncoder(MultiSourceTransformerPreTrainedModel, SourcesEncoder):
    """Encodes the sources with their encoders and joins the states on the time axis.

    Args:
        config: The model's configuration.
    """

    encoder_types = ENCODERS

    def __init__(self, config: MultiSourceConfig) -> None:
        super().__init__(config)
        self.source_embeddings: nn.ModuleDict | None = None
        if config.source_embeddings:
            names = [name for name in self.source_names if isinstance(self.encoder_of(name), TextEncoder)]
            # Separate vectors, because the rows of a table cannot be sharded among more processes than sources.
            self.source_embeddings = modules_of_sources(names, lambda: Bias(config.d_model))
        self.post_init()

    def _vectors_of(self, names: Sequence[str], rows: int) -> Tensor:
        """Return the source embeddings (len(names) * rows, D), each repeated for `rows` rows."""
        vectors: Any = self.source_embeddings
        return torch.stack([vectors[name]() for name in names]).repeat_interleave(rows, dim=0)

    def _encode_all(self, inputs: dict[str, dict[str, Tensor]], options: dict[str, object]) -> dict[str, EncodedSource]:
        """Encode all sources; sources with a shared encoder in one call, if their inputs can be padded to one shape."""
        silent = {**options, "output_attentions": False, "output_hidden_states": False}
        wants = options.get("output_attentions") or options.get("output_hidden_states")
        groups: list[list[str]] = []
        for name in inputs:
            # Requested hidden states and attentions must be those of source 0 alone, so sources are encoded separately.
            group = next((group for group in groups if not wants and self._go_together(group[0], name, inputs)), None)
            if group is None:
                groups.append([name])
            else:
                group.append(name)
        encoded: dict[str, EncodedSource] = {}
        for names in groups:
            if len(names) > 1:
                encoded |= self._encode_together({name: inputs[name] for name in names}, **silent)
            else:
                mine = options if names[0] == self.config.source_names[0] else silent
                encoded[names[0]] = self._encode(names[0], inputs[names[0]], **mine)
        return {name: encoded[name] for name in inputs}

    def _encode(self, name: str, inputs: dict[str, Tensor], **options: object) -> EncodedSource:
        """Encode a source; in training on a CPU, only of the examples that have it."""
        mask = inputs["attention_mask"]
        if self.source_embeddings is not None and name in self.source_embeddings and SOURCE_VECTORS not in inputs:
            inputs = {**inputs, SOURCE_VECTORS: self._vectors_of([name], mask.shape[0])}
        recorded = options.get("output_attentions") or options.get("output_hidden_states")
        rows = examples_with(mask.any(dim=1)) if packing_pays(mask, self.training) and not recorded else None
        if rows is None:
            return super()._encode(name, inputs, **options)
        output = super()._encode(name, {key: value.index_select(0, rows) for key, value in inputs.items()}, **options)
        return EncodedSource(
            last_hidden_state=_spread(output.last_hidden_state, rows, len(mask)),
            attention_mask=_spread(output.attention_mask, rows, len(mask)),
        )

    def _absent(self, name: str, attention_mask: Tensor) -> EncodedSource:
        encoded = super()._absent(name, attention_mask)
        if self.source_embeddings is not None and name in self.source_embeddings:
            encoded.last_hidden_state = encoded.last_hidden_state + 0 * self.source_embeddings[name]()
        return encoded

    def _go_together(self, one: str, other: str, inputs: dict[str, dict[str, Tensor]]) -> bool:
        """Return whether two sources share an encoder and their inputs can be padded to the same shape."""
        if self.owners[one] != self.owners[other] or inputs[one].keys() != inputs[other].keys():
            return False
        encoder = self.encoder_of(one)
        padded = all(
            any(
                key in encoder.paddable and value.shape[1] == tensors["attention_mask"].shape[1]
                for key, value in tensors.items()
            )
            for tensors in (inputs[one], inputs[other])
        )
        first = 2 if padded else 1
        return all(value.shape[first:] == inputs[other][key].shape[first:] for key, value in inputs[one].items())

    def _encode_together(self, inputs: dict[str, dict[str, Tensor]], **options: object) -> dict[str, EncodedSource]:
        """Encode sources with a shared encoder as one batch, in which shorter sources are padded."""
        lengths = [tensors["attention_mask"].shape[1] for tensors in inputs.values()]
        longest, differ = max(lengths), len(set(lengths)) > 1

        def pad(value: Tensor) -> Tensor:
            return (
                nn.functional.pad(value, (0, 0) * (value.dim() - 2) + (0, longest - value.shape[1]))
                if differ
                else value
            )

        name, one = next(iter(inputs.items()))
        joined = {key: torch.cat([pad(tensors[key]) for tensors in inputs.values()]) for key in one}
        sizes = [len(tensors["attention_mask"]) for tensors in inputs.values()]
        if self.source_embeddings is not None and name in self.source_embeddings:
            joined[SOURCE_VECTORS] = self._vectors_of(list(inputs), sizes[0])
        output = self._encode(name, joined, **options)
        states, masks = output.last_hidden_state.split(sizes), output.attention_mask.split(sizes)
        return {
            name: EncodedSource(
                last_hidden_state=states[i][:, : lengths[i]] if differ else states[i],
                attention_mask=masks[i][:, : lengths[i]] if differ else masks[i],
            )
            for i, name in enumerate(inputs)
        }


def _spread(some: Tensor, rows: Tensor, count: int) -> Tensor:
    """Scatter rows to their indices among `count` rows; all other rows are zero or False."""
    return some.new_zeros(count, *some.shape[1:]).index_copy_(0, rows, some)


class DecoderLayer(GradientCheckpointingLayer):
    """Transformer decoder layer: self-attention, combiner and feed-forward layer.

    Args:
        config: The model's configuration.
        layer_idx: Index of the layer, from 0, also in the key/value cache.

    Shape:
        (B, T, D) to (B, T, D).
    """

    def __init__(self, config: MultiSourceConfig, layer_idx: int) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.pre_norm = config.norm_position == "pre"
        self.self_attn = MultiHeadAttention(config, config.decoder_attention_heads, is_causal=True, layer_idx=layer_idx)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.cross_attn = build_combiner(config, layer_idx)
        self.feed_forward = FeedForward(config, config.decoder_ffn_dim, config.dropout)

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        mask: AttentionMask,
        memory: SourceMemory,
        past_key_values: Cache | None = None,
        **kwargs: object,
    ) -> Tensor:
        """Compute the layer.

        Args:
            hidden_states: States of the layer below.
            encoder_hidden_states: The states of the memory, because gradient checkpointing only tracks tensors that are
                arguments.
            mask: Causal mask in the format of the attention implementation.
            memory: The encoded sources.
            past_key_values: The key/value cache.
            **kwargs: Passed on to the attention implementation.

        Returns:
            The new states.
        """
        memory = memory.with_states(encoder_hidden_states)
        states = self.self_attn_layer_norm(hidden_states) if self.pre_norm else hidden_states
        states, _ = self.self_attn(states, mask, past_key_values, **kwargs)
        states = hidden_states + dropout(states, p=self.dropout, training=self.training)
        if not self.pre_norm:
            states = self.self_attn_layer_norm(states)
        states, _, _ = self.cross_attn(states, memory, past_key_values, **kwargs)
        return self.feed_forward(states)


def _recorder_of_layers() -> OutputRecorder:
    recorder: Any = OutputRecorder(DecoderLayer)
    recorder.num_hidden_layers_key = "decoder_layers"  # set here because older releases lack the argument
    return recorder


class MultiSourceDecoder(MultiSourceTransformerPreTrainedModel):
    """Transformer decoder whose cross-attention is a combiner.

    Args:
        config: The model's configuration.
    """

    _can_record_outputs = {
        "hidden_states": _recorder_of_layers(),
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(Combiner, index=1),
        "source_weights": OutputRecorder(Combiner, index=2),
    }
    layer_type = DecoderLayer

    def __init__(self, config: MultiSourceConfig) -> None:
        super().__init__(config)
        self.embeddings = TextEmbeddings(
            config,
            vocab_size=config.vocab_size,
            pad_token_id=config.pad_token_id,
            position_embedding=config.position_embedding,
            max_position_embeddings=config.max_position_embeddings,
            dropout=config.dropout,
        )
        self.layers = nn.ModuleList([self.layer_type(config, i) for i in range(config.decoder_layers)])
        pre_norm = config.norm_position == "pre"
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps) if pre_norm else None
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.tokens

    def set_input_embeddings(self, value: Any) -> None:
        self.embeddings.tokens = value

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        *,
        encoder_hidden_states: Tensor,
        memory: SourceMemory,
        **kwargs: object,
    ) -> MultiSourceDecoderOutput:
        """Decode the tokens of the target, or with a cache only the new tokens.

        Args:
            input_ids: Token ids.
            attention_mask: 1 at real tokens, 0 at padding, including cached tokens; None: all tokens are real.
            past_key_values: Key/value cache of earlier calls.
            inputs_embeds: Embedded tokens instead of ids.
            use_cache: Whether to return the key/value cache.
            encoder_hidden_states: The states of the memory, because hooks move tensors between devices, but not
                memories.
            memory: The encoded sources; K consecutive rows of the decoder share the sources of one example.
            **kwargs: `output_attentions`, `output_hidden_states`, `output_source_weights`, and arguments of the
                attention implementation.

        Shape:
            input_ids (B * K, T); encoder_hidden_states (B, S, D).

        Returns:
            States (B * K, T, D) and the requested outputs.
        """
        if use_cache and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        start = past_key_values.get_seq_length() if past_key_values is not None else 0
        states = self.embeddings(input_ids, inputs_embeds, start)
        own = None if past_key_values is None else self_attention_cache(past_key_values)
        mask: AttentionMask = own.mask(states, attention_mask) if isinstance(own, BeamCache) else None
        alone = isinstance(own, BeamCache) and start and states.shape[1] == 1 and attention_mask is None
        if mask is None and not alone:  # a single new position without padding attends to all positions
            mask = create_causal_mask(
                config=self.config, inputs_embeds=states, attention_mask=attention_mask, past_key_values=own
            )
        memory = memory.with_states(encoder_hidden_states)
        done = None
        asked = any(value is not None and value is not False for value in kwargs.values())  # such as attention weights
        if isinstance(own, BeamCache) and start and not asked:
            done = run_layers(self, states, mask, memory, past_key_values, own)
        for layer in self.layers if done is None else ():
            states = layer(
                states, memory.states, mask, memory, past_key_values=past_key_values, use_cache=use_cache, **kwargs
            )
        states = states if done is None else done
        if self.layer_norm is not None:
            states = self.layer_norm(states)
        return MultiSourceDecoderOutput(last_hidden_state=states, past_key_values=past_key_values)

    def run_step(
        self, input_ids: Tensor, past_key_values: EncoderDecoderCache, cache: BeamCache, memory: SourceMemory
    ) -> Tensor:
        """Decode one new token of each beam; a fast path of `forward` for a cache for which `is_bound` is true.

        Args:
            input_ids: The new tokens.
            past_key_values: The whole cache.
            cache: The self-attention part of the cache.
            memory: The encoded sources.

        Shape:
            input_ids (B * K, 1). Returns (B * K, 1, D).

        Returns:
            The states of the new positions.
        """
        states = self.embeddings(input_ids, None, cache.get_seq_length())
        done: Any = run_layers(self, states, cache.mask(states), memory, past_key_values, cache)
        return done if self.layer_norm is None else self.layer_norm(done)


class MultiSourceModel(MultiSourceTransformerPreTrainedModel, SourcesModel):
    """Multi-source Transformer without an output layer: encoders and decoder.

    Args:
        config: The model's configuration.
    """

    encoder_type = MultiSourceEncoder
    decoder_type = MultiSourceDecoder


class MultiSourceForConditionalGeneration(  # type: ignore[misc]  # each base has its own type of `config`
    MultiSourceTransformerPreTrainedModel, SourcesForConditionalGeneration, MultiSourceGenerationMixin, FromSourcesMixin
):
    """Multi-source Transformer with an output layer, for training on `labels` and for generation.

    Args:
        config: The model's configuration.

    Example:
        >>> from hf_multisource import MultiSourceConfig, MultiSourceForConditionalGeneration
        >>> model = MultiSourceForConditionalGeneration(MultiSourceConfig(sources=["en", "de"], d_model=64))
        >>> model.get_encoder().config.source_names
        ['en', 'de']
    """

    body_type = MultiSourceModel

    def _run_beam_step(self, tokens: Tensor, model_kwargs: Mapping[str, Any]) -> MultiSourceLMOutput | None:
        # For a single sentence, the method calls between `forward` and the layers take as long as one layer.
        body, encoded = cast(Any, self.model), cast(Any, model_kwargs.get("encoder_outputs"))
        cache = model_kwargs.get("past_key_values")
        own = getattr(cache, "self_attention_cache", None)
        if not (
            isinstance(own, BeamCache)
            and own.step is not None
            and model_kwargs.keys() <= STEP_KEYWORDS
            and encoded.last_hidden_state.device == tokens.device
            and self._is_unchanged()
            and type(self).prepare_inputs_for_generation is PREPARE
            and "prepare_inputs_for_generation" not in self.__dict__
        ):
            return None
        last = tokens[:, :, -1].reshape(-1, 1)
        memory = body.prepare_sources(encoded, None, model_kwargs[EXPANSION]).memory
        if not is_bound(own, last, memory):
            return None
        states = body.decoder.run_step(last, cache, own, memory)
        logits, ids = self._predict(states, model_kwargs.get(BEST, 0), model_kwargs.get(SHORTLIST))
        return MultiSourceLMOutput(logits=logits, best_token_ids=ids, past_key_values=cache)

    def _is_unchanged(self) -> bool:
        """Return whether calling the model, its body and its decoder only runs the `forward` of these classes."""
        body = cast(Any, self.model)
        return all(
            type(one).forward is forward and is_bare(one)
            for one, forward in zip((self, body, body.decoder), FORWARDS, strict=True)
        )

    def _prepare_cache_for_generation(  # type: ignore[override]
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: GenerationMode,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        if (
            model_kwargs.get("past_key_values") is None
            and generation_config.use_cache is not False
            and generation_config.cache_implementation is None
            and not generation_config.is_assistant
            and generation_mode in (GenerationMode.BEAM_SEARCH, GenerationMode.BEAM_SAMPLE)
            and (beams := model_kwargs[EXPANSION]) > 1
            and self.config._attn_implementation in ("eager", "sdpa")  # others do not support this mask
            and not generation_config.output_attentions
            and not self.training  # gradient checkpointing disables caches
        ):
            own = BeamCache(beams, self.config.decoder_layers, max_cache_length)
            model_kwargs["past_key_values"] = EncoderDecoderCache(own, DynamicCache())
            return
        super()._prepare_cache_for_generation(  # type: ignore[misc]
            generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
        )

    def _sample(  # type: ignore[override]
        self, input_ids: Any, *, generation_config: GenerationConfig, **kwargs: Any
    ) -> Any:
        # Greedy search and sampling. Only this loop gets the other cache; functions for `custom_generate` may call
        # methods that it lacks.
        if self._cache_can_be_bound(kwargs.get("past_key_values"), generation_config):
            own = BeamCache(1, self.config.decoder_layers, generation_config.max_length or 0)
            kwargs["past_key_values"] = EncoderDecoderCache(own, DynamicCache())
        output: Any = super()._sample(input_ids, generation_config=generation_config, **kwargs)  # type: ignore[misc]
        unfold_cache(output)
        return output

    def _cache_can_be_bound(self, cache: Any, generation_config: GenerationConfig) -> bool:
        """Return whether a [`BeamCache`] may replace a cache: Transformers' default, still empty, not the user's."""
        return (
            type(cache) is EncoderDecoderCache
            and type(cache.self_attention_cache) is DynamicCache
            and cache.get_seq_length() == 0
            and not getattr(cache, "_is_user_defined", False)
            and not generation_config.is_assistant  # an assistant's cache is cropped
            and not generation_config.output_attentions
            and getattr(generation_config, FOLD, True)
            # Otherwise `run_layers` calls the modules, and nothing would be gained.
            and self.config._attn_implementation == "sdpa"
            and not (self.training or torch.is_grad_enabled())
            and self._is_unchanged()
        )


#: The `forward` functions of model, body and decoder; the fast path requires that they are not overridden or replaced.
FORWARDS = (MultiSourceForConditionalGeneration.forward, MultiSourceModel.forward, MultiSourceDecoder.forward)
#: Likewise, for steps of beam search that do not call it.
PREPARE = MultiSourceForConditionalGeneration.prepare_inputs_for_generation

__all__ = ["MultiSourceForConditionalGeneration", "MultiSourceModel"]
