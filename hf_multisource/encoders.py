"""Encoders, which map one source each to states (B, S_i, D) and their attention mask."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.auto.modeling_auto import MODEL_MAPPING
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention import MultiHeadAttention, show_first_position
from .configuration_multisource import EncoderSettings, MultiSourceConfig
from .dropout import dropout
from .foreign import build_wrapped_model
from .layers import FeedForward, TextEmbeddings, build_positions
from .messages import shown
from .packing import Packing, pack_if_padded, packing_pays
from .pretrained_model import MultiSourcePreTrainedModel, MultiSourceTransformerPreTrainedModel
from .source_kinds import FORMS, MASK, SOURCE_KINDS, SourceKind


def drop_sources(masks: Sequence[Tensor], probabilities: Sequence[float]) -> list[Tensor]:
    """Remove whole sources from examples at random; every example keeps at least one of its sources.

    Args:
        masks: Attention mask of each source; True = real token.
        probabilities: Dropout probability of each source. An example that would lose all sources keeps one of them,
            chosen uniformly.

    Shape:
        (B, S_i) bool each.

    Returns:
        The masks, with rows of False for removed sources.
    """
    present = torch.stack([mask.any(dim=1) for mask in masks], dim=1)  # (B, n)
    luck = torch.rand(2, *present.shape, device=present.device)
    kept = present & (luck[0] >= torch.tensor(probabilities, device=present.device))
    last = nn.functional.one_hot((luck[1] * present).argmax(dim=1), present.shape[1]).bool()
    kept = torch.where(kept.any(dim=1, keepdim=True), kept, present & last)
    return [mask & kept[:, i, None] for i, mask in enumerate(masks)]


def keep_subsets(
    masks: Sequence[Tensor], subsets: Sequence[Sequence[bool]], probabilities: Sequence[float]
) -> list[Tensor]:
    """Sample a subset of the sources for each example and remove the other sources.

    Args:
        masks: Attention mask of each source; True = real token.
        subsets: Whether each subset contains each source. An example that has no source of the sampled subset keeps all
            of its sources.
        probabilities: Sampling probability of each subset.

    Shape:
        (B, S_i) bool each.

    Returns:
        The masks, with rows of False for removed sources.
    """
    present = torch.stack([mask.any(dim=1) for mask in masks], dim=1)  # (B, n)
    drawn = torch.tensor(probabilities, device=present.device).multinomial(len(present), replacement=True)
    kept = present & torch.tensor(subsets, device=present.device)[drawn]
    kept = torch.where(kept.any(dim=1, keepdim=True), kept, present)
    return [mask & kept[:, i, None] for i, mask in enumerate(masks)]


@dataclass
class EncodedSource(BaseModelOutput):
    """Output of an encoder.

    Args:
        attention_mask: (B, S_i) bool, True = real state. The mask can be shorter than the mask of the inputs: speech
            encoders map many samples to one state.
    """

    # Outputs of Transformers have defaults of None; encoders always set these two fields.
    last_hidden_state: Tensor = None  # type: ignore[assignment]
    attention_mask: Tensor = None  # type: ignore[assignment]


class TextEncoderLayer(GradientCheckpointingLayer):
    """Transformer encoder layer: self-attention and feed-forward layer (Vaswani et al. 2017, §3.1).

    Args:
        config: The model's configuration.
        settings: The source's settings.

    Shape:
        (B, S, D) to (B, S, D).
    """

    def __init__(self, config: MultiSourceConfig, settings: EncoderSettings) -> None:
        super().__init__()
        self.dropout = settings.dropout
        self.pre_norm = config.norm_position == "pre"
        self.self_attn = MultiHeadAttention(config, settings.attention_heads)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config, settings.ffn_dim, settings.dropout)

    def forward(self, hidden_states: Tensor, mask: Any, packing: Packing | None = None, **kwargs: Any) -> Tensor:
        """Compute the layer.

        Args:
            hidden_states: States of the layer below.
            mask: Mask in the format of the attention implementation.
            packing: The packing of the states; None if they are not packed.
            **kwargs: Passed on to the attention implementation.

        Returns:
            The new states.
        """
        states = self.self_attn_layer_norm(hidden_states) if self.pre_norm else hidden_states
        states, _ = self.self_attn(states, mask, packing=packing, **kwargs)
        states = hidden_states + dropout(states, p=self.dropout, training=self.training)
        if not self.pre_norm:
            states = self.self_attn_layer_norm(states)
        return self.feed_forward(states)


class SourceEncoderBase(MultiSourcePreTrainedModel):
    """Base class of the encoders of both model families.

    Args:
        config: The model's configuration.
        name: The source's name.
    """

    #: Inputs that may be padded to a common length, so that sources with a shared encoder can be encoded in one call.
    paddable: tuple[str, ...] = ()

    def __init__(self, config: MultiSourceConfig, name: str) -> None:
        super().__init__(config)
        self.source = config.get_source(name)
        self.kind = config.source_kind(name)
        self.settings = config.encoder_settings(name)

    @property
    def padding_id(self) -> int | None:
        """Padding id of the token ids; None if the source has no token ids."""
        return self.settings.pad_token_id if self.kind.has_vocabulary else None

    @property
    def frozen_part(self) -> nn.Module | None:
        """Module that `SourceConfig.freeze` freezes; None if nothing is frozen."""
        return self if self.source.freeze else None

    def freeze(self) -> None:
        """Disable gradients of the frozen part; must be called again after parameters have been replaced."""
        if self.frozen_part is not None:
            self.frozen_part.requires_grad_(False)

    def train(self, mode: bool = True) -> SourceEncoderBase:
        """Set the training mode; the frozen part stays in evaluation mode.

        Args:
            mode: Whether to train.

        Returns:
            The encoder.
        """
        super().train(mode and self.frozen_part is not self)
        if mode and self.frozen_part not in (None, self):
            self.frozen_part.eval()
        return self

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize the source's own vocabulary, which is not that of the target.

        Args:
            new_num_tokens: As [`PreTrainedModel.resize_token_embeddings`].
            pad_to_multiple_of: As [`PreTrainedModel.resize_token_embeddings`].
            mean_resizing: As [`PreTrainedModel.resize_token_embeddings`].

        Returns:
            The source's new token embeddings.

        Raises:
            ValueError: If the source has the vocabulary of the target or shares its embeddings with another source, or
                its padding id would be outside the new vocabulary.
        """
        name = self.source.name
        others = [other.name for other in self.config.sources if other.share_embeddings_with == name]
        if others := [*filter(None, [self.source.share_embeddings_with]), *others]:
            raise ValueError(
                f"source {name!r} shares its embeddings with {', '.join(others)}, so they keep their size."
            )
        if self.source.vocab_size is None:
            raise ValueError(f"source {name!r} has no vocabulary of its own; resize the embeddings of the model.")
        padding = self.settings.pad_token_id
        if new_num_tokens is not None and padding is not None and padding >= new_num_tokens:
            raise ValueError(
                f"source {name!r} has pad_token_id {padding}; {new_num_tokens} tokens would not include it."
            )
        size_of_target = self.config.vocab_size
        embeddings = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.config.vocab_size = size_of_target  # the base class has set it to the size of the source
        self.source.vocab_size = embeddings.num_embeddings
        self.settings = self.config.encoder_settings(name)
        return embeddings

    def input_mask(self, **inputs: Tensor) -> Tensor:
        """Return the attention mask of the inputs; an example lacks the source if its row is all False.

        Args:
            **inputs: The inputs of the source.

        Returns:
            The given attention mask as bool (B, S). If no mask is given: the positions without the padding id, or a
            mask of ones, which has one column if the second dimension of the inputs is not the sequence dimension, but
            color channels or frequencies.
        """
        if MASK in inputs:
            return inputs[MASK].bool()
        if "input_ids" in inputs and self.padding_id is not None:
            return inputs["input_ids"].ne(self.padding_id)
        key, given = next(iter(inputs.items()))
        sequences = self.kind.inputs if self.kind.sequences is None else self.kind.sequences
        in_time = key in sequences and given.dim() < 4
        return torch.ones(given.shape[: 1 + in_time], dtype=torch.bool, device=given.device).view(len(given), -1)

    def absent(self, attention_mask: Tensor) -> EncodedSource:
        """Return the output for a batch in which no example has the source.

        Every trainable parameter gets a gradient of zero, because DDP requires gradients of all parameters.

        Args:
            attention_mask: A mask that is all False.

        Shape:
            attention_mask (B, S). Returns one state per example, (B, 1, D).

        Returns:
            States of zero, and their mask of False.
        """
        size = (len(attention_mask), 1)
        states = torch.zeros(*size, self.config.d_model, device=attention_mask.device, dtype=floating_dtype(self))
        if torch.is_grad_enabled():
            # The product comes first, because the sum of all weights may exceed the range of float16.
            states = states + sum((value * 0).sum() for value in self.parameters() if value.requires_grad)
        return EncodedSource(last_hidden_state=states, attention_mask=attention_mask.new_zeros(size))


class SourceEncoder(MultiSourceTransformerPreTrainedModel, SourceEncoderBase):
    """Base class of the encoders of the Transformer family and of user-defined encoders (`register_source_kind`).

    Args:
        config: The model's configuration.
        name: The source's name.
    """


class LayeredEncoder(SourceEncoder):
    """Base class of the encoders that consist of the Transformer layers of this package.

    Args:
        config: The model's configuration.
        name: The source's name.
    """

    _can_record_outputs = {
        "hidden_states": TextEncoderLayer,
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attn"),
    }

    layers: nn.ModuleList
    layer_norm: nn.LayerNorm | None

    def add_layers(self, *, norm: bool) -> None:
        """Create the layers; called after the embedding modules have been created.

        Args:
            norm: Whether a layer norm follows the last layer.
        """
        config = self.config
        self.layers = nn.ModuleList([TextEncoderLayer(config, self.settings) for _ in range(self.settings.layers)])
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps) if norm else None
        self.gradient_checkpointing = False

    def run_layers(self, states: Tensor, mask: Tensor | None, **kwargs: Any) -> EncodedSource:
        """Compute all layers.

        Args:
            states: Input states (B, S, D) of the first layer.
            mask: True at real states; None: all states are real.
            **kwargs: Passed on to the attention implementation.

        Returns:
            The states; arbitrary but finite in rows without real states.
        """
        visible = None if mask is None else show_first_position(mask)
        attention_mask = create_bidirectional_mask(config=self.config, inputs_embeds=states, attention_mask=visible)
        recorded = kwargs.get("output_hidden_states") or kwargs.get("output_attentions")
        packs = mask is not None and packing_pays(states, self.training) and not recorded
        packing = pack_if_padded(mask) if mask is not None and packs else None
        if packing:
            states = packing.pack(states)
        for layer in self.layers:
            states = layer(states, attention_mask, packing, **kwargs)
        if self.layer_norm is not None:
            states = self.layer_norm(states)
        if packing:
            states = packing.unpack(states)
        return EncodedSource(last_hidden_state=states, attention_mask=mask)  # type: ignore[arg-type]  # None: alone, not in a model


class TextSourceEncoder(SourceEncoderBase):
    """Base class of the encoders that read text with their own token embeddings.

    Args:
        config: The model's configuration.
        name: The source's name.
    """

    paddable = ("input_ids", "inputs_embeds")

    embeddings: TextEmbeddings

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.tokens

    def set_input_embeddings(self, value: Any) -> None:
        self.embeddings.tokens = value


class TextEncoder(TextSourceEncoder, LayeredEncoder):
    """Transformer encoder of one text source.

    Args:
        config: The model's configuration.
        name: The source's name.

    Shape:
        input_ids (B, S), attention_mask (B, S) bool to states (B, S, D).
    """

    def __init__(self, config: MultiSourceConfig, name: str) -> None:
        super().__init__(config, name)
        settings = self.settings
        self.embeddings = TextEmbeddings(
            config,
            vocab_size=settings.vocab_size,
            pad_token_id=settings.pad_token_id,
            position_embedding=settings.position_embedding,
            max_position_embeddings=settings.max_position_embeddings,
            dropout=settings.dropout,
        )
        self.add_layers(norm=config.norm_position == "pre")
        self.post_init()
        self.freeze()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        source_vectors: Tensor | None = None,
        **kwargs: Any,
    ) -> EncodedSource:
        """Encode the source.

        Args:
            input_ids: Token ids.
            attention_mask: True at real tokens.
            inputs_embeds: Embedded tokens instead of ids.
            source_vectors: Vectors (B, D) added to all embedded tokens of a row, before the embeddings are scaled.
            **kwargs: `output_hidden_states`, `output_attentions`, and arguments of the attention implementation.

        Returns:
            The states; arbitrary but finite in rows without real tokens.
        """
        if source_vectors is not None:
            if inputs_embeds is None and input_ids is not None:
                input_ids, inputs_embeds = None, self.embeddings.tokens(input_ids)
            assert inputs_embeds is not None  # the model always sets it
            inputs_embeds = inputs_embeds + source_vectors[:, None]
        return self.run_layers(self.embeddings(input_ids, inputs_embeds), attention_mask, **kwargs)


class FeatureEncoder(LayeredEncoder):
    """Encoder of precomputed features: a sequence of vectors, or a map, such as the last map of an image network.

    Libovický, Helcl & Mareček 2018, §4.1: the feature map of the picture is flattened to one state per position and
    projected by one linear layer with bias, without norm, dropout, positions or layers (`MultiSourceConfig.paper`).

    Args:
        config: The model's configuration.
        name: The source's name.

    Shape:
        input_features (B, S, F), or a map (B, F, H, W), which becomes (B, H W, F) row by row; attention_mask (B, S) or
        (B, 1) bool to states (B, S, D).
    """

    main_input_name = "input_features"
    paddable = ("input_features",)

    def __init__(self, config: MultiSourceConfig, name: str) -> None:
        super().__init__(config, name)
        assert self.source.feature_size is not None  # validated by the configuration
        self.projection = nn.Linear(self.source.feature_size, config.d_model)
        self.positions = build_positions(
            config, self.settings.position_embedding, self.settings.max_position_embeddings
        )
        self.add_layers(norm=self.source.norm is not False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.projection

    @merge_with_config_defaults
    @capture_outputs
    def forward(self, input_features: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> EncodedSource:
        """Encode the source.

        Args:
            input_features: The vectors; vectors at which the mask is False are ignored.
            attention_mask: True at real vectors; a mask with one column states whether the example has the source.
            **kwargs: `output_hidden_states`, `output_attentions`, and arguments of the attention implementation.

        Returns:
            The states; arbitrary but finite in rows without real vectors.

        Raises:
            ValueError: If the width of the vectors is not `feature_size`; the message gives both widths.
        """
        features = flatten_map(input_features)
        if features.shape[-1] != self.source.feature_size:
            raise ValueError(
                f"sources[{self.source.name}].feature_size is {self.source.feature_size}; got vectors of "
                f"{features.shape[-1]}, in input_features of shape {tuple(input_features.shape)}."
            )
        if attention_mask is not None:
            attention_mask = attention_mask.expand(features.shape[:2])
            features = features.masked_fill(~attention_mask[..., None], 0)
        states = self.projection(features.to(floating_dtype(self)))
        if self.positions is not None:
            states = states + self.positions(0, states.shape[1], states.device).to(states.dtype)
        states = dropout(states, p=self.settings.dropout, training=self.training)
        return self.run_layers(states, attention_mask, **kwargs)


class PretrainedEncoder(SourceEncoder):
    """Encoder that wraps a model of Transformers: a text encoder, image network, speech encoder, or encoder of a T5.

    The last hidden state is projected to D, if it has another width or `SourceConfig.projection` is set, followed by
    layer norm and dropout. Only examples that have the source are encoded, so that the other examples do not affect
    batch statistics either.

    Args:
        config: The model's configuration.
        name: The source's name.

    Shape:
        The inputs of the wrapped model, and attention_mask: (B, S), or (B, 1) if the wrapped model takes no mask (as
        for pictures). Returns states (B, S', D), and their mask (B, S').
    """

    def __init__(self, config: MultiSourceConfig, name: str) -> None:
        super().__init__(config, name)
        place = f"sources[{name}].encoder"
        check_wrappable(self.source.encoder, place)
        model = build_wrapped_model(self.source.encoder, place, dtype=torch.get_default_dtype())
        if self.source.encoder.is_encoder_decoder:
            whole, model = model, model.get_encoder()
            if not hasattr(model, "main_input_name"):  # a module that cannot be called with inputs alone
                raise ValueError(
                    f"sources[{name}].encoder.is_encoder_decoder must be False: a {type(whole).__name__} has no "
                    "encoder that can be used alone."
                )
        elif "add_pooling_layer" in inspect.signature(type(model).__init__).parameters:
            model.pooler = None  # its output is not used
        self.model = model
        self.main_input_name = model.main_input_name
        inputs = inspect.signature(model.forward).parameters
        self.reads = set(inputs)
        given = (self.main_input_name, "attention_mask")
        if needed := [key for key, one in inputs.items() if _is_required(one) and key not in given]:
            raise ValueError(
                f"sources[{name}].encoder: a {type(model).__name__} also needs {', '.join(needed)}, which a source "
                "does not provide."
            )
        self.paddable = ("input_ids", "inputs_embeds") if self.main_input_name == "input_ids" else ()
        self.width = output_width(model)
        differs = self.width != config.d_model
        if differs and self.source.projection is False:
            raise ValueError(
                f"sources[{name}].projection must not be False: a {type(model).__name__} makes states of {self.width}, "
                f"and d_model is {config.d_model}."
            )
        self.projection = nn.Linear(self.width, config.d_model) if differs or self.source.projection else None
        norm = self.source.norm is not False
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps) if norm else None
        self.post_init()
        self.freeze()

    @property
    def frozen_part(self) -> nn.Module | None:
        """The wrapped model if it is frozen; otherwise None."""
        return self.model if self.source.freeze else None

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: Any) -> None:
        self.model.set_input_embeddings(value)

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        embeddings = self.model.resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        # The configuration of a T5 model is a copy of the source's.
        self.source.encoder.get_text_config().vocab_size = embeddings.num_embeddings
        return embeddings

    @property
    def padding_id(self) -> int | None:
        """Padding id of the wrapped model; None if the model has none."""
        return getattr(self.model.config.get_text_config(), "pad_token_id", None)

    def forward(self, attention_mask: Tensor, **kwargs: Any) -> EncodedSource:
        """Encode the source.

        Args:
            attention_mask: True at real inputs.
            **kwargs: The wrapped model's inputs; `output_hidden_states` and `output_attentions`.

        Returns:
            The states, zero where an example lacks the source; hidden states and attentions are those of the wrapped
            model, for the examples that have the source.

        Raises:
            ValueError: If the wrapped model's main input is missing, or its output is not a sequence or a map.
        """
        inputs = {key: value for key, value in kwargs.items() if key in self.kind.keys}
        asked = {key: True for key in ("output_hidden_states", "output_attentions") if kwargs.get(key)}
        if not inputs.keys() & {self.main_input_name, "inputs_embeds"}:
            raise ValueError(
                f"source {self.source.name!r} wraps a {type(self.model).__name__}, which reads {self.main_input_name}; "
                f"got {', '.join(sorted(inputs))}."
            )
        present = attention_mask.any(dim=1)
        rows = None if present.all() else present.nonzero().flatten()
        if rows is not None and len(rows) == 0:
            return self.absent(attention_mask)
        if rows is not None:
            inputs = {key: value[rows] for key, value in inputs.items()}
        dtype = floating_dtype(self)
        inputs = {key: value.to(dtype) if value.is_floating_point() else value for key, value in inputs.items()}
        mask = attention_mask if rows is None else attention_mask[rows]
        if "attention_mask" in self.reads and mask.shape[1] > 1:  # one column only states whether the source is present
            inputs["attention_mask"] = mask.long()
        output = self.model(**inputs, **asked, return_dict=True)
        states = flatten_states(output.last_hidden_state, self.width)
        if states.shape[-1] != self.width:
            raise ValueError(
                f"source {self.source.name!r}: expected states of width {self.width} from a "
                f"{type(self.model).__name__}; got width {states.shape[-1]}."
            )
        mask = self.state_mask(mask, states.shape[1])
        if self.projection is not None:
            states = self.projection(states)
        if self.layer_norm is not None:
            states = self.layer_norm(states)
        states = dropout(states, p=self.settings.dropout, training=self.training)
        if rows is not None:
            size = (len(attention_mask), *states.shape[1:])
            states = states.new_zeros(size).index_copy(0, rows, states)
            mask = mask.new_zeros(size[:2]).index_copy(0, rows, mask)
        return EncodedSource(
            last_hidden_state=states,
            hidden_states=output.get("hidden_states"),
            attentions=output.get("attentions"),
            attention_mask=mask,
        )

    def state_mask(self, mask: Tensor, length: int) -> Tensor:
        """Convert the mask of the inputs to the mask of the states.

        Args:
            mask: True at real inputs.
            length: Number of states S'.

        Shape:
            mask (B, S) to (B, S').

        Returns:
            The mask of the states: `mask` itself if there are as many states as inputs; all True if the mask has one
            column, as for pictures; the mask computed by the wrapped model if it shortens its input by convolutions
            (wav2vec2 and similar models); the mask of every S/S'-th input if S is a multiple of S' (Whisper).

        Raises:
            ValueError: If the two lengths cannot be matched; the message gives both lengths.
        """
        if mask.shape[1] == length:
            return mask
        if mask.shape[1] == 1:
            return mask.expand(-1, length)
        if hasattr(self.model, "_get_feature_vector_attention_mask"):
            shortened: Tensor = self.model._get_feature_vector_attention_mask(length, mask.long())
            return shortened.bool()
        if mask.shape[1] % length == 0:
            return mask[:, :: mask.shape[1] // length]
        raise ValueError(
            f"source {self.source.name!r}: a mask of {mask.shape[1]} inputs cannot be matched with {length} states of "
            f"{type(self.model).__name__}."
        )


def _is_required(parameter: inspect.Parameter) -> bool:
    """Return whether an argument must be passed to a function."""
    variadic = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and not variadic


def floating_dtype(module: nn.Module) -> torch.dtype:
    """Return the data type of the first floating-point parameter of a module.

    Unlike `PreTrainedModel.dtype`, this works for the replicas of `torch.nn.DataParallel`, which have plain tensors as
    attributes instead of parameters.

    Args:
        module: The module.

    Returns:
        The data type; the default one of PyTorch if there is no such parameter.
    """
    for one in module.modules():
        for value in (*one.parameters(recurse=False), *vars(one).values()):
            if isinstance(value, Tensor) and value.is_floating_point():
                return value.dtype
    return torch.get_default_dtype()


def flatten_states(states: Tensor, width: int) -> Tensor:
    """Flatten the output of a network to a sequence, also if it is a map with its features last (Swin of timm).

    Args:
        states: A map or a sequence.
        width: Number of features, F, that the network states.

    Shape:
        (B, F, H, W) or (B, H, W, F) to (B, H W, F), or (B, S, F).

    Returns:
        The sequence.

    Raises:
        ValueError: If `states` is neither a map nor a sequence; the message gives the shape.
    """
    if states.dim() == 4 and states.shape[1] != width == states.shape[-1]:
        states = states.permute(0, 3, 1, 2)
    return flatten_map(states)


def flatten_map(states: Tensor) -> Tensor:
    """Flatten a map to a sequence, row by row; return a sequence unchanged.

    Args:
        states: A map or a sequence.

    Shape:
        (B, F, H, W) to (B, H W, F), or (B, S, F).

    Returns:
        The sequence.

    Raises:
        ValueError: If `states` is neither a map nor a sequence; the message gives the shape.
    """
    if states.dim() == 4:
        return states.flatten(2).transpose(1, 2)
    if states.dim() != 3:
        raise ValueError(f"a source must be a sequence (B, S, F) or a map (B, F, H, W); got {tuple(states.shape)}.")
    return states


def output_width(model: Any) -> int:
    """Return the width of a model's last hidden state, read from the model or its configuration.

    Args:
        model: A model of Transformers.

    Returns:
        The width, F.

    Raises:
        ValueError: If neither the model nor its configuration states the width.
    """
    if (wrapped := getattr(model, "timm_model", None)) is not None:
        return int(wrapped.num_features)
    if (width := _width(model.config)) is None:
        raise ValueError(
            f"a {type(model).__name__} cannot be a source's encoder: its configuration does not say how wide its last "
            "hidden state is."
        )
    return width


def _width(config: PreTrainedConfig) -> int | None:
    if getattr(config, "add_adapter", False):
        return int(config.output_hidden_size)
    for field in ("neck_hidden_sizes", "hidden_sizes"):
        if sizes := getattr(config, field, None):
            return int(sizes[-1])
    widths = (getattr(config, field, None) for field in ("hidden_size", "d_model", "hidden_dim"))
    return next((width for width in widths if isinstance(width, int)), None)


def check_wrappable(config: PreTrainedConfig, place: str) -> None:
    """Check that a configuration describes one model, not several models in one, such as the two encoders of CLIP.

    Args:
        config: Configuration of a model.
        place: Name of the setting that holds the configuration, for the message.

    Raises:
        ValueError: If the configuration describes several models; the message names the classes that can be wrapped.
    """
    models: Any = MODEL_MAPPING
    parts = [models[part].__name__ for part in config.sub_configs.values() if part in models]
    if parts and _width(config) is None and not config.is_encoder_decoder:
        whole = models.get(type(config), type(config)).__name__
        raise ValueError(
            f"{place}: a {whole} holds several models, and a source wraps one: load the one that you want from the "
            f"checkpoint, as {' or '.join(parts)}, and give that model, or the folder that you save it to."
        )


def wrapped_weights(model: PreTrainedModel, name: str, theirs: PreTrainedModel) -> dict[str, Tensor]:
    """Find the weights of a wrapped model in a model of Transformers of the same class, or that contains this class.

    Args:
        model: A model of this package.
        name: The source that wraps a model.
        theirs: The Transformers model with the weights.

    Returns:
        The weights, by their names in the model of this package.

    Raises:
        ValueError: If `theirs` does not contain a model of the wrapped class; the message names both classes.
    """
    wrapped: PreTrainedModel = model.get_encoder().sources[name].model
    first = [theirs.get_encoder()] if theirs.config.is_encoder_decoder else []  # T5's decoder is of the same class
    found = next((module for module in (*first, *theirs.modules()) if type(module) is type(wrapped)), None)
    if found is None:
        raise ValueError(
            f"sources[{name}]: the source wraps a {type(wrapped).__name__}, which a {type(theirs).__name__} does not "
            "contain."
        )
    known = wrapped.state_dict().keys()  # poolers are left out
    weights = {key: value for key, value in found.state_dict().items() if key in known}
    return {f"model.encoder.sources.{name}.model.{key}": value for key, value in weights.items()}


#: Encoder classes by `SourceConfig.kind`.
ENCODERS: dict[str, type[SourceEncoder]] = {
    "text": TextEncoder,
    "features": FeatureEncoder,
    "pretrained": PretrainedEncoder,
}


#: Names of the kinds of this package, which `register_source_kind` never replaces.
BUILT_IN_KINDS = frozenset({**SOURCE_KINDS, **FORMS})


def register_source_kind(kind: SourceKind, encoder_class: type[SourceEncoder], *, exist_ok: bool = False) -> None:
    """Register a kind of source, which configurations, processors, data and models then support.

    Args:
        kind: The kind; its `name` is the `kind` of a `SourceConfig`.
        encoder_class: Class of the encoder, which is built from the configuration and the source's name. Its `forward`
            takes the kind's `keys` and returns an [`EncodedSource`].
        exist_ok: Whether the kind may replace a registered kind of the same name. Kinds of this package are never
            replaced.

    Raises:
        ValueError: If `kind` is not an instance of [`SourceKind`], its `name` or `inputs` are missing, `encoder_class`
            is not an encoder class, the name is already registered, or another kind has one of the keywords. The kind
            is then not registered.
    """
    if not isinstance(kind, SourceKind):
        given = f"the class {kind.__name__}" if isinstance(kind, type) else shown(kind)
        raise ValueError(f"kind must be an instance of a subclass of SourceKind, such as MyKind(); got {given}.")
    place, name, inputs = type(kind).__name__, getattr(kind, "name", None), getattr(kind, "inputs", None)
    if not isinstance(name, str) or not name:
        raise ValueError(f"{place}.name must be the name of the kind, a string; got {shown(name)}.")
    if not isinstance(inputs, tuple) or not inputs or not all(isinstance(key, str) and key for key in inputs):
        raise ValueError(
            f"{place}.inputs must be a tuple of keywords of the model, such as ('notes',); got {shown(inputs)}."
        )
    if not isinstance(encoder_class, type) or not issubclass(encoder_class, SourceEncoder):
        raise ValueError(f"encoder_class must be a subclass of SourceEncoder; got {shown(encoder_class)}.")
    if name in BUILT_IN_KINDS:
        raise ValueError(f"there is a kind of source named {name!r} already, in this package; choose another name.")
    if name in SOURCE_KINDS and not exist_ok:
        raise ValueError(
            f"there is a kind of source named {name!r} already; choose another name, or replace it with exist_ok=True."
        )
    for other in SOURCE_KINDS.values():
        if other.name != name and (taken := set(inputs) & set(other.inputs)):
            raise ValueError(
                f"{min(taken)!r} of the kind {name!r} is a keyword of {other.name!r} already; choose another."
            )
    SOURCE_KINDS[name] = FORMS[name] = kind
    ENCODERS[name] = encoder_class
