"""Evaluation with `predict_with_generate`: in which data type, and with how many logits."""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch

from hf_multisource import DataCollatorForMultiSource, MultiSourceForConditionalGeneration
from trainers import made_up_examples, processor, trainer_of


@pytest.mark.parametrize("bf16", [False, True])
def test_evaluation_decodes_in_the_data_type_of_the_weights_and_makes_no_logits_for_the_loss(
    tmp_path: Path, bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In mixed precision each step of `generate` would cast all weights again."""
    examples = made_up_examples(8)
    trainer = trainer_of(
        tmp_path,
        examples,
        compute_metrics=lambda _: {},
        bf16=bf16,
        predict_with_generate=True,
        max_steps=1,
        generation_max_length=6,
    )
    trainer.train()
    model: Any = trainer.model
    replaced = model.__dict__.get("forward")
    assert (replaced is not None) == bf16, "Accelerate replaces `forward` for mixed precision"
    stock, seen = MultiSourceForConditionalGeneration.forward, list[tuple[bool, bool, bool]]()

    @wraps(stock)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = stock(self, *args, **kwargs)
        decodes = kwargs.get("labels") is None
        seen.append((decodes, torch.is_autocast_enabled("cpu"), output.logits is None))
        return output

    monkeypatch.setattr(MultiSourceForConditionalGeneration, "forward", forward)
    model.__dict__["_original_forward"] = MethodType(forward, model)
    found = trainer.evaluate()
    assert {autocast for _, autocast, _ in seen} == {False}
    assert {without for decodes, _, without in seen if not decodes} == {True}
    assert any(decodes for decodes, _, _ in seen)
    assert model.__dict__.get("forward") is replaced, "training goes on in mixed precision"
    monkeypatch.undo()
    batch: Any = DataCollatorForMultiSource(processor())(examples)
    loss: Any = trainer.compute_loss(model, batch)
    assert found["eval_loss"] == pytest.approx(float(loss), rel=0.02)
