"""The same answers on a CUDA device as on the CPU; `pytest -m gpu` runs these."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from builders import LSTM
from hf_multisource import (
    COMBINERS,
    MultiSourceConfig,
    MultiSourceForConditionalGeneration,
    MultiSourceRNNConfig,
    MultiSourceRNNForConditionalGeneration,
)

pytestmark = pytest.mark.gpu
every_combiner = pytest.mark.parametrize("combiner", [*COMBINERS, LSTM])


def model_and_batch(combiner: str) -> tuple[Any, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    shared: dict[str, Any] = {"sources": ["a", "b"], "vocab_size": 50, "d_model": 32}
    config = MultiSourceConfig(combiner=combiner, encoder_layers=2, decoder_layers=2, **shared)
    lstm = MultiSourceRNNConfig(num_layers=2, dropout=0.0, init_range=0.5, **shared)
    batch = {
        "input_ids": torch.randint(4, 50, (3, 7)),
        "attention_mask": torch.tensor([[1] * 7, [1] * 4 + [0] * 3, [0] * 7]),  # absent in the last example
        "b_input_ids": torch.randint(4, 50, (3, 5)),
        "b_attention_mask": torch.tensor([[1] * 5, [0] * 5, [1] * 5]),  # absent in the second
    }
    if combiner == LSTM:
        return MultiSourceRNNForConditionalGeneration(lstm).eval(), batch
    return MultiSourceForConditionalGeneration(config).eval(), batch


@every_combiner
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_loss_and_gradients_are_those_of_the_cpu(combiner: str, attention: str) -> None:
    model, batch = model_and_batch(combiner)
    if combiner == LSTM:
        model.train()  # cuDNN's LSTM has no gradients in evaluation mode; there is no dropout
    else:
        model.set_attn_implementation(attention)
    batch["labels"] = torch.randint(4, 50, (3, 6))
    found = []
    for device in ("cpu", "cuda"):
        model.to(torch.device(device)).zero_grad()
        loss = model(**{key: tensor.to(device) for key, tensor in batch.items()}).loss
        loss.backward()
        gradients = {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}
        found.append((loss.detach().cpu(), gradients))
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)


@every_combiner
@pytest.mark.parametrize("num_beams", [1, 4])
def test_generation_is_that_of_the_cpu(combiner: str, num_beams: int) -> None:
    model, batch = model_and_batch(combiner)
    on_cpu = model.generate(**batch, num_beams=num_beams, max_new_tokens=8)
    model.to(torch.device("cuda"))
    on_gpu = model.generate(**{key: t.cuda() for key, t in batch.items()}, num_beams=num_beams, max_new_tokens=8)
    assert torch.equal(on_gpu.cpu(), on_cpu)


@every_combiner
def test_bfloat16_stays_near(combiner: str) -> None:
    model, batch = model_and_batch(combiner)
    batch["decoder_input_ids"] = torch.randint(4, 50, (3, 6))
    exact = model(**batch).logits
    model.to(device="cuda", dtype=torch.bfloat16)
    near = model(**{key: tensor.cuda() for key, tensor in batch.items()}).logits
    torch.testing.assert_close(near.float().cpu(), exact, rtol=0.1, atol=0.1)
