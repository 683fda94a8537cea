"""What every test runs under: no network, one thread, a cache of its own, the same random draws each time."""

import gc
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

# All of this is read when the libraries are first imported, here or in a script that a test starts.
_cache = tempfile.TemporaryDirectory(prefix="hf_multisource-tests-")
os.environ.update(
    HF_HOME=_cache.name,
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    HF_EVALUATE_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    OMP_NUM_THREADS="1",  # the tensors are tiny: more threads only wait for one another
    # Without the matrix units of some CPUs (AMX), on which training rounds float32 products to bfloat16.
    ONEDNN_MAX_CPU_ISA="AVX512_CORE_FP16",
)
# Scripts that tests start see the package that the tests see; `make test` has set this to the wheel already.
os.environ.setdefault("PYTHONPATH", str(Path(__file__).resolve().parents[1]))

import hypothesis  # noqa: E402
import pytest  # noqa: E402

from features import Features, keep_collected  # noqa: E402
from pairs import mark_others_slow  # noqa: E402

if find_spec("torchvision") is not None:  # in the environment of the tests of timm
    import cure.sitecustomize

    # The cure of torchvision works here from now on, and in scripts because they find it.
    _cure = str(Path(cure.sitecustomize.__file__).parent)
    if _cure not in os.environ["PYTHONPATH"].split(os.pathsep):
        os.environ["PYTHONPATH"] += os.pathsep + _cure

# No deadline: the first call pays for imports and warm-up. `--hypothesis-profile thorough` tries more examples.
for _name, _examples in {"tests": 8, "thorough": 200}.items():
    hypothesis.settings.register_profile(_name, deadline=None, derandomize=True, database=None, max_examples=_examples)
hypothesis.settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--compatibility", type=Path, help="write the page of supported features to this file")


def pytest_configure(config: pytest.Config) -> None:
    page = config.getoption("--compatibility")
    if page is not None:
        config.pluginmanager.register(Features(None if hasattr(config, "workerinput") else page))


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    keep_collected(config, items)
    mark_others_slow(items)


def pytest_collection_finish() -> None:
    gc.freeze()  # what all imports have made stays: collections need not look at it, those of each Trainer among them
