"""The promises of SECURITY.md, kept by real commands in a process in which forbidden acts raise."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from builders import SMALL, three_source_model, three_source_processor, tiny_config
from guarded import Guarded, run_guarded, run_guarded_commands
from hf_multisource import MultiSourceForConditionalGeneration
from runs import files_of

EVIL = "open({sign!r}, 'w').close()\nclass Evil:\n    pass\n"
CODE = {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil", "AutoModelForSeq2SeqLM": "evil.Evil"}
BERT = {"model_type": "bert", **SMALL, "vocab_size": 16, "max_position_embeddings": 16}
TOKEN = "hf_" + "aB3" * 12


class Place:
    """A folder with a checkpoint in it, and data beside it.

    Args:
        sandbox: The folder.
        saved: A good checkpoint.
    """

    def __init__(self, sandbox: Path, saved: Path) -> None:
        self.sandbox = sandbox
        self.sandbox.mkdir(parents=True)
        self.model = shutil.copytree(saved, self.sandbox / "model")
        self.sign = self.sandbox / "code was run"
        (self.model / "evil.py").write_text(EVIL.format(sign=str(self.sign)), "utf-8")

    def edit(self, file: str, **fields: Any) -> None:
        """Change fields of a JSON file of the checkpoint."""
        edit(self.model / file, **fields)

    def replace_source(self, **fields: Any) -> None:
        """Put another source in the place of the last."""
        self.edit("config.json", sources=[{"name": "en"}, {"name": "de"}, {"name": "fr", **fields}])

    def commands(self) -> dict[str, tuple[str, ...]]:
        """The commands that load a checkpoint."""
        data, model = self.sandbox / "data", str(self.model)
        data.mkdir()
        for name in ("en", "de", "fr", "cs"):
            (data / f"test.{name}").write_text("a dog\nein Hund\n", "utf-8")
        search = ("--num_beams", "2", "--max_new_tokens", "3", "--max_length", "8")
        where = ("--data", str(data), "--split", "test", "--target", "cs", "--out", str(self.sandbox / "scores"))
        return {
            "translate": ("translate", model, *search),
            "score": ("score", model, *where, *search),
            "push": ("push", model, "org/name"),
        }


def unknown_model_type(place: Place) -> None:
    place.edit("config.json", model_type="unheard-of", auto_map=CODE)


def wrapped_encoder_with_code(place: Place) -> None:
    code = {"auto_map": CODE, "_name_or_path": str(place.model)}
    place.replace_source(kind="pretrained", encoder={"model_type": "clipseg_text_model", **code})


def weights_in_a_pickle(place: Place) -> None:
    (place.model / "model.safetensors").unlink()
    (place.model / "pytorch_model.bin").write_bytes(pickle.dumps(print))


def processor_of_any_class(place: Place) -> None:
    (place.model / "fr_processor").mkdir()
    (place.model / "fr_processor/config.json").write_text(json.dumps(BERT), "utf-8")
    (place.model / "fr_processor/pytorch_model.bin").write_bytes(pickle.dumps(print))
    parts = {"fr": {"auto_class": "AutoModel", "backend": None}}
    place.edit("processor_config.json", source_tokenizers=[], source_processors=parts)


def backbone_of_the_hub(place: Place) -> None:
    place.replace_source(
        kind="pretrained", encoder={"model_type": "detr", "backbone": "org/x", "use_timm_backbone": False}
    )


def token_in_the_card(place: Place) -> None:
    (place.model / "README.md").write_text(f"# A model\n\nhf-multisource train x.yaml --hub_token {TOKEN}\n", "utf-8")


# How a checkpoint is spoilt, and the commands that must refuse it.
EVERY = ("translate", "score", "push")
SPOILT: dict[str, tuple[Callable[[Place], None], tuple[str, ...]]] = {
    "unknown model_type": (unknown_model_type, EVERY),
    "wrapped encoder": (wrapped_encoder_with_code, EVERY),
    "weights": (weights_in_a_pickle, ("translate",)),
    "processor": (processor_of_any_class, ("translate", "push")),
    "backbone": (backbone_of_the_hub, ("translate",)),
    "card": (token_in_the_card, ("push",)),
}
TABLE = "a dog\tein Hund\tun chien\n"


@dataclass(frozen=True)
class Ran:
    """What became of the commands: those of the good checkpoint, and those of spoilt ones."""

    good: dict[str, Guarded]
    spoilt: dict[tuple[str, str], Guarded]
    signs: list[Path]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with its processor."""
    folder = tmp_path_factory.mktemp("saved")
    processor = three_source_processor()
    three_source_model(vocab_size=len(processor.tokenizer)).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def ran(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Run every command on every checkpoint in one guarded process; standard input says "Yes" where it can."""
    whole = tmp_path_factory.mktemp("ran")
    places = {name: Place(whole / name.replace(" ", "_"), saved) for name in ("good", *SPOILT)}
    lines = {("good", name): line for name, line in places["good"].commands().items()}
    for how, (spoil, names) in SPOILT.items():
        spoil(places[how])
        of_all = places[how].commands()
        lines |= {(how, name): of_all[name] for name in names}
    done = run_guarded_commands(
        whole,
        [(line, TABLE if how == "good" else "Yes\n" * 9) for (how, _), line in lines.items()],
    )
    found = dict(zip(lines, done, strict=True))
    return Ran(
        good={name: process for (how, name), process in found.items() if how == "good"},
        spoilt={key: process for key, process in found.items() if key[0] != "good"},
        signs=[place.sign for place in places.values()],
    )


def test_good_checkpoints_work_in_the_guarded_process(ran: Ran) -> None:
    assert {name: (done.status, done.acts) for name, done in ran.good.items()} == dict.fromkeys(EVERY, (0, ()))
    assert ran.good["translate"].output.count("\n") == 1


def refused(ran: Ran, *hows: str) -> None:
    """Every command has refused these checkpoints in one line, and has tried nothing that is forbidden."""
    for how in hows:
        for name in SPOILT[how][1]:
            done = ran.spoilt[how, name]
            assert done.acts == (), f"{how}: {name}: {done.errors[-2000:]}"
            assert (done.status, "Traceback" in done.errors) == (1, False), f"{how}: {name}: {done.errors[-2000:]}"
            assert sum(line.startswith(f"hf-multisource {name}: ") for line in done.errors.splitlines()) == 1


@pytest.mark.feature("Hub", "No code of a checkpoint runs unless trust_remote_code=True is given, and nothing asks")
def test_no_code_of_a_checkpoint_runs_and_nothing_asks(ran: Ran) -> None:
    refused(ran, "unknown model_type", "wrapped encoder")
    assert not any(sign.exists() for sign in ran.signs)


def test_no_pickle_is_read(ran: Ran) -> None:
    refused(ran, "weights", "processor")


def test_a_local_checkpoint_contacts_nobody(ran: Ran) -> None:
    refused(ran, "backbone")


def test_what_nobody_meant_to_publish_is_refused(ran: Ran) -> None:
    refused(ran, "card")
    done = ran.spoilt["card", "push"]
    assert "README.md" in done.errors
    assert TOKEN not in done.errors + done.output


USE = """
from hf_multisource import MultiSourceForConditionalGeneration, MultiSourceProcessor, read_picture
model = MultiSourceForConditionalGeneration.from_pretrained(model)
processor = MultiSourceProcessor.from_pretrained(processor)
model.save_pretrained(out)
processor.save_pretrained(out)
for read, thing in ((read_picture, picture), (MultiSourceProcessor.from_pretrained, escaping)):
    try:
        read(thing).save_pretrained(out)
    except ValueError as error:
        print(error)
"""
STRANGER = {"AutoModel": "stranger--evil.Evil", "AutoTokenizer": ["stranger--evil.Evil", None]}


def edit(file: Path, **fields: Any) -> None:
    """Change fields of a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **fields}), "utf-8")


@dataclass(frozen=True)
class Used:
    """What became of a script that loads and saves checkpoints in a sandbox, and of the files around the sandbox."""

    process: Guarded
    out: Path
    before: dict[str, bytes]
    after: dict[str, bytes]


@pytest.fixture(scope="module")
def used(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Used:
    """Load and save, in a guarded process, what refers to strangers, to programs and to places outside."""
    around = tmp_path_factory.mktemp("around")
    sandbox = around / "sandbox"
    places = {name: sandbox / name for name in ("model", "processor", "escaping", "picture", "out")}
    encoder = {**BERT, "auto_map": STRANGER, "_name_or_path": "stranger/x"}
    config = tiny_config(sources=["en", {"name": "de", "kind": "pretrained", "encoder": encoder}])
    MultiSourceForConditionalGeneration(config).save_pretrained(places["model"])
    shutil.copytree(saved, places["processor"])
    shutil.copytree(saved, places["escaping"])
    shutil.copytree(saved / "fr_tokenizer", around / "other_tokenizer")
    names = ["en", "de", "../../other"]
    edit(places["escaping"] / "processor_config.json", source_names=names, source_tokenizers=names[2:])
    edit(places["model"] / "config.json", auto_map=STRANGER)
    for name in ("processor_config.json", "tokenizer_config.json", "fr_tokenizer/tokenizer_config.json"):
        edit(places["processor"] / name, auto_map=STRANGER)
    places["picture"] = places["picture"].with_suffix(".png")
    places["picture"].write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n")

    def outside() -> dict[str, bytes]:
        return {name: data for name, data in files_of(around).items() if not name.startswith("sandbox/")}

    before = outside()
    process = run_guarded(USE, sandbox, secrets=[around / "other_tokenizer"], names=places)
    return Used(process, places["out"], before, outside())


def test_files_stay_in_their_folder(used: Used) -> None:
    assert used.process.status == 0, used.process.errors[-3000:]
    assert [act for act in used.process.acts if act.startswith("file")] == []
    assert used.after == used.before
    assert "../../other" in used.process.output


def test_a_strangers_references_do_not_survive(used: Used) -> None:
    saved = list(used.out.rglob("*.json"))
    assert len(saved) > 5
    assert [path.name for path in saved if "stranger" in path.read_text("utf-8")] == []


def test_pictures_start_no_program(used: Used) -> None:
    assert used.process.acts == (), used.process.errors[-3000:]
    assert "picture.png" in used.process.output


ACTS = {
    "network": "import socket; socket.create_connection(('127.0.0.1', 9), 1)",
    "program": "import os; os.system('true')",
    "pickle": "import pickle; pickle.loads(pickle.dumps(print))",
    "prompt": "input()",
    "file outside": "open(outside, 'w')",
    "code": "exec(compile('1', outside, 'exec'))",
    "library": "import ctypes; ctypes.CDLL(outside)",
    "pickle: torch": "import torch; torch.load('x')",
}


def test_forbidden_acts_raise_and_are_recorded(tmp_path: Path) -> None:
    code = "\n".join(
        f"try:\n    {act}\nexcept Exception as error:\n    print(type(error).__name__)" for act in ACTS.values()
    )
    done = run_guarded(code, tmp_path / "sandbox", imports=["torch"], names={"outside": tmp_path / "outside"})
    assert [act[: len(kind)] for act, kind in zip(done.acts, ACTS, strict=True)] == list(ACTS), done.errors
    assert done.output.split() == ["Forbidden"] * len(ACTS)
    assert not (tmp_path / "outside").exists()
