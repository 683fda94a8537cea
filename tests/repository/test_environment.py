"""What an import and the command say in an environment that cannot run them, and that no more is required than used."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import hf_multisource
from fresh import run_fresh
from hf_multisource.environment import broken_torchvision, is_command

BROKEN = "raise RuntimeError('operator torchvision::nms does not exist')\n"
METADATA = "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.99.0\n"
ADVICE = (
    r"torchvision 0.99.0 does not fit torch [\w.+]+ \(operator torchvision::nms does not exist\), and Transformers "
    r"cannot be imported beside it: run `pip uninstall torchvision`, or install the torchvision build of this torch"
)


@pytest.fixture
def beside_a_broken_torchvision(tmp_path: Path) -> dict[str, str]:
    """An environment in which torchvision is installed and cannot be imported."""
    for name, file, content in (
        ("torchvision", "__init__.py", BROKEN),
        ("torchvision-0.99.0.dist-info", "METADATA", METADATA),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(content, "utf-8")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])}


def start(environment: dict[str, str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], env=environment, cwd=folder, capture_output=True, text=True)


def test_the_command_says_in_one_line_what_to_do_about_a_broken_torchvision(
    beside_a_broken_torchvision: dict[str, str], tmp_path: Path
) -> None:
    done = start(beside_a_broken_torchvision, tmp_path, "-m", "hf_multisource", "recipes")
    assert done.returncode == 1
    assert re.fullmatch(f"hf-multisource: {ADVICE}\n", done.stderr)


def test_an_import_says_what_to_do_about_a_broken_torchvision(
    beside_a_broken_torchvision: dict[str, str], tmp_path: Path
) -> None:
    code = "try:\n    import hf_multisource\nexcept ImportError as error:\n    print(error)"
    done = start(beside_a_broken_torchvision, tmp_path, "-c", code)
    assert re.fullmatch(ADVICE, done.stdout.strip()), done.stderr


def test_a_torchvision_that_is_absent_or_can_be_imported_is_not_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    assert broken_torchvision() is None
    monkeypatch.delitem(sys.modules, "torchvision")
    (tmp_path / "torchvision.py").write_text("", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert broken_torchvision() is None


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["python", "/somewhere/bin/hf-multisource", "train"], True),
        (["python", "-m", "hf_multisource", "train"], True),
        (["python", "-u", "-m", "hf_multisource.cli.train"], True),
        (["python", "-m", "pytest", "hf_multisource"], False),
        (["python", "-m", "hf_multisource_extra"], False),
        (["python", "script.py"], False),
        (["python"], False),
    ],
)
def test_the_command_knows_itself(arguments: list[str], answer: bool) -> None:
    assert is_command(arguments) is answer


def required(name: str, seen: set[str]) -> Iterator[str]:
    """The distributions that one requires, without extras, directly or not; itself included."""
    name = name.lower().replace("_", "-")
    if name in seen:
        return
    seen.add(name)
    try:
        requirements = map(Requirement, distribution(name).requires or [])
    except PackageNotFoundError:  # of another platform
        return
    yield name
    for requirement in requirements:
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield from required(requirement.name, seen)


ONLY = """
import sys

sys.modules.update(dict.fromkeys(blocked))  # found by nobody from now on
import hf_multisource, importlib, torch
from hf_multisource import MultiSourceConfig, MultiSourceForConditionalGeneration
for module in modules:
    importlib.import_module(f"hf_multisource.{module}")
config = MultiSourceConfig(sources=["en", "de"], vocab_size=9, d_model=8, encoder_layers=1, decoder_layers=1)
model = MultiSourceForConditionalGeneration(config)
model.generate(input_ids=torch.tensor([[4, 5]]), de_input_ids=torch.tensor([[6]]), num_beams=2, max_new_tokens=3)
model.save_pretrained("saved")
answer = MultiSourceForConditionalGeneration.from_pretrained("saved").config.source_names
"""


def test_the_package_runs_with_what_its_wheel_requires_and_nothing_else(tmp_path: Path) -> None:
    needed = set(required("hf-multisource", set()))
    blocked = [
        module
        for module, owners in packages_distributions().items()
        if not {owner.lower().replace("_", "-") for owner in owners} & {*needed, "hf-multisource"}
    ]
    assert {"accelerate", "datasets", "evaluate", "sacrebleu"} <= set(blocked)
    package = Path(str(sys.modules["hf_multisource"].__file__)).parent
    modules = [path.stem for path in package.glob("*.py") if not path.stem.startswith("__")]
    found = run_fresh(ONLY, tmp_path, package=True, warm=False, blocked=blocked, modules=modules)
    assert found == ["en", "de"]


def test_the_command_without_its_extra_names_it(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["sacrebleu"] = None
from hf_multisource.__main__ import main
try:
    main()
except SystemExit as end:
    answer = str(end)
"""
    said = run_fresh(code, tmp_path, package=True)
    assert "sacrebleu" in said
    assert said.endswith('the command needs more packages: run pip install ".[train]" in a clone of the repository')


def test_the_version_is_that_of_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hf_multisource.__version__ == version("hf-multisource")

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(hf_multisource, "_version", missing)
    assert not hasattr(hf_multisource, "__version__")
