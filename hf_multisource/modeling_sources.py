"""Base classes of the models of both families: encoder of all sources, body, and model with an output layer."""

# No `from __future__ import annotations`: Transformers' shared tests evaluate `**kwargs: Unpack[TransformersKwargs]`.
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import Cache, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutputWithPastAndCrossAttentions,
    ModelOutput,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, logging
from transformers.utils.generic import can_return_tuple

from .attention import SourceMemory, show_first_position, version_of
from .configuration_multisource import SourcesConfig
from .encoders import EncodedSource, SourceEncoderBase, drop_sources, keep_subsets
from .inference import InferenceMixin, is_bare, output_logits, takes_bias
from .layers import AbsentVector, modules_of_sources
from .loss import linear_cross_entropy
from .pretrained_model import MultiSourcePreTrainedModel
from .vocabulary import Shortlist, best_tokens

logger = logging.get_logger(__name__)


Encoded = TypeVar("Encoded", bound=EncodedSource)


def on_one_device(encoded: Mapping[str, Encoded]) -> Mapping[str, Encoded]:
    """Move the outputs of encoders that a `device_map` has separated to the device of the first one.

    Args:
        encoded: Outputs of the encoders by the names of the sources.

    Returns:
        The outputs, with all their tensors on one device.
    """
    devices = [output.last_hidden_state.device for output in encoded.values()]
    if len(set(devices)) <= 1:
        return encoded
    moved: dict[str, Encoded] = {}
    for name, output in encoded.items():
        tensors: dict[str, Any] = {key: value for key, value in output.items() if isinstance(value, Tensor)}
        moved[name] = replace(output, **{key: value.to(devices[0]) for key, value in tensors.items()})
    return moved


def check_batch_sizes(masks: Mapping[str, Tensor]) -> None:
    """Check that all sources have the same batch size.

    Args:
        masks: The attention mask of each source.

    Shape:
        (B, S_i).

    Raises:
        ValueError: If the batch sizes differ; the message gives all names and sizes.
    """
    sizes = {name: mask.shape[0] for name, mask in masks.items()}
    # The sizes are compared instead of collected in a set, because they are symbolic integers during export.
    if any(size != next(iter(sizes.values())) for size in sizes.values()):
        got = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        raise ValueError(f"all sources must have the same batch size; got {got}.")


@dataclass
class MultiSourceEncoderOutput(ModelOutput):
    """Encoded sources of a batch, joined on the time axis.

    Args:
        last_hidden_state: (B, S, D), states of all sources, source 0 first.
        hidden_states: Hidden states of source 0's encoder, if requested.
        attentions: Attentions of source 0's encoder, if requested.
        attention_mask: (B, S) bool, True = real token, or the vector of an absent source (`absent_vectors`).
        source_lengths: Padded length of each source; 0 if no example has the source and no vector represents it.
    """

    # Outputs of Transformers have defaults of None; the encoder always sets the fields whose type is not optional.
    last_hidden_state: Tensor = None  # type: ignore[assignment]
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    attention_mask: Tensor = None  # type: ignore[assignment]
    source_lengths: tuple[int, ...] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        #: The memory that the decoder reads, created by `SourcesModel.prepare_sources`, and the version of the mask at
        #: that time. They are not fields: an output that has been moved to another device or exported does not have
        #: them, and they are created again.
        self.memory: SourceMemory | None = None
        self.mask_version: int | None = None


@dataclass
class MultiSourceDecoderOutput(BaseModelOutputWithPastAndCrossAttentions):
    """Output of the decoder.

    Args:
        source_weights: (B, H', T, n) per layer, from combiners that weigh the sources, if attentions are requested and
            the model has several sources. H' is 1 for mean and weighted_sum, `hierarchical_heads` for hierarchical,
            and `decoder_attention_heads` for context_gate.
    """

    source_weights: tuple[Tensor, ...] | None = None


@dataclass
class MultiSourceModelOutput(Seq2SeqModelOutput):
    """Output of [`MultiSourceModel`].

    `cross_attentions` contains one tensor (B, H, T, S) per layer, over the joined states of all sources.

    Args:
        source_weights: (B, H', T, n) per layer, as in [`MultiSourceDecoderOutput`].
        source_lengths: Number of states of each source, which sum to S, if attentions are requested and the model has
            several sources.
    """

    source_weights: tuple[Tensor, ...] | None = None
    source_lengths: tuple[int, ...] | None = None


@dataclass
class MultiSourceLMOutput(Seq2SeqLMOutput):
    """Output of [`MultiSourceForConditionalGeneration`]; see [`MultiSourceModelOutput`].

    Args:
        source_weights: (B, H', T, n) per layer, as in [`MultiSourceDecoderOutput`].
        source_lengths: Number of states of each source, which sum to S, if attentions are requested and the model has
            several sources.
        best_token_ids: (B, C), ids of the C most probable tokens, if `num_best_tokens` is C.
    """

    source_weights: tuple[Tensor, ...] | None = None
    source_lengths: tuple[int, ...] | None = None
    best_token_ids: Tensor | None = None


class SourcesEncoder(MultiSourcePreTrainedModel):
    """Encodes the sources with their encoders and joins the states on the time axis.

    Args:
        config: The model's configuration.
    """

    #: Encoder classes by `SourceConfig.kind`.
    encoder_types: ClassVar[Mapping[str, Callable[[Any, str], SourceEncoderBase]]]

    def __init__(self, config: SourcesConfig) -> None:
        super().__init__(config)
        self.source_names = config.source_names
        self.owners = {name: config.encoder_owner(name).name for name in config.source_names}
        self.sources = nn.ModuleDict()
        for source in config.sources:
            if self.owners[source.name] != source.name:
                continue
            if hasattr(self.sources, source.name):
                raise ValueError(f"source name {source.name!r} is an attribute of torch modules; choose another.")
            self.sources[source.name] = self.encoder_types[source.kind](config, source.name)
        self.absent_vectors: nn.ModuleDict | None = None
        if config.absent_vectors:
            self.absent_vectors = modules_of_sources(config.source_names, lambda: AbsentVector(config.d_model))
        self.main_input_name = self._first.main_input_name
        self.post_init()

    @property
    def _first(self) -> SourceEncoderBase:
        return self.encoder_of(self.config.source_names[0])

    def encoder_of(self, name: str) -> SourceEncoderBase:
        """Return the encoder of a source, which several sources can share.

        Args:
            name: The source's name.

        Returns:
            The encoder.
        """
        return cast(SourceEncoderBase, self.sources[self.owners[name]])

    def get_input_embeddings(self) -> nn.Module:
        return self._first.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self._first.set_input_embeddings(value)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: object,
    ) -> MultiSourceEncoderOutput:
        """Encode the given sources.

        Args:
            input_ids: Token ids of source 0; for another source `de`: `de_input_ids`.
            attention_mask: 1 at real tokens of source 0, 0 at padding; for another source `de`: `de_attention_mask`.
                The row of an example that lacks the source is zero. None: created from the padding id.
            inputs_embeds: Embedded tokens of source 0 instead of ids; for another source `de`: `de_inputs_embeds`.
            **kwargs: Inputs of the other sources; `output_attentions` and `output_hidden_states`.

        Shape:
            input_ids, attention_mask (B, S_i); inputs_embeds (B, S_i, D).

        Returns:
            The joined states, their mask and the lengths of the sources.

        Raises:
            ValueError: If no source is given, a source is unknown, batch sizes differ, or all given sources have no
                columns; the message gives the names.
        """
        kwargs.update(input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds)
        given = self.inputs_by_source(kwargs)
        options = {key: value for key, value in kwargs.items() if key in TransformersKwargs.__optional_keys__}
        for key in ("output_attentions", "output_hidden_states"):
            if options.get(key) is None:
                options[key] = getattr(self.config, key)
        masks = {name: mask for name, mask in self.input_masks(given).items() if mask.shape[1]}
        if not masks:
            raise ValueError(f"no source has any input: those of {', '.join(given)} have no columns.")
        if self.training:
            masks = self._drop_sources(masks)
        inputs = {name: {**given[name], "attention_mask": mask} for name, mask in masks.items()}
        encoded = self._encode_all(inputs, options)
        if self.training:  # DDP also needs gradients of the encoders of absent sources
            for name in (name for name in given if name not in masks):
                size = next(iter(masks.values())).shape[0]
                encoded[name] = self._absent(name, next(iter(masks.values())).new_zeros(size, 0))
            encoded = {name: encoded[name] for name in self.config.source_names if name in encoded}
        return self.join(encoded)

    def _absent(self, name: str, attention_mask: Tensor) -> EncodedSource:
        """Return the output for a source that no example has, with gradients of zero for the encoder's parameters."""
        return self.encoder_of(name).absent(attention_mask)

    def _drop_sources(self, masks: dict[str, Tensor]) -> dict[str, Tensor]:
        """Remove sources from examples at random, according to `source_subsets` or `source_dropout`."""
        places = [self.config.source_names.index(name) for name in masks]
        if table := self.config.source_subset_table:
            subsets = [[stays[i] for i in places] for stays in table]
            kept = keep_subsets(list(masks.values()), subsets, list(table.values()))
        elif any(probabilities := [self.config.source_dropouts[i] for i in places]):
            kept = drop_sources(list(masks.values()), probabilities)
        else:
            return masks
        return dict(zip(masks, kept, strict=True))

    def join(self, encoded: Mapping[str, EncodedSource]) -> MultiSourceEncoderOutput:
        """Join encoded sources on the time axis.

        Args:
            encoded: Outputs of the encoders by the names of the given sources, in order.

        Returns:
            The joined states, their mask and the lengths of the sources.
        """
        first = encoded.get(self.config.source_names[0], EncodedSource())
        encoded = on_one_device(encoded)
        if self.absent_vectors is not None:
            encoded = self._with_absent_vectors(encoded)
        state_masks = {name: output.attention_mask for name, output in encoded.items()}
        return MultiSourceEncoderOutput(
            last_hidden_state=torch.cat([output.last_hidden_state for output in encoded.values()], dim=1),
            hidden_states=first.hidden_states,
            attentions=first.attentions,
            attention_mask=torch.cat(list(state_masks.values()), dim=1),
            source_lengths=tuple(
                state_masks[name].shape[1] if name in state_masks else 0 for name in self.config.source_names
            ),
        )

    def _with_absent_vectors(self, encoded: Mapping[str, EncodedSource]) -> dict[str, EncodedSource]:
        """Set the first state of an absent source to the source's vector, in examples that have another source."""
        one = next(iter(encoded.values()))
        nothing = EncodedSource(
            last_hidden_state=one.last_hidden_state.new_zeros(len(one.last_hidden_state), 1, self.config.d_model),
            attention_mask=one.attention_mask.new_zeros(len(one.attention_mask), 1),
        )
        has_any = torch.stack([source.attention_mask.any(dim=1) for source in encoded.values()]).any(dim=0)
        found: dict[str, EncodedSource] = {}
        for name in self.config.source_names:
            states, mask = (encoded.get(name, nothing)[key] for key in ("last_hidden_state", "attention_mask"))
            vector = self.absent_vectors[name]().to(states)  # type: ignore[index]
            lacking = show_first_position(mask) & (has_any & ~mask.any(dim=1))[:, None]
            states = torch.where(lacking[..., None], vector, states)
            found[name] = EncodedSource(last_hidden_state=states, attention_mask=mask | lacking)
        return found

    def _encode_all(self, inputs: dict[str, dict[str, Tensor]], options: dict[str, object]) -> dict[str, EncodedSource]:
        """Encode the sources in separate calls."""
        return {name: self._encode(name, tensors, **options) for name, tensors in inputs.items()}

    def check_config(self) -> None:
        """Check that the sources of the configuration are those of the model."""
        if self.config.source_names != self.source_names:
            raise ValueError(
                f"config.sources of this model has been changed from {', '.join(self.source_names)} to "
                f"{', '.join(self.config.source_names)}; a model keeps the sources that it was built with. "
                "from_pretrained_sources makes a model with others, or in another order."
            )

    def inputs_by_source(self, keywords: Mapping[str, object]) -> dict[str, dict[str, Tensor]]:
        """Group the keywords of a call by source, as `MultiSourceConfig.source_inputs`, and check the types.

        Args:
            keywords: All keywords of the call.

        Returns:
            The inputs of each given source.

        Raises:
            ValueError: As `MultiSourceConfig.source_inputs`; also if the configuration's sources have been changed.
            TypeError: If an input is not a tensor; the message names the input.
        """
        self.check_config()
        given: dict[str, dict[str, Tensor]] = self.config.source_inputs(keywords)
        for name, inputs in given.items():
            for key, value in inputs.items():
                if not isinstance(value, Tensor):
                    raise TypeError(
                        f"{key} of source {name!r} must be a tensor; got a {type(value).__name__}. Call the processor "
                        'with return_tensors="pt".'
                    )
        return given

    def input_masks(self, given: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Compute the attention masks of all inputs and check that their batch sizes are equal.

        Args:
            given: The inputs of each given source.

        Returns:
            Bool masks (B, S_i) by source, True = real.

        Raises:
            ValueError: If the batch sizes of sources differ; the message gives all names and sizes.
        """
        masks = {name: self._mask(name, **inputs) for name, inputs in given.items()}
        check_batch_sizes(masks)
        return masks

    def encode_source(self, name: str, **kwargs: object) -> EncodedSource:
        """Encode a single source, for instance to get the hidden states and attentions of a source other than source 0.

        Args:
            name: The source's name.
            **kwargs: A batch as for `forward`, of which only the inputs of this source are read; `output_attentions`
                and `output_hidden_states`.

        Returns:
            Output of the source's encoder: states (B, S_i, D), their mask, and the requested outputs.

        Raises:
            ValueError: If the model or the batch does not have the source; the message gives the name.
        """
        self.config.get_source(name)
        given = self.inputs_by_source(kwargs)
        if name not in given:
            raise ValueError(f"the batch has no inputs of source {name!r}, only of {', '.join(given)}.")
        options = {key: value for key, value in kwargs.items() if key in TransformersKwargs.__optional_keys__}
        return self._encode(name, {**given[name], "attention_mask": self._mask(name, **given[name])}, **options)

    def _encode(self, name: str, inputs: dict[str, Tensor], **options: object) -> EncodedSource:
        return self.encoder_of(name)(**inputs, **options, return_dict=True)

    def _mask(self, name: str, **inputs: Tensor) -> Tensor:
        mask = self.encoder_of(name).input_mask(**inputs)
        for key in ("input_ids", "inputs_embeds"):
            if key in inputs and mask.shape != (shape := inputs[key].shape)[:2]:
                raise ValueError(
                    f"the attention mask of source {name!r} has the shape {tuple(mask.shape)}, and its {key} "
                    f"{tuple(shape)}; batch and length must be equal."
                )
        return mask


class SourcesModel(MultiSourcePreTrainedModel):
    """Base class of the models without an output layer: encoders and decoder.

    Args:
        config: The model's configuration.
    """

    encoder_type: ClassVar[type[SourcesEncoder]]
    decoder_type: ClassVar[type[MultiSourcePreTrainedModel]]

    def __init__(self, config: SourcesConfig) -> None:
        config.validate()  # fields may have been changed since the last validation
        super().__init__(config)
        self.encoder = self.encoder_type(config)
        self.decoder = self.decoder_type(config)
        self.main_input_name = self.encoder.main_input_name
        self._tied_weights_keys = {
            f"encoder.sources.{name}.embeddings.tokens.weight": table
            for name in self.encoder.sources
            if config.source_kind(name).has_vocabulary and (table := self._embedding_table(name)) is not None
        }
        self.post_init()

    def _embedding_table(self, name: str) -> str | None:
        """Return the name of the parameter that a source's token embeddings share; None if the source has its own."""
        source = self.config.get_source(name)
        if source.share_embeddings_with is not None:
            owner = self.encoder.owners[source.share_embeddings_with]
            return self._embedding_table(owner) or f"encoder.sources.{owner}.embeddings.tokens.weight"
        return "decoder.embeddings.tokens.weight" if source.vocab_size is None else None

    def get_input_embeddings(self) -> nn.Module:
        return self.decoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.decoder.set_input_embeddings(value)
        if not self.config.tie_word_embeddings:
            return
        for name in self.encoder.sources:
            kind = self.config.source_kind(name)
            if kind.has_vocabulary and self._embedding_table(name) == "decoder.embeddings.tokens.weight":
                self.encoder.encoder_of(name).set_input_embeddings(value)

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize the target's vocabulary in all modules that use it.

        Args:
            new_num_tokens: As [`PreTrainedModel.resize_token_embeddings`].
            pad_to_multiple_of: As [`PreTrainedModel.resize_token_embeddings`].
            mean_resizing: As [`PreTrainedModel.resize_token_embeddings`].

        Returns:
            The decoder's new token embeddings.
        """
        embeddings = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.resize_untied_embeddings(embeddings.num_embeddings, mean_resizing)
        return embeddings

    def resize_untied_embeddings(self, size: int, mean_resizing: bool = True) -> None:
        """Resize the token embeddings of sources that use the target's vocabulary without sharing its embeddings.

        Args:
            size: New number of tokens.
            mean_resizing: As [`PreTrainedModel.resize_token_embeddings`].
        """
        for name in self.encoder.sources:
            source = self.config.get_source(name)
            own = not self.config.source_kind(name).has_vocabulary or source.vocab_size is not None
            if not (own or self.config.tie_word_embeddings):
                PreTrainedModel.resize_token_embeddings(
                    self.encoder.encoder_of(name), size, mean_resizing=mean_resizing
                )

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: ModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        decoder_expansion: int = 1,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MultiSourceModelOutput:
        """Encode the sources, unless `encoder_outputs` is given, and decode the target.

        Args:
            input_ids: Token ids of source 0. Other sources: `<name>_input_ids`, `<name>_attention_mask`, ...
            attention_mask: 1 at real tokens of source 0, 0 at padding; all 0 if the example lacks the source.
            decoder_input_ids: Token ids of the target, shifted right.
            decoder_attention_mask: 1 at real target tokens.
            encoder_outputs: Output of the encoder, to avoid encoding the sources again.
            past_key_values: Key/value cache of earlier calls.
            inputs_embeds: Embedded tokens of source 0 instead of ids.
            decoder_inputs_embeds: Embedded target tokens instead of ids.
            use_cache: Whether to return the key/value cache.
            decoder_expansion: Rows of `decoder_input_ids` per example, K. K consecutive rows share the sources of one
                example, which are encoded and projected once; `generate` passes beams in this form.
            **kwargs: Inputs of the other sources; `output_attentions`, `output_hidden_states`, and arguments of the
                attention implementation.

        Returns:
            States (B * K, T, D) of the decoder and the requested outputs.

        Raises:
            ValueError: If no source or no target is given, a source is unknown, or the number of decoder rows is not K
                times the number of examples.
        """
        options = {key: value for key, value in kwargs.items() if key in TransformersKwargs.__optional_keys__}
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                return_dict=True,  # regardless of the configuration
                **kwargs,
            )
        encoded = self.prepare_sources(encoder_outputs, attention_mask, decoder_expansion)
        target: Any = decoder_input_ids if decoder_inputs_embeds is None else decoder_inputs_embeds
        if target is None:
            raise ValueError(
                "the model needs labels: pass text_target to the processor, or give the model labels, "
                "decoder_input_ids or decoder_inputs_embeds. A Trainer with compute_loss_func, or a stock one with "
                "label_smoothing_factor, takes the labels away: then its collator needs the model, "
                "DataCollatorForMultiSource(processor, model=model)."
            )
        examples = encoded.last_hidden_state.shape[0]
        if target.shape[0] != examples * decoder_expansion:
            raise ValueError(
                f"the decoder is given {target.shape[0]} rows for {examples} examples and "
                f"decoder_expansion={decoder_expansion}; it needs so many rows for each example."
            )
        # With one source, the output has the fields of an ordinary encoder-decoder only.
        by_source = options.get("output_attentions", self.config.output_attentions) and len(self.config.sources) > 1
        decoded = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoded.last_hidden_state,
            memory=encoded.memory,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            output_source_weights=by_source,
            return_dict=True,
            **self._decoder_extras(encoded),
            **options,
        )
        return MultiSourceModelOutput(
            last_hidden_state=decoded.last_hidden_state,
            past_key_values=decoded.past_key_values,
            decoder_hidden_states=decoded.hidden_states,
            decoder_attentions=decoded.attentions,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
            source_weights=decoded.source_weights or None,
            source_lengths=encoded.source_lengths if by_source else None,
        )

    def _decoder_extras(self, encoded: MultiSourceEncoderOutput) -> dict[str, Tensor]:
        """Return further arguments of the decoder that depend on the model family."""
        return {}

    def prepare_sources(
        self, encoder_outputs: ModelOutput | tuple[Tensor, ...], attention_mask: Tensor | None, expansion: int
    ) -> MultiSourceEncoderOutput:
        """Create the memory that the decoder reads; `generate` does this once and passes the result to every step.

        Args:
            encoder_outputs: Output of an encoder or of this method.
            attention_mask: As for `complete_encoder_outputs`.
            expansion: Decoder rows per example.

        Returns:
            A new output with its memory; the given output if its memory was created from the same, unchanged tensors
            with the same expansion.
        """
        memory: SourceMemory | None = getattr(encoder_outputs, "memory", None)
        # Compiled graphs must create a new memory, because outputs of CUDA graphs are overwritten by the next call.
        if memory is not None and not torch.compiler.is_compiling():
            given: Any = encoder_outputs
            states, mask, lengths = given.last_hidden_state, given.attention_mask, given.source_lengths
            same = memory.states is states and memory.mask is mask and given.mask_version == version_of(mask)
            if same and (memory.lengths, memory.expansion) == (lengths, expansion):
                return given
        made: Any = self.complete_encoder_outputs(encoder_outputs, attention_mask)
        made.memory = SourceMemory(made.last_hidden_state, made.attention_mask, made.source_lengths, expansion)
        if not torch.compiler.is_compiling():
            made.mask_version = version_of(made.attention_mask)
        return made

    def select_examples(self, encoder_outputs: MultiSourceEncoderOutput, kept: Tensor) -> MultiSourceEncoderOutput:
        """Select examples from the output of `prepare_sources`.

        Args:
            encoder_outputs: Output of `prepare_sources`.
            kept: Indices of the examples.

        Shape:
            kept (B',).

        Returns:
            The output for these examples, with its memory, but without hidden states and attentions of the encoder.
        """
        memory: Any = encoder_outputs.memory
        chosen = memory.select(kept)
        fields: dict[str, Any] = {
            name: value.index_select(0, kept.to(value.device)) if isinstance(value, Tensor) else value
            for name, value in encoder_outputs.items()
            if name not in ("hidden_states", "attentions")
        }
        fields.update(last_hidden_state=chosen.states, attention_mask=chosen.mask)
        made = type(encoder_outputs)(**fields)
        made.memory, made.mask_version = chosen, version_of(chosen.mask)
        return made

    def complete_encoder_outputs(
        self, encoder_outputs: ModelOutput | tuple[Tensor, ...], attention_mask: Tensor | None
    ) -> MultiSourceEncoderOutput:
        """Add missing fields to the output of an encoder; models with one source accept outputs of other encoders.

        Args:
            encoder_outputs: Output of an encoder.
            attention_mask: Mask of the only source, for an output without a mask; None: all states are real.

        Shape:
            attention_mask (B, S).

        Returns:
            A new output, with mask and lengths.

        Raises:
            ValueError: If the model has several sources and the output does not contain their lengths.
        """
        if isinstance(encoder_outputs, ModelOutput):
            fields = dict(encoder_outputs)
        else:
            fields = dict(zip(("last_hidden_state", "hidden_states", "attentions"), encoder_outputs, strict=False))
        states = fields["last_hidden_state"]
        if fields.get("source_lengths") is None:
            if len(self.config.source_names) > 1:
                raise ValueError(
                    f"encoder_outputs lacks source_lengths, which {len(self.config.source_names)} sources need; "
                    "pass what model.get_encoder() returns."
                )
            fields["source_lengths"] = (states.shape[1],)
        if fields.get("attention_mask") is None:
            ones = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
            fields["attention_mask"] = ones if attention_mask is None else attention_mask.bool().expand_as(ones)
        return MultiSourceEncoderOutput(**fields)


class SourcesForConditionalGeneration(MultiSourcePreTrainedModel, InferenceMixin):
    """Base class of the models with an output layer; each model family adds generation.

    Args:
        config: The model's configuration.
    """

    _tied_weights_keys = {"lm_head.weight": "model.decoder.embeddings.tokens.weight"}
    body_type: ClassVar[type[SourcesModel]]

    def __init__(self, config: SourcesConfig) -> None:
        super().__init__(config)
        self.model = self.body_type(config)
        self.main_input_name = self.model.main_input_name
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.final_logits_bias:
            self.register_buffer("final_logits_bias", torch.zeros(1, config.vocab_size))
        self.post_init()

    @property
    def finds_best_tokens(self) -> bool:
        """As in [`MultiSourceGenerationMixin`]; False if `forward` is overridden, replaced or hooked.

        Such code may read or change the logits, and needs all of them.
        """
        return type(self).forward is SourcesForConditionalGeneration.forward and is_bare(self)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.set_input_embeddings(value)

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize the target's vocabulary in all modules that use it.

        Args:
            new_num_tokens: As [`PreTrainedModel.resize_token_embeddings`].
            pad_to_multiple_of: As [`PreTrainedModel.resize_token_embeddings`].
            mean_resizing: As [`PreTrainedModel.resize_token_embeddings`].

        Returns:
            The decoder's new token embeddings.
        """
        embeddings = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.model.resize_untied_embeddings(embeddings.num_embeddings, mean_resizing)
        if self.config.final_logits_bias:
            bias = self.get_buffer("final_logits_bias")
            more = embeddings.num_embeddings - bias.shape[1]
            self.final_logits_bias = nn.functional.pad(bias, (0, more))  # negative padding truncates
        return embeddings

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Shift labels one token to the right.

        Args:
            labels: Token ids, -100 at padding.

        Shape:
            (B, T) to (B, T).

        Returns:
            Input ids of the decoder for predicting the labels.

        Raises:
            ValueError: If the configuration has no `decoder_start_token_id`.
        """
        first = self.config.decoder_start_token_id
        if first is None:
            raise ValueError("the config needs a decoder_start_token_id (or bos_token_id) to shift labels.")
        start = labels.new_full((labels.shape[0], 1), first)
        shifted = torch.cat([start, labels[:, :-1]], dim=1)
        padding = self.config.pad_token_id
        return shifted if padding is None else shifted.masked_fill(shifted == -100, padding)

    @can_return_tuple
    def forward(  # type: ignore[misc]  # num_items_in_batch, among the names of TransformersKwargs too
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: ModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        skip_logits: bool = False,
        num_best_tokens: int = 0,
        decoder_shortlist: Shortlist | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MultiSourceLMOutput:
        """Predict the target's tokens.

        Args:
            input_ids: Token ids of source 0. Other sources: `<name>_input_ids`, `<name>_attention_mask`, ...
            attention_mask: 1 at real tokens of source 0, 0 at padding; all 0 if the example lacks the source.
            decoder_input_ids: Token ids of the target, shifted right; None: made from `labels`.
            decoder_attention_mask: 1 at real target tokens.
            encoder_outputs: Output of the encoder, to avoid encoding the sources again.
            past_key_values: Key/value cache of earlier calls.
            inputs_embeds: Embedded tokens of source 0 instead of ids.
            decoder_inputs_embeds: Embedded target tokens instead of ids.
            labels: Token ids to predict, -100 at positions that the loss ignores.
            use_cache: Whether to return the key/value cache; no cache is returned with `labels`.
            num_items_in_batch: Number of labels in all batches of an update, by which the summed loss is divided.
            skip_logits: Whether to compute the loss of `labels` without returning logits, which is faster and needs
                less memory; used by [`MultiSourceTrainer`].
            num_best_tokens: If above 0, C: `logits` are (B, 1, C + 1), the log-probabilities of the C most probable
                tokens at the last position and of all other tokens together, without gradients, and `best_token_ids`
                are the ids of the C tokens. Used by beam search, which needs no other tokens.
            decoder_shortlist: Output layer for the tokens that can be predicted; `generate` makes it from `shortlist`.
                None: all tokens.
            **kwargs: Inputs of the other sources; `decoder_expansion` as in [`MultiSourceModel`]; `output_attentions`,
                `output_hidden_states`, and arguments of the attention implementation.

        Shape:
            labels (B, T). Returns logits (B, T, V).

        Returns:
            Loss (mean over labels that are not -100: cross-entropy in nats, label-smoothed in training only), logits
            and the requested outputs.

        Raises:
            ValueError: As in [`MultiSourceModel`].
        """
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        output = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        if self.training and labels is None and self.config.label_smoothing and torch.is_grad_enabled():
            logger.warning_once(
                f"label_smoothing={self.config.label_smoothing} of the configuration acts on the loss that the model "
                "computes, and the model is trained without labels: a Trainer with label_smoothing_factor or "
                "compute_loss_func takes them. Set one of these."
            )
        bias = self.final_logits_bias if self.config.final_logits_bias else None
        smoothing = self.config.label_smoothing if self.training else 0.0
        logits = loss = best_ids = None
        plain = not num_best_tokens and decoder_shortlist is None
        # PEFT replaces the output layer; hooks, such as Accelerate's, need a call of it.
        is_plain_layer = type(self.lm_head) is nn.Linear and is_bare(self.lm_head)
        if plain and skip_logits and labels is not None and is_plain_layer:
            states = output.last_hidden_state.flatten(0, 1)
            row = None if bias is None else bias[0]
            loss = linear_cross_entropy(states, self.lm_head.weight, row, labels.flatten(), smoothing)
        else:
            logits, best_ids = self._predict(output.last_hidden_state, num_best_tokens, decoder_shortlist)
            if plain and labels is not None:
                scores = logits.float().flatten(0, 1)
                loss = cross_entropy(scores, labels.flatten(), label_smoothing=smoothing, reduction="sum")
        if loss is not None and labels is not None:
            loss = loss / (labels.ne(-100).sum() if num_items_in_batch is None else num_items_in_batch)
        rest = {key: value for key, value in output.items() if key != "last_hidden_state"}
        return MultiSourceLMOutput(loss=loss, logits=logits, best_token_ids=best_ids, **rest)

    def _predict(
        self, states: Tensor, num_best_tokens: int, shortlist: Shortlist | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return `logits` and `best_token_ids` of the output for the decoder's last states (B, T, D)."""
        if not num_best_tokens and shortlist is not None:
            return shortlist.logits(states), None
        bias = self.final_logits_bias if self.config.final_logits_bias else None
        if not num_best_tokens:
            if bias is not None and takes_bias(self.lm_head):
                return self.lm_head(states, bias[0]), None
            logits = output_logits(self.lm_head, states)
            return (logits if bias is None else logits + bias.to(logits.device)), None
        last = states[:, -1]
        if shortlist is not None:
            scores, ids = shortlist.best_tokens(last, num_best_tokens)
        else:
            row = None if bias is None else bias[0]
            scores, ids = best_tokens(self.lm_head, row, last, num_best_tokens, self.config.vocab_size)
        return scores[:, None], ids
