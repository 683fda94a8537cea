import logging
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Seq2SeqTrainer
from transformers.trainer_callback import TrainerCallback

from builders import END, LSTM, NAMES, one_by_default, three_source_model
from hf_multisource import (
    DataCollatorForMultiSource,
    MultiSourceProcessor,
    MultiSourceTrainer,
    MultiSourceTrainingArguments,
)
from hf_multisource.recipes.tokenization import train_tokenizer

pytestmark = pytest.mark.pairs

every_combiner = pytest.mark.parametrize("combiner", [*one_by_default("hierarchical"), LSTM])
both_trainers = pytest.mark.parametrize("kind", [Seq2SeqTrainer, MultiSourceTrainer])


@cache
def processor() -> MultiSourceProcessor:
    return MultiSourceProcessor(train_tokenizer(["A boy plays."], "bpe", 261), NAMES)


def made_up_examples(number: int) -> list[dict[str, list[int]]]:
    """Random ids; every third example lacks a source, every seventh has one only; targets differ in length."""
    rng = random.Random(0)
    examples = []
    for i in range(number):
        absent = rng.sample(NAMES, 2 if i % 7 == 0 else i % 3 == 0)
        texts = {name: [] if name in absent else rng.choices(range(3, 16), k=rng.randint(1, 6)) for name in NAMES}
        example = {f"{name}_input_ids" if name != NAMES[0] else "input_ids": ids for name, ids in texts.items()}
        examples.append({**example, "labels": [*rng.choices(range(3, 16), k=rng.randint(1, 8)), END]})
    return examples


class Gradients(TrainerCallback):
    """Keeps the gradients of the last update."""

    def __init__(self) -> None:
        self.last: dict[str, Tensor] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        named = kwargs["model"].named_parameters()
        self.last = {name: p.grad.clone() for name, p in named if p.grad is not None}


def trainer_of(
    folder: Path,
    combiner: str,
    kind: type[Seq2SeqTrainer] = MultiSourceTrainer,
    smoothing: float = 0.0,
    **settings: Any,
) -> tuple[Seq2SeqTrainer, Gradients]:
    """A trainer of a model of three sources, always with the same weights."""
    fixed: dict[str, Any] = {"use_cpu": True, "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1}
    fixed |= {"remove_unused_columns": False, "train_sampling_strategy": "sequential", "max_steps": 1, "optim": "sgd"}
    model = three_source_model(combiner, label_smoothing=smoothing)
    arguments = MultiSourceTrainingArguments(str(folder), **{**fixed, **settings})
    gradients = Gradients()
    decoder_inputs_from = model if arguments.label_smoothing_factor else None
    trainer = kind(
        model,
        arguments,
        data_collator=DataCollatorForMultiSource(processor(), model=decoder_inputs_from),
        train_dataset=made_up_examples(16),
        processing_class=processor(),
        callbacks=[gradients],
    )
    return trainer, gradients


def losses_of(trainer: Seq2SeqTrainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.feature("Training", "Gradient accumulation: loss and gradients of one big batch")
@both_trainers
@every_combiner
def test_accumulated_gradients_are_those_of_the_whole_batch(
    combiner: str, kind: type[Seq2SeqTrainer], tmp_path: Path
) -> None:
    found = []
    for size, parts in ((16, 1), (4, 4)):
        trainer, gradients = trainer_of(
            tmp_path,
            combiner,
            kind,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=parts,
            max_grad_norm=0.0,
        )
        trainer.train()
        assert trainer.state.global_step == 1 and len(losses_of(trainer)) == 1
        found.append((losses_of(trainer), gradients.last))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-5)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-4, atol=1e-4)
    assert max(float(gradient.abs().max()) for gradient in found[0][1].values()) > 0.1


@pytest.mark.feature("Training", "Label smoothing, by the config or by the trainer")
@every_combiner
def test_label_smoothing_is_the_same_by_config_and_by_trainer(combiner: str, tmp_path: Path) -> None:
    found = []
    for by_config, by_trainer in ((0.3, 0.0), (0.0, 0.3), (0.0, 0.0)):
        trainer, gradients = trainer_of(
            tmp_path,
            combiner,
            smoothing=by_config,
            label_smoothing_factor=by_trainer,
            per_device_train_batch_size=16,
            max_grad_norm=0.0,
        )
        trainer.train()
        found.append((losses_of(trainer), gradients.last))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-5)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-4, atol=1e-4)
    assert found[2][0] != pytest.approx(found[0][0], rel=1e-2)


@pytest.mark.feature("Training", "predict_with_generate, with Seq2SeqTrainer and MultiSourceTrainer")
@both_trainers
@pytest.mark.parametrize("num_beams", [1, 4])
@every_combiner
def test_predictions_are_what_the_model_generates(
    combiner: str, num_beams: int, kind: type[Seq2SeqTrainer], tmp_path: Path
) -> None:
    trainer, _ = trainer_of(
        tmp_path,
        combiner,
        kind,
        predict_with_generate=True,
        generation_num_beams=num_beams,
        generation_max_length=8,
        per_device_eval_batch_size=4,
    )
    examples: Any = made_up_examples(8)
    output = trainer.predict(examples)
    assert (output.metrics or {})["test_loss"] > 0
    model: Any = trainer.model
    predictions, labels = torch.tensor(output.predictions), torch.tensor(output.label_ids)
    for i, example in enumerate(examples):
        batch = DataCollatorForMultiSource(processor())([example])
        assert labels[i][labels[i] > 0].tolist() == batch.pop("labels")[0].tolist()
        alone = model.generate(**batch, num_beams=num_beams, max_length=8)[0]
        assert torch.equal(predictions[i][: len(alone)], alone)
        rest = set(predictions[i][len(alone) :].tolist())
        assert rest <= {0, END}, "stock beam search fills with the end where padding has the id 0"


class Rates(TrainerCallback):
    """Keeps the learning rate of every update."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.append(kwargs["optimizer"].param_groups[0]["lr"])


@pytest.mark.parametrize("size", [4, 5])
def test_the_rate_is_halved_in_every_epoch_after_the_given_one(size: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "num_train_epochs": 5,
        "max_steps": -1,
        "learning_rate": 0.8,
        "per_device_train_batch_size": size,
    }
    trainer, _ = trainer_of(tmp_path, LSTM, halve_after_epoch=2, **settings)
    rates = Rates()
    trainer.add_callback(rates)
    trainer.train()
    assert rates.seen == [rate for rate in (0.8, 0.8, 0.4, 0.2, 0.1) for _ in range(4)]


def test_halving_by_epochs_does_not_go_with_a_number_of_updates(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"halve_after_epoch=2 counts epochs: .*max_steps=1"):
        trainer_of(tmp_path, LSTM, halve_after_epoch=2)


@pytest.mark.parametrize("parts", [1, 4])
def test_the_loss_per_sentence_is_the_sum_over_tokens_by_the_number_of_sentences(parts: int, tmp_path: Path) -> None:
    found = []
    for per_sentence in (False, True):
        trainer, gradients = trainer_of(
            tmp_path,
            LSTM,
            loss_per_sentence=per_sentence,
            per_device_train_batch_size=16 // parts,
            gradient_accumulation_steps=parts,
            max_grad_norm=0.0,
        )
        trainer.train()
        found.append((losses_of(trainer)[0], gradients.last))
    ratio = sum(len(example["labels"]) for example in made_up_examples(16)) / 16
    assert ratio > 2
    assert found[1][0] == pytest.approx(found[0][0] * ratio, rel=1e-4)
    expected = {name: gradient * ratio for name, gradient in found[0][1].items()}
    torch.testing.assert_close(found[1][1], expected, rtol=1e-4, atol=1e-5)


def test_sentences_are_counted_over_all_processes_as_labels_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {}
    for per_sentence in (False, True):
        trainer, _ = trainer_of(tmp_path, LSTM, loss_per_sentence=per_sentence)
        monkeypatch.setattr(type(trainer.args), "world_size", 2)
        monkeypatch.setattr(trainer.accelerator, "gather", lambda count: torch.stack([count, count + 5]))
        batches = [{"labels": torch.tensor([[4, 5, -100], [4, 5, 6]])}, {"labels": torch.tensor([[4], [-100], [5]])}]
        _, items = trainer.get_batch_samples(iter(batches), 2, torch.device("cpu"))
        counts[per_sentence] = items
    assert counts == {False: 7 + 7 + 5, True: 5 + 5 + 5}


@pytest.mark.parametrize("positional", [False, True])
def test_the_trainer_makes_batches_of_examples_of_our_processor(positional: bool, tmp_path: Path) -> None:
    expected, own = trainer_of(tmp_path, "serial")
    assert expected.args is not None
    model, rest = three_source_model("serial"), {"train_dataset": made_up_examples(16), "processing_class": processor()}
    gradients = Gradients()
    arguments = (model, expected.args, None) if positional else (model, expected.args)
    trainer = MultiSourceTrainer(*arguments, **rest, callbacks=[gradients])
    assert isinstance(trainer.data_collator, DataCollatorForMultiSource)
    expected.train()
    trainer.train()
    assert losses_of(trainer) == losses_of(expected)
    assert own.last.keys() == gradients.last.keys()


def test_label_smoothing_of_the_trainer_needs_no_model_in_the_collator(tmp_path: Path) -> None:
    expected, _ = trainer_of(tmp_path, "serial", label_smoothing_factor=0.1)
    trainer, _ = trainer_of(tmp_path, "serial", label_smoothing_factor=0.1)
    collator: Any = trainer.data_collator
    again = MultiSourceTrainer(
        trainer.model,
        trainer.args,
        data_collator=DataCollatorForMultiSource(collator.processor),
        train_dataset=trainer.train_dataset,
    )
    expected.train()
    again.train()
    assert losses_of(again) == losses_of(expected)


def test_a_loss_of_ones_own_needs_no_model_in_the_collator(tmp_path: Path) -> None:
    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        summed = torch.nn.functional.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), reduction="sum")
        return summed / (labels.ne(-100).sum() if num_items_in_batch is None else num_items_in_batch)

    expected, _ = trainer_of(tmp_path, "serial")
    trainer, _ = trainer_of(tmp_path, "serial")
    again = MultiSourceTrainer(
        trainer.model,
        trainer.args,
        data_collator=DataCollatorForMultiSource(processor()),
        train_dataset=trainer.train_dataset,
        compute_loss_func=loss,
    )
    expected.train()
    again.train()
    assert losses_of(again) == pytest.approx(losses_of(expected), rel=1e-4)


def test_a_stock_trainer_that_takes_the_labels_away_is_told_what_is_missing(tmp_path: Path) -> None:
    trainer, _ = trainer_of(tmp_path, "serial", Seq2SeqTrainer, label_smoothing_factor=0.1)
    trainer.data_collator = DataCollatorForMultiSource(processor())
    with pytest.raises(ValueError, match=r"needs the model, DataCollatorForMultiSource\(processor, model=model\)"):
        trainer.train()


def test_two_smoothings_under_a_stock_trainer_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer, _ = trainer_of(tmp_path, "serial", Seq2SeqTrainer, smoothing=0.2, label_smoothing_factor=0.1)
    logger = logging.getLogger("hf_multisource.modeling_sources")
    logger.addHandler(caplog.handler)
    trainer.train()
    logger.removeHandler(caplog.handler)
    assert "label_smoothing=0.2 of the configuration acts on the loss that the model computes" in caplog.text


@pytest.mark.parametrize("family", ["serial", LSTM])
def test_a_model_without_target_is_refused(family: str) -> None:
    model = three_source_model(family)
    batch = DataCollatorForMultiSource(processor())([{**one, "labels": None} for one in made_up_examples(2)])
    advice = r"^the model needs labels: pass text_target to the processor, .*\..* label_smoothing_factor"
    with pytest.raises(ValueError, match=advice):
        model(**batch)


@pytest.mark.parametrize("bare", [False, True], ids=["no processor", "a bare tokenizer"])
def test_a_trainer_that_cannot_make_batches_says_what_it_needs(bare: bool, tmp_path: Path) -> None:
    options: dict[str, Any] = {"processing_class": processor().tokenizer} if bare else {}
    arguments = MultiSourceTrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    advice = r"^pass processing_class=processor, or data_collator=DataCollatorForMultiSource\(processor\)"
    with pytest.raises(ValueError, match=advice):
        MultiSourceTrainer(three_source_model(), arguments, train_dataset=made_up_examples(2), **options)
