"""The same answers on a CUDA device as on the CPU, and training there; `pytest -m gpu` runs these."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from transformers import pipeline

from builders import (
    LSTM,
    NAMES,
    TEXTS,
    three_source_batch,
    three_source_model,
    three_source_processor,
    tiny_config,
)
from hf_multisource import (
    COMBINERS,
    MultiSourceConfig,
    MultiSourceEnsemble,
    MultiSourceForConditionalGeneration,
    MultiSourceRNNConfig,
    MultiSourceRNNForConditionalGeneration,
)
from hf_multisource.evaluation.scoring import Scoring, score
from hf_multisource.recipes.provenance import hardware
from hf_multisource.recipes.run_folder import SUMMARY
from hf_multisource.recipes.training import train
from kinds import MIXED, mixed_processor, mixed_rows
from runs import make_folder, read_json, recipe_of
from searches import SEARCHES, generate, same
from trainers import made_up_examples, trainer_of

pytestmark = pytest.mark.gpu
every_combiner = pytest.mark.parametrize("combiner", [*COMBINERS, LSTM])
DEVICE = torch.device("cuda")
EXACT_SEARCHES = [name for name, search in SEARCHES.items() if not search.get("do_sample")]
READS = 2
"""As in test_step_costs.py: the values that a step of beam search reads, so often must it wait for the device."""


def on_device(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: tensor.to(DEVICE) for key, tensor in inputs.items()}


def on_cpu(found: tuple[list[list[int]], Tensor]) -> tuple[list[list[int]], Tensor]:
    return found[0], found[1].cpu()


@pytest.fixture(autouse=True)
def exact_float32() -> Iterator[None]:
    """By default, cuDNN rounds the products of LSTMs and convolutions to TF32."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


@contextmanager
def waits() -> Iterator[list[str]]:
    """Collect the places at which Python waits for the device."""
    places: list[str] = []
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield places
            places += [f"{w.filename}:{w.lineno}" for w in caught if "synchronizing CUDA" in str(w.message)]
    finally:
        torch.cuda.set_sync_debug_mode("default")


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
    for device in (torch.device("cpu"), DEVICE):
        model.to(device).zero_grad()
        loss = model(**{key: tensor.to(device) for key, tensor in batch.items()}).loss
        loss.backward()
        gradients = {name: p.grad.cpu().clone() for name, p in model.named_parameters() if p.grad is not None}
        found.append((loss.detach().cpu(), gradients))
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)


@every_combiner
@pytest.mark.parametrize("num_beams", [1, 4])
def test_generation_is_that_of_the_cpu(combiner: str, num_beams: int) -> None:
    model, batch = model_and_batch(combiner)
    on_cpu = model.generate(**batch, num_beams=num_beams, max_new_tokens=8)
    model.to(DEVICE)
    on_gpu = model.generate(**{key: t.to(DEVICE) for key, t in batch.items()}, num_beams=num_beams, max_new_tokens=8)
    assert torch.equal(on_gpu.cpu(), on_cpu)


@every_combiner
def test_bfloat16_stays_near(combiner: str) -> None:
    model, batch = model_and_batch(combiner)
    batch["decoder_input_ids"] = torch.randint(4, 50, (3, 6))
    exact = model(**batch).logits
    model.to(device=DEVICE, dtype=torch.bfloat16)
    near = model(**{key: tensor.to(DEVICE) for key, tensor in batch.items()}).logits
    torch.testing.assert_close(near.float().cpu(), exact, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("combiner", "search"),
    [
        (combiner, search)
        for combiner in (*COMBINERS, LSTM)
        for search in EXACT_SEARCHES
        if combiner != LSTM or search != "static cache"  # the cache of LSTMs has no lengths
    ],
)
def test_every_search_finds_what_it_finds_on_the_cpu(combiner: str, search: str) -> None:
    model, inputs = three_source_model(combiner), three_source_batch()
    expected = generate(model, inputs, **SEARCHES[search])
    model.to(DEVICE)
    same(on_cpu(generate(model, on_device(inputs), **SEARCHES[search])), expected)


@every_combiner
def test_beams_that_share_sources_find_what_stock_beam_search_finds(combiner: str) -> None:
    model, inputs = three_source_model(combiner).to(DEVICE), on_device(three_source_batch())
    search = {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.6}
    same(generate(model, inputs, **search), generate(model, inputs, fold_beams=False, **search))


@every_combiner
@pytest.mark.parametrize("search", ["sampled beams", "samples"])
def test_sampled_texts_have_the_probabilities_of_the_model(combiner: str, search: str) -> None:
    model, inputs = three_source_model(combiner).to(DEVICE), on_device(three_source_batch())
    texts, scores = generate(model, inputs, **SEARCHES[search])
    assert scores.isfinite().all() and len(texts) == len(scores)
    assert len({tuple(text) for text in texts}) > 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@every_combiner
def test_narrow_types_have_no_nan(combiner: str, dtype: torch.dtype) -> None:
    model = three_source_model(combiner).to(DEVICE, dtype)
    inputs = on_device(three_source_batch())
    logits = model(**inputs, labels=torch.tensor([[4, 5, 6, 1]] * 5).to(DEVICE)).logits
    assert logits.isfinite().all()
    texts, scores = generate(model, inputs, num_beams=4)
    assert len(texts) == 5 and scores.isfinite().all()


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_autocast_stays_near(combiner: str, dtype: torch.dtype) -> None:
    model, inputs = three_source_model(combiner, final_logits_bias=True).to(DEVICE), on_device(three_source_batch())
    inputs["labels"] = torch.tensor([[4, 5, 6, 1]] * 5).to(DEVICE)
    exact = model(**inputs).loss
    with torch.autocast(DEVICE.type, dtype):
        near = model(**inputs).loss
    near.backward()
    torch.testing.assert_close(near, exact, rtol=0.1, atol=0.1)
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_sources_of_every_kind() -> None:
    processor = mixed_processor()
    torch.manual_seed(0)
    config = tiny_config(sources=MIXED, vocab_size=300)
    model: Any = MultiSourceForConditionalGeneration(config).eval()
    rows = mixed_rows()
    columns: Any = {name: [row[name] for row in rows] for name in rows[0]}
    batch = processor(**columns, return_tensors="pt")
    batch["labels"] = torch.tensor([[5, 6, 1]] * len(rows))
    found = []
    for device in (torch.device("cpu"), DEVICE):
        model.to(device)
        inputs = {key: value.to(device) for key, value in batch.items()}
        found.append(
            (model(**inputs).loss.detach().cpu(), model.generate(**inputs, num_beams=3, max_new_tokens=5).cpu())
        )
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)


def test_an_optimized_model_has_bfloat16_and_finds_texts() -> None:
    model, inputs = three_source_model().to(DEVICE), on_device(three_source_batch())
    expected = three_source_model().to(DEVICE, torch.bfloat16)
    (line,) = model.optimize_for_inference()
    assert line.startswith("bfloat16") and hardware(DEVICE) in line
    same(generate(model, inputs, num_beams=4), generate(expected, inputs, num_beams=4))
    assert model.optimize_for_inference() == []


def test_an_ensemble_finds_what_it_finds_on_the_cpu() -> None:
    inputs = three_source_batch()
    members = [three_source_model("serial"), three_source_model("flat"), three_source_model(LSTM)]
    expected = generate(MultiSourceEnsemble(members), inputs, num_beams=4)
    ensemble = MultiSourceEnsemble([member.to(DEVICE) for member in members])
    same(on_cpu(generate(ensemble, on_device(inputs), num_beams=4)), expected)


def test_a_shortlist_may_lie_on_either_device() -> None:
    shortlist = torch.tensor([1, 3, 5, 7, 9, 11])
    model, inputs = three_source_model(), three_source_batch()
    expected = generate(model, inputs, num_beams=3, shortlist=shortlist)
    model.to(DEVICE)
    for tokens in (shortlist, shortlist.to(DEVICE)):
        same(on_cpu(generate(model, on_device(inputs), num_beams=3, shortlist=tokens)), expected)


@pytest.mark.parametrize("device_map", ["cuda", "auto", {"": 0}], ids=str)
def test_checkpoints_are_loaded_onto_the_device(tmp_path: Path, device_map: Any) -> None:
    model, inputs = three_source_model(), three_source_batch()
    model.save_pretrained(tmp_path)
    loaded = MultiSourceForConditionalGeneration.from_pretrained(tmp_path, device_map=device_map).eval()
    assert {weight.device.type for weight in loaded.state_dict().values()} == {"cuda"}
    same(on_cpu(generate(loaded, on_device(inputs), num_beams=3)), generate(model, inputs, num_beams=3))


@pytest.mark.parametrize("combiner", ["serial", "flat"])
def test_a_compiled_model_has_the_same_loss_and_gradients(combiner: str) -> None:
    model, inputs = three_source_model(combiner).to(DEVICE), on_device(three_source_batch())
    inputs["labels"] = torch.tensor([[4, 5, 6, 1]] * 5).to(DEVICE)
    found = []
    for one in (model, torch.compile(model)):
        model.zero_grad()
        loss = one(**inputs).loss
        loss.backward()
        found.append(
            (loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        )
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_training_learns_and_goes_on_from_a_checkpoint(tmp_path: Path, precision: str) -> None:
    examples = made_up_examples(64)
    settings: dict[str, Any] = {
        "use_cpu": False,
        "per_device_train_batch_size": 16,
        "learning_rate": 1e-2,
        "save_strategy": "steps",
        "save_steps": 10,
        "predict_with_generate": True,
        **({} if precision == "float32" else {precision: True}),
    }
    trainer = trainer_of(tmp_path, examples, max_steps=20, **settings)
    assert trainer.args.device.type == DEVICE.type
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    assert after < before - 0.3
    again = trainer_of(tmp_path, examples, max_steps=20, **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-10"))
    assert again.evaluate()["eval_loss"] == pytest.approx(after, rel=1e-2)


@pytest.mark.parametrize("use_cpu", [False, True])
def test_a_run_names_the_hardware_that_it_was_trained_and_scored_on(tmp_path: Path, use_cpu: bool) -> None:
    make_folder(tmp_path)
    train(recipe_of(tmp_path, bf16=not use_cpu, use_cpu=use_cpu))
    report = score(Scoring(run=str(tmp_path / "run"), split="dev", metrics=["chrf"]), "score")
    name = hardware(DEVICE)
    assert read_json(tmp_path / "run" / SUMMARY)["hardware"] == (hardware("cpu") if use_cpu else name)
    assert report["hardware"] == name


def test_a_pipeline_translates_on_the_device() -> None:
    processor, task = three_source_processor(), cast(Any, "multisource-to-text")
    answers = []
    for device in (torch.device("cpu"), DEVICE):
        model = three_source_model(vocab_size=len(processor.tokenizer))
        pipe = pipeline(task, model=model, processor=processor, device=device)
        assert pipe.model.device.type == device.type
        answers.append(pipe(TEXTS, batch_size=2, num_beams=2, max_new_tokens=5))
    assert answers[0] == answers[1]


@every_combiner
def test_a_step_of_beam_search_waits_for_the_device_as_often_as_counted(combiner: str) -> None:
    """The bound is `READS` of test_step_costs.py, which counts the reads of values on a CPU."""
    model, inputs = three_source_model(combiner).to(DEVICE), on_device(three_source_batch())
    counts = []
    for steps in (6, 6, 12):
        with waits() as seen:
            model.generate(**inputs, num_beams=3, max_new_tokens=steps, eos_token_id=None, pad_token_id=0)
        counts.append(len(seen))
    assert (counts[2] - counts[1]) / 6 <= READS


@every_combiner
def test_a_training_step_waits_for_the_device_as_rarely_as_it_can(combiner: str) -> None:
    """Transformers reads whether a mask hides anything; LSTMs need the lengths of their sources."""
    model, inputs = three_source_model(combiner).to(DEVICE).train(), on_device(three_source_batch())
    inputs["labels"] = torch.tensor([[4, 5, 6, 1]] * 5).to(DEVICE)
    model(**inputs).loss.backward()
    with waits() as seen:
        model(**inputs).loss.backward()
    if combiner == LSTM:
        assert len(seen) <= 4 * len(NAMES), seen
    else:
        assert all("masking_utils" in place for place in seen), seen
        assert len(seen) <= 2 * len(NAMES), "one mask of each encoder, and one of its states in cross-attention"
