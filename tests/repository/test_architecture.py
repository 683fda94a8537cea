"""The house itself: which module may import which, what the Hub can ship, what the scripts may touch."""

import ast
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from transformers.dynamic_module_utils import get_imports, get_relative_imports

ROOT = Path(__file__).resolve().parents[2]
INIT = ROOT / "hf_multisource" / "__init__.py"
PACKAGE = sorted((ROOT / "hf_multisource").glob("**/*.py"))
SCRIPTS = sorted((ROOT / "training").glob("*.py"))

# Module -> the siblings it may import. Imports only go down; `__init__` may import every one and is imported by none.
FLOORS = {
    "configuration_multisource": set[str](),
    "configuration_multisource_rnn": {"configuration_multisource"},
    "attention": set[str](),
    "beam_cache": set[str](),
    "collation": set[str](),
    "pictures": set[str](),
    "loss": set[str](),
    "pipeline_multisource": {"collation"},
    "checkpoints": {"configuration_multisource", "pipeline_multisource"},
    "layers": {"configuration_multisource", "attention", "checkpoints"},
    "combiners": {"configuration_multisource", "attention", "layers"},
    "encoders": {"configuration_multisource", "attention", "layers"},
    "processing_multisource": {"configuration_multisource", "collation", "pictures"},
    "inference": set[str](),
    "vocabulary": {"inference"},
    "generation": {"beam_cache", "configuration_multisource", "inference", "vocabulary"},
    "conversion": {"configuration_multisource", "encoders"},
    "modeling_multisource": {
        *("configuration_multisource", "attention", "layers", "combiners", "encoders", "generation", "loss"),
        *("beam_cache", "conversion", "inference", "vocabulary"),
    },
    "combinations": {"configuration_multisource_rnn", "layers"},
    "rnn_cache": set[str](),
    "rnn_attention": {"configuration_multisource_rnn", "attention", "combinations"},
    "modeling_multisource_rnn": {
        *("configuration_multisource_rnn", "attention", "layers", "encoders", "modeling_multisource"),
        *("combinations", "rnn_attention", "rnn_cache"),
    },
    "analysis": {"collation"},
    "sharding": set[str](),
    "sampling": {"configuration_multisource", "collation", "processing_multisource", "sharding"},
}
FLOORS["__init__"] = set(FLOORS)

STAYS_HOME = {
    "__init__",
    "sampling",
    "sharding",
}  # never travel to the Hub: they serve the user who has the package installed
SHIPPABLE = [path for path in PACKAGE if path.stem not in STAYS_HOME]
# Whoever loads a checkpoint has these: Transformers needs all but torch.
REQUIRED_AT_LOAD = {"torch", "transformers", "huggingface_hub", "numpy", "safetensors"}


def imports(source: str) -> Iterator[ast.Import | ast.ImportFrom]:
    return (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom))


def relative_imports(source: str) -> list[ast.ImportFrom]:
    return [node for node in imports(source) if isinstance(node, ast.ImportFrom) and node.level]


def package_imports(source: str) -> list[ast.Import | ast.ImportFrom]:
    """The imports of the package, or of a module in it, by its absolute name."""
    return [
        node
        for node in imports(source)
        for module in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
        if module.split(".")[0] == "hf_multisource" and node not in relative_imports(source)
    ]


def forbidden_edges(module: str, source: str) -> list[str]:
    """The siblings that `module` imports and may not."""
    siblings = [node.module or "__init__" for node in relative_imports(source)]
    return [f"{module} -> {sibling}" for sibling in siblings if sibling not in FLOORS[module]]


def imports_the_hub_cannot_follow(source: str) -> list[str]:
    """Imports of ours in any other form than `from .name import Thing`."""
    unusual = [node for node in relative_imports(source) if node.level > 1 or not node.module or "." in node.module]
    return [ast.unparse(node) for node in [*package_imports(source), *unusual]]


def relative_imports_in_prose(path: Path) -> set[str]:
    """What the Hub's copier, which searches raw text, takes for a relative import though it is none."""
    return set(get_relative_imports(path)) - {node.module for node in relative_imports(path.read_text("utf-8"))}


def needed_to_load(path: Path) -> set[str]:
    """Third-party packages that must be installed before the Hub's loader takes this file."""
    return set(get_imports(str(path))) - sys.stdlib_module_names - REQUIRED_AT_LOAD


def public_names() -> set[str]:
    """What `__init__.__all__` lists, read without importing it."""
    assignments = (node for node in ast.parse(INIT.read_text("utf-8")).body if isinstance(node, ast.Assign))
    (names,) = (node.value for node in assignments if ast.unparse(node.targets[0]) == "__all__")
    return set(ast.literal_eval(names))


def private_imports(source: str, public: set[str]) -> list[str]:
    """What a script imports of the package in any other form than `from hf_multisource import <public names>`."""
    return [
        ast.unparse(node)
        for node in package_imports(source)
        if isinstance(node, ast.Import)
        or node.module != "hf_multisource"
        or not {alias.name for alias in node.names} <= public
    ]


def shadowed(names: set[str]) -> set[str]:
    """Those names that a script in its own folder would take from an installed package or from Python itself."""
    return names & (set(packages_distributions()) | sys.stdlib_module_names)


def test_the_package_holds_the_modules_of_the_table_and_no_other() -> None:
    assert {path.relative_to(INIT.parent).as_posix() for path in PACKAGE} == {f"{name}.py" for name in FLOORS}


@pytest.mark.parametrize("path", PACKAGE, ids=lambda path: path.stem)
def test_imports_only_go_down(path: Path) -> None:
    assert forbidden_edges(path.stem, path.read_text("utf-8")) == []


@pytest.mark.parametrize("path", PACKAGE, ids=lambda path: path.stem)
def test_siblings_are_imported_in_the_one_form_that_the_hub_follows(path: Path) -> None:
    assert imports_the_hub_cannot_follow(path.read_text("utf-8")) == []


@pytest.mark.parametrize("path", PACKAGE, ids=lambda path: path.stem)
def test_no_line_of_prose_looks_like_a_relative_import(path: Path) -> None:
    assert relative_imports_in_prose(path) == set()


@pytest.mark.parametrize("path", SHIPPABLE, ids=lambda path: path.stem)
def test_a_checkpoint_loads_with_torch_and_transformers_alone(path: Path) -> None:
    assert needed_to_load(path) == set()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_import_public_names_only(path: Path) -> None:
    assert private_imports(path.read_text("utf-8"), public_names()) == []


def test_there_are_scripts_and_none_hides_a_package() -> None:
    names = {path.stem for path in SCRIPTS}
    assert names
    assert shadowed(names) == set()


# Each rule, seen to fail.


@pytest.mark.parametrize(
    ("module", "line", "edge"),
    [
        ("attention", "from .combiners import Combiner", "attention -> combiners"),
        ("combiners", "def f():\n    from .modeling_multisource import Model", "combiners -> modeling_multisource"),
        ("sampling", "from . import MultiSourceConfig", "sampling -> __init__"),
        ("encoders", "from .invented import Thing", "encoders -> invented"),
    ],
)
def test_a_forbidden_edge_is_found(module: str, line: str, edge: str) -> None:
    assert forbidden_edges(module, line) == [edge]


@pytest.mark.parametrize(
    "line",
    [
        "from . import attention",
        "from .. import attention",
        "from .parts.attention import SourceMemory",
        "from ..attention import SourceMemory",
        "import hf_multisource",
        "import hf_multisource.attention",
        "from hf_multisource import MultiSourceConfig",
        "from hf_multisource.attention import SourceMemory",
    ],
)
def test_an_import_that_the_hub_cannot_follow_is_found(line: str) -> None:
    assert imports_the_hub_cannot_follow(f"{line}\nfrom .attention import SourceMemory\nimport torch") == [line]


def test_prose_that_looks_like_an_import_is_found(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""Example:\n\n    from .other import x\n"""\nfrom .attention import SourceMemory\n', "utf-8")
    assert relative_imports_in_prose(module) == {"other"}


def test_a_third_party_import_is_found_wherever_it_stands_unless_guarded(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    guarded = "try:\n    import timm\nexcept ImportError:\n    pass\n"
    module.write_text(f"import math, torch\ndef f():\n    import pandas.io\n{guarded}", "utf-8")
    assert needed_to_load(module) == {"pandas"}


@pytest.mark.parametrize(
    "line",
    [
        "import hf_multisource",
        "import hf_multisource.attention",
        "from hf_multisource.attention import SourceMemory",
        "from hf_multisource import hidden",
    ],
)
def test_a_private_import_is_found(line: str) -> None:
    harmless = "from hf_multisource import Shown\nfrom hf_multisource_extra import x\nimport torch"
    assert private_imports(f"{line}\n{harmless}", {"Shown"}) == [line]


def test_a_script_that_hides_a_package_is_found() -> None:
    assert shadowed({"evaluate", "accelerate", "profile", "train"}) == {"evaluate", "accelerate", "profile"}
