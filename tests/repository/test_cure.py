"""A torchvision that does not fit torch can be imported, and one that fits is left alone."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
CURE = ROOT / "tests" / "support" / "cure"
RULES = 'import torch\n@torch.library.register_fake("torchvision::nms")\ndef _(dets, scores, iou_threshold): ...\n'
COMPILED = """
import torch
library = torch.library.Library("torchvision", "DEF")
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def import_torchvision(folder: Path, compiled: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Import a stand-in in a process in which nothing else has been at work (-S: no startup files)."""
    package = folder / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("from . import extension, _meta_registrations", "utf-8")
    (package / "extension.py").write_text(compiled, "utf-8")
    (package / "_meta_registrations.py").write_text(RULES, "utf-8")
    code = f"{before}\nimport torchvision, torch\nprint(torch.ops.torchvision.nms.default)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [CURE, folder, *sys.path]))}
    return subprocess.run([sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True)


def test_without_the_cure_a_torchvision_that_does_not_fit_cannot_be_imported(tmp_path: Path) -> None:
    assert "operator torchvision::nms does not exist" in import_torchvision(tmp_path, "").stderr


@pytest.mark.parametrize("compiled", ["", COMPILED], ids=["does not fit", "fits"])
def test_with_the_cure_it_can_be_imported(tmp_path: Path, compiled: str) -> None:
    done = import_torchvision(tmp_path, compiled, "import sitecustomize")
    assert (done.stdout.strip(), done.returncode) == ("torchvision.nms.default", 0), done.stderr


@pytest.mark.vision
def test_scripts_that_tests_of_timm_start_run_the_cure() -> None:
    code = "import sitecustomize, torchvision; print(sitecustomize.__file__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == CURE / "sitecustomize.py"


def test_no_other_test_runs_the_cure() -> None:
    assert importlib.util.find_spec("torchvision") is None, "the default tests run without torchvision"
    assert str(CURE) not in os.environ["PYTHONPATH"].split(os.pathsep)
    assert not any(type(finder).__name__ == "DeclareOperators" for finder in sys.meta_path)


def test_no_extra_but_vision_brings_torchvision() -> None:
    needs = map(Requirement, distribution("hf-multisource").requires or [])
    extras = {str(one.marker) for one in needs if one.name in ("timm", "torchvision")}
    assert extras == {'extra == "vision"'}
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert "vision]" not in makefile
    assert makefile.count("timm torchvision") == 1
