"""Ensemble of models that decode together by averaging their log-probabilities at each step."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import Cache, DynamicCache, GenerationConfig, PreTrainedModel
from transformers.generation import GenerationMode
from transformers.modeling_outputs import ModelOutput
from transformers.utils.generic import can_return_tuple

from .configuration_multisource import SourcesConfig
from .generation import EXPANSION, FOLD, MultiSourceGenerationMixin, check_present
from .inference import InferenceMixin
from .messages import shown
from .modeling_sources import (
    MultiSourceEncoderOutput,
    MultiSourceLMOutput,
    SourcesForConditionalGeneration,
    check_batch_sizes,
)

MODES = (
    GenerationMode.GREEDY_SEARCH,
    GenerationMode.SAMPLE,
    GenerationMode.BEAM_SEARCH,
    GenerationMode.BEAM_SAMPLE,
)
#: Fields of the configuration that must be equal in all members, because the members decode one text.
SHARED = ("vocab_size", "decoder_start_token_id", "eos_token_id", "pad_token_id")


@dataclass
class EnsembleEncoderOutput(ModelOutput):
    """Output of an [`EnsembleEncoder`].

    Args:
        present: (B, M) bool, True where an example has a source that the member reads.
        members: Output of each member's encoder; None if the batch has no source that the member reads.
    """

    present: Tensor = None  # type: ignore[assignment]
    members: tuple[MultiSourceEncoderOutput | None, ...] = None  # type: ignore[assignment]


class EnsembleCache(Cache):
    """Cache that contains the caches of all members.

    Args:
        caches: One cache per member.
    """

    def __init__(self, caches: Sequence[Cache]) -> None:
        super().__init__(layers=[])
        self.caches = tuple(caches)

    def __len__(self) -> int:
        return len(self.caches)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of cached tokens; the caches of members whose sources are absent are empty.

        Args:
            layer_idx: Ignored; all layers contain the same tokens.

        Returns:
            The number of tokens.
        """
        return max(cache.get_seq_length() for cache in self.caches)


class EnsembleEncoder(nn.Module):
    """Encoder that passes the sources to the encoders of all members; each member gets the sources that it reads.

    Args:
        members: The models.
        config: Configuration with the sources of all members.
    """

    def __init__(self, members: Sequence[SourcesForConditionalGeneration], config: SourcesConfig) -> None:
        super().__init__()
        self.members: Any = nn.ModuleList(members)
        self.config = config

    @property
    def encoder(self) -> EnsembleEncoder:
        """This module, because `generate` reads the attribute `encoder` of a model's body."""
        return self

    def inputs_by_source(self, keywords: Mapping[str, object]) -> dict[str, dict[str, Any]]:
        """Group the keywords of a call by source, as [`SourcesEncoder.inputs_by_source`].

        Args:
            keywords: All keywords of the call.

        Returns:
            The inputs of each given source.
        """
        given: dict[str, dict[str, Any]] = self.config.source_inputs(keywords)
        return given

    def input_masks(self, given: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Compute the attention masks of all inputs, as [`SourcesEncoder.input_masks`].

        Args:
            given: The inputs of each given source.

        Returns:
            Bool masks (B, S_i) by source, True = real.
        """
        masks: dict[str, Tensor] = {}
        for member in self.members:
            read = {name: inputs for name, inputs in given.items() if name in member.config.source_names}
            masks |= member.model.encoder.input_masks(read)
        masks = {name: masks[name] for name in given}
        check_batch_sizes(masks)
        return masks

    def forward(self, **kwargs: Any) -> EnsembleEncoderOutput:
        """Encode the given sources.

        Args:
            **kwargs: Inputs of the sources of all members: keywords without a prefix belong to the first source of the
                first member, other keywords have the name of their source as a prefix.

        Returns:
            The outputs of the members' encoders.

        Raises:
            ValueError: If an example has no source.
        """
        given = self.inputs_by_source(kwargs)
        masks = self.input_masks(given)
        check_present(list(masks.values()))
        batch = next(iter(masks.values()))
        present, encoded = [], []
        for member in self.members:
            read = [name for name in member.config.source_names if name in given]
            present.append(torch.cat([batch[:, :0], *(masks[name] for name in read)], dim=1).any(dim=1))
            words = {pair: word for word, pair in member.config.source_keywords.items()}
            inputs = {words[name, key]: value for name in read for key, value in given[name].items()}
            encoded.append(member.get_encoder()(**inputs, return_dict=True) if present[-1].any() else None)
        return EnsembleEncoderOutput(present=torch.stack(present, dim=1), members=tuple(encoded))

    def prepare_sources(
        self, encoder_outputs: EnsembleEncoderOutput, attention_mask: Tensor | None, expansion: int
    ) -> EnsembleEncoderOutput:
        """Create the memories for the members' decoders, as [`SourcesModel.prepare_sources`].

        Args:
            encoder_outputs: Output of this encoder or of this method.
            attention_mask: Ignored; the outputs contain their masks.
            expansion: Decoder rows per example.

        Returns:
            A new output with the memories.
        """
        prepared = tuple(
            None if encoded is None else member.model.prepare_sources(encoded, None, expansion)
            for member, encoded in zip(self.members, encoder_outputs.members, strict=True)
        )
        return EnsembleEncoderOutput(present=encoder_outputs.present, members=prepared)

    def select_examples(self, encoder_outputs: EnsembleEncoderOutput, kept: Tensor) -> EnsembleEncoderOutput:
        """Select examples from the output of `prepare_sources`, as [`SourcesModel.select_examples`].

        Args:
            encoder_outputs: Output of `prepare_sources`.
            kept: Indices of the examples.

        Shape:
            kept (B',).

        Returns:
            The outputs of all members for these examples.
        """
        members = tuple(
            None if encoded is None else member.model.select_examples(encoded, kept)
            for member, encoded in zip(self.members, encoder_outputs.members, strict=True)
        )
        return EnsembleEncoderOutput(present=encoder_outputs.present[kept], members=members)


class MultiSourceEnsemble(PreTrainedModel, InferenceMixin, MultiSourceGenerationMixin):
    """Ensemble of models that decode one text together.

    At each step the log-probabilities of the members are averaged and renormalized: the probability of the next token
    is the geometric mean of the members' probabilities, divided by its sum over the vocabulary. `generate` has the
    arguments and return values of the members' `generate`.

    The members can have different families, sizes, combiners and sources, but must have the same target vocabulary; a
    source that two members read must have the same kind and vocabulary in both. Each member gets the sources that it
    reads. A member does not take part in the mean for examples in which all of its sources are absent.

    Args:
        members: The models, which are set to evaluation mode and not copied. The first source of the first member takes
            keywords without a prefix, all other sources take keywords with a prefix.

    Raises:
        ValueError: If the members are incompatible; the message names the field or the source, and both values.
        TypeError: If a member is not a model of this package.

    Example:
        >>> from hf_multisource import MultiSourceConfig, MultiSourceEnsemble, MultiSourceForConditionalGeneration
        >>> config = MultiSourceConfig(sources=["en", "de"], d_model=64)
        >>> ensemble = MultiSourceEnsemble([MultiSourceForConditionalGeneration(config) for _ in range(2)])
        >>> ensemble.config.source_names
        ['en', 'de']
    """

    config: SourcesConfig
    config_class = SourcesConfig
    base_model_prefix = "model"

    def __init__(self, members: Sequence[SourcesForConditionalGeneration]) -> None:
        _check_members(members)
        super().__init__(_join_configs([member.config for member in members]))
        self.model = EnsembleEncoder(members, self.config)
        self.main_input_name = members[0].main_input_name
        self.generation_config = copy.deepcopy(members[0].generation_config)
        self.eval()

    @property
    def members(self) -> Sequence[Any]:
        """The models of the ensemble."""
        return list(self.model.members)

    def get_encoder(self, *args: object, **kwargs: object) -> EnsembleEncoder:
        return self.model

    def save_pretrained(self, *args: object, **kwargs: object) -> None:
        """Raise ValueError, because an ensemble has no file format; save each member in a separate folder.

        Args:
            *args: Ignored.
            **kwargs: Ignored.

        Raises:
            ValueError: Always.
        """
        raise ValueError("an ensemble has no file format: save each of its members.")

    @can_return_tuple
    def forward(
        self,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: EnsembleEncoderOutput | None = None,
        past_key_values: EnsembleCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        decoder_expansion: int = 1,
        decoder_shortlist: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> MultiSourceLMOutput:
        """Predict the target's tokens.

        Args:
            decoder_input_ids: Token ids of the target, shifted right; None: made from `labels`.
            decoder_attention_mask: 1 at real target tokens.
            encoder_outputs: Output of the encoder.
            past_key_values: The caches of the members, which this call extends.
            labels: Token ids to predict, -100 at positions that the loss ignores.
            use_cache: Whether the members read and extend `past_key_values`.
            num_items_in_batch: Divisor of the summed loss; None: the number of labels.
            decoder_expansion: Decoder rows per example, as in [`MultiSourceModel`].
            decoder_shortlist: One shortlist per member; `generate` makes them from `shortlist`.
            **kwargs: The inputs of the sources.

        Shape:
            decoder_input_ids, labels (B * K, T), with K of `decoder_expansion`. Returns logits (B * K, T, V).

        Returns:
            Loss (cross-entropy in nats) and logits: the mean of the members' logits. It differs from the mean of their
            log-probabilities by a constant at each position, so that both have the same softmax.
        """
        if labels is not None and decoder_input_ids is None:
            decoder_input_ids = self.members[0].prepare_decoder_input_ids_from_labels(labels)
        if encoder_outputs is None:
            encoder_outputs = self.model(**kwargs)
        reads = encoder_outputs.present.repeat_interleave(decoder_expansion, dim=0)[:, :, None, None]
        total: Any = 0
        for i, member in enumerate(self.members):
            if encoder_outputs.members[i] is None:
                continue
            logits = member(
                encoder_outputs=encoder_outputs.members[i],
                decoder_input_ids=decoder_input_ids,
                decoder_attention_mask=decoder_attention_mask,
                past_key_values=None if past_key_values is None else past_key_values.caches[i],
                use_cache=use_cache and past_key_values is not None,
                decoder_expansion=decoder_expansion,
                decoder_shortlist=None if decoder_shortlist is None else decoder_shortlist[i],
                return_dict=True,
            ).logits.float()
            total = total + logits.masked_fill(~reads[:, i], 0.0)
        mean = total / reads.sum(dim=1)
        loss = None
        if labels is not None:
            loss = cross_entropy(mean.flatten(0, 1), labels.flatten(), reduction="sum")
            loss = loss / (labels.ne(-100).sum() if num_items_in_batch is None else num_items_in_batch)
        return MultiSourceLMOutput(loss=loss, logits=mean, past_key_values=past_key_values)  # type: ignore[arg-type]

    def _make_shortlist(self, ids: Tensor) -> Any:
        return tuple(member._make_shortlist(ids) for member in self.members)

    def _validate_generation_mode(
        self, generation_mode: GenerationMode, generation_config: GenerationConfig, generation_mode_kwargs: Any
    ) -> None:
        super()._validate_generation_mode(generation_mode, generation_config, generation_mode_kwargs)
        if generation_mode not in MODES:
            allowed = ", ".join(mode.value for mode in MODES)
            raise ValueError(f"an ensemble decodes by {allowed}; the options ask for {generation_mode.value}.")
        for name, only in ((FOLD, True), ("output_attentions", False), ("output_hidden_states", False)):
            if (value := getattr(generation_config, name, only)) not in (only, None):
                raise ValueError(f"{name} is {shown(value)}; with an ensemble it must be {only}.")

    def _validate_model_kwargs(self, model_kwargs: dict[str, Any]) -> None:
        for name in ("encoder_outputs", "past_key_values"):
            if model_kwargs.get(name) is not None:
                raise ValueError(f"{name} cannot be given to the generate of an ensemble; give the sources.")
        super()._validate_model_kwargs(model_kwargs)

    def _prepare_cache_for_generation(  # type: ignore[override]
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        caches: list[Any] = []
        for member, encoded in zip(self.members, model_kwargs["encoder_outputs"].members, strict=True):
            if encoded is None:  # the member is not called
                caches.append(DynamicCache())
                continue
            own = {EXPANSION: model_kwargs[EXPANSION], "encoder_outputs": encoded}
            member._prepare_cache_for_generation(generation_config, own, *args, **kwargs)
            caches.append(own.get("past_key_values"))
        if None not in caches:
            model_kwargs["past_key_values"] = EnsembleCache(caches)

    def _examples_can_leave(self, cache: Any) -> bool:
        members: list[Any] = [cache] if cache is None else list(cache.caches)
        return all(super(MultiSourceEnsemble, self)._examples_can_leave(member) for member in members)

    def _select_in_cache(self, cache: Any, kept: Tensor, rows: Tensor) -> None:
        for member in cache.caches:
            super()._select_in_cache(member, kept, rows)

    def _reorder_cache(self, past_key_values: Any, beam_idx: Any) -> Any:
        for member, cache in zip(self.members, past_key_values.caches, strict=True):
            member._reorder_cache(cache, beam_idx)
        return past_key_values


def _check_members(members: Sequence[Any]) -> None:
    """Raise an error if there is no member, a member is of another type, or members have different vocabularies."""
    if not members:
        raise ValueError("an ensemble needs at least one member.")
    for i, member in enumerate(members):
        if not isinstance(member, SourcesForConditionalGeneration):
            raise TypeError(f"members are models of this package; member {i} is a {type(member).__name__}.")
        for field in SHARED:
            first, other = getattr(members[0].config, field), getattr(member.config, field)
            if first != other:
                raise ValueError(
                    f"members write one vocabulary: {field} is {first} in member 0, {other} in member {i}."
                )


def _join_configs(configs: Sequence[Any]) -> Any:
    """Return a configuration with the sources of all configurations, in the order of their first occurrence."""
    sources: dict[str, Any] = {}
    described: dict[str, tuple[object, ...]] = {}
    for i, config in enumerate(configs):
        for source in config.sources:
            kind = config.source_kind(source.name)
            size = config.source_vocabulary(source.name)[0] if kind.has_vocabulary else None
            mine = (source.kind, size)
            first = described.setdefault(source.name, mine)
            if first != mine:
                raise ValueError(
                    f"source {source.name!r}: kind and vocab_size are {first[0]!r} and {first[1]} in one member, "
                    f"{mine[0]!r} and {mine[1]} in member {i}."
                )
            sources.setdefault(source.name, source)
    kinds = {source.kind for source in sources.values()}
    joined = copy.deepcopy(next(config for config in configs if kinds <= config.source_kinds.keys()))
    joined.check_source_names(list(sources))
    joined.sources = list(sources.values())
    joined._attn_implementation = "eager"  # the members keep their own implementations
    return joined


__all__ = ["MultiSourceEnsemble"]
