"""Which module may import which, what the Hub can ship, and what scripts may import."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from transformers.dynamic_module_utils import get_imports, get_relative_imports

ROOT = Path(__file__).resolve().parents[2]
INIT = ROOT / "hf_multisource" / "__init__.py"
FLAT = sorted((ROOT / "hf_multisource").glob("*.py"))
SUBPACKAGES = sorted((ROOT / "hf_multisource").glob("*/*.py"))
SCRIPTS = sorted((ROOT / "training").glob("**/*.py"))

# Module -> the siblings it may import. Imports only go down; `__init__` may import every one and is imported by none.
FLOORS = {
    "messages": set[str](),
    "regular_files": set[str](),
    "json_files": {"messages", "regular_files"},
    "foreign_settings": {"messages"},
    "foreign": {"foreign_settings", "json_files", "messages"},
    "limits": {"messages"},
    "configuration_multisource": {"foreign", "foreign_settings", "limits", "messages", "source_kinds"},
    "configuration_multisource_rnn": {"configuration_multisource", "source_kinds"},
    "dropout": set[str](),
    "packing": set[str](),
    "attention": {"dropout", "inference", "packing"},
    "beam_cache": set[str](),
    "beam_search": set[str](),
    "arrays": set[str](),
    "pictures": {"regular_files"},
    "sounds": {"arrays", "regular_files"},
    "text_encoding": {"messages"},
    "source_kinds": {"arrays", "messages", "pictures", "sounds", "text_encoding"},
    "collation": {"arrays", "source_kinds"},
    "loss": set[str](),
    "pipeline_multisource": {"collation", "messages", "model_card", "source_kinds"},
    "code_references": {"pipeline_multisource"},
    "weight_checks": {"configuration_multisource"},
    "model_card": {"source_kinds"},
    "layers": {"configuration_multisource", "dropout"},
    "pretrained_model": {
        *("code_references", "configuration_multisource", "foreign", "layers", "model_card", "weight_checks"),
    },
    "combiners": {"configuration_multisource", "attention", "dropout", "layers", "packing"},
    "encoders": {
        *("configuration_multisource", "attention", "dropout", "foreign", "layers", "messages", "packing"),
        "pretrained_model",
        "source_kinds",
    },
    "processor_files": {"configuration_multisource", "foreign", "messages", "source_kinds"},
    "processing_multisource": {
        *(
            "configuration_multisource",
            "arrays",
            "collation",
            "foreign",
            "foreign_settings",
            "messages",
            "model_card",
            "processor_files",
        ),
        *("source_kinds", "text_encoding"),
    },
    "inference": set[str](),
    "vocabulary": {"inference"},
    "rnn_cache": set[str](),
    "generation": {
        *("beam_cache", "beam_search", "configuration_multisource", "inference", "messages", "rnn_cache"),
        "vocabulary",
    },
    "architectures": {"configuration_multisource"},
    "combiner_weights": {"architectures"},
    "source_checkpoints": {"architectures", "configuration_multisource", "encoders", "foreign", "messages"},
    "equivalent_models": {"combiner_weights", "configuration_multisource", "encoders", "source_kinds"},
    "conversion": {
        *("architectures", "combiner_weights", "combiners", "configuration_multisource", "encoders", "foreign"),
        *("foreign_settings", "source_checkpoints"),
    },
    "modeling_sources": {
        *("attention", "configuration_multisource", "encoders", "inference", "layers", "loss", "pretrained_model"),
        "vocabulary",
    },
    "modeling_multisource": {
        *("configuration_multisource", "attention", "beam_cache", "combiners", "conversion", "encoders", "generation"),
        *("decoder_step", "dropout", "inference", "layers", "modeling_sources", "packing", "pretrained_model"),
    },
    "decoder_step": {"attention", "beam_cache", "combiners", "inference", "layers"},
    "ensemble": {"configuration_multisource", "generation", "inference", "messages", "modeling_sources"},
    "combinations": {"configuration_multisource_rnn", "layers"},
    "rnn_attention": {"configuration_multisource_rnn", "attention", "layers"},
    "modeling_multisource_rnn": {
        *("configuration_multisource_rnn", "attention", "combinations", "encoders", "generation", "layers"),
        *("dropout", "modeling_sources", "pretrained_model", "rnn_attention", "rnn_cache"),
    },
    "analysis": {"collation", "source_kinds"},
    "sharding": set[str](),
    "environment": set[str](),
    "arguments": set[str](),
    "matrix_products": set[str](),
    "sampling": {"arguments", "collation", "inference", "matrix_products", "model_card", "sharding", "source_kinds"},
}
FLOORS["__init__"] = set(FLOORS)

# Part of the tree -> the parts that it may import; "" is the package's public face and its flat modules.
PARTS = {
    "": set[str](),
    "data": {""},
    "metrics": {"data"},
    "recipes": {"", "data", "metrics"},
    "evaluation": {"", "data", "metrics", "recipes"},
    "publishing": {"", "data", "evaluation", "metrics", "recipes"},
    "serving": {"", "data", "evaluation", "recipes"},
    "cli": {"data", "evaluation", "metrics", "publishing", "recipes", "serving"},
}
ENTRIES = {"__main__": {"cli"}}  # flat modules that start the command, and no module imports

# These never travel to the Hub: they serve users who have the package installed.
STAYS_HOME = {
    "__init__",
    "__main__",
    "arguments",
    "ensemble",
    "environment",
    "equivalent_models",
    "matrix_products",
    "sampling",
    "sharding",
}
SHIPPABLE = [path for path in FLAT if path.stem not in STAYS_HOME]
# Whoever loads a checkpoint has these: Transformers needs all but torch.
REQUIRED_AT_LOAD = {"torch", "transformers", "huggingface_hub", "numpy", "safetensors"}


@cache
def imports(source: str) -> tuple[ast.Import | ast.ImportFrom, ...]:
    return tuple(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom))


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


def part_of(path: Path) -> str:
    """The part of the package that a file is in; "" for flat modules."""
    parts = path.relative_to(INIT.parent).parts
    return parts[0] if len(parts) > 1 else ""


def imported_modules(source: str) -> Iterator[str]:
    """The modules of the package that a source imports by their absolute names, such as "data.rows"."""
    for node in package_imports(source):
        names = [alias.name for alias in node.names]
        for name in names if isinstance(node, ast.Import) else [f"{node.module}.{name}" for name in names]:
            inner = name.partition(".")[2]
            found = [inner, inner.rpartition(".")[0]]  # a module, or a name in one
            yield next((one for one in found if (INIT.parent / f"{one.replace('.', '/')}.py").exists()), "")


def parts_imported(source: str) -> set[str]:
    """The parts of the package that a source imports."""
    return {module.rpartition(".")[0] if "." in module else "" for module in imported_modules(source)}


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """A cycle of imports, if there is one."""
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return list(error.args[1])
    return []


def shadowed(names: set[str]) -> set[str]:
    """Those names that a script in its own folder would take from an installed package or from Python itself."""
    return names & (set(packages_distributions()) | sys.stdlib_module_names)


def test_the_package_holds_the_modules_of_the_table_and_no_other() -> None:
    assert {path.stem for path in FLAT} == FLOORS.keys() | ENTRIES.keys()
    assert {part_of(path) for path in SUBPACKAGES} == PARTS.keys() - {""}


@pytest.mark.parametrize("path", FLAT, ids=lambda path: path.stem)
def test_imports_of_flat_modules_only_go_down(path: Path) -> None:
    if path.stem in ENTRIES:
        assert parts_imported(path.read_text("utf-8")) == ENTRIES[path.stem]
    else:
        assert forbidden_edges(path.stem, path.read_text("utf-8")) == []


@pytest.mark.parametrize("path", FLAT, ids=lambda path: path.stem)
def test_every_edge_that_the_table_allows_is_used(path: Path) -> None:
    if path.stem not in (*ENTRIES, "__init__"):  # which may import every module
        assert FLOORS[path.stem] - {node.module for node in relative_imports(path.read_text("utf-8"))} == set()


@pytest.mark.parametrize("path", SUBPACKAGES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_imports_of_subpackages_only_go_down(path: Path) -> None:
    source = path.read_text("utf-8")
    assert relative_imports(source) == []
    assert parts_imported(source) - {part_of(path)} - PARTS[part_of(path)] == set()


@pytest.mark.parametrize("part", PARTS)
def test_every_edge_between_parts_is_used_and_no_modules_import_each_other(part: str) -> None:
    modules = {path.stem: path.read_text("utf-8") for path in (*FLAT, *SUBPACKAGES) if part_of(path) == part}
    sources = {name: source for name, source in modules.items() if name not in ENTRIES}
    assert set().union(*map(parts_imported, sources.values())) - {part} == PARTS[part]
    inside = {
        name: {module.removeprefix(f"{part}.") for module in imported_modules(source) if module.startswith(f"{part}.")}
        for name, source in sources.items()
    }
    assert cycle_in(inside) == []


def test_no_part_imports_scripts_or_tests() -> None:
    scripts = {path.stem for path in SCRIPTS} | {"prepare", "reports", "training", "tests", "benchmarks"}
    for path in (*FLAT, *SUBPACKAGES):
        for node in imports(path.read_text("utf-8")):
            if isinstance(node, ast.ImportFrom) and not node.level:
                assert (node.module or "").split(".")[0] not in scripts, path


def test_benchmarks_do_not_import_each_other_in_a_circle() -> None:
    files = {path.stem: path.read_text("utf-8") for path in (ROOT / "benchmarks").glob("*.py")}
    graph = {
        name: {node.module or "" for node in imports(source) if isinstance(node, ast.ImportFrom)} & files.keys()
        for name, source in files.items()
    }
    assert cycle_in(graph) == []


@pytest.mark.parametrize("path", [path for path in FLAT if path.stem not in ENTRIES], ids=lambda path: path.stem)
def test_siblings_are_imported_in_the_one_form_that_the_hub_follows(path: Path) -> None:
    assert imports_the_hub_cannot_follow(path.read_text("utf-8")) == []


@pytest.mark.parametrize("path", FLAT, ids=lambda path: path.stem)
def test_no_line_of_prose_looks_like_a_relative_import(path: Path) -> None:
    assert relative_imports_in_prose(path) == set()


@pytest.mark.parametrize("path", SHIPPABLE, ids=lambda path: path.stem)
def test_a_checkpoint_loads_with_torch_and_transformers_alone(path: Path) -> None:
    assert needed_to_load(path) == set()


def test_there_are_scripts_and_none_hides_a_package() -> None:
    names = {path.stem for path in SCRIPTS if path.parent.name == "training"}
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
    ("line", "part"),
    [
        ("from hf_multisource.cli.train import main", "cli"),
        ("from hf_multisource.recipes import recipe", "recipes"),
        ("import hf_multisource.data.rows", "data"),
        ("from hf_multisource import MultiSourceConfig", ""),
        ("from hf_multisource.attention import SourceMemory", ""),
    ],
)
def test_the_part_that_a_line_imports_is_found(line: str, part: str) -> None:
    assert parts_imported(f"{line}\nimport torch\nfrom hf_multisource_extra import x") == {part}


def test_a_circle_of_imports_is_found() -> None:
    assert set(cycle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
    assert cycle_in({"a": {"b", "c"}, "b": {"c"}}) == []


def test_a_script_that_hides_a_package_is_found() -> None:
    assert shadowed({"evaluate", "accelerate", "profile", "train"}) == {"evaluate", "accelerate", "profile"}


# What loads or builds what is not of this package; `foreign` alone may do so.
LOADER = re.compile(
    r"Auto(Config|Model\w*|Tokenizer|Processor|ImageProcessor|FeatureExtractor|VideoProcessor|Backbone)"
)


def foreign_loads(source: str) -> list[str]:
    """Uses of a loader of Transformers, and of its lists of classes by name; registering a class is none."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name), attr=attr) if LOADER.fullmatch(name):
                found += [] if attr == "register" else [ast.unparse(node)]
            case ast.Call(func=ast.Name(id="getattr"), args=[ast.Name(id="transformers"), *_]):
                found.append(ast.unparse(node))
            case ast.Call(
                func=ast.Name(id="pipeline") | ast.Attribute(value=ast.Name(id="transformers"), attr="pipeline")
            ):
                found.append(ast.unparse(node))
            case ast.Subscript(value=ast.Name(id="CONFIG_MAPPING")):
                found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize(
    "source",
    [
        "from transformers import AutoModel\nAutoModel.from_config(config)",
        "import transformers\ntransformers.AutoTokenizer.from_pretrained(place)",
        "import transformers\ngetattr(transformers, name)",
        "CONFIG_MAPPING[kind]",
        "from transformers import AutoModelForSeq2SeqLM\nload = AutoModelForSeq2SeqLM.from_pretrained",
    ],
)
def test_a_loader_of_transformers_is_found(source: str) -> None:
    assert foreign_loads(source)
    assert not foreign_loads("from transformers import AutoModel\nAutoModel.register(config, model)")


def test_one_module_loads_what_is_not_of_the_package() -> None:
    paths = [path for path in (*FLAT, *SUBPACKAGES) if path.stem != "foreign"]
    assert {path.name: found for path in paths if (found := foreign_loads(path.read_text("utf-8")))} == {}
    assert foreign_loads((INIT.parent / "foreign.py").read_text("utf-8"))
