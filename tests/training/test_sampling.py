import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from datasets import Dataset
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import IterableDataset, RandomSampler
from transformers import (
    EvalPrediction,
    HfArgumentParser,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    ViTConfig,
)

from builders import SMALL, tiny_config
from hf_multisource import (
    LengthBucketSampler,
    MultiSourceForConditionalGeneration,
    MultiSourceTrainer,
    MultiSourceTrainingArguments,
    TokenBatchSampler,
    sampling,
)
from hf_multisource.matrix_products import fast_products, uses_plain_attention
from hf_multisource.sampling import POOL_BATCHES, length_keys, token_keys
from kinds import mixed_processor, picture, recording, regions
from trainers import NAMES, VOCAB_SIZE, made_up_examples, name_of, trainer_of


def weights_of(trainer: Seq2SeqTrainer) -> dict[str, Tensor]:
    model: Any = trainer.model
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def losses_of(trainer: Seq2SeqTrainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def order_of(sampler: LengthBucketSampler, epoch: int) -> list[int]:
    sampler.set_epoch(epoch)
    return list(sampler)


def test_the_length_of_features_is_their_number_and_a_picture_has_none() -> None:
    mixed = mixed_processor("image", "en", "regions", "speech")
    examples = [
        dict(mixed(image=picture(0, 64), en="A")),
        dict(mixed(image=picture(0, 64), en="A", regions=regions(0, 30))),
        dict(mixed(image=picture(0, 64), regions=regions(0, 3), speech=recording(0, 70))),
        {**mixed(image=picture(0, 64)), "en_input_ids": None, "regions_input_features": torch.zeros(4, 3)},
    ]
    length = len(examples[0]["en_input_ids"])
    assert length_keys(examples, mixed.source_names).tolist() == [[length, 0], [30, 0], [70, 0], [4, 0]]
    reordered = dict(mixed_processor("regions", "en")(regions=regions(0, 5), en="A"))
    assert length_keys([reordered], ["regions", "en"]).tolist() == [[max(length, 5), 5]]


def test_the_key_of_an_example_is_its_longest_source_then_source_0() -> None:
    examples: list[dict[str, Any]] = [
        {"input_ids": [1] * 3, "de_input_ids": [1] * 5, "labels": [1] * 9},
        {"input_ids": [1] * 4, "de_input_ids": [], "fr_input_ids": [1] * 2},
        {"de_input_ids": None, "fr_input_ids": [1] * 6, "es_input_ids": [1] * 99},
    ]
    assert length_keys(examples, ["en", "de", "fr"]).tolist() == [[5, 3], [4, 4], [6, 0]]
    assert length_keys(examples, ["en"]).tolist() == [[3, 3], [4, 4], [0, 0]]


@given(
    lengths=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=300),
    batch_size=st.integers(1, 4),
    seed=st.integers(0, 3),
    epoch=st.integers(0, 3),
)
def test_every_example_comes_once_an_epoch(
    lengths: list[tuple[int, int]], batch_size: int, seed: int, epoch: int
) -> None:
    sampler = LengthBucketSampler(lengths, batch_size, seed)
    order = order_of(sampler, epoch)
    assert sorted(order) == list(range(len(lengths))) and len(sampler) == len(lengths)
    assert order_of(LengthBucketSampler(lengths, batch_size, seed), epoch) == order, "it follows from seed and epoch"


def test_the_order_differs_between_epochs_and_between_seeds() -> None:
    lengths = [(i % 9, i % 7) for i in range(200)]
    orders = [order_of(LengthBucketSampler(lengths, 8, seed), epoch) for seed in range(4) for epoch in range(4)]
    assert len({tuple(order) for order in orders}) == 16
    batches = [{frozenset(order[i : i + 8]) for i in range(0, 200, 8)} for order in orders]
    assert all(one != other for i, one in enumerate(batches) for other in batches[:i]), "not only the batches' order"


@pytest.mark.parametrize("number", [0, 3, 8, 8 * POOL_BATCHES - 1, 8 * POOL_BATCHES + 3, 16 * POOL_BATCHES])
def test_a_batch_holds_neighbors_in_length_and_the_smaller_one_comes_last(number: int) -> None:
    lengths = [(random.Random(i).randrange(1000),) for i in range(number)]
    order = order_of(LengthBucketSampler(lengths, 8, 1), 2)
    spread = [max(part) - min(part) for i in range(0, number, 8) if (part := [lengths[k][0] for k in order[i : i + 8]])]
    # Sorted within a pool, batches are consecutive stretches: together their spreads cover each pool at most once.
    # A smaller batch in the middle would shift all later ones across two stretches.
    assert sum(spread) <= 1000 * -(-number // (8 * POOL_BATCHES))
    if number == 8 * POOL_BATCHES - 1:
        tops = [max(lengths[k][0] for k in order[i : i + 8]) for i in range(0, number, 8)]
        assert len(order[-(number % 8) :]) == 7 and tops[-1] == max(tops)
        assert tops[:-1] != sorted(tops[:-1]), "batches come in random order"


def news(number: int = 5000) -> list[list[int]]:
    """Lengths as in news text: log-normal, mean about 25; a line's three sources and its target, which is last, differ
    by about a fifth, and every tenth source is absent."""
    rng = random.Random(0)
    rows = []
    for _ in range(number):
        length = rng.lognormvariate(3, 0.6)
        row = [max(1, round(length * rng.lognormvariate(0, 0.2))) if rng.random() < 0.9 else 0 for _ in range(3)]
        rows.append([*row, max(1, round(length * rng.lognormvariate(0, 0.2)))])
    return rows


def with_lengths(rows: list[list[int]]) -> list[dict[str, list[int]]]:
    keys = ["input_ids", "de_input_ids", "fr_input_ids", "labels"]
    return [{key: [1] * length for key, length in zip(keys, row, strict=True)} for row in rows]


def waste(rows: list[list[int]], batches: Sequence[Sequence[int]]) -> float:
    """The share of padding among all positions."""
    real = padded = 0
    for batch in batches:
        lengths = [rows[k] for k in batch]
        real += sum(map(sum, lengths))
        padded += sum(max(1, *column) * len(lengths) for column in zip(*lengths, strict=True))
    return 1 - real / padded


def test_padding_falls_far_below_that_of_a_random_order() -> None:
    rows = news()
    keys = length_keys(with_lengths(rows), ["en", "de", "fr"])
    order, at_random = order_of(LengthBucketSampler(keys, 32), 0), random.Random(0).sample(range(5000), 5000)
    shares = [waste(rows, [some[i : i + 32] for i in range(0, 5000, 32)]) for some in (order, at_random)]
    assert shares[1] > 0.45
    assert shares[0] < shares[1] / 2


# Batches by tokens.


def batches_of(sampler: TokenBatchSampler, epoch: int = 0) -> list[list[int]]:
    sampler.set_epoch(epoch)
    return list(sampler)


def padded_size(lengths: Any, batch: Sequence[int]) -> int:
    return len(batch) * max(int(lengths[k][0]) for k in batch)


token_cases = given(
    lengths=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=120),
    max_tokens=st.integers(12, 60),
    processes=st.integers(1, 4),
    seed=st.integers(0, 3),
    epoch=st.integers(0, 3),
)


@token_cases
def test_no_batch_exceeds_the_tokens_and_every_example_comes_once(
    lengths: list[tuple[int, int]], max_tokens: int, processes: int, seed: int, epoch: int
) -> None:
    sampler = TokenBatchSampler(lengths, max_tokens, processes, seed)
    batches = batches_of(sampler, epoch)
    assert all(batch and padded_size(lengths, batch) <= max_tokens for batch in batches)
    assert sorted(k for batch in batches for k in batch) == list(range(len(lengths)))
    assert len(sampler) == len(batches)
    assert batches_of(TokenBatchSampler(lengths, max_tokens, processes, seed), epoch) == batches, "of seed and epoch"


@token_cases
@example(  # in the last step the batches must be divided again
    lengths=[(0, 8), (3, 7), (5, 4), (9, 9), (9, 6), (10, 4), (0, 8)], max_tokens=26, processes=3, seed=0, epoch=0
)
def test_processes_take_equal_numbers_of_batches_and_what_they_take_together_is_alike(
    lengths: list[tuple[int, int]], max_tokens: int, processes: int, seed: int, epoch: int
) -> None:
    sampler = TokenBatchSampler(lengths, max_tokens, processes, seed)
    batches = batches_of(sampler, epoch)
    shards = [BatchSamplerShard(sampler, processes, index) for index in range(processes)]
    taken = [list(shard) for shard in shards]
    assert {len(own) for own in taken} == {len(shard) for shard in shards} == {-(-len(batches) // processes)}
    if len(batches) % processes:  # nothing can be divided, so some come twice
        assert all(len(batch) == 1 for batch in batches)
        return
    assert sorted(k for own in taken for batch in own for k in batch) == list(range(len(lengths)))
    for together in zip(*taken, strict=True):
        assert max(map(len, together)) - min(map(len, together)) <= 1
        low, high = (edge(lengths[k] for batch in together for k in batch) for edge in (min, max))
        inside = {k for batch in together for k in batch}
        assert not [k for k in range(len(lengths)) if k not in inside and low < lengths[k] < high]


def test_batches_by_tokens_differ_between_epochs_and_between_seeds() -> None:
    lengths = [(1 + i % 9, i % 2) for i in range(400)]
    runs = [batches_of(TokenBatchSampler(lengths, 50, 2, seed), epoch) for seed in range(3) for epoch in range(3)]
    assert len({str(batches) for batches in runs}) == 9
    made = [{frozenset(batch) for batch in batches} for batches in runs]
    assert all(one != other for i, one in enumerate(made) for other in made[:i]), "not only the batches' order"
    assert len({len(batches) for batches in runs}) == 1, "the Trainer counts epochs by the number of batches"
    longest = [max(lengths[k] for k in batch) for batch in runs[0]]
    assert longest not in (sorted(longest), sorted(longest, reverse=True))


def test_batches_by_tokens_have_little_padding_and_use_what_they_may() -> None:
    rows = news()
    keys = token_keys(with_lengths(rows), ["en", "de", "fr"])
    batches = batches_of(TokenBatchSampler(keys, 4096, 2))
    shuffled = random.Random(0).sample(range(5000), 5000)
    share = len(shuffled) // len(batches)
    at_random = waste(rows, [shuffled[i : i + share] for i in range(0, 5000, share)])
    assert at_random > 0.5
    assert waste(rows, batches) < at_random / 2
    sizes = sorted(padded_size(keys, batch) for batch in batches)
    assert sizes[len(sizes) // 4] > 0.9 * 4096


def test_the_longest_sequence_of_an_example_may_be_its_labels() -> None:
    examples: list[dict[str, Any]] = [
        {"input_ids": [1] * 3, "de_input_ids": [1] * 5, "labels": [1] * 9},
        {"input_ids": [1] * 4, "de_input_ids": None, "labels": [1] * 2},
        {"de_input_ids": [1] * 6},
    ]
    assert token_keys(examples, NAMES).tolist() == [[9, 5, 3], [4, 4, 4], [6, 6, 0]]

    class Lazy:
        text_lengths = [[3, 5], [0]]
        label_lengths = [4, 7]

        def __iter__(self) -> Any:
            raise AssertionError("an example was read")

    assert token_keys(Lazy(), NAMES).tolist() == [[5, 5, 3], [7, 0, 0]]


def test_an_example_that_fits_in_no_batch_is_named() -> None:
    with pytest.raises(ValueError, match=r"max_tokens_per_batch is 7; example 1 has a sequence of 8 tokens"):
        TokenBatchSampler([(3, 3), (8, 2), (7, 7)], 7)
    assert batches_of(TokenBatchSampler([(7, 7)], 7)) == [[0]]


TOKENS: dict[str, Any] = {"train_sampling_strategy": "group_by_length", "max_tokens_per_batch": 30}


@pytest.mark.parametrize("removed", [False, True])
def test_the_trainer_makes_batches_by_tokens(removed: bool, tmp_path: Path) -> None:
    examples = made_up_examples(100)
    data = Dataset.from_list([{**example, "note": [0]} for example in examples]) if removed else examples
    settings: dict[str, Any] = {"num_train_epochs": 2, "data_seed": 5, "remove_unused_columns": removed}
    trainer = trainer_of(tmp_path, data, **TOKENS, **settings)
    trainer.train()
    keys = token_keys(examples, NAMES)
    expected = [
        [name_of(examples[k]) for k in batch]
        for epoch in (0, 1)
        for batch in batches_of(TokenBatchSampler(keys, 30, 1, 5), epoch)
    ]
    collator: Any = trainer.data_collator
    assert collator.batches == expected
    assert trainer.state.global_step == len(expected), "one update each"


def test_a_resumed_run_sees_the_batches_that_an_undisturbed_one_does(tmp_path: Path) -> None:
    examples = made_up_examples(26)
    settings: dict[str, Any] = {**TOKENS, "num_train_epochs": 3, "gradient_accumulation_steps": 2}
    settings |= {"save_strategy": "steps"}
    whole = trainer_of(tmp_path, examples, save_steps=1000, **settings)
    whole.train()
    updates = whole.state.global_step
    begun = trainer_of(tmp_path / "run", examples, save_steps=updates // 2, **settings)  # within the second epoch
    begun.train()
    resumed = trainer_of(tmp_path / "run", examples, save_steps=1000, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{updates // 2}"))
    seen: list[Any] = [trainer.data_collator for trainer in (whole, resumed)]
    left = len(seen[1].batches)
    assert updates % 3 == 0 and len(seen[0].batches) // 3 < left < len(seen[0].batches) * 2 // 3
    assert seen[1].batches == seen[0].batches[-left:]
    for name, weights in weights_of(whole).items():
        assert torch.equal(weights_of(resumed)[name], weights), name


def test_every_label_weighs_the_same_whatever_batch_it_is_in(tmp_path: Path) -> None:
    examples = made_up_examples(40)
    settings: dict[str, Any] = {"optim": "sgd", "learning_rate": 1.0, "max_steps": 1, "max_grad_norm": 0.0}
    number = len(TokenBatchSampler(token_keys(examples, NAMES), 30))
    one = trainer_of(tmp_path, examples, per_device_train_batch_size=40, **settings)
    parts = trainer_of(tmp_path, examples, **TOKENS, gradient_accumulation_steps=number, **settings)
    before = weights_of(one)
    one.train()
    parts.train()
    collator: Any = parts.data_collator
    assert len({len(batch) for batch in collator.batches}) > 1
    torch.testing.assert_close(weights_of(parts), weights_of(one), rtol=0, atol=1e-5)
    assert max((before[name] - after).abs().max() for name, after in weights_of(one).items()) > 1e-2
    assert losses_of(parts) == pytest.approx(losses_of(one), abs=1e-5)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        raise AssertionError("an example was read")


def test_batches_by_tokens_that_cannot_be_are_refused(tmp_path: Path) -> None:
    examples = made_up_examples(4)
    with pytest.raises(ValueError, match=r"max_tokens_per_batch must be 1 or more; got 0\."):
        trainer_of(tmp_path, examples, **{**TOKENS, "max_tokens_per_batch": 0})
    with pytest.raises(ValueError, match="needs train_sampling_strategy='group_by_length'; got 'random'"):
        trainer_of(tmp_path, examples, max_tokens_per_batch=30, train_sampling_strategy="random")
    with pytest.raises(ValueError, match="a train_dataset with a length; got an IterableDataset"):
        trainer_of(tmp_path, Stream(), max_steps=1, **TOKENS)


def test_the_trainer_groups_by_length_when_asked(tmp_path: Path) -> None:
    examples = made_up_examples(100)
    settings: dict[str, Any] = {"per_device_train_batch_size": 8, "num_train_epochs": 2, "data_seed": 5}
    trainer = trainer_of(tmp_path, examples, train_sampling_strategy="group_by_length", **settings)
    trainer.train()
    sampler = LengthBucketSampler(length_keys(examples, NAMES), 8, 5)
    orders = [order_of(sampler, 0), order_of(sampler, 1)]
    expected = [[name_of(examples[k]) for k in order[i : i + 8]] for order in orders for i in range(0, 100, 8)]
    collator: Any = trainer.data_collator
    assert collator.batches == expected


def test_the_trainer_is_stock_when_not_asked(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, made_up_examples(20))
    assert type(trainer._get_train_sampler()) is RandomSampler
    examples = made_up_examples(20)
    trainer = trainer_of(tmp_path, examples, train_sampling_strategy="sequential", num_train_epochs=1)
    trainer.train()
    collator: Any = trainer.data_collator
    assert [name for batch in collator.batches for name in batch] == [name_of(example) for example in examples]


@pytest.mark.parametrize("strategy", ["random", "group_by_length"])
def test_predictions_come_in_the_order_of_the_examples(strategy: str, tmp_path: Path) -> None:
    examples: Any = made_up_examples(60)
    trainer = trainer_of(tmp_path, examples, train_sampling_strategy=strategy, per_device_eval_batch_size=8)
    labels: Any = trainer.predict(examples).label_ids
    assert [tuple(row[:2]) for row in labels.tolist()] == [name_of(example) for example in examples]
    trainer.evaluate()
    collator: Any = trainer.data_collator
    seen = [name for batch in collator.batches for name in batch]
    assert seen == [name_of(example) for example in examples] * 2


def test_label_smoothing_twice_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"set label_smoothing=0\.1 in the config or label_smoothing_factor=0\.2"):
        trainer_of(tmp_path, [], model_fields={"label_smoothing": 0.1}, label_smoothing_factor=0.2)


@pytest.mark.parametrize("kind", [Seq2SeqTrainer, MultiSourceTrainer])
def test_a_trainer_trains_and_evaluates_with_generation(kind: type[Seq2SeqTrainer], tmp_path: Path) -> None:
    seen: list[Any] = []

    def metrics(prediction: EvalPrediction) -> dict[str, float]:
        seen.append(prediction)
        return {"answer": 42.0}

    trainer = trainer_of(
        tmp_path,
        made_up_examples(16),
        kind=kind,
        compute_metrics=metrics,
        max_steps=2,
        predict_with_generate=True,
        generation_max_length=6,
        eval_strategy="steps",
        eval_steps=1,
    )
    before = weights_of(trainer)
    trainer.train()
    assert trainer.state.global_step == 2
    still = [name for name, after in weights_of(trainer).items() if torch.equal(before[name], after)]
    assert [name for name in still if not name.endswith("k_proj.bias")] == [], "softmax makes nothing of a key's bias"
    assert len(losses_of(trainer)) == 2 and len(seen) == 2
    assert [entry["eval_answer"] for entry in trainer.state.log_history if "eval_answer" in entry] == [42.0, 42.0]
    assert len(seen[0].predictions) == 16
    assert set(seen[0].predictions[:, 6:].flatten()) <= {0, -100}, "generation ends at generation_max_length"
    assert (seen[0].predictions[:, 1] >= 0).all()


@pytest.mark.parametrize("as_dataset", [False, True])
def test_every_sources_columns_reach_the_model_though_unused_columns_are_removed(
    as_dataset: bool, tmp_path: Path
) -> None:
    examples = [{**example, "note": [0]} for example in made_up_examples(6)]
    data = Dataset.from_list(examples) if as_dataset else examples
    trainer = trainer_of(tmp_path, data, per_device_train_batch_size=6, remove_unused_columns=True)
    batch = next(iter(trainer.get_train_dataloader()))
    assert int(batch["de_attention_mask"].sum()) == sum(len(example["de_input_ids"]) for example in examples) > 0


def test_a_stock_trainer_that_removes_columns_is_told_how_not_to(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, made_up_examples(4), kind=Seq2SeqTrainer, remove_unused_columns=True)
    with pytest.raises(ValueError, match=r"no example has 'de_input_ids'.*remove_unused_columns=False"):
        next(iter(trainer.get_train_dataloader()))


def test_processes_that_take_batches_in_turn_take_batches_of_like_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(
        tmp_path, made_up_examples(24), per_device_train_batch_size=3, train_sampling_strategy="group_by_length"
    )
    monkeypatch.setattr(Seq2SeqTrainingArguments, "world_size", property(lambda _: 2))
    assert trainer._get_train_sampler().batch_size == 6  # type: ignore[union-attr]


# Learning rates of sources.


def group_of(trainer: MultiSourceTrainer) -> dict[str, dict[str, Any]]:
    """The optimizer's settings for every parameter, by the parameter's name."""
    optimizer, model = trainer.optimizer, trainer.model
    assert optimizer is not None and model is not None
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(parameter)]: group for group in optimizer.param_groups for parameter in group["params"]}


def rated(
    tmp_path: Path, rates: dict[str, float] | None, *, tied: bool = False, frozen: str = ""
) -> MultiSourceTrainer:
    config = tiny_config(vocab_size=VOCAB_SIZE, n_sources=2, tie_word_embeddings=tied)
    model = MultiSourceForConditionalGeneration(config)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not frozen or frozen not in name)
    args = MultiSourceTrainingArguments(
        str(tmp_path / "run"),
        learning_rate=1e-3,
        weight_decay=0.1,
        max_steps=8,
        use_cpu=True,
        report_to="none",
        source_learning_rates=rates,
    )
    trainer = MultiSourceTrainer(model, args)
    trainer.create_optimizer_and_scheduler(8)
    return trainer


def test_a_source_may_have_a_learning_rate_of_its_own_and_nothing_else_about_it_changes(tmp_path: Path) -> None:
    stock, own = group_of(rated(tmp_path, None)), group_of(rated(tmp_path, {"de": 1e-5}))
    assert set(own) == set(stock)
    for name, group in own.items():
        assert group["lr"] == (1e-5 if ".sources.de." in name else 1e-3), name
        assert group["weight_decay"] == stock[name]["weight_decay"], name
        same = {key: value for key, value in group.items() if key not in ("params", "lr", "initial_lr")}
        assert same == {key: value for key, value in stock[name].items() if key in same}
    assert {group["weight_decay"] for name, group in own.items() if ".sources.de." in name} == {0.0, 0.1}


def test_the_schedule_scales_every_rate_and_zero_leaves_the_encoder_as_it_was(tmp_path: Path) -> None:
    trainer = rated(tmp_path, {"de": 1e-4})
    assert trainer.optimizer is not None and trainer.lr_scheduler is not None
    for _ in range(4):
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
    assert sorted({group["lr"] for group in trainer.optimizer.param_groups}) == pytest.approx([5e-5, 5e-4])


def test_what_a_source_shares_keeps_the_rate_of_the_rest(tmp_path: Path) -> None:
    groups = group_of(rated(tmp_path, {"de": 1e-5}, tied=True))
    tied = [name for name in groups if "embed" in name and "token" in name]
    assert tied and all(groups[name]["lr"] == 1e-3 for name in tied)


def test_frozen_parameters_are_in_no_group(tmp_path: Path) -> None:
    groups = group_of(rated(tmp_path, {"de": 1e-5}, frozen=".sources.de.layers."))
    assert not [name for name in groups if ".sources.de.layers." in name]
    assert [name for name in groups if ".sources.de." in name]


def test_an_encoder_of_several_sources_has_no_rate_of_its_own(tmp_path: Path) -> None:
    config = tiny_config(sources=["en", {"name": "de", "share_encoder_with": "en"}], vocab_size=VOCAB_SIZE)
    model = MultiSourceForConditionalGeneration(config)
    args = MultiSourceTrainingArguments(str(tmp_path), use_cpu=True, source_learning_rates={"en": 1e-5})
    with pytest.raises(ValueError, match="source_learning_rates: 'en' shares its encoder: the sources en, de have one"):
        MultiSourceTrainer(model, args)


def test_wrong_learning_rates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"source_learning_rates: unknown source 'xx'; the sources are en, de"):
        rated(tmp_path, {"xx": 1e-5})
    with pytest.raises(ValueError, match=r"source_learning_rates\['de'\] must be 0 or more; got -1"):
        rated(tmp_path, {"de": -1})
    with pytest.raises(ValueError, match="source 'de' has no trainable parameters of its own"):
        rated(tmp_path, {"de": 1e-5}, frozen=".sources.de.")


def test_lengths_that_are_known_are_not_looked_for() -> None:
    class Lazy:
        text_lengths = [[3, 5], [0], []]

        def __iter__(self) -> Any:
            raise AssertionError("an example was read")

    assert length_keys(Lazy(), NAMES).tolist() == [[5, 3], [0, 0], [0, 0]]


# The options of the arguments.


@pytest.mark.parametrize("size", [8, 16])
def test_noam_is_the_schedule_of_the_models_width(size: int, tmp_path: Path) -> None:
    args = MultiSourceTrainingArguments(str(tmp_path), use_cpu=True, noam_scale=0.6, warmup_steps=50)
    trainer = MultiSourceTrainer(MultiSourceForConditionalGeneration(tiny_config(n_sources=2, d_model=size)), args)
    trainer.create_optimizer_and_scheduler(1000)
    assert trainer.optimizer is not None and trainer.lr_scheduler is not None
    rates = []
    for _ in range(200):
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
        rates.append(trainer.lr_scheduler.get_last_lr()[0])
    expected = [0.6 * size**-0.5 * min(step**-0.5, step * 50**-1.5) for step in range(1, 201)]
    assert rates == pytest.approx(expected, rel=1e-9)


def test_patience_stops_training_when_the_metric_gets_no_better(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    settings |= {"patience": 2, "load_best_model_at_end": True, "metric_for_best_model": "worth", "max_steps": 8}
    trainer = trainer_of(
        tmp_path, made_up_examples(8), compute_metrics=lambda _: {"worth": 1.0}, **settings, max_tokens_per_batch=100
    )
    trainer.train()
    assert trainer.state.global_step == 3


def test_patience_counts_on_when_training_is_resumed(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    settings |= {"patience": 4, "load_best_model_at_end": True, "metric_for_best_model": "worth", **TOKENS}

    def run(stop: int, resume: bool = False) -> int:
        worth = lambda _: {"worth": 1.0}  # noqa: E731
        trainer = trainer_of(tmp_path, made_up_examples(8), compute_metrics=worth, **settings, max_steps=20)
        trainer.add_callback(StopAt(stop))
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3") if resume else None)
        return trainer.state.global_step

    assert run(stop=3) == 3
    assert run(stop=20, resume=True) == 5  # the first evaluation, and four without an improvement


class StopAt(TrainerCallback):
    """Stops training after an update."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop |= state.global_step >= self.step


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patience": 3}, "patience=3 needs load_best_model_at_end=True, metric_for_best_model and eval_strategy"),
        ({"patience": 0}, "patience must be 1 or more; got 0"),
        ({"noam_scale": 0.2}, "noam_scale needs warmup_steps, 1 or more; got warmup_steps=0"),
        ({"noam_scale": 0.0, "warmup_steps": 9}, "noam_scale must be above 0; got 0.0"),
        ({"noam_scale": 1.0, "warmup_steps": 9, "halve_after_epoch": 2}, "noam_scale=1.0 and halve_after_epoch=2 are"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        MultiSourceTrainingArguments(str(tmp_path), use_cpu=True, **options)


def test_the_options_are_read_from_a_command_line(tmp_path: Path) -> None:
    words = f"--output_dir {tmp_path} --use_cpu --max_tokens_per_batch 30 --loss_per_sentence"
    parser = HfArgumentParser([MultiSourceTrainingArguments])  # type: ignore[list-item]
    (args,) = parser.parse_args_into_dataclasses([*words.split(), "--source_learning_rates", '{"de": 1e-5}'])
    assert (args.max_tokens_per_batch, args.loss_per_sentence) == (30, True)
    assert args.source_learning_rates == {"de": 1e-5}
    assert args.train_sampling_strategy == "group_by_length"


@pytest.fixture
def matmul() -> Any:
    """The settings of oneDNN's matrix products, as they were afterwards."""
    onednn: Any = torch.backends.mkldnn
    settings = onednn.matmul
    before = settings.fp32_precision
    settings.fp32_precision = "none"
    yield settings
    settings.fp32_precision = before


def noting(function: Any, note: Callable[[], None]) -> Any:
    """The function, which calls another one first."""

    def call(*args: Any, **kwargs: Any) -> Any:
        note()
        return function(*args, **kwargs)

    return call


@pytest.mark.parametrize(("attention", "expected"), [("eager", "bf16"), ("sdpa", "none")])
def test_products_of_training_on_a_cpu_are_those_of_onednn_with_plain_attention(
    attention: str, expected: str, matmul: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    fields = {"attn_implementation": attention}
    trainer = trainer_of(tmp_path, made_up_examples(16), model_fields=fields, max_steps=2)
    computed = noting(trainer.compute_loss, lambda: seen.append(matmul.fp32_precision))
    monkeypatch.setattr(trainer, "compute_loss", computed)
    trainer.train()
    assert seen == [expected, expected] and matmul.fp32_precision == "none"


def test_training_on_a_cpu_keeps_freed_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(sampling, "keep_freed_memory", lambda: calls.append(1))
    trainer_of(tmp_path, made_up_examples(8), max_steps=1).train()
    assert calls == [1]


def test_a_wrapped_encoder_counts_as_well() -> None:
    sources = ["en", {"name": "x", "kind": "pretrained", "encoder": ViTConfig(image_size=8, patch_size=4, **SMALL)}]
    model: Any = MultiSourceForConditionalGeneration(tiny_config("serial", sources, attn_implementation="eager"))
    assert uses_plain_attention(model)
    model.set_attn_implementation({"sources.x": "sdpa"})
    assert not uses_plain_attention(model)


def test_a_precision_that_the_user_has_chosen_stays(matmul: Any) -> None:
    matmul.fp32_precision = "ieee"
    with fast_products(torch.device("cpu")):
        assert matmul.fp32_precision == "ieee"
    assert matmul.fp32_precision == "ieee"


def test_products_elsewhere_are_left_alone_and_an_error_restores_the_setting(matmul: Any) -> None:
    with fast_products(torch.device("meta")):
        assert matmul.fp32_precision == "none"
    with pytest.raises(KeyError), fast_products(torch.device("cpu")):
        raise KeyError
    assert matmul.fp32_precision == "none"
