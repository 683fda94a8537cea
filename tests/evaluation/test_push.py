"""`hf-multisource push` up to the network: what it checks, and what it would upload; `test_hub.py` pushes for real."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from builders import NAMES, three_source_model
from hf_multisource import MultiSourceProcessor
from hf_multisource.cli import push
from hf_multisource.evaluation.confidence import FILE, Confidence, digest_weight_files
from hf_multisource.publishing import push as push_module
from hf_multisource.publishing.push import size_in_words
from hf_multisource.recipes.tokenization import train_tokenizer

HOME = ("recipe.yaml", "train_summary.json", "trainer_state.json", "scores/test.json", "checkpoint-5/optimizer.pt")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run with all that lies in one."""
    folder = tmp_path / "run"
    tokenizer = train_tokenizer(["a dog", "ein Hund", "un chien"], "bpe", 270)
    three_source_model(vocab_size=len(tokenizer)).save_pretrained(folder)
    MultiSourceProcessor(tokenizer, NAMES, {"fr": tokenizer}).save_pretrained(folder)
    for module in folder.glob("*.py"):  # as a run does that is older than the code in checkpoints
        module.unlink()
    for name in HOME:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}", "utf-8")
    (folder / "README.md").write_text("# A model\n", "utf-8")
    return folder


def listed(output: str) -> dict[str, str]:
    """The files in the output: path -> size."""
    lines = [line.split() for line in output.splitlines()[1:-2]]
    return {path: f"{number} {unit}" for number, unit, path in lines}


@pytest.mark.feature("Hub", "`hf-multisource push` shows what it would upload, and uploads nothing")
def test_it_shows_what_it_would_upload(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    push.main([str(run), "org/name"])
    output = capsys.readouterr()
    files = listed(output.out)
    for name in ("config.json", "model.safetensors", "processor_config.json", "tokenizer.json", "README.md"):
        assert name in files
    assert {"modeling_multisource.py", "processing_multisource.py", "pipeline_multisource.py"} <= files.keys()
    assert {"fr_tokenizer/tokenizer.json", "generation_config.json"} <= files.keys()
    assert not files.keys() & set(HOME)
    size = (run / "model.safetensors").stat().st_size
    assert files["model.safetensors"] == f"{size / 1000:.1f} kB"
    assert f"in {len(files)} files" in output.out
    assert output.out.startswith("org/name:\n")
    assert output.out.endswith("Nothing was uploaded; --push does it.\n")
    assert "has no README.md" not in output.err


def test_the_confidence_travels_with_its_weights(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    uploaded: list[Confidence | None] = []

    def upload(folder: Path, repo: str, private: bool) -> str:
        uploaded.append(Confidence.load(folder))
        return "an address"

    monkeypatch.setattr(push_module, "upload", upload)
    facts = {"split": "dev", "command": f"hf-multisource calibrate {run}"}
    stored = Confidence(("en",), 5, {}, (1.0, 0.0, 0.0), 0.0, digest_weight_files(run), facts)
    stored.save(run)
    push.main([str(run), "org/name", "--push"])
    assert FILE in capsys.readouterr().out
    assert uploaded == [replace(stored, facts={"split": "dev"})]
    replace(stored, weights_sha256="0" * 64).save(run)
    with pytest.raises(SystemExit, match="was fitted on other weights"):
        push.main([str(run), "org/name"])


def test_a_model_without_a_card_is_warned_of(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "README.md").unlink()
    push.main([str(run), "org/name", "--private"])
    output = capsys.readouterr()
    assert "has no README.md, which hf-multisource card makes: the model would have no card" in output.err
    assert "README.md" not in listed(output.out)
    assert output.out.startswith("org/name (private):\n")
    for name in ("recipe.yaml", "train_summary.json"):
        (run / name).unlink(missing_ok=True)
    push.main([str(run), "org/name"])
    assert "has no README.md, which model.create_card makes: the model would have no card" in capsys.readouterr().err


def test_a_model_folder_that_is_no_run_will_do(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("recipe.yaml", "train_summary.json"):
        (run / name).unlink()
    push.main([str(run), "org/name"])
    assert "model.safetensors" in listed(capsys.readouterr().out)


def test_without_the_network_a_push_says_so(run: Path) -> None:
    with pytest.raises(SystemExit, match=r"hf-multisource push: org/name: the upload broke off: .*offline"):
        push.main([str(run), "org/name", "--push"])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ("train_summary.json", "holds a run that is not finished: it has no train_summary.json"),
        ("config.json", "is no folder of a model: it has no config.json"),
        ("model.safetensors", "no file named model.safetensors"),
        ("tokenizer.json", "its processor cannot be loaded: "),
        ("processor_config.json", "its processor cannot be loaded: source_names must name at least one source"),
    ],
)
def test_a_run_that_lacks_something_is_refused(run: Path, spoil: str, message: str) -> None:
    (run / spoil).unlink()
    with pytest.raises(SystemExit, match=f"hf-multisource push: .*{message}"):
        push.main([str(run), "org/name"])


def test_missing_weights_are_refused(run: Path) -> None:
    config = json.loads((run / "config.json").read_text("utf-8"))
    (run / "config.json").write_text(json.dumps({**config, "decoder_layers": 3}), "utf-8")
    with pytest.raises(SystemExit, match=r"weights are missing \(model\.decoder\.layers\.2\."):
        push.main([str(run), "org/name"])


def test_a_processor_of_other_sources_is_refused(run: Path) -> None:
    config = json.loads((run / "processor_config.json").read_text("utf-8"))
    (run / "processor_config.json").write_text(json.dumps({**config, "source_names": ["en", "fr"]}), "utf-8")
    with pytest.raises(SystemExit, match="the processor's sources are en, fr, the model's en, de, fr"):
        push.main([str(run), "org/name"])


@pytest.mark.parametrize(
    ("repo", "message"), [("name", "name must have the form ORG/NAME"), ("org/a b", "org/a b"), ("a/b/c", "a/b/c")]
)
def test_a_name_that_the_hub_does_not_take_is_refused(run: Path, repo: str, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        push.main([str(run), repo])


@pytest.mark.parametrize(
    ("size", "words"), [(0, "0.0 B"), (999, "999.0 B"), (1000, "1.0 kB"), (2_500_000, "2.5 MB"), (5e12, "5000.0 GB")]
)
def test_sizes_are_told_in_words(size: float, words: str) -> None:
    assert size_in_words(size) == words
