"""What `hf-multisource push` refuses to publish: secrets, local paths, training state, training text, foreign code."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file

from hf_multisource.cli import card, push
from hf_multisource.publishing.push import load
from hf_multisource.publishing.scan import check_publishable
from runs import write_lines
from scored import make_run

HF = "hf_" + "aB3d" * 8
SENTENCE = "The quick brown fox of the training data jumps over the lazy dog"
feature = pytest.mark.feature("Hub", "`hf-multisource push` refuses secrets, local paths and foreign code")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run `run` with its data, and `saved`, the files that are published of it."""
    folder = tmp_path_factory.mktemp("made")
    run = make_run(folder / "run", folder)
    for part in load(run):
        part.save_pretrained(folder / "saved")
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "run", tmp_path / "run"))


@pytest.fixture
def saved(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "saved", tmp_path / "saved"))


def change_json(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **fields}, indent=2), "utf-8")


def refused(run: Path, *options: str) -> str:
    with pytest.raises(SystemExit) as caught:
        push.main([str(run), "org/name", *options])
    return str(caught.value)


@feature
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"my key {HF}", "README.md, line 3: a Hugging Face token (hf_***)"),
        (
            "hf-multisource train x --hub_token abc123def",
            "README.md, line 3: the value of a secret key (hub_token ***)",
        ),
        ("see https://me:pa55@host/x", "README.md, line 3: a password in a URL (://***@)"),
        ("made in /home/me/project/x.yaml", "README.md, line 3: a path of this machine (/home/me/project/x.yaml)"),
        (r"made in C:\Users\me\x", r"README.md, line 3: a path of this machine (C:\Users\me\x)"),
        ("made in RUN/scores", "README.md, line 3: a path of this machine (RUN/scores)"),
    ],
)
def test_a_card_with_secrets_or_local_paths_is_refused_also_if_nothing_is_uploaded(
    run: Path, line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "README.md").write_text(f"# A model\n\n{line}\n".replace("RUN", str(run)), "utf-8")
    error = refused(run, *(["--push"] if HF in line else []))
    assert error == f"hf-multisource push: {run} cannot be published: {message}".replace("RUN", str(run))
    assert "aB3d" not in error
    assert "README.md" not in capsys.readouterr().out, "nothing is listed"


@feature
def test_a_local_path_in_a_configuration_is_refused(run: Path) -> None:
    change_json(run / "config.json", note={"from": "/home/me/x"})
    error = refused(run)
    assert re.search(r"cannot be published: config\.json, line \d+: a path of this machine \(/home/me/x\)$", error)


@feature
def test_training_text_in_a_card_is_refused(run: Path, tmp_path: Path) -> None:
    data = {"path": str(tmp_path), "sources": ["en", "de"], "target": "cs"}
    (run / "recipe.yaml").write_text(yaml.safe_dump({"data": data}), "utf-8")
    write_lines(tmp_path / "train.en", ["a dog", SENTENCE])
    (run / "README.md").write_text(f'# A model\n\nTranslate a dog: "{SENTENCE.replace(" ", chr(10))}"\n', "utf-8")
    message = "README.md, line 3: a line of the training text (The quick brown fox ...)"
    assert refused(run).endswith(f"cannot be published: {message}")
    (tmp_path / "train.en").unlink()
    (tmp_path / "train.jsonl").write_text(json.dumps({"translation": {"en": SENTENCE, "de": "x"}}) + "\n", "utf-8")
    assert refused(run).endswith(message)
    (tmp_path / "train.jsonl").unlink()
    (tmp_path / "train.csv").write_text(f'id,en\n1,"one\n{SENTENCE}"\n', "utf-8")
    assert refused(run).endswith(message)
    (run / "README.md").write_text("# A model\n\nTranslate a dog.\n", "utf-8")
    push.main([str(run), "org/name"])


@pytest.mark.parametrize("split", ["train", "web"])
def test_training_text_of_each_of_several_corpora_is_refused(split: str, run: Path, tmp_path: Path) -> None:
    """The split of a corpus is `train` if the recipe names none."""
    named = {} if split == "train" else {"split": split}
    corpora = [{"path": str(tmp_path / "one")}, {"path": str(tmp_path / "two"), **named}]
    data = {"path": str(tmp_path), "sources": ["en", "de"], "target": "cs", "train": corpora}
    (run / "recipe.yaml").write_text(yaml.safe_dump({"data": data}), "utf-8")
    for folder, name, line in (("one", "train.en", "a dog"), ("two", f"{split}.cs", SENTENCE)):
        (tmp_path / folder).mkdir()
        write_lines(tmp_path / folder / name, [line])
    (run / "README.md").write_text(f"# A model\n\n{SENTENCE}\n", "utf-8")
    message = "README.md, line 3: a line of the training text (The quick brown fox ...)"
    assert refused(run).endswith(f"cannot be published: {message}")
    (tmp_path / "two" / f"{split}.cs").unlink()
    push.main([str(run), "org/name"])


def test_training_data_that_are_elsewhere_are_no_hindrance(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in ("nowhere", "org/data"):
        (run / "recipe.yaml").write_text(yaml.safe_dump({"data": {"path": path, "sources": ["en"]}}), "utf-8")
        push.main([str(run), "org/name"])
        assert "Nothing was uploaded" in capsys.readouterr().out


@feature
def test_the_card_of_a_run_whose_command_held_secrets_and_paths_can_be_published(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change_json(
        run / "train_summary.json",
        command=f"hf-multisource train /home/me/x.yaml --hub_token {HF} --path=/home/me/data --output_dir {run}",
    )
    recipe = yaml.safe_load((run / "recipe.yaml").read_text("utf-8"))
    recipe["data"]["origin"] = "texts in /home/me/texts"
    recipe["training"] |= {"run_name": "/home/me/runs/secret-project/x", "output_dir": "/home/me/run"}
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    card.main([str(run)])
    text = (run / "README.md").read_text("utf-8")
    assert "hf-multisource train me/x.yaml --hub_token" not in text
    for private in (HF, "/home/me", str(run), "aB3d"):
        assert private not in text
    assert "--hub_token '***'" in text
    push.main([str(run), "org/name"])
    assert "README.md" in capsys.readouterr().out


def plant(name: str, content: bytes = b"x") -> Callable[[Path], None]:
    def planted(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)

    return planted


def field(file: str, **fields: Any) -> Callable[[Path], None]:
    return lambda folder: change_json(folder / file, **fields)


def metadata(text: str) -> Callable[[Path], None]:
    return lambda folder: save_file({"a": torch.zeros(2)}, folder / "model.safetensors", {"made": text})


OURS = {"AutoConfig": "configuration_multisource.MultiSourceConfig"}
ELSEWHERE = "org/evil--modeling.Model"
FOREIGN = f"refers to code in another repository ({ELSEWHERE})"
UNKNOWN = "refers to code that is not of hf_multisource (modeling.Model)"
STATE = "a file of the state of a training, or a pickle"


@feature
@pytest.mark.parametrize(
    ("spoil", "messages"),
    [
        (plant("optimizer.pt"), [f"optimizer.pt: {STATE}"]),
        (plant("scheduler.pt"), [f"scheduler.pt: {STATE}"]),
        (plant("rng_state_0.pth"), [f"rng_state_0.pth: {STATE}"]),
        (plant("training_args.bin"), [f"training_args.bin: {STATE}"]),
        (plant("sub/pytorch_model.bin"), [f"sub/pytorch_model.bin: {STATE}"]),
        (plant("trainer_state.json", b"{}"), [f"trainer_state.json: {STATE}"]),
        (plant("train.en"), ["train.en: a file of data"]),
        (plant("lines.jsonl.gz"), ["lines.jsonl.gz: a file of data"]),
        (plant(f"{HF}.txt"), ["hf_***.txt: a Hugging Face token (hf_***) in the name of the file"]),
        (
            plant("spiece.model", b"\0\xff/home/me/train.txt\0"),
            ["spiece.model: a path of this machine (/home/me/train"],
        ),
        (plant("notes.yaml", b"a: 1\nb: /tmp/x/y\n"), ["notes.yaml, line 2: a path of this machine (/tmp/x/y)"]),
        (metadata("/home/me/x"), ["model.safetensors: a path of this machine (/home/me/x)"]),
        (metadata(HF), ["model.safetensors: a Hugging Face token (hf_***)"]),
        (field("tokenizer_config.json", hub_token="short"), ["the value of the secret key 'hub_token'"]),
        (field("tokenizer_config.json", hub_token=HF), ["a Hugging Face token (hf_***)"]),
        (field("config.json", auto_map={**OURS, "AutoModel": ELSEWHERE}), [f"auto_map.AutoModel {FOREIGN}"]),
        (field("config.json", encoder={"auto_map": {"AutoModel": ELSEWHERE}}), [f"auto_map.AutoModel {FOREIGN}"]),
        (field("config.json", auto_map={"AutoModel": "modeling.Model"}), [f"auto_map.AutoModel {UNKNOWN}"]),
        (field("tokenizer_config.json", auto_map={"AutoTokenizer": [None, ELSEWHERE]}), [f"AutoTokenizer {FOREIGN}"]),
        (field("tokenizer_config.json", auto_map=["modeling.Model", None]), [f"auto_map {UNKNOWN}"]),
        (field("processor_config.json", list=[{"auto_map": {"AutoProcessor": ELSEWHERE}}]), [FOREIGN]),
        (field("config.json", custom_pipelines={"x": {"impl": ELSEWHERE}}), [f"custom_pipelines.x {FOREIGN}"]),
        (field("config.json", auto_map={"AutoModel": 5}), ["auto_map.AutoModel names no class"]),
        (plant("x.json", b"[" * 100_000), ["x.json: JSON that cannot be searched: "]),
        (plant("modeling_multisource.py", b"import os\n"), ["modeling_multisource.MultiSourceModel)"]),
    ],
)
def test_a_folder_with_what_must_not_be_published_is_refused(
    saved: Path, spoil: Callable[[Path], None], messages: list[str]
) -> None:
    spoil(saved)
    with pytest.raises(ValueError, match="cannot be published: ") as caught:
        check_publishable(saved, saved)
    for message in messages:
        assert message in str(caught.value)
    assert "aB3d" not in str(caught.value)


def test_what_a_model_and_its_processor_save_is_published(saved: Path) -> None:
    check_publishable(saved, saved)


def test_a_finding_in_json_names_its_line(saved: Path) -> None:
    change_json(saved / "config.json", auto_map={**OURS, "AutoModel": ELSEWHERE})
    (number,) = [
        i for i, line in enumerate((saved / "config.json").read_text("utf-8").splitlines(), 1) if ELSEWHERE in line
    ]
    with pytest.raises(ValueError, match=rf": config\.json, line {number}: auto_map\.AutoModel refers"):
        check_publishable(saved, saved)


def test_many_findings_are_counted(saved: Path) -> None:
    (saved / "README.md").write_text("/home/me/x\n" * 30, "utf-8")
    with pytest.raises(ValueError, match=r"README\.md, line 10: [^;]*; and 20 more$"):
        check_publishable(saved, saved)
