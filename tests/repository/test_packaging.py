"""What is built, what is installed, and what `make` says on a machine that lacks something."""

import email
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from filelock import FileLock
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the sdist: what `make test` built, or else built now."""
    if built := os.environ.get("DISTRIBUTIONS"):
        return Path(built)
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    with FileLock(folder.parents[1] / "build.lock"):  # with -n: all processes build in the same source tree
        subprocess.run(command, check=True, capture_output=True)
    return folder


def wheel_names(distributions: Path) -> set[str]:
    (wheel,) = distributions.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def on_disk(folder: str, pattern: str = "*") -> set[str]:
    files = (path for path in (ROOT / folder).rglob(pattern) if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in files}


def test_the_tests_see_the_wheel_that_make_built() -> None:
    spec = importlib.util.find_spec("hf_multisource")
    assert spec is not None
    assert spec.origin is not None
    home = Path(os.environ.get("WHEEL_UNDER_TEST", ROOT))  # without make, the working tree
    assert Path(spec.origin) == home / "hf_multisource" / "__init__.py"


def test_pages_and_messages_install_the_package_from_a_clone() -> None:
    """No package index has it."""
    places = [*ROOT.glob("*.md")]
    for top in ("docs", "hf_multisource", "training", "benchmarks"):
        places += [path for path in (ROOT / top).rglob("*") if path.suffix in (".md", ".py", ".yaml")]
    said = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in places}
    assert [name for name, text in said.items() if re.search(r"pip install ['\"]?hf[-_]multisource", text)] == []
    text = "\n".join(said.values())
    named = re.findall(r"install_hint\('(\w+)'\)", text)
    for found in re.findall(r'pip install "\.\[([\w,]+)\]"', text):
        named += found.split(",")
    settings = (ROOT / "pyproject.toml").read_text("utf-8").partition("[project.optional-dependencies]")[2]
    extras = set(re.findall(r"^(\w+) = \[", settings.partition("\n\n[")[0], re.MULTILINE))
    assert {"graph", "localization", "plots", "serve", "train"} <= set(named) <= extras


def test_scripts_that_tests_start_see_the_same_package(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("hf_multisource")
    script = tmp_path / "script.py"
    script.write_text("import importlib.util as u; print(u.find_spec('hf_multisource').origin)", "utf-8")
    seen = subprocess.run([sys.executable, str(script)], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert spec is not None
    assert seen.strip() == spec.origin


def test_the_wheel_holds_the_package_and_nothing_else(distributions: Path) -> None:
    names = {name for name in wheel_names(distributions) if ".dist-info/" not in name}
    assert names == on_disk("hf_multisource")
    assert "hf_multisource/py.typed" in names


def test_the_wheel_carries_the_license(distributions: Path) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel_names(distributions))


def test_the_sdist_holds_what_make_test_needs(distributions: Path) -> None:
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tools = {".ci/run", "CHANGELOG.md", "LICENSE", "Makefile", "README.md", "constraints.txt", "pyproject.toml"}
    needed = tools | on_disk("hf_multisource") | on_disk("tests")
    needed |= on_disk("training", "*.py") | on_disk("training", "*.yaml") | on_disk("benchmarks", "*.py")
    assert needed - names == set()


def test_every_requirement_that_the_tests_install_is_pinned_within_its_bounds(distributions: Path) -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pinned = {pin.name.lower().replace("_", "-"): next(iter(pin.specifier)).version for pin in pins}
    (wheel,) = distributions.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    declared = email.message_from_bytes(archive.read(metadata)).get_all("Requires-Dist", [])
    requirements = [Requirement(line) for line in declared]
    assert {"torch", "transformers", "pytest"} <= {requirement.name for requirement in requirements}
    loose = [r.name for r in requirements if pinned.get(r.name.lower().replace("_", "-"), "") not in r.specifier]
    assert loose == []


def make(folder: Path, *python3: str) -> subprocess.CompletedProcess[str]:
    """Run `make test` in an empty folder, on a machine with a shell, git, and `python3` only if its script is given."""
    tools = folder / "bin"
    tools.mkdir()
    for name in ("sh", "make", "find", "git"):
        found = shutil.which(name)
        assert found is not None, f"this test needs {name}"
        (tools / name).symlink_to(found)
    if python3:
        (tools / "python3").write_text("\n".join(["#!/bin/sh", *python3]), "utf-8")
        (tools / "python3").chmod(0o755)
    shutil.copy(ROOT / "Makefile", folder)
    for name in ("pyproject.toml", "constraints.txt"):
        (folder / name).touch()
    environment = {"PATH": str(tools)}
    return subprocess.run(["make", "test"], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("python3", "message"),
    [
        ([], "python3 is missing: sudo apt-get install python3"),
        (['case "$2" in *version_info*) exit 1;; esac'], "Python 3.10 or newer (python3 is older) is missing: sudo"),
        (['case "$2" in *ensurepip*) exit 1;; esac'], "venv is missing: sudo apt-get install python3-venv"),
    ],
    ids=["no python3", "old python3", "no venv"],
)
def test_make_names_the_debian_package_that_is_missing(tmp_path: Path, python3: list[str], message: str) -> None:
    result = make(tmp_path, *python3)
    assert result.returncode != 0
    assert message in result.stderr.splitlines()[0]
    assert not (tmp_path / ".venv").exists()
