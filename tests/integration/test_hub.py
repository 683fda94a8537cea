"""Checkpoints carry their code: a process without the package loads them, from a folder or over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoProcessor

from builders import (
    LSTM,
    NAMES,
    PAPER_COMBINERS,
    TEXTS,
    one_by_default,
    three_source_model,
    three_source_processor,
)
from fresh import run_fresh
from hf_multisource import (
    COMBINERS,
    MultiSourceConfig,
    MultiSourceForConditionalGeneration,
    MultiSourceModel,
    MultiSourceProcessor,
)
from hub_stub import HubStub

BEAMS = (1, 4)
each_combiner = pytest.mark.parametrize("combiner", [*one_by_default("hierarchical"), LSTM])
PUSH = Path(__file__).resolve().parents[2] / "training" / "push.py"

LOAD = """
import torch
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoProcessor, pipeline

answer = {}
for place in places:
    trust = {"trust_remote_code": True}
    loaders = (AutoConfig, AutoModelForSeq2SeqLM, AutoModel, AutoProcessor)
    config, model, bare, processor = (loader.from_pretrained(place, **trust) for loader in loaders)
    pipe = pipeline("multisource-to-text", model=place, device="cpu", **trust)
    names = config.source_names
    batch = processor(**{n: [example.get(n) for example in examples] for n in names}, return_tensors="pt")
    try:
        pipe([*examples, {}])
    except ValueError as error:
        refusal = str(error)
    answer[place] = {"refusal": refusal}
    answer[place] |= {"classes": [type(x).__module__ for x in (config, model, bare, processor, pipe)]}
    with torch.no_grad():
        answer[place]["states"] = bare(**batch, decoder_input_ids=torch.tensor([[2, 5]] * 5))[0].tolist()
    for beams in (1, 4):
        search = {"num_beams": beams, "max_new_tokens": 8}
        answer[place][f"ids {beams}"] = model.generate(**batch, **search).tolist()
        answer[place][f"texts {beams}"] = [x[0]["generated_text"] for x in pipe(examples, batch_size=3, **search)]
    if again:
        pipe.save_pretrained(place + again)
"""


@pytest.fixture(scope="module")
def processor() -> MultiSourceProcessor:
    return three_source_processor()


@pytest.fixture(scope="module")
def tested(request: pytest.FixtureRequest) -> list[str]:
    """The combiners that are parameters of the tests of this file in this run, and `LSTM`."""
    items = [item for item in request.session.items if item.path == request.path]
    calls = [getattr(item, "callspec", None) for item in items]
    found = {call.params.get("combiner") for call in calls if call is not None}
    return [name for name in (*COMBINERS, LSTM) if name in found]


@pytest.fixture(scope="module")
def models(processor: MultiSourceProcessor, tested: list[str]) -> dict[str, Any]:
    """One model of each combiner that is tested in this run, and of each of the paper."""
    names = dict.fromkeys([*PAPER_COMBINERS, *tested])
    return {name: three_source_model(name, vocab_size=len(processor.tokenizer)) for name in names}


@pytest.fixture(scope="module")
def folders(
    models: dict[str, Any], processor: MultiSourceProcessor, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Where they are saved, by nothing but `save_pretrained`."""
    folders = {}
    for name, model in models.items():
        folders[name] = str(tmp_path_factory.mktemp(name))
        model.save_pretrained(folders[name])
        processor.save_pretrained(folders[name])
    return folders


@pytest.fixture(scope="module")
def second(folders: dict[str, str], tested: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process without the package makes of the folders that are tested; it saves each again."""
    places = [folders[name] for name in tested]
    return run_fresh(LOAD, tmp_path_factory.mktemp("home"), places=places, examples=TEXTS, again="-again")


@pytest.fixture(scope="module")
def third(second: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What another one makes of what the first one saved."""
    places = [f"{place}-again" for place in second]
    return run_fresh(LOAD, tmp_path_factory.mktemp("home"), places=places, examples=TEXTS, again="")


@each_combiner
def test_such_a_process_numbers_the_examples_in_errors(
    combiner: str, folders: dict[str, str], second: dict[str, Any]
) -> None:
    refusal = second[folders[combiner]]["refusal"]
    assert refusal.startswith(f"example {len(TEXTS)} has no source at all"), refusal


def expected_ids(model: Any, processor: MultiSourceProcessor, num_beams: int) -> Any:
    """What the package generates."""
    columns = {name: [example.get(name) for example in TEXTS] for name in NAMES}
    batch = processor(**columns, return_tensors="pt")  # type: ignore[arg-type]
    return model.generate(**batch, num_beams=num_beams, max_new_tokens=8)


@pytest.mark.feature("Hub", "Remote code: AutoModelForSeq2SeqLM and AutoProcessor without the package")
@pytest.mark.parametrize("num_beams", BEAMS)
@each_combiner
def test_a_process_without_the_package_generates_the_same_ids(
    combiner: str,
    num_beams: int,
    models: dict[str, Any],
    processor: MultiSourceProcessor,
    folders: dict[str, str],
    second: dict[str, Any],
) -> None:
    found = second[folders[combiner]]
    assert found[f"ids {num_beams}"] == expected_ids(models[combiner], processor, num_beams).tolist()
    assert all(module.startswith("transformers_modules.") for module in found["classes"])


@pytest.mark.feature("Hub", "Remote code: pipeline without the package")
@pytest.mark.parametrize("num_beams", BEAMS)
@each_combiner
def test_a_process_without_the_package_has_the_pipeline(
    combiner: str,
    num_beams: int,
    models: dict[str, Any],
    processor: MultiSourceProcessor,
    folders: dict[str, str],
    second: dict[str, Any],
) -> None:
    ids = expected_ids(models[combiner], processor, num_beams)
    texts = processor.batch_decode(ids, skip_special_tokens=True)
    assert any(texts)
    assert second[folders[combiner]][f"texts {num_beams}"] == texts


@pytest.mark.feature("Hub", "Remote code: AutoModel, the model without a head")
@each_combiner
def test_the_bare_model_is_loaded_from_the_same_checkpoint(
    combiner: str,
    models: dict[str, Any],
    processor: MultiSourceProcessor,
    folders: dict[str, str],
    second: dict[str, Any],
) -> None:
    columns = {name: [example.get(name) for example in TEXTS] for name in NAMES}
    batch = processor(**columns, return_tensors="pt")  # type: ignore[arg-type]
    with torch.no_grad():
        states = models[combiner].model(**batch, decoder_input_ids=torch.tensor([[2, 5]] * 5))[0]
    torch.testing.assert_close(torch.tensor(second[folders[combiner]]["states"]), states)


@pytest.mark.feature("Hub", "Remote code: what was loaded without the package is saved with its code")
@each_combiner
def test_what_such_a_process_saves_is_loaded_by_another(
    combiner: str, folders: dict[str, str], second: dict[str, Any], third: dict[str, Any]
) -> None:
    before, after = second[folders[combiner]], third[f"{folders[combiner]}-again"]
    assert {**before, "classes": None} == {**after, "classes": None}


@pytest.mark.feature("Hub", "No code is run without trust_remote_code")
def test_without_the_flag_nothing_is_loaded_and_no_code_is_run(folders: dict[str, str], tmp_path: Path) -> None:
    place = Path(folders["serial"])
    code = """
import sys
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoProcessor, pipeline

answer = []
for load in (
    AutoConfig.from_pretrained,
    AutoModel.from_pretrained,
    AutoModelForSeq2SeqLM.from_pretrained,
    AutoProcessor.from_pretrained,
    lambda place: pipeline("multisource-to-text", model=place),
):
    try:
        load(place)
    except ValueError as error:
        answer.append(str(error))
answer.append([name for name in sys.modules if name.startswith("transformers_modules")])
"""
    *errors, modules = run_fresh(code, tmp_path, place=place)
    assert len(errors) == 5
    assert all("contains custom code" in error and "trust_remote_code=True" in error for error in errors)
    assert modules == []
    assert not list(tmp_path.rglob("*multisource*.py"))


@pytest.mark.feature("Hub", "Where the package is imported, its own classes are used")
def test_where_the_package_is_imported_its_own_classes_are_used(folders: dict[str, str]) -> None:
    place = folders["serial"]
    loaded = [
        AutoConfig.from_pretrained(place),
        AutoModel.from_pretrained(place),
        AutoModelForSeq2SeqLM.from_pretrained(place),
        AutoProcessor.from_pretrained(place),
        AutoModelForSeq2SeqLM.from_pretrained(place, trust_remote_code=True),
    ]
    package = [
        MultiSourceConfig,
        MultiSourceModel,
        MultiSourceForConditionalGeneration,
        MultiSourceProcessor,
        MultiSourceForConditionalGeneration,
    ]
    assert [type(x) for x in loaded] == package


def test_saving_leaves_a_configuration_that_can_be_saved_again(models: dict[str, Any], tmp_path: Path) -> None:
    models["serial"].save_pretrained(tmp_path / "first")
    models["serial"].save_pretrained(tmp_path / "second")
    first, second = ((tmp_path / name / "config.json").read_text() for name in ("first", "second"))
    assert first == second


class Derived(MultiSourceForConditionalGeneration):
    """A user's model."""


def test_a_users_own_model_is_not_passed_off_as_ours(models: dict[str, Any], tmp_path: Path) -> None:
    Derived(models["serial"].config).save_pretrained(tmp_path)
    auto_map = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    assert auto_map["AutoModelForSeq2SeqLM"].endswith(".Derived")


PUSHES = """
import runpy, sys, time
from hf_multisource import MultiSourceForConditionalGeneration, MultiSourceProcessor

time.sleep = lambda seconds: None  # the client waits between its attempts
sys.argv = [script, old, "me/model", "--push", "--private"]
model, processor = (kind.from_pretrained(new) for kind in (MultiSourceForConditionalGeneration, MultiSourceProcessor))
answer = []
for push in (
    lambda: runpy.run_path(script, run_name="__main__"),
    lambda: runpy.run_path(script, run_name="__main__"),
    lambda: model.push_to_hub("me/model"),
    lambda: model.push_to_hub("me/model"),
    lambda: processor.push_to_hub("me/model"),
):
    try:
        push()
    except (Exception, SystemExit) as error:
        answer.append(str(error))
    else:
        answer.append("")
"""


@pytest.mark.feature("Hub", "push_to_hub, `hf-multisource push`, and loading by repository id")
@pytest.mark.feature("Hub", "A push whose connection breaks publishes nothing; the next one completes it")
@pytest.mark.parametrize("combiner", one_by_default("serial"))
def test_push_and_pull_over_http(
    combiner: str, models: dict[str, Any], processor: MultiSourceProcessor, folders: dict[str, str], tmp_path: Path
) -> None:
    """Five pushes one after the other, of which the first breaks off at a large file and the third at the commit."""
    old, new = Path(folders["flat" if combiner != "flat" else "hierarchical"]), Path(folders[combiner])
    with HubStub(["upload", None, "commit", None, None]) as hub:
        environment = hub.environment(tmp_path / "pusher")
        errors = run_fresh(PUSHES, tmp_path, package=True, env=environment, script=PUSH, old=old, new=new)
        environment = hub.environment(tmp_path / "puller")
        pulled = run_fresh(LOAD, tmp_path, env=environment, places=["me/model"], examples=TEXTS, again="")

    assert [bool(error) for error in errors] == [True, False, True, False, False]
    assert errors[0].startswith("hf-multisource push: me/model: the upload broke off: ")
    assert set(hub.broken) == {"upload", "commit"}
    assert hub.unknown == []
    assert hub.private == {"me/model"}

    everything = {path.relative_to(old).as_posix() for path in old.rglob("*") if path.is_file()}
    card = {"README.md"}  # `push_to_hub` writes one where there is none
    assert [tree.keys() for tree in hub.before] == [set(), set(), everything, everything, everything | card]
    assert hub.before[2] == hub.before[3]
    assert hub.before[3]["model.safetensors"] == (old / "model.safetensors").read_bytes()
    assert hub.tree("me/model")["model.safetensors"] == (new / "model.safetensors").read_bytes()
    for num_beams in BEAMS:
        ids = expected_ids(models[combiner], processor, num_beams)
        assert pulled["me/model"][f"ids {num_beams}"] == ids.tolist()
