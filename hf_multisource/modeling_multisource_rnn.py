"""LSTM models with several encoders and one decoder with input feeding (Zoph & Knight 2016)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import GenerationConfig
from transformers import initialization as init
from transformers.generation import GenerationMode
from transformers.utils import ModelOutput
from transformers.utils.generic import merge_with_config_defaults

from .attention import SourceMemory
from .combinations import COMBINATIONS, ForgetBias
from .configuration_multisource_rnn import MultiSourceRNNConfig
from .dropout import dropout
from .encoders import EncodedSource, SourceEncoderBase, TextSourceEncoder
from .generation import MultiSourceGenerationMixin
from .layers import AbsentVector, Bias, TextEmbeddings
from .modeling_sources import (
    MultiSourceDecoderOutput,
    MultiSourceEncoderOutput,
    SourcesEncoder,
    SourcesForConditionalGeneration,
    SourcesModel,
    on_one_device,
)
from .pretrained_model import MultiSourcePreTrainedModel
from .rnn_attention import RNNAttention, Score
from .rnn_cache import MultiSourceRNNCache

CACHES = (None, "dynamic", "static")  # allowed values of `cache_implementation`; LSTM states have a constant size


@dataclass
class EncodedRNNSource(EncodedSource):
    """Output of an LSTM encoder.

    Args:
        final_hidden: (B, L, D), hidden states after the last token, zero where the example lacks the source.
        final_cell: (B, L, D), cell states after the last token, zero where the example lacks the source.
    """

    final_hidden: Tensor | None = None
    final_cell: Tensor | None = None


@dataclass
class MultiSourceRNNEncoderOutput(MultiSourceEncoderOutput):
    """Encoded sources, joined on the time axis, and the initial state of the decoder.

    Args:
        initial_state: (B, 2 L, D), the combined hidden states of all layers, followed by their cell states.
    """

    initial_state: Tensor | None = None


class MultiSourceRNNPreTrainedModel(MultiSourcePreTrainedModel):
    """Base class of the models of the LSTM family: configuration and initial values."""

    config: MultiSourceRNNConfig
    config_class = MultiSourceRNNConfig
    _no_split_modules = ["LSTMEncoder", "MultiSourceRNNDecoder"]

    def draw_weights(self, module: nn.Module) -> None:
        if isinstance(module, ForgetBias):
            init.ones_(module.bias)
        elif isinstance(module, nn.Linear | nn.Embedding | nn.LSTM | AbsentVector | Bias | Score):
            for parameter in module.parameters(recurse=False):
                init.uniform_(parameter, -self.config.init_range, self.config.init_range)


class SteppingLSTM(nn.LSTM):
    """`torch.nn.LSTM`, batch first, with faster single steps in training on CPUs.

    On CPUs torch passes all steps of a call to a library that packs the weights in every call. With input feeding every
    step is a separate call, for which plain matrix products are faster, especially in bfloat16.
    """

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Process one or more tokens.

        Args:
            input: (B, T, F), or a packed sequence.
            hx: Hidden and cell states, (L, B, D) each; None: zeros.

        Returns:
            The output of the last layer, and the new hidden and cell states, as in `torch.nn.LSTM`.
        """
        single = isinstance(input, Tensor) and input.shape[1] == 1 and input.device.type == "cpu"
        if not (single and self.training and hx is not None):
            return super().forward(input, hx)
        read, states = input[:, 0], list[tuple[Tensor, Tensor]]()
        for hidden, cell, weights in zip(*hx, self.all_weights, strict=True):
            if states:
                read = dropout(read, p=self.dropout, training=True)
            states.append(torch.lstm_cell(read, (hidden, cell), *weights))
            read = states[-1][0]
        hiddens, cells = zip(*states, strict=True)
        return read[:, None], (torch.stack(hiddens), torch.stack(cells))


def make_lstm(config: MultiSourceRNNConfig, input_size: int, probability: float) -> nn.LSTM:
    """Create the LSTM layers of an encoder or of the decoder.

    Args:
        config: Reads `d_model` and `num_layers`.
        input_size: Width of the input of the first layer.
        probability: Dropout probability between layers.

    Returns:
        The layers as one module, which libraries compute in one call.
    """
    layers = config.num_layers
    between = probability if layers > 1 else 0.0  # torch warns about dropout with a single layer
    return SteppingLSTM(input_size, config.d_model, layers, batch_first=True, dropout=between)


def keep_in_one_piece(lstm: nn.LSTM) -> None:
    """Make the weights contiguous in memory on a CUDA device; otherwise cuDNN copies them in every call.

    Torch does this when a module is moved to a device, but loading a checkpoint allocates weights separately.

    Args:
        lstm: The layers.
    """
    first, *_, last = lstm.parameters()
    if first.is_cuda and first.untyped_storage().data_ptr() != last.untyped_storage().data_ptr():
        lstm.flatten_parameters()


class LSTMEncoder(MultiSourceRNNPreTrainedModel, TextSourceEncoder):
    """LSTM encoder of one text source.

    Only the real tokens of examples that have the source are processed; with `reverse_sources` from the last to the
    first. The states are returned in the order of the text.

    Args:
        config: The model's configuration.
        name: The source's name.

    Shape:
        input_ids (B, S), attention_mask (B, S) bool to states (B, S, D) and final states (B, L, D).
    """

    def __init__(self, config: Any, name: str) -> None:
        super().__init__(config, name)
        settings = self.settings
        self.embeddings = TextEmbeddings(
            config,
            vocab_size=settings.vocab_size,
            pad_token_id=settings.pad_token_id,
            position_embedding="none",
            max_position_embeddings=0,
            dropout=settings.dropout,
        )
        self.lstm = make_lstm(config, config.d_model, settings.dropout)
        self.post_init()
        self.freeze()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: object,
    ) -> EncodedRNNSource:
        """Encode the source.

        Args:
            input_ids: Token ids.
            attention_mask: True at real tokens; None: all tokens are real.
            inputs_embeds: Embedded tokens instead of ids.
            **kwargs: `output_hidden_states` and `output_attentions`.

        Returns:
            The states, zero at padding. Requested hidden states and attentions are empty tuples, as in the decoder,
            because all layers are computed in one call that returns only the states of the last layer.

        Raises:
            NotImplementedError: If the encoder is exported.
        """
        if torch.compiler.is_exporting():
            raise NotImplementedError(
                "an LSTM encoder cannot be exported: the tokens that it reads depend on the masks. Export the model "
                "with encoder_outputs, and encode with model.get_encoder()."
            )
        embedded = self.embeddings(input_ids, inputs_embeds)
        if attention_mask is None:
            attention_mask = torch.ones(embedded.shape[:2], dtype=torch.bool, device=embedded.device)
        lengths = attention_mask.sum(dim=1)
        present = lengths.nonzero().flatten()
        batch, longest, width = embedded.shape
        states = embedded.new_zeros(batch, longest, width)
        final = embedded.new_zeros(2, batch, self.config.num_layers, width)
        if len(present) == 0:
            nothing = self.absent(attention_mask)[0].sum()  # zero, with a gradient
            states, final = states + nothing, final + nothing
        else:
            order = self._reading_order(attention_mask[present], lengths[present])[..., None].expand(-1, -1, width)
            read = embedded[present].gather(1, order)
            packed = pack_padded_sequence(read, lengths[present].cpu(), batch_first=True, enforce_sorted=False)
            keep_in_one_piece(self.lstm)
            output, ends = self.lstm(packed)
            found, _ = pad_packed_sequence(output, batch_first=True, total_length=longest)
            found = torch.zeros_like(found).scatter(1, order, found)  # states of padding are zero
            states = states.to(found.dtype).index_copy(0, present, found)
            ends = torch.stack(ends).transpose(1, 2)  # (2, B, L, D)
            final = final.to(ends.dtype).index_copy(1, present, ends)
        return EncodedRNNSource(
            last_hidden_state=states,
            hidden_states=() if kwargs.get("output_hidden_states", self.config.output_hidden_states) else None,
            attentions=() if kwargs.get("output_attentions", self.config.output_attentions) else None,
            attention_mask=attention_mask,
            final_hidden=final[0],
            final_cell=final[1],
        )

    def absent(self, attention_mask: Tensor) -> EncodedRNNSource:
        """Return the output for a batch without the source, as [`SourceEncoderBase.absent`], with final states of zero.

        Args:
            attention_mask: A mask that is all False.

        Returns:
            The states, their mask of False, and the final states.
        """
        encoded = super().absent(attention_mask)
        final = encoded.last_hidden_state.expand(-1, self.config.num_layers, -1)
        return EncodedRNNSource(**encoded, final_hidden=final, final_cell=final)

    def _reading_order(self, mask: Tensor, lengths: Tensor) -> Tensor:
        """Return the order (B, S) in which tokens are processed: first all real tokens, then padding."""
        rank = mask.cumsum(dim=1) - 1
        if self.config.reverse_sources:
            rank = lengths[:, None] - 1 - rank
        padding = lengths[:, None] + (~mask).cumsum(dim=1) - 1
        return torch.where(mask, rank, padding).argsort(dim=1)


class MultiSourceRNNEncoder(MultiSourceRNNPreTrainedModel, SourcesEncoder):
    """Encodes every source with its LSTM, joins the states on the time axis and combines the final states.

    Args:
        config: The model's configuration.
    """

    encoder_types: ClassVar[Mapping[str, Callable[[Any, str], SourceEncoderBase]]] = {"text": LSTMEncoder}

    def __init__(self, config: MultiSourceRNNConfig) -> None:
        super().__init__(config)
        self.combination = nn.ModuleList([COMBINATIONS[config.combination](config) for _ in range(config.num_layers)])
        self.post_init()

    def join(self, encoded: Mapping[str, Any]) -> MultiSourceRNNEncoderOutput:
        """Join encoded sources on the time axis, and combine their final states layer by layer.

        Args:
            encoded: Outputs of the encoders by the names of the given sources, in order.

        Returns:
            The joined states, their mask, the lengths of the sources, and the decoder's initial state.
        """
        encoded = on_one_device(encoded)
        combined = [
            combination({name: (one.final_hidden[:, i], one.final_cell[:, i]) for name, one in encoded.items()})
            for i, combination in enumerate(self.combination)
        ]
        hidden, cells = zip(*combined, strict=True)
        return MultiSourceRNNEncoderOutput(**super().join(encoded), initial_state=torch.stack([*hidden, *cells], dim=1))


class MultiSourceRNNDecoder(MultiSourceRNNPreTrainedModel):
    """LSTM decoder with input feeding and attention to every source.

    Zoph & Knight 2016, sections 2 and 4, with E(y) the embedding of a token, D() dropout (Zaremba et al. 2014):
        h_t = LSTM([D(E(y_{t-1})); v_{t-1}], h_{t-1});  v_t = tanh(W [D(h_t); c_1; ...; c_n] + b)

    where v_t predicts token t, and v_0 is zero. Without input feeding the input of the LSTM is the embedding only;
    without attention v_t = D(h_t).

    Args:
        config: The model's configuration.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embeddings = TextEmbeddings(
            config,
            vocab_size=config.vocab_size,
            pad_token_id=config.pad_token_id,
            position_embedding="none",
            max_position_embeddings=0,
            dropout=config.dropout,
        )
        self.lstm = make_lstm(config, config.d_model * (1 + config.input_feeding), config.dropout)
        self.attention = RNNAttention(config) if config.attention != "none" else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.tokens

    def set_input_embeddings(self, value: Any) -> None:
        self.embeddings.tokens = value

    @merge_with_config_defaults
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: MultiSourceRNNCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        *,
        encoder_hidden_states: Tensor,
        memory: SourceMemory,
        initial_state: Tensor,
        **kwargs: object,
    ) -> MultiSourceDecoderOutput:
        """Decode the tokens of the target, or with a cache only the new tokens.

        Args:
            input_ids: Token ids.
            attention_mask: 1 at real tokens, 0 at padding, including tokens of earlier calls; padding does not change
                the states. None: all tokens are real.
            past_key_values: Cache with the states after earlier calls.
            inputs_embeds: Embedded tokens instead of ids.
            use_cache: Whether to return the cache.
            encoder_hidden_states: The states of the memory, because hooks move tensors between devices, but not
                memories.
            memory: The encoded sources; K consecutive rows of the decoder share the sources of one example.
            initial_state: Initial state of the decoder.
            **kwargs: `output_attentions`, `output_hidden_states`.

        Shape:
            input_ids (R, T), R = B * K; encoder_hidden_states (B, S, D); initial_state (B, 2 L, D).

        Returns:
            Attentional vectors (R, T, D), and the requested outputs: as cross-attentions one tensor (R, 1, T, S) if the
            model has attention; self-attentions and hidden states are empty tuples, because they are not available.

        Raises:
            TypeError: If `past_key_values` is not a [`MultiSourceRNNCache`].
        """
        if past_key_values is not None and not isinstance(past_key_values, MultiSourceRNNCache):
            raise TypeError(f"past_key_values must be a MultiSourceRNNCache; got a {type(past_key_values).__name__}.")
        if use_cache and past_key_values is None:
            past_key_values = MultiSourceRNNCache()
        embedded = self.embeddings(input_ids, inputs_embeds)
        length = embedded.shape[1]
        state = None if past_key_values is None else past_key_values.state
        if state is None:
            state = initial_state.repeat_interleave(memory.expansion, dim=0).transpose(0, 1)
            state = torch.cat([state, torch.zeros_like(state[:1])])
        # `split` once instead of slicing in every step: the gradient of a slice has the size of the whole tensor.
        layers = self.config.num_layers
        hidden, cell, fed = state.split([layers, layers, 1])
        real = None if attention_mask is None else attention_mask[:, -length:].bool()
        sources = memory.with_states(encoder_hidden_states).views
        recording = past_key_values is not None and past_key_values.past is not None
        keep_in_one_piece(self.lstm)
        whole = not (self.config.input_feeding or recording) and (real is None or bool(real.all()))
        passed, found = [], []
        for t, read in enumerate([embedded] if whole else embedded.split(1, dim=1)):
            if self.config.input_feeding:
                read = torch.cat([read, fed.transpose(0, 1).to(read.dtype)], dim=-1)
            output, ends = self.lstm(read, (hidden, cell))
            vectors, weights = dropout(output, p=self.config.dropout, training=self.training), None
            if self.attention is not None:
                vectors, weights = self.attention(vectors, sources)
            new = (*ends, vectors[:, -1:].transpose(0, 1).to(ends[0].dtype))
            if real is not None and not whole:
                new = tuple(map(partial(torch.where, real[:, t, None]), new, (hidden, cell, fed)))
            hidden, cell, fed = new
            passed += [torch.cat(new)] if recording else []
            found.append((vectors, weights))
        if past_key_values is not None:
            past_key_values.write(passed or [torch.cat([hidden, cell, fed])], length)
        all_vectors, all_weights = zip(*found, strict=True)
        wants_weights = kwargs.get("output_attentions", self.config.output_attentions)
        wants_states = kwargs.get("output_hidden_states", self.config.output_hidden_states)
        joined = () if self.attention is None else (torch.cat(all_weights, dim=1)[:, None],)
        # Assisted decoding iterates over the layers of all requested outputs; an empty tuple has no layers.
        return MultiSourceDecoderOutput(
            last_hidden_state=torch.cat(all_vectors, dim=1),
            past_key_values=past_key_values,
            hidden_states=() if wants_states else None,
            attentions=() if wants_weights else None,
            cross_attentions=joined if wants_weights else None,
        )


class MultiSourceRNNModel(MultiSourceRNNPreTrainedModel, SourcesModel):
    """Multi-source LSTM model without an output layer: encoders and decoder.

    Args:
        config: The model's configuration.
    """

    encoder_type = MultiSourceRNNEncoder
    decoder_type = MultiSourceRNNDecoder

    def _decoder_extras(self, encoded: Any) -> dict[str, Tensor]:
        return {"initial_state": encoded.initial_state}

    def complete_encoder_outputs(
        self, encoder_outputs: ModelOutput | tuple[Tensor, ...], attention_mask: Tensor | None
    ) -> MultiSourceRNNEncoderOutput:
        """Check and copy the output of the encoder.

        Args:
            encoder_outputs: Output of the encoder.
            attention_mask: Ignored; the output contains its mask.

        Returns:
            A new output.

        Raises:
            ValueError: If the output has no initial state for the decoder.
        """
        fields = dict(encoder_outputs) if isinstance(encoder_outputs, ModelOutput) else {}
        if fields.get("initial_state") is None:
            raise ValueError("encoder_outputs lacks initial_state; pass what model.get_encoder() returns.")
        return MultiSourceRNNEncoderOutput(**fields)


class MultiSourceRNNForConditionalGeneration(  # type: ignore[misc]  # each base has its own type of `config`
    MultiSourceRNNPreTrainedModel, SourcesForConditionalGeneration, MultiSourceGenerationMixin
):
    """Multi-source LSTM model with an output layer, for training on `labels` and for generation.

    Args:
        config: The model's configuration.

    Example:
        >>> from hf_multisource import MultiSourceRNNConfig, MultiSourceRNNForConditionalGeneration
        >>> config = MultiSourceRNNConfig(sources=["fr", "de"], d_model=64, num_layers=2)
        >>> model = MultiSourceRNNForConditionalGeneration(config)
        >>> model.get_encoder().config.source_names
        ['fr', 'de']
    """

    body_type = MultiSourceRNNModel

    def _validate_generation_mode(
        self, generation_mode: GenerationMode, generation_config: GenerationConfig, generation_mode_kwargs: Any
    ) -> None:
        super()._validate_generation_mode(generation_mode, generation_config, generation_mode_kwargs)
        if (layer := generation_config.assistant_early_exit) is not None:
            raise ValueError(
                f"assistant_early_exit is {layer}; it must be None: all {self.config.num_layers} layers of the LSTM "
                "are computed in one call."
            )

    def _prepare_cache_for_generation(  # type: ignore[override]
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: GenerationMode,
        *args: object,
        **kwargs: object,
    ) -> None:
        if (wanted := generation_config.cache_implementation) not in CACHES:
            allowed = ", ".join(map(repr, CACHES))
            raise ValueError(f"cache_implementation must be one of {allowed} with LSTM states; got {wanted!r}.")
        if model_kwargs.get("past_key_values") is None and generation_config.use_cache is not False:
            guesses = generation_config.is_assistant or generation_mode == GenerationMode.ASSISTED_GENERATION
            model_kwargs["past_key_values"] = MultiSourceRNNCache(recording=guesses)


__all__ = ["MultiSourceRNNForConditionalGeneration", "MultiSourceRNNModel"]
