import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

from hf_multisource import MultiSourceForConditionalGeneration, MultiSourceProcessor
from hf_multisource.cli.train import main
from hf_multisource.recipes.recipe import load_recipe
from hf_multisource.recipes.run_folder import is_finished
from hf_multisource.recipes.tokenization import train_tokenizer
from hf_multisource.recipes.training import PACKAGES, train
from kills import kill_at, killed
from runs import (
    EVALUATED,
    SAVED,
    STEPS,
    WORDS,
    fake_bleu,
    files_of,
    make_folder,
    read_json,
    recipe_of,
    same,
    train_at,
    weights_of,
    write_lines,
)

SCRIPT = Path(__file__).resolve().parents[2] / "training" / "train.py"
LSTM = {"model_type": "multisource-rnn", "d_model": 16, "num_layers": 1}
TOKENIZER = {"tokenizer.json", "tokenizer_config.json"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path)


def translate(run: Path, **texts: Any) -> Tensor:
    """Load a run's folder as a user does, and generate."""
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(run)
    processor = MultiSourceProcessor.from_pretrained(run)
    ids: Tensor = model.generate(**processor(**texts, return_tensors="pt"), max_new_tokens=5)
    assert all(isinstance(text, str) for text in processor.batch_decode(ids, skip_special_tokens=True))
    return ids


def test_a_run_leaves_all_that_is_needed_to_use_and_repeat_it(folder: Path) -> None:
    recipe = recipe_of(folder)
    summary = train(recipe)
    run = folder / "run"
    files = {path.name for path in run.iterdir()}
    assert files >= {"config.json", "model.safetensors", "processor_config.json", *TOKENIZER, "checkpoint-4"}
    assert load_recipe(run / "recipe.yaml") == recipe
    assert set(read_json(run / "versions.json")) == {"python", *PACKAGES}
    assert read_json(run / "versions.json")["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert read_json(run / "train_summary.json") == summary
    model = AutoModelForSeq2SeqLM.from_pretrained(run)
    assert type(model) is MultiSourceForConditionalGeneration
    assert (summary["updates"], summary["seed"], summary["resumed"], summary["processes"]) == (STEPS, 42, False, 1)
    assert summary["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert (model.config.combiner, model.config.dropout, model.config.vocab_size) == ("parallel", 0.2, 280)
    assert model.generation_config.max_length == recipe.data.max_length
    assert translate(run, en=["two dogs", None], de=["zwei", "Hund läuft"]).shape[0] == 2
    # The top of the folder is the last state; it differs from the one before.
    assert same(weights_of(run), weights_of(run / f"checkpoint-{STEPS}"))
    assert not same(weights_of(run), weights_of(run / f"checkpoint-{SAVED}"))


@pytest.mark.parametrize(
    ("changes", "sources", "texts"),
    [
        ({"sources": ["de"]}, ["de"], {"de": "zwei"}),
        ({"sources": ["de", "en"], "combiner": "hierarchical"}, ["de", "en"], {"en": "two"}),
        ({"concatenate": True}, ["all"], {"all": "two | zwei"}),
        ({"separate": True, "kind": "unigram"}, ["en", "de"], {"en": "two", "de": "zwei"}),
        ({"preset": "paper", "combiner": "flat"}, ["en", "de"], {"de": "zwei"}),
        ({"label_smoothing_factor": 0.1}, ["en", "de"], {"de": "zwei"}),
        ({"model": LSTM, "separate": True}, ["en", "de"], {"de": "zwei"}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_every_kind_of_run_can_be_loaded_and_translates(
    changes: dict[str, Any], sources: list[str], texts: dict[str, str], folder: Path
) -> None:
    if "model" in changes:
        content = yaml.safe_load((folder / "recipe.yaml").read_text())
        (folder / "recipe.yaml").write_text(yaml.safe_dump({**content, "model": changes["model"]}))
    train(recipe_of(folder, **{key: value for key, value in changes.items() if key != "model"}, max_steps=1))
    run = folder / "run"
    assert MultiSourceProcessor.from_pretrained(run).source_names == sources
    assert translate(run, **texts).shape[0] == 1
    config = AutoModelForSeq2SeqLM.from_pretrained(run).config
    assert {source.vocab_size is not None for source in config.sources} == {changes.get("separate", False)}


@pytest.mark.parametrize("separate", [False, True])
def test_a_null_token_is_in_every_vocabulary_and_stands_for_absent_texts(separate: bool, folder: Path) -> None:
    train(recipe_of(folder, null_token="<NULL>", separate=separate, max_steps=1))
    processor = MultiSourceProcessor.from_pretrained(folder / "run")
    batch = processor(en="two", return_tensors="pt")
    assert processor.get_tokenizer("de").convert_ids_to_tokens(batch["de_input_ids"][0])[0] == "<NULL>"
    assert batch["de_attention_mask"].all()
    assert translate(folder / "run", en="two").shape[0] == 1


def test_separate_tokenizers_can_be_loaded_as_their_command_writes_them(folder: Path) -> None:
    given = {name: train_tokenizer([" ".join(WORDS[name])], "bpe", 262) for name in ("en", "de", "cs")}
    for name, tokenizer in given.items():
        tokenizer.save_pretrained(folder / "tok" / ("target" if name == "cs" else name))
    train(recipe_of(folder, load=str(folder / "tok"), max_steps=1))
    used = MultiSourceProcessor.from_pretrained(folder / "run")
    assert used.tokenizer.get_vocab() == given["cs"].get_vocab()
    assert {name: used.get_tokenizer(name).get_vocab() for name in ("en", "de")} == {
        name: given[name].get_vocab() for name in ("en", "de")
    }


def test_a_tokenizer_can_be_loaded_instead_of_trained(folder: Path) -> None:
    given = train_tokenizer(["a boy", "Junge", "chlapec"], "unigram", 275)
    given.save_pretrained(folder / "tok")
    train(recipe_of(folder, load=str(folder / "tok"), max_steps=1))
    used = MultiSourceProcessor.from_pretrained(folder / "run").tokenizer
    text = "Der Junge, a boy & chlapec"
    assert used(text) == given(text)
    assert AutoModelForSeq2SeqLM.from_pretrained(folder / "run").config.vocab_size == len(given)


def test_the_command_trains_and_says_what_it_does(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    main(["recipe.yaml", "--max_steps", "2", "--seed=7", "--sources", "de", "en"])
    said = capsys.readouterr().out
    for line in ("train: lines 40, rows 40", "dev: lines 20", "train, tokens: truncated.de 0", "model: parameters"):
        assert line in said
    summary = read_json(folder / "run" / "train_summary.json")
    assert (summary["updates"], summary["seed"]) == (2, 7)
    assert summary["command"] == "hf-multisource train recipe.yaml --max_steps 2 --seed=7 --sources de en"
    assert translate(folder / "run", en="two").shape[0] == 1


def test_a_second_run_into_the_same_folder_is_refused_and_changes_nothing(folder: Path) -> None:
    train(recipe_of(folder, max_steps=1))
    before = files_of(folder)
    for seed in (42, 5):
        with pytest.raises(FileExistsError, match="run already holds a run; give another --output_dir, or --resume"):
            train(recipe_of(folder, max_steps=1, seed=seed))
    assert files_of(folder) == before


def test_resuming_with_another_recipe_is_refused_and_names_the_keys(folder: Path) -> None:
    train(recipe_of(folder, max_steps=1))
    before = files_of(folder)
    changes: dict[str, Any] = {"max_steps": 1, "seed": 5, "combiner": "flat", "sources": ["en"], "kind": "unigram"}
    with pytest.raises(ValueError, match=r"data\.sources was .*; tokenizer\.kind was .*; model\.combiner was .*seed"):
        train(recipe_of(folder, **changes), resume=True)
    assert files_of(folder) == before


def test_resuming_a_finished_run_changes_no_weight(folder: Path) -> None:
    train(recipe_of(folder))
    before = weights_of(folder / "run")
    train(recipe_of(folder), resume=True)
    assert same(weights_of(folder / "run"), before)


def test_an_impossible_model_shows_before_anything_is_made(folder: Path) -> None:
    with pytest.raises(ValueError, match="combiner must be one of"):
        train(recipe_of(folder, combiner="flta", path="nowhere"))  # the data is not even looked for
    assert not (folder / "run" / "processor_config.json").exists()


def test_a_finished_run_can_be_made_longer_as_if_it_had_been_so_from_the_start(folder: Path) -> None:
    whole = train_at(folder, "whole")
    train(recipe_of(folder, max_steps=SAVED))
    before = files_of(folder)
    with pytest.raises(ValueError, match=r"training\.max_steps was 4, is 3$"):  # shorter
        train(recipe_of(folder, max_steps=SAVED - 1), resume=True)
    with pytest.raises(ValueError, match=r"training\.max_steps was 4, is 8; training\.seed was not given, is 7"):
        train(recipe_of(folder, seed=7), resume=True)
    assert files_of(folder) == before
    summary = train(recipe_of(folder), resume=True)
    assert summary["updates"] == STEPS
    assert same(weights_of(folder / "run"), weights_of(whole))
    assert load_recipe(folder / "run" / "recipe.yaml") == recipe_of(folder)


def test_a_run_that_is_made_longer_and_interrupted_is_not_finished(folder: Path) -> None:
    run = train_at(folder)
    longer = recipe_of(folder, max_steps=2 * STEPS)
    assert is_finished(run, recipe_of(folder)) and not is_finished(run, longer)
    killed(folder, lambda patch: kill_at(patch, "training_step", STEPS + 2, after=False), resume=True, max_steps=16)
    assert not is_finished(run, longer)
    train(longer, resume=True)
    assert is_finished(run, longer) and read_json(run / "train_summary.json")["updates"] == 2 * STEPS


@pytest.mark.parametrize(("warmup", "open_ended"), [(0, True), (0.1, False), (1, True), (400, True)])
@pytest.mark.parametrize("schedule", ["inverse_sqrt", "constant_with_warmup"])
def test_a_warm_up_that_is_a_share_of_all_updates_depends_on_their_number(
    schedule: str, warmup: float, open_ended: bool, folder: Path
) -> None:
    changes: dict[str, Any] = {
        "lr_scheduler_type": schedule,
        "warmup_steps": warmup,
        "learning_rate": 0.1,
        "noam_scale": None,
    }
    assert recipe_of(folder, **changes).rate_is_open_ended == open_ended


def test_a_run_whose_learning_rate_depends_on_its_end_cannot_be_made_longer(folder: Path) -> None:
    linear: dict[str, Any] = {"noam_scale": None, "lr_scheduler_type": "linear"}
    train(recipe_of(folder, **linear, max_steps=SAVED))
    with pytest.raises(ValueError, match=r"training\.max_steps was 4, is 8, and the learning rate depends on it"):
        train(recipe_of(folder, **linear), resume=True)


def test_resuming_where_nothing_is_begins(folder: Path) -> None:
    assert train(recipe_of(folder, max_steps=1), resume=True)["updates"] == 1


def test_the_best_model_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_bleu(monkeypatch, 10.0, 30.0, 20.0, 25.0)
    changes: dict[str, Any] = {**EVALUATED, "eval_steps": 2, "save_steps": 2, "save_total_limit": 2}
    summary = train(recipe_of(folder, **changes))
    run = folder / "run"
    assert (summary["best_checkpoint"], summary["best_metric"]) == ("checkpoint-4", 30.0)
    assert sorted(path.name for path in run.glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-8"]
    assert same(weights_of(run), weights_of(run / "checkpoint-4"))
    assert not same(weights_of(run), weights_of(run / "checkpoint-8"))


def test_training_stops_when_bleu_stays_below_its_best(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_bleu(monkeypatch, 10.0, 30.0, 20.0, 25.0, 99.0)
    changes: dict[str, Any] = {**EVALUATED, "eval_steps": 1, "save_steps": 1, "patience": 2}
    summary = train(recipe_of(folder, **changes))
    assert (summary["updates"], summary["best_metric"]) == (4, 30.0)


def test_the_learning_rate_falls_when_evaluations_stay_flat(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the recipe of the NRC's system, where it falls at the eighth evaluation without a better one."""
    nrc = load_recipe("nrc_kk_ru_en").training
    assert (nrc["lr_scheduler_type"], nrc["lr_scheduler_kwargs"]["patience"]) == ("reduce_lr_on_plateau", 7)
    fake_bleu(monkeypatch, 10.0, 10.0001, *[9.0] * 9)
    changes: dict[str, Any] = {**EVALUATED, "eval_steps": 1, "save_steps": 1, "max_steps": 11, "logging_steps": 1}
    kwargs = {**nrc["lr_scheduler_kwargs"], "mode": "max"}
    rate = {"learning_rate": 1e-3, "noam_scale": None}
    schedule = {"lr_scheduler_type": nrc["lr_scheduler_type"], "lr_scheduler_kwargs": kwargs, **rate}
    run = train_at(folder, **changes, **schedule)
    history = read_json(run / "trainer_state.json")["log_history"]
    rates = [entry["learning_rate"] for entry in history if "learning_rate" in entry]
    assert rates == pytest.approx([1e-3] * 10 + [0.7e-3])  # ten evaluations, the second of which is slightly the best


@pytest.mark.parametrize("strategy", ["random", "group_by_length"])
def test_dev_bleu_compares_each_translation_with_its_own_reference(
    strategy: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A model that repeats its source translates perfectly where the target is the source.
    def echo(self: Any, input_ids: Tensor, **_: Any) -> Tensor:
        return torch.cat([torch.full_like(input_ids[:, :1], self.config.bos_token_id), input_ids], dim=1)

    monkeypatch.setattr(MultiSourceForConditionalGeneration, "generate", echo)
    text = [" ".join(random.Random(i).choices(WORDS["cs"], k=4 + i % 5)) for i in range(20)]
    for name in ("en", "cs"):
        write_lines(folder / "text" / f"dev.{name}", text)
    changes: dict[str, Any] = {
        **EVALUATED,
        "eval_steps": 1,
        "save_steps": 1,
        "max_steps": 1,
        "per_device_eval_batch_size": 4,
    }
    summary = train(recipe_of(folder, **changes, max_length=80, train_sampling_strategy=strategy))
    assert summary["best_metric"] == pytest.approx(100)


def test_a_recipe_may_ask_for_batches_by_tokens(folder: Path) -> None:
    run = train_at(folder, max_tokens_per_batch=10_000, max_steps=2, save_steps=2)
    state = read_json(run / "checkpoint-2" / "trainer_state.json")
    assert state["epoch"] == 2, "all lines in one batch, where 16 lines each would be three"
    with pytest.raises(ValueError, match="needs train_sampling_strategy='group_by_length'; got 'random'"):
        train_at(folder, "other", max_tokens_per_batch=10_000, train_sampling_strategy="random")
    assert not (folder / "other" / "recipe.yaml").exists()


def remove(*paths: Path) -> None:
    for path in paths:
        path.unlink()


def cut(path: Path) -> None:
    write_lines(path, path.read_text(encoding="utf-8").splitlines()[:-3])


BAD: dict[str, tuple[Callable[[Path], object], list[str], str]] = {
    "file that is not there": (lambda text: remove(text / "train.de"), [], r"'de': no train\.de"),
    "dev split that is not there": (
        lambda text: remove(*text.glob("dev.*")),
        [],
        "no split 'dev' in",
    ),
    "folder that is not there": (lambda _: None, ["--path", "elsewhere"], "no folder elsewhere"),
    "files of different length": (lambda text: cut(text / "train.de"), [], r"train\.de has 37 lines.* line 38 has no"),
    "dev files of different length": (lambda text: cut(text / "dev.cs"), [], r"dev\.cs has 17 lines"),
    "empty file": (lambda text: (text / "train.en").write_text(""), [], r"train\.en is empty"),
    "bytes that are not UTF-8": (
        lambda text: (text / "train.en").write_bytes(b"a\n\xff\n"),
        [],
        r"train\.en, line 2: not UTF-8",
    ),
    "unknown source": (lambda _: None, ["--sources", "en", "fi"], "unknown source or target 'fi'"),
    "unknown key": (lambda _: None, ["--combinr", "flat"], "unknown key 'combinr'; did you mean combiner"),
    "unknown combiner": (
        lambda _: None,
        ["--combiner", "sequential"],
        "model.combiner must be one of serial, .*got 'sequential'",
    ),
    "width that heads do not divide": (lambda _: None, ["--decoder_attention_heads", "3"], "d_model=16; got 3"),
    "source with a reserved name": (
        lambda text: [(text / f"{split}.en").rename(text / f"{split}.labels") for split in ("train", "dev")],
        ["--sources", "labels", "de"],
        "'labels' is reserved",
    ),
    "word where a number belongs": (lambda _: None, ["--d_model", "wide"], "d_model.*wide"),
    "max_length that is too small": (lambda _: None, ["--max_length", "1"], "max_length must be .* 2 or more; got 1"),
    "vocabulary that is too small": (lambda _: None, ["--vocab_size", "9"], "vocab_size is 9"),
    "unknown kind of tokenizer": (lambda _: None, ["--kind", "morfessor"], "kind must be .*got 'morfessor'"),
    "label smoothing twice": (
        lambda _: None,
        ["--label_smoothing", "0.1", "--label_smoothing_factor", "0.1"],
        "label_smoothing=0.1 in the config or",
    ),
    "strategy that Transformers does not know": (lambda _: None, ["--eval_strategy", "often"], "often"),
}


@pytest.mark.parametrize(("spoil", "arguments", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_named_in_one_line(
    spoil: Callable[[Path], object], arguments: list[str], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(folder / "text")
    spoilt = files_of(folder / "text")
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit, match=rf"^hf-multisource train: .*{message}") as caught:
        main(["recipe.yaml", "--max_steps", "1", *arguments])
    assert isinstance(caught.value.code, str), "a text as exit code is printed, and the status is 1"
    assert "\n" not in caught.value.code
    assert files_of(folder / "text") == spoilt


@pytest.mark.parametrize(
    ("spoil", "arguments"),
    [
        pytest.param(spoil, arguments, id=name, marks=[] if i % 6 == 0 else pytest.mark.slow)
        for i, (name, (spoil, arguments, _)) in enumerate(BAD.items())
    ],
)
def test_after_bad_input_the_corrected_command_runs(
    spoil: Callable[[Path], object], arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = files_of(folder / "text")
    spoil(folder / "text")
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit):
        main(["recipe.yaml", "--max_steps", "1", *arguments])
    for name, content in good.items():
        (folder / "text" / name).write_bytes(content)
    main(["recipe.yaml", "--max_steps", "1"])  # not refused, as if the folder held a run
    assert translate(folder / "run", en="two").shape[0] == 1


@pytest.mark.slow
def test_the_old_script_ends_with_status_1_and_one_line(folder: Path) -> None:
    cut(folder / "text" / "train.de")
    done = subprocess.run([sys.executable, str(SCRIPT), "recipe.yaml"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr  # installed packages may have said something when they were imported
    assert done.stderr.rstrip().splitlines()[-1].startswith("hf-multisource train: files in text differ in length")


def test_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    said = capsys.readouterr().out
    assert "Usage: hf-multisource train" in said and "--resume" in said


@pytest.mark.parametrize("arguments", [[], ["--resume"]])
def test_without_a_recipe_the_command_says_that_it_is_missing(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert capsys.readouterr().err == "hf-multisource train: RECIPE is missing\n"


def test_a_recipe_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(SystemExit, match=r"^hf-multisource train: .*none\.yaml"):
        main([str(folder / "none.yaml")])
