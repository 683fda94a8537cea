"""What a multi-source LSTM model is made of: the sources, their combination, the decoder. No torch in here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict

from .configuration_multisource import SourcesConfig, check_choice
from .source_kinds import SourceKind, TextKind

COMBINATIONS = ("basic", "child_sum", "none")
ATTENTIONS = ("local_p", "general", "dot", "none")


class RNNTextKind(TextKind):
    """Texts of this family, whose encoders all have the layers of the model."""

    fields = frozenset({"vocab_size", "pad_token_id", "dropout", "freeze", "share_embeddings_with"})


@dataclass(frozen=True, kw_only=True)
class RNNEncoderSettings:
    """What the encoder of one source is built from: its own settings, completed by the model-wide ones.

    Args:
        dropout: Probability of zeroing.
        vocab_size: Rows of the token table it reads, whichever table that is.
        pad_token_id: Padding id.
    """

    dropout: float
    vocab_size: int
    pad_token_id: int | None


@strict
class MultiSourceRNNConfig(SourcesConfig):
    """Configuration of an LSTM model with several source encoders and one decoder (Zoph & Knight 2016).

    https://doi.org/10.18653/v1/N16-1004; defaults are the paper's, and of its code,
    https://github.com/isi-nlp/Zoph_RNN, where the paper is silent.

    Args:
        sources: [`SourceConfig`]s, dicts of its fields, or bare names, all of kind "text". Source 0 is fed by bare
            keywords (`input_ids`), every other by keywords with its name in front (`de_input_ids`). A source can set
            `vocab_size`, `pad_token_id`, `dropout`, `source_dropout`, `freeze`, `share_encoder_with` and
            `share_embeddings_with`.
        combination: How the encoders' last states become the decoder's first, in each layer: "basic" (§2.1,
            Eqs. 1-2), "child_sum" (§2.2, Eqs. 3-8), or, with one source, "none": they are taken as they are.
        cell_clip: With "child_sum": bound of the combined cell's absolute values (the code: 50). None: none.
        attention: Of the decoder, to each source apart: "local_p", a window around a predicted position (Luong et al.
            2015, as in the paper); "general" (h' W e) and "dot" (h' e), over the whole source; "none".
        window: With "local_p": D, the positions on either side of the predicted one that are seen.
        input_feeding: Whether the attentional vector of a step is part of the next step's input. None: with attention
            it is.
        reverse_sources: Whether encoders read their source from the last token to the first.
        vocab_size: Size of the target's vocabulary, in tokens.
        d_model: Width D of all states and embeddings.
        num_layers: Layers of every encoder and of the decoder.
        dropout: Probability of zeroing embeddings, what a layer passes to the next, and the last layer's states, in
            [0, 1); recurrent connections are never dropped (the paper: 0.3; 0.2 without attention).
        source_dropout: Probability of taking a whole source away from an example in training, for sources that do not
            set their own; of the sources that an example has, one at least stays.
        source_subsets: Weights of the subsets of the sources that stay in training, one of which is drawn for each
            example, in place of `source_dropout`. A subset is written as the names of its sources with blanks between
            them; "all" stands for all sources, and the single sources share the weight of "each". Weights are divided
            by their sum. An example that has none of the drawn sources keeps all that it has. None: all stay.
        absent_vectors: Whether a source that an example lacks is one learned vector, which the decoder attends to, in
            place of nothing. Source dropout trains the vectors. An example without any source gets none.
        init_range: All weights begin uniform between minus this and this (the paper: 0.08, and 0.1 without attention;
            the bias of the forget gates of "child_sum" begins at 1).
        final_logits_bias: Whether logits get a stored bias that is not trained.
        label_smoothing: Probability mass spread over the whole vocabulary, in training only.
        use_cache: Whether the decoder returns its states.
        tie_word_embeddings: Whether decoder, output layer and every source of the same vocabulary share one table.
        pad_token_id: Padding id.
        bos_token_id: Id that begins the decoder's input.
        eos_token_id: Id that ends a text.
        decoder_start_token_id: First id fed to the decoder; None: `bos_token_id`.
        is_encoder_decoder: Always True.

    Raises:
        StrictDataclassClassValidationError: If a field has a value that is not allowed; the message names the field,
            the value and what is allowed.

    Example:
        >>> from hf_multisource import MultiSourceRNNConfig
        >>> config = MultiSourceRNNConfig(sources=["fr", "de"], combination="child_sum")
        >>> config.source_names, config.attention, config.input_feeding
        (['fr', 'de'], 'local_p', True)
    """

    model_type = "multisource-rnn"
    attribute_map = {"hidden_size": "d_model", "num_hidden_layers": "num_layers"}
    source_kinds: ClassVar[Mapping[str, SourceKind]] = {"text": RNNTextKind()}
    # What `TextEmbeddings` asks of a configuration; there is nothing to choose.
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
        """How the sources are combined, in a few words, for reports: combination and attention."""
        return self.combination if self.attention == "none" else f"{self.combination}, {self.attention}"

    def encoder_settings(self, name: str) -> RNNEncoderSettings:
        """Settings of the encoder that reads a source, with the model-wide one wherever it has none of its own.

        Args:
            name: The source's name.

        Returns:
            The settings, complete.

        Raises:
            ValueError: If there is no such source; the message lists the names.
        """
        dropout = self.encoder_owner(name).dropout
        vocab_size, pad_token_id = self.source_vocabulary(name)
        return RNNEncoderSettings(
            dropout=self.dropout if dropout is None else dropout, vocab_size=vocab_size, pad_token_id=pad_token_id
        )

    def validate_choices(self) -> None:
        """Fields with a fixed set of values hold one of them, and fields that need one another agree."""
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
