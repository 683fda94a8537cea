"""The parts that both families of models share: encoders of the sources, a decoder, and an output layer."""

# Annotations are evaluated: Transformers' shared tests read `**kwargs: Unpack[TransformersKwargs]`.
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import Cache
from transformers.modeling_outputs import (
    BaseModelOutputWithPastAndCrossAttentions,
    ModelOutput,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, logging
from transformers.utils.generic import can_return_tuple

from .attention import SourceMemory, show_first_position
from .configuration_multisource import SourcesConfig
from .encoders import EncodedSource, SourceEncoderBase, drop_sources, keep_subsets
from .inference import InferenceMixin, output_logits
from .layers import AbsentVector, modules_of_sources
from .loss import linear_cross_entropy
from .pretrained_model import MultiSourcePreTrainedModel
from .vocabulary import Shortlist, best_tokens

logger = logging.get_logger(__name__)


def _version(mask: Tensor) -> int | None:
    """The number of changes in place that a tensor has seen; tensors of inference mode do not count them."""
    return None if mask.is_inference() else mask._version


def check_batch_sizes(masks: Mapping[str, Tensor]) -> None:
    """Check that all sources are of one batch.

    Args:
        masks: The mask of each source.

    Shape:
        (B, S_i).

    Raises:
        ValueError: If they have batches of different sizes; the message gives all names and sizes.
    """
    sizes = {name: mask.shape[0] for name, mask in masks.items()}
    if any(size != next(iter(sizes.values())) for size in sizes.values()):  # no set: in export they are symbols
        got = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        raise ValueError(f"all sources must have the same batch size; got {got}.")


@dataclass
class MultiSourceEncoderOutput(ModelOutput):
    """All encoded sources, joined on the time axis: to a decoder it looks as if there were one source.

    Args:
        last_hidden_state: (B, S, D), source 0 first.
        hidden_states: Of source 0's encoder, if asked for.
        attentions: Of source 0's encoder, if asked for.
        attention_mask: (B, S) bool, True = real token, or the vector of an absent source (`absent_vectors`).
        source_lengths: Padded length of each source; 0 if the whole batch lacks it and no vector stands for it.
    """

    # Outputs of Transformers have defaults of None; encoders always give those that do not allow it.
    last_hidden_state: Tensor = None  # type: ignore[assignment]
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    attention_mask: Tensor = None  # type: ignore[assignment]
    source_lengths: tuple[int, ...] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        #: What the decoder reads, made by `SourcesModel.prepare_sources`, and the version of the mask then. These are
        #: no fields: an output that is moved to another device or exported lacks them, and has them made anew.
        self.memory: SourceMemory | None = None
        self.mask_version: int | None = None


@dataclass
class MultiSourceDecoderOutput(BaseModelOutputWithPastAndCrossAttentions):
    """What the decoder returns.

    Args:
        source_weights: (B, H, T, n) per layer, from combiners that weigh the sources, if attentions are asked for and
            there are several sources.
    """

    source_weights: tuple[Tensor, ...] | None = None


@dataclass
class MultiSourceModelOutput(Seq2SeqModelOutput):
    """What [`MultiSourceModel`] returns. `cross_attentions` has one (B, H, T, S) per layer, over all sources joined.

    Args:
        source_weights: (B, H, T, n) per layer, from combiners that weigh the sources, if attentions are asked for and
            there are several sources.
        source_lengths: How S divides into sources, if attentions are asked for and there are several sources.
    """

    source_weights: tuple[Tensor, ...] | None = None
    source_lengths: tuple[int, ...] | None = None


@dataclass
class MultiSourceLMOutput(Seq2SeqLMOutput):
    """What [`MultiSourceForConditionalGeneration`] returns; see [`MultiSourceModelOutput`].

    Args:
        source_weights: (B, H, T, n) per layer, from combiners that weigh the sources, if attentions are asked for and
            there are several sources.
        source_lengths: How S divides into sources, if attentions are asked for and there are several sources.
        best_token_ids: (B, C), if the C best tokens are asked for.
    """

    source_weights: tuple[Tensor, ...] | None = None
    source_lengths: tuple[int, ...] | None = None
    best_token_ids: Tensor | None = None


class SourcesEncoder(MultiSourcePreTrainedModel):
    """Encodes every source with its own encoder and joins the states on the time axis.

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
        """Look up the encoder that encodes a source; sources may share one.

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
        """Encode the sources that are given.

        Args:
            input_ids: Token ids of source 0; of source `de`: `de_input_ids`.
            attention_mask: 1 at real tokens of source 0, 0 at padding; of source `de`: `de_attention_mask`. A row of
                zeros: the example lacks the source. Left out: made from the padding id.
            inputs_embeds: Embedded tokens of source 0 instead of ids; of source `de`: `de_inputs_embeds`.
            **kwargs: The other sources, by name; `output_attentions` and `output_hidden_states`.

        Shape:
            input_ids, attention_mask (B, S_i); inputs_embeds (B, S_i, D).

        Returns:
            The joined states, their mask and the lengths of the sources.

        Raises:
            ValueError: If no source is given, one that the model does not have, batches of different size, or only
                sources without columns; the message gives the names.
        """
        kwargs.update(input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds)
        given = self.inputs_by_source(kwargs)
        options = {key: value for key, value in kwargs.items() if key in TransformersKwargs.__optional_keys__}
        masks = {name: mask for name, mask in self.input_masks(given).items() if mask.shape[1]}
        if not masks:
            raise ValueError(f"no source has any input: those of {', '.join(given)} have no columns.")
        if self.training:
            masks = self._drop_sources(masks)
        inputs = {name: {**given[name], "attention_mask": mask} for name, mask in masks.items()}
        encoded = self._encode_all(inputs, options)
        if self.training:  # parameters of a source that no example has still get gradients, which DDP needs
            for name in (name for name in given if name not in masks):
                size = next(iter(masks.values())).shape[0]
                encoded[name] = self._absent(name, next(iter(masks.values())).new_zeros(size, 0))
            encoded = {name: encoded[name] for name in self.config.source_names if name in encoded}
        return self.join(encoded)

    def _absent(self, name: str, attention_mask: Tensor) -> EncodedSource:
        """The states of a source that no example has, with gradients of zero for all its parameters."""
        return self.encoder_of(name).absent(attention_mask)

    def _drop_sources(self, masks: dict[str, Tensor]) -> dict[str, Tensor]:
        """Take sources away from examples, as `source_subsets` or `source_dropout` says."""
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
            encoded: What the encoders returned, by the names of those sources that were given, in order.

        Returns:
            The joined states, their mask and the lengths of the sources.
        """
        first = encoded.get(self.config.source_names[0], EncodedSource())
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
        """Put the vector of a source into its first state where an example lacks it, but has another source."""
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
        """Encode every source in a call of its own."""
        return {name: self._encode(name, tensors, **options) for name, tensors in inputs.items()}

    def check_config(self) -> None:
        """As [`MultiSourcePreTrainedModel.check_config`]."""
        if self.config.source_names != self.source_names:
            raise ValueError(
                f"config.sources of this model has been changed from {', '.join(self.source_names)} to "
                f"{', '.join(self.config.source_names)}; a model keeps the sources that it was built with. "
                "from_pretrained_sources makes a model with others, or in another order."
            )

    def inputs_by_source(self, keywords: Mapping[str, object]) -> dict[str, dict[str, Tensor]]:
        """Sort a call's keywords by source, as `MultiSourceConfig.source_inputs`, and check that they are tensors.

        Args:
            keywords: All keywords of the call.

        Returns:
            The inputs of each source that is given.

        Raises:
            ValueError: As `MultiSourceConfig.source_inputs`; also if the configuration's sources have been changed.
            TypeError: If an input is no tensor; the message names it.
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
        """Make the masks of all inputs, and make sure that they are of one batch.

        Args:
            given: The inputs of each source that is given.

        Returns:
            Bool masks (B, S_i) by source, True = real.

        Raises:
            ValueError: If sources have batches of different sizes; the message gives all names and sizes.
        """
        masks = {name: self._mask(name, **inputs) for name, inputs in given.items()}
        check_batch_sizes(masks)
        return masks

    def encode_source(self, name: str, **kwargs: object) -> EncodedSource:
        """Encode one source alone, for instance for the hidden states and attentions of another source than the first.

        Args:
            name: The source's name.
            **kwargs: A batch as for `forward`, of which the source's own inputs are read; `output_attentions` and
                `output_hidden_states`.

        Returns:
            What the source's encoder returns: states (B, S_i, D), their mask, and what was asked for.

        Raises:
            ValueError: If the model has no such source or the batch lacks it; the message gives the name.
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
        return self.encoder_of(name).input_mask(**inputs)


class SourcesModel(MultiSourcePreTrainedModel):
    """The encoders and the decoder, without a head.

    Args:
        config: The model's configuration.
    """

    encoder_type: ClassVar[type[SourcesEncoder]]
    decoder_type: ClassVar[type[MultiSourcePreTrainedModel]]

    def __init__(self, config: SourcesConfig) -> None:
        config.validate()  # its fields may have been changed since it was made
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
        """The parameter that a source's token table is a copy of, if it has none of its own."""
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
        """Change the size of the target's vocabulary, everywhere that it is used.

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
        """Change the size of those sources' tables that have the target's vocabulary, but are not its table.

        Args:
            size: The number of tokens.
            mean_resizing: As [`PreTrainedModel.resize_token_embeddings`].
        """
        for name in self.encoder.sources:
            source = self.config.get_source(name)
            own = not self.config.source_kind(name).has_vocabulary or source.vocab_size is not None
            if not (own or self.config.tie_word_embeddings):
                self.encoder.encoder_of(name).resize_token_embeddings(size, mean_resizing=mean_resizing)

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
        """Encode the sources (unless `encoder_outputs` holds them already) and decode the target.

        Args:
            input_ids: Token ids of source 0. Other sources: `<name>_input_ids`, `<name>_attention_mask`, ...
            attention_mask: 1 at real tokens of source 0, 0 at padding; a row of zeros: the source is absent.
            decoder_input_ids: Token ids of the target, shifted right.
            decoder_attention_mask: 1 at real target tokens.
            encoder_outputs: What the encoder returned, to use it again.
            past_key_values: Keys and values of earlier calls.
            inputs_embeds: Embedded tokens of source 0 instead of ids.
            decoder_inputs_embeds: Embedded target tokens instead of ids.
            use_cache: Whether to return keys and values.
            decoder_expansion: Rows of `decoder_input_ids` per example, K; those of an example follow one another and
                share its sources, which are encoded and projected once. `generate` folds beams so.
            **kwargs: The other sources; `output_attentions`, `output_hidden_states`, and what the attention
                implementation reads.

        Returns:
            States (B * K, T, D) of the decoder and what was asked for.

        Raises:
            ValueError: If no source is given or one that the model does not have, or if there are not K rows for each
                example.
        """
        options = {key: value for key, value in kwargs.items() if key in TransformersKwargs.__optional_keys__}
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                return_dict=True,  # whatever the configuration says: tuples are for users
                **kwargs,
            )
        encoded = self.prepare_sources(encoder_outputs, attention_mask, decoder_expansion)
        target: Any = decoder_input_ids if decoder_inputs_embeds is None else decoder_inputs_embeds
        if target is None:
            raise ValueError(
                "the model needs labels: pass text_target to the processor, or give the model labels, "
                "decoder_input_ids or decoder_inputs_embeds. If a stock Trainer with label_smoothing_factor takes the "
                "labels away, its collator needs the model, DataCollatorForMultiSource(processor, model=model)."
            )
        examples = encoded.last_hidden_state.shape[0]
        if target.shape[0] != examples * decoder_expansion:
            raise ValueError(
                f"the decoder is given {target.shape[0]} rows for {examples} examples and "
                f"decoder_expansion={decoder_expansion}; it needs so many rows for each example."
            )
        # With one source it is an ordinary model, which returns nothing more than those do.
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
        """What else the decoder of the family reads of the encoded sources."""
        return {}

    def prepare_sources(
        self, encoder_outputs: ModelOutput | tuple[Tensor, ...], attention_mask: Tensor | None, expansion: int
    ) -> MultiSourceEncoderOutput:
        """Make the memory that the decoder reads. `generate` does so once, and gives the result to every step.

        Args:
            encoder_outputs: What an encoder or this method returned.
            attention_mask: As for `complete_encoder_outputs`.
            expansion: Rows of the decoder per example.

        Returns:
            A new output with its memory; the given one if its memory is of these very tensors, unchanged, and of this
            expansion.
        """
        memory: SourceMemory | None = getattr(encoder_outputs, "memory", None)
        # A compiled graph has to make its own: what CUDA graphs write is overwritten by the next call.
        if memory is not None and not torch.compiler.is_compiling():
            given: Any = encoder_outputs
            states, mask, lengths = given.last_hidden_state, given.attention_mask, given.source_lengths
            same = memory.states is states and memory.mask is mask and given.mask_version == _version(mask)
            if same and (memory.lengths, memory.expansion) == (lengths, expansion):
                return given
        made: Any = self.complete_encoder_outputs(encoder_outputs, attention_mask)
        made.memory = SourceMemory(made.last_hidden_state, made.attention_mask, made.source_lengths, expansion)
        if not torch.compiler.is_compiling():
            made.mask_version = _version(made.attention_mask)
        return made

    def select_examples(self, encoder_outputs: MultiSourceEncoderOutput, kept: Tensor) -> MultiSourceEncoderOutput:
        """Choose examples of what `prepare_sources` made.

        Args:
            encoder_outputs: Its output.
            kept: Numbers of the examples.

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
        made.memory, made.mask_version = chosen, _version(chosen.mask)
        return made

    def complete_encoder_outputs(
        self, encoder_outputs: ModelOutput | tuple[Tensor, ...], attention_mask: Tensor | None
    ) -> MultiSourceEncoderOutput:
        """Accept what other encoders return, too, where there is only one source.

        Args:
            encoder_outputs: What an encoder returned.
            attention_mask: Of the one source, for an output that holds none; None: all its states are real.

        Shape:
            attention_mask (B, S).

        Returns:
            A new output, with mask and lengths.

        Raises:
            ValueError: If there are several sources and the output does not say how its states divide into them.
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
    """The model with its output layer, in both families; each adds generation to it.

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

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.set_input_embeddings(value)

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Change the size of the target's vocabulary, everywhere that it is used.

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
            self.final_logits_bias = nn.functional.pad(bias, (0, more))  # a negative number cuts
        return embeddings

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Shift labels one token to the right.

        Args:
            labels: Token ids, -100 at padding.

        Shape:
            (B, T) to (B, T).

        Returns:
            What the decoder is fed to predict them.

        Raises:
            ValueError: If the configuration names no id to begin with.
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
            attention_mask: 1 at real tokens of source 0, 0 at padding; a row of zeros: the source is absent.
            decoder_input_ids: Token ids of the target, shifted right; None: made from `labels`.
            decoder_attention_mask: 1 at real target tokens.
            encoder_outputs: What the encoder returned, to use it again.
            past_key_values: Keys and values of earlier calls.
            inputs_embeds: Embedded tokens of source 0 instead of ids.
            decoder_inputs_embeds: Embedded target tokens instead of ids.
            labels: Token ids to predict, -100 where there is nothing to predict.
            use_cache: Whether to return keys and values.
            num_items_in_batch: Number of labels over all batches of an update; the loss is the sum divided by it.
            skip_logits: Return the loss of `labels` without logits: less memory, faster. [`MultiSourceTrainer`] does.
            num_best_tokens: If above 0, C: `logits` are (B, 1, C + 1), the log-probabilities of the C likeliest tokens
                at the last position and of all others together, without gradients, and `best_token_ids` says which.
                Beam search reads no more.
            decoder_shortlist: Which tokens can be predicted, if not all; `generate` makes it of `shortlist`.
            **kwargs: The other sources; `decoder_expansion` as [`MultiSourceModel`]; `output_attentions`,
                `output_hidden_states`, and what the attention implementation reads.

        Shape:
            labels (B, T). Returns logits (B, T, V).

        Returns:
            Loss (mean over labels that are not -100: cross-entropy in nats, label-smoothed in training only), logits
            and what was asked for.
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
                "computes, and the model is trained without labels: a Trainer with label_smoothing_factor takes them. "
                "Set one of the two."
            )
        bias = self.final_logits_bias if self.config.final_logits_bias else None
        smoothing = self.config.label_smoothing if self.training else 0.0
        logits = loss = best_ids = None
        plain = not num_best_tokens and decoder_shortlist is None
        if plain and skip_logits and labels is not None and type(self.lm_head) is nn.Linear:  # not one PEFT has wrapped
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
            logits = output_logits(self.lm_head, states)
            return (logits if bias is None else logits + bias), None
        last = states[:, -1]
        if shortlist is not None:
            scores, ids = shortlist.best_tokens(last, num_best_tokens)
        else:
            row = None if bias is None else bias[0]
            scores, ids = best_tokens(self.lm_head, row, last, num_best_tokens, self.config.vocab_size)
        return scores[:, None], ids
