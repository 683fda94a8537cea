import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_deepspeed_cmd_env
from transformers import Seq2SeqTrainingArguments

import hf_multisource.sampling
from builders import EVERY_COMBINER, one_by_default, three_source_batch, three_source_model
from hf_multisource import MultiSourceForConditionalGeneration, MultiSourceTrainer
from hf_multisource.recipes.processes import leave
from hf_multisource.sharding import shard
from runs import losses_of, make_folder, read_json, train_at, weights_of
from trainers import made_up_examples, name_of

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "training" / "accelerate"
TRAIN = ROOT / "training" / "train.py"
FSDP_ON_CPU = ROOT / "tests" / "support" / "fsdp_on_cpu.py"
FAILURES = ROOT / "tests" / "support" / "failures_of_two.py"
BATCHES = ROOT / "tests" / "support" / "batches_of_two.py"
# Sequential, and as many lines as whole batches: two batches of 8, one for each process, are one of 16.
SAME_BATCHES: dict[str, Any] = {
    "sources": ["en", "de", "fr"],
    "limit": 32,
    "train_sampling_strategy": "sequential",
    "dropout": 0.0,
    "noam_scale": None,
    "lr_scheduler_type": "constant",
}


# Each case starts processes that import everything: one is enough for every day.
each_combiner = pytest.mark.parametrize("combiner", one_by_default("hierarchical"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path)


def launch(folder: Path, config: str, script: Path, settings: dict[str, Any], *flags: str) -> str:
    """Train as the recipe says on two processes, with half of the batch each; returns what they print."""
    command = ["recipe.yaml", *flags]
    for key, value in {**settings, "per_device_train_batch_size": 8, "output_dir": "two"}.items():
        command += [f"--{key}", *map(str, value if isinstance(value, list) else ["null" if value is None else value])]
    return run_on_two(folder, config, script, *command)


def run_on_two(folder: Path, config: str, script: Path, *arguments: str) -> str:
    """Run a script on two processes; returns what they print."""
    command = [sys.executable, "-m", "accelerate.commands.launch", f"--config_file={CONFIGS / config}"]
    command += ["--main_process_port=0", "--dynamo_backend=no", str(script), *arguments]
    environment = {**os.environ, **({"ACCELERATE_TORCH_DEVICE": "cpu"} if script == FSDP_ON_CPU else {})}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.feature("Training", "DistributedDataParallel: two processes train as one")
@each_combiner
def test_two_processes_train_as_one_with_twice_the_batch(combiner: str, folder: Path) -> None:
    # SGD: Adam would magnify what rounding does.
    settings = {**SAME_BATCHES, "combiner": combiner, "optim": "sgd", "learning_rate": 0.5, "max_steps": 20}
    settings |= {"eval_strategy": "steps", "eval_steps": 20, "save_steps": 20}
    start = weights_of(train_at(folder, "start", **{**settings, "learning_rate": 1e-30, "max_steps": 1}))
    one = train_at(folder, "one", **settings)
    said = launch(folder, "ddp.yaml", TRAIN, settings)
    assert said.count("model: parameters") == 1, "only one process says what it does"
    summary = read_json(folder / "two" / "train_summary.json")
    assert (summary["processes"], summary["updates"]) == (2, 20)
    torch.testing.assert_close(weights_of(folder / "two"), weights_of(one), rtol=0, atol=1e-5)
    assert losses_of(folder / "two", 20) == pytest.approx(losses_of(one, 20), abs=1e-5)
    assert max((tensor - start[name]).abs().max() for name, tensor in weights_of(one).items()) > 1e-1
    written = read_json(folder / "two" / "checkpoint-20" / "complete.json")["files"]
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= set(written), "a checkpoint is complete when all have written"


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"max_tokens_per_batch": 36, "gradient_accumulation_steps": 2},
        {"per_device_train_batch_size": 4},
    ],
    ids=["tokens", "sentences"],
)
def test_two_processes_divide_the_examples_of_an_epoch_also_when_resumed(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    settings = {"train_sampling_strategy": "group_by_length", **settings}
    run_on_two(tmp_path, "ddp.yaml", BATCHES, str(tmp_path), json.dumps(settings))
    processes = [read_json(tmp_path / f"process_{index}.json") for index in range(2)]
    number = len(processes[0]["batches"])
    assert number == len(processes[1]["batches"]) and number % 3 == 0
    for start in range(0, number, number // 3):
        taken = [name for own in processes for batch in own["batches"][start : start + number // 3] for name in batch]
        assert {tuple(name) for name in taken} == set(map(name_of, made_up_examples(26)))
        assert len(taken) == 26 or "max_tokens_per_batch" not in settings, "by sentences, the last batch is filled up"
    for own in processes:
        left = len(own["resumed"])
        assert number // 3 < left < number * 2 // 3 and own["resumed"] == own["batches"][-left:]


@pytest.mark.slow
def test_what_fails_on_one_of_two_processes_ends_both_and_only_the_main_process_says_why(folder: Path) -> None:
    (folder / "stranger").mkdir()
    (folder / "stranger" / "config.json").write_text("{}")
    run_on_two(folder, "ddp.yaml", FAILURES)
    main, other = (read_json(folder / f"ends_{index}.json") for index in range(2))
    told = "hf-multisource train: "
    assert main["refused"][0].startswith(f"{told}stranger holds a model (config.json)")
    assert main["no data"][0].startswith(f"{told}no folder nowhere"), "also what only the other process finds"
    assert main["diverged"][0].startswith(f"{told}training diverged: the loss of update 1 is not finite on another")
    again = "no checkpoint is complete yet; to start again, start the same command again with --resume"
    assert main["interrupted"][0] == 130 and f"{told}interrupted; {again}\n" in main["interrupted"][1]
    assert {name: end[0] for name, end in other.items()} == {
        "refused": 1,
        "no data": 1,
        "diverged": 1,
        "interrupted": 130,
    }
    assert not any(told in end[1] for end in other.values())
    assert [path.name for path in (folder / "stranger").iterdir()] == ["config.json"]
    assert not (folder / "no_data").exists()


FSDP: dict[str, Any] = {
    **SAME_BATCHES,
    "absent_vectors": True,
    "use_cpu": False,
    "learning_rate": 0.02,
    "adam_epsilon": 1e-3,
    "save_steps": 3,
}


@pytest.mark.slow
@pytest.mark.feature("Training", "FSDP2: two processes train as one")
@each_combiner
def test_two_processes_that_divide_the_model_train_as_one(combiner: str, folder: Path) -> None:
    settings = {**FSDP, "source_embeddings": True, "combiner": combiner, "max_steps": 3}
    one = train_at(folder, "one", **{**settings, "use_cpu": True})
    launch(folder, "fsdp2.yaml", FSDP_ON_CPU, {**settings, "eval_strategy": "steps", "eval_steps": 3})
    two = folder / "two"
    assert read_json(two / "train_summary.json")["processes"] == 2
    torch.testing.assert_close(weights_of(two), weights_of(one), rtol=0, atol=1e-5)
    assert losses_of(two, 3) == pytest.approx(losses_of(one, 3), abs=1e-5)
    history = read_json(two / "trainer_state.json")["log_history"]
    assert [entry["step"] for entry in history if "eval_bleu" in entry] == [3], "generation works, too"
    loaded = MultiSourceForConditionalGeneration.from_pretrained(two)
    torch.testing.assert_close(
        loaded.state_dict(), MultiSourceForConditionalGeneration.from_pretrained(one).state_dict(), rtol=0, atol=1e-5
    )
    config = read_json(two / "config.json")
    assert config["auto_map"] == read_json(one / "config.json")["auto_map"]
    assert {path.name for path in two.glob("*.py")} == {path.name for path in one.glob("*.py")}, "the code goes along"


@pytest.mark.slow
@pytest.mark.feature("Training", "FSDP2: resume")
@pytest.mark.parametrize("combiner", EVERY_COMBINER)
def test_a_run_that_divides_the_model_resumes(combiner: str, folder: Path) -> None:
    settings = {**FSDP, "source_embeddings": True, "combiner": combiner}
    one = train_at(folder, "one", **{**settings, "use_cpu": True, "max_steps": 6})
    for flags, steps in (((), 3), (("--resume",), 6), (("--resume",), 6)):  # the last one finds a finished run
        said = launch(folder, "fsdp2.yaml", FSDP_ON_CPU, {**settings, "max_steps": steps}, *flags)
    assert "resume: going on from checkpoint-6" in said
    assert read_json(folder / "two" / "train_summary.json")["updates"] == 6
    torch.testing.assert_close(weights_of(folder / "two"), weights_of(one), rtol=0, atol=1e-5)
    assert losses_of(folder / "two", 6) == pytest.approx(losses_of(one, 6), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("config", ["ddp.yaml", "fsdp2.yaml"])
def test_an_lstm_is_trained_by_two_processes_as_by_one(config: str, folder: Path) -> None:
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    recipe["model"] = {"model_type": "multisource-rnn", "d_model": 16, "num_layers": 2}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    divided = config == "fsdp2.yaml"
    settings = {**(FSDP if divided else SAME_BATCHES), "max_steps": 3, "save_steps": 3, "loss_per_sentence": True}
    settings |= {"eval_strategy": "steps", "eval_steps": 3, "optim": "sgd", "learning_rate": 0.1}
    one = train_at(folder, "one", **{**settings, "use_cpu": True})
    launch(folder, config, FSDP_ON_CPU if divided else TRAIN, settings)
    torch.testing.assert_close(weights_of(folder / "two"), weights_of(one), rtol=0, atol=1e-5)
    assert losses_of(folder / "two", 3) == pytest.approx(losses_of(one, 3), abs=1e-4)


def test_a_model_that_only_one_process_has_read_is_not_divided() -> None:
    plugin = SimpleNamespace(cpu_ram_efficient_loading=True)
    with pytest.raises(ValueError, match="fsdp_cpu_ram_efficient_loading must be false"):
        shard(three_source_model(), plugin)


@pytest.mark.parametrize("stage", [2, 3])
def test_accelerate_reads_the_deepspeed_files(stage: int) -> None:
    path = CONFIGS / f"deepspeed_zero{stage}.yaml"
    assert "# Not run:" in path.read_text(encoding="utf-8")
    assert load_config_from_file(str(path)).deepspeed_config["zero_stage"] == stage  # refuses unknown keys
    parsed = launch_command_parser().parse_args([f"--config_file={path}", str(TRAIN), "recipe.yaml"])
    arguments, *_ = _validate_launch_command(parsed)
    arguments.deepspeed_fields_from_accelerate_config = ["zero_stage"]  # as the command sets it before it starts any
    _, environment = prepare_deepspeed_cmd_env(arguments)
    assert environment["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert environment["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == str(stage)
    assert environment["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] == "auto", "the recipe decides"
    assert environment["ACCELERATE_GRADIENT_CLIPPING"] == "auto"


@pytest.mark.parametrize("zero3", [False, True])
def test_with_zero3_the_output_layer_is_called(zero3: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_multisource.sampling, "is_deepspeed_zero3_enabled", lambda: zero3)
    model = three_source_model()
    calls: list[Any] = []

    def called(layer: Any, states: Any) -> Any:  # a hook of the layer would make the model call it
        calls.append(layer)
        return layer(states)

    monkeypatch.setattr(hf_multisource.modeling_sources, "output_logits", called)
    trainer = MultiSourceTrainer(model, Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True))
    trainer.compute_loss(model, {**three_source_batch(), "labels": torch.full((5, 3), 4)})
    assert bool(calls) == zero3


def test_a_process_that_ends_leaves_the_others(tmp_path: Path) -> None:
    """Otherwise a thread of gloo may abort the process when Python exits."""
    leave()  # nothing to leave
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    leave()
    assert not torch.distributed.is_initialized()
