"""Encoders: each turns one source into states (B, S_i, D)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention import MultiHeadAttention, show_first_position
from .configuration_multisource import EncoderSettings, MultiSourceConfig
from .layers import FeedForward, MultiSourcePreTrainedModel, TextEmbeddings


def drop_sources(masks: Sequence[Tensor], probabilities: Sequence[float]) -> list[Tensor]:
    """Take whole sources away from examples at random, but from no example all that it has.

    Args:
        masks: Of each source; True = real token.
        probabilities: Of losing each source. An example that would lose all keeps one of those it has, any with the
            same probability.

    Shape:
        (B, S_i) bool each.

    Returns:
        The masks, with rows of False where a source is gone.
    """
    present = torch.stack([mask.any(dim=1) for mask in masks], dim=1)  # (B, n)
    luck = torch.rand(2, *present.shape, device=present.device)
    kept = present & (luck[0] >= torch.tensor(probabilities, device=present.device))
    last = nn.functional.one_hot((luck[1] * present).argmax(dim=1), present.shape[1]).bool()
    kept = torch.where(kept.any(dim=1, keepdim=True), kept, present & last)
    return [mask & kept[:, i, None] for i, mask in enumerate(masks)]


class TextEncoderLayer(GradientCheckpointingLayer):
    """Self-attention, then feed-forward (Vaswani et al. 2017, §3.1).

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

    def forward(self, hidden_states: Tensor, mask: Any, **kwargs: Any) -> Tensor:
        """Encode one layer further.

        Args:
            hidden_states: States of the layer below.
            mask: In the form of the attention implementation.
            **kwargs: Passed on to the attention implementation.

        Returns:
            The new states.
        """
        states = self.self_attn_layer_norm(hidden_states) if self.pre_norm else hidden_states
        states, _ = self.self_attn(states, mask, **kwargs)
        states = hidden_states + dropout(states, p=self.dropout, training=self.training)
        if not self.pre_norm:
            states = self.self_attn_layer_norm(states)
        return self.feed_forward(states)


class TextEncoder(MultiSourcePreTrainedModel):
    """Transformer encoder of one text source.

    Args:
        config: The model's configuration.
        name: The source's name.

    Shape:
        input_ids (B, S), attention_mask (B, S) bool to states (B, S, D).
    """

    _can_record_outputs = {
        "hidden_states": TextEncoderLayer,
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attn"),
    }

    def __init__(self, config: MultiSourceConfig, name: str) -> None:
        super().__init__(config)
        settings = config.encoder_settings(name)
        self.embeddings = TextEmbeddings(
            config,
            vocab_size=settings.vocab_size,
            pad_token_id=settings.pad_token_id,
            position_embedding=settings.position_embedding,
            max_position_embeddings=settings.max_position_embeddings,
            dropout=settings.dropout,
        )
        self.layers = nn.ModuleList([TextEncoderLayer(config, settings) for _ in range(settings.layers)])
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
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Encode the source.

        Args:
            input_ids: Token ids.
            attention_mask: True at real tokens.
            inputs_embeds: Embedded tokens instead of ids.
            **kwargs: `output_hidden_states`, `output_attentions`, and what the attention implementation reads.

        Returns:
            The states; where a row has no real token they are finite and mean nothing.
        """
        states = self.embeddings(input_ids, inputs_embeds)
        if attention_mask is not None:
            attention_mask = show_first_position(attention_mask)
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=states, attention_mask=attention_mask)
        for layer in self.layers:
            states = layer(states, mask, **kwargs)
        if self.layer_norm is not None:
            states = self.layer_norm(states)
        return BaseModelOutput(last_hidden_state=states)


#: Encoder classes by `SourceConfig.kind`.
ENCODERS: dict[str, type[TextEncoder]] = {"text": TextEncoder}
