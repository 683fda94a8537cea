"""Configuration of multi-source LSTM models: sources, combination and decoder. This module does not import torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict

from .configuration_multisource import SourcesConfig, check_choice
from .source_kinds import SourceKind, TextKind

COMBINATIONS = ("basic", "child_sum", "none")
ATTENTIONS = ("local_p", "general", "dot", "none")


class RNNTextKind(TextKind):
    """Kind of text sources in LSTM models, which cannot set sizes: all encoders have the model-wide layers."""

    fields = frozenset({"vocab_size", "pad_token_id", "dropout", "freeze", "share_embeddings_with"})


@dataclass(frozen=True, kw_only=True)
class RNNEncoderSettings:
    """Complete settings of the encoder of one source: its own settings and the model-wide defaults.

    Args:
        dropout: Dropout probability.
        vocab_size: Rows of the token embedding table that the encoder reads, which can be shared.
        pad_token_id: Padding id.
    """

    dropout: float
    vocab_size: int
    pad_token_id: int | None


@strict
class MultiSourceRNNConfig(SourcesConfig):
    """Configuration of an LSTM model with several source encoders and one decoder (Zoph & Knight 2016).

    https://doi.org/10.18653/v1/N16-1004. The defaults are those of the paper, and of its code,
    https://github.com/isi-nlp/Zoph_RNN, for settings that the paper does not state.

    Args:
        sources: [`SourceConfig`]s, dicts of its fields, or bare names, all of kind "text". Source 0 takes keywords
            without a prefix (`input_ids`), every other source takes keywords with its name as a prefix
            (`de_input_ids`). A source can set `vocab_size`, `pad_token_id`, `dropout`, `source_dropout`, `freeze`,
            `share_encoder_with` and `share_embeddings_with`.
        combination: Combination of the encoders' final states into the decoder's initial state, in each layer: "basic"
            (§2.1, Eqs. 1-2), "child_sum" (§2.2, Eqs. 3-8), or, with one source, "none", which copies the states.
        cell_clip: With "child_sum": bound of the combined cell's absolute values (the code: 50). None: no bound.
        attention: Attention of the decoder to each source separately: "local_p", a window around a predicted position
            (Luong et al. 2015, as in the paper); "general" (h' W e) and "dot" (h' e), over the whole source; "none".
        window: With "local_p": D, the number of positions on either side of the predicted position that the decoder
            attends to.
        input_feeding: Whether the attentional vector of a step is part of the next step's input. None: True with
            attention, False without.
        reverse_sources: Whether encoders read their source from the last token to the first.
        vocab_size: Size of the target's vocabulary, in tokens.
        d_model: Width D of all states and embeddings.
        num_layers: Number of layers of every encoder and of the decoder.
        dropout: Dropout probability of embeddings, connections between layers, and the last layer's states, in [0, 1);
            recurrent connections have no dropout (the paper: 0.3; 0.2 without attention).
        source_dropout: Probability of removing a whole source from an example in training, for sources that do not set
            their own; every example keeps at least one of its sources.
        source_subsets: Sampling weights of subsets of the sources; in training one subset is drawn for each example and
            the other sources are removed, instead of by `source_dropout`. A subset is written as the names of its
            sources, separated by spaces; "all" stands for all sources, and the weight of "each" is divided among the
            single sources. Weights are normalized by their sum. An example that has no source of the drawn subset keeps
            all of its sources. None: `source_dropout` alone removes sources.
        absent_vectors: Whether an absent source is represented by a learned vector, which the decoder attends to.
            Source dropout trains the vectors. An example without any source gets no vectors.
        init_range: Bound r of the initial weights, which are uniform in [-r, r] (the paper: 0.08, and 0.1 without
            attention; the bias of the forget gates of "child_sum" is initialized to 1).
        final_logits_bias: Whether a stored bias, which is not trained, is added to the logits.
        label_smoothing: Probability mass spread over the whole vocabulary, in training only.
        use_cache: Whether the decoder returns its states.
        tie_word_embeddings: Whether decoder, output layer and every source of the same vocabulary share one table.
        pad_token_id: Padding id.
        bos_token_id: Id that begins the decoder's input.
        eos_token_id: Id, or list of ids, that ends a text.
        decoder_start_token_id: First id of the decoder's input; None: `bos_token_id`.
        is_encoder_decoder: Always True.

    Raises:
        StrictDataclassError: If a field has a wrong type or a value that is not allowed; the message names the field,
            the value and what is allowed.
        ValueError: If `sources` or one of its items is not allowed.

    Example:
        >>> from hf_multisource import MultiSourceRNNConfig
        >>> config = MultiSourceRNNConfig(sources=["fr", "de"], combination="child_sum")
        >>> config.source_names, config.attention, config.input_feeding
        (['fr', 'de'], 'local_p', True)
    """

    model_type = "multisource-rnn"
    attribute_map = {"hidden_size": "d_model", "num_hidden_layers": "num_layers"}
    source_kinds: ClassVar[Mapping[str, SourceKind]] = {"text": RNNTextKind()}
    # Settings that `TextEmbeddings` reads; they are fixed in LSTM models.
    scale_embedding: ClassVar[bool] = False
    embedding_norm: ClassVar[bool] = False

    combination: str = "basic"
    cell_clip: float | int | None = None
    attention: str = "local_p"
    window: int = 10
    input_feeding: bool | None = None
    reverse_sources: bool = True
    d_model: int = 1000
    num_layers: int = 4
    dropout: float | int = 0.3
    init_range: float | int = 0.08
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        if self.input_feeding is None:
            self.input_feeding = self.attention != "none"
        super().__post_init__(**kwargs)

    @property
    def strategy(self) -> str:
        """Names of combination and attention, as a short description of the model in reports."""
        return self.combination if self.attention == "none" else f"{self.combination}, {self.attention}"

    def encoder_settings(self, name: str) -> RNNEncoderSettings:
        """Return the settings of the encoder of a source; settings that the source leaves out are the model-wide ones.

        Args:
            name: The source's name.

        Returns:
            The complete settings.

        Raises:
            ValueError: If the model has no source of this name; the message lists the names.
        """
        dropout = self.encoder_owner(name).dropout
        vocab_size, pad_token_id = self.source_vocabulary(name)
        return RNNEncoderSettings(
            dropout=self.dropout if dropout is None else dropout, vocab_size=vocab_size, pad_token_id=pad_token_id
        )

    def validate_choices(self) -> None:
        """Check that fields with a fixed set of values have one of these values, and that the fields are compatible."""
        check_choice("combination", self.combination, COMBINATIONS)
        check_choice("attention", self.attention, ATTENTIONS)
        if self.combination == "none" and len(self.sources) != 1:
            raise ValueError(
                f'combination="none" takes one source\'s states as they are; there are {len(self.sources)} sources.'
            )
        if self.cell_clip is not None and self.combination != "child_sum":
            raise ValueError(
                f'cell_clip needs combination="child_sum"; got {self.cell_clip} with combination={self.combination!r}.'
            )
        if self.input_feeding and self.attention == "none":
            raise ValueError('input_feeding=True needs an attention; got attention="none".')
        if self.absent_vectors and self.attention == "none":
            raise ValueError('absent_vectors=True needs an attention; got attention="none".')


__all__ = ["MultiSourceRNNConfig"]
