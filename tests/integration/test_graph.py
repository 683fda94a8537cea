"""`hf-multisource graph`: a toy graph as a whole, killed and continued; and graphs that are refused."""

from __future__ import annotations

import copy
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from hf_multisource.cli import graph as graph_command
from hf_multisource.cli.command import Terminated, terminable
from hf_multisource.evaluation.graph_engine import Engine, run_program
from hf_multisource.evaluation.graph_stages import duration, stages_of
from hf_multisource.recipes.graph import load_graph
from hf_multisource.recipes.recipe import load_recipe
from runs import files_of, read_json, write_lines
from toy_graph import make_toy_graph, toy_graph, write_graph
from warm import request, start_server, write_client

PAGE = Path(__file__).resolve().parents[2] / "docs" / "graph.md"
STAGES = 9  # of the toy graph
COMMAND = "import sys; from hf_multisource.cli.app import main; main(sys.argv[1:])"
# In place of a graph's process: the engine looks for programs beside the interpreter, and finds the one of `programs`.
GRAPH = "import sys; sys.executable = sys.argv.pop(1); from hf_multisource.cli.graph import main; main(sys.argv[1:])"
# What the commands of a graph import.
COMMANDS = ("hf_multisource.cli.app", "hf_multisource.recipes.run_trainer", "transformers.models.auto.modeling_auto")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program `hf-multisource` that starts within a moment, as its imports have been made."""
    folder = tmp_path_factory.mktemp("programs")
    write_client(folder / "hf-multisource", start_server(*COMMANDS), COMMAND)
    return folder


def run_warm(folder: Path, programs: Path) -> str:
    """Run the graph of a folder to its end and return its output. Its commands are forks of one server process."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # of DVC
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PATH": path}
    with tempfile.TemporaryFile("w+") as output, open(os.devnull) as nothing:
        files = (nothing.fileno(), output.fileno(), output.fileno())
        arguments = [str(programs / "python"), "graph.yaml"]
        status = request(start_server(*COMMANDS), GRAPH, arguments, str(folder), environment, files)
        output.seek(0)
        said = output.read()
    assert status == 0, said
    return said


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    """Start the graph of a folder in a session of its own, whose processes can be killed together."""
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, "graph", "graph.yaml", *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def finish(folder: Path, *options: str) -> str:
    """Run the graph of a folder to its end; what it prints."""
    process = start(folder, *options)
    said, _ = process.communicate(timeout=900)
    assert process.returncode == 0, said
    return said


def scores_of(folder: Path) -> Any:
    """All scores and hypotheses of the last step, without what was measured in seconds."""

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: timeless(one) for key, one in value.items() if "second" not in key and key != "date"}
        return [timeless(one) for one in value] if isinstance(value, list) else value

    result = folder / "work" / "result"
    texts = {path.name: path.read_text() for path in result.glob("*.txt")}
    return timeless(read_json(result / "test.json")["conditions"]), texts


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> tuple[Path, float, str]:
    """The folder of a graph that has run without interruption, the seconds it took, and what it printed."""
    folder = tmp_path_factory.mktemp("graph")
    make_toy_graph(folder)
    began = time.monotonic()
    said = run_warm(folder, programs)
    return folder, time.monotonic() - began, said


def call(folder: Path, *options: str) -> None:
    """Call the command in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        graph_command.main(["graph.yaml", *options])


def test_the_toy_graph_runs_from_the_first_model_to_the_scores_of_the_last(
    finished: tuple[Path, float, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _, _ = finished
    work = folder / "work"
    scores, texts = scores_of(folder)
    assert set(scores) == {"all", "absent-scarce", "absent-rich"} and len(texts["test.all.txt"].splitlines()) == 8
    synthetic = read_json(work / "crossed" / "train.rich.json")
    assert synthetic["synthetic"] is True and synthetic["settings"]["do_sample"] is True
    lines = {path.name: path.read_text().count("\n") for path in (work / "crossed").glob("train.???*[!n]")}
    assert len(set(lines.values())) == 1 and {"train.scarce", "train.rich", "train.target"} == set(lines)
    tagged = read_json(work / "both" / "tokenizer.json")["added_tokens"]
    assert "<BT>" in {token["content"] for token in tagged}
    call(folder, "--dry_run")
    said = capsys.readouterr().out
    states = re.findall(r"^\| (\S+) .*\| (\S+(?: \S+)?) +\|$", said, re.MULTILINE)
    assert {name for name, state in states if state == "done"} == set(toy_graph()["steps"]) - {"all"} | {
        "bridge-guarded",
        "crossed-guarded",
    }
    assert "time that is left: 0 s" in said


def test_a_finished_graph_runs_nothing_again(finished: tuple[Path, float, str], programs: Path) -> None:
    folder, _, first = finished
    (folder / "work" / "both" / "scores").mkdir()  # where `score`, called by hand, writes, and `calibrate`
    (folder / "work" / "both" / "confidence.json").write_text("{}")
    (folder / "work" / "both" / "scores" / "test.json").write_text("{}")
    before = {path: content for path, content in files_of(folder / "work").items() if not path.startswith(".dvc")}
    again = run_warm(folder, programs)
    assert first.count("Running stage") == STAGES and "Running stage" not in again
    assert before == {path: one for path, one in files_of(folder / "work").items() if not path.startswith(".dvc")}


@pytest.mark.slow
@pytest.mark.parametrize("kills", [2, 10])
def test_a_graph_that_is_killed_at_random_moments_arrives_at_the_same_scores(
    kills: int, finished: tuple[Path, float, str], tmp_path: Path
) -> None:
    reference, seconds, _ = finished
    make_toy_graph(tmp_path)
    rng, killed = random.Random(kills), 0
    for _ in range(kills):
        process = start(tmp_path)
        assert process.stdout is not None
        begun, wanted = 0, rng.randint(0, STAGES // kills)
        for line in process.stdout if wanted else ():
            begun += "Running stage" in line
            if begun == wanted:
                break
        time.sleep(rng.uniform(0, seconds / STAGES))
        killed += process.poll() is None
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its children, too
        process.communicate()
    finish(tmp_path)
    assert killed >= kills / 2
    assert scores_of(tmp_path) == scores_of(reference)
    for name in ("clean", "crossed"):
        made = {path.name: path.read_bytes() for path in (tmp_path / "work" / name).glob("train.*[!n]")}
        assert made == {path.name: path.read_bytes() for path in (reference / "work" / name).glob("train.*[!n]")}


def change_input(folder: Path) -> None:
    path = folder / "pairs" / "train.scarce"
    write_lines(path, ["babi x", *path.read_text().splitlines()[1:]])


def change_output(folder: Path) -> None:
    with (folder / "work" / "clean" / "train.target").open("a") as file:
        file.write("more\n")


def change_option(folder: Path) -> None:
    graph = toy_graph()
    graph["steps"]["clean"]["options"] = {"max_words": 3}
    write_graph(folder, graph)


def change_recipe(folder: Path) -> None:
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    recipe["model"]["dropout"] = 0.5
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_input, r"steps\.clean: its input has changed since it was finished: .*train\.scarce \(modified\)"),
        (change_output, r"steps\.\w+: its (in|out)put has changed since it was finished: .*clean \(modified\)"),
        (change_option, r"steps\.clean has changed since it was finished: --max_words was 4, is 3\. Nothing was over"),
        (change_recipe, r"steps\.\w+: its input has changed since it was finished: .*recipe\.yaml \(modified\)"),
    ],
    ids=["input", "output", "option", "recipe"],
)
def test_a_finished_step_that_has_changed_is_named_and_nothing_is_overwritten(
    change: Callable[[Path], None], message: str, finished: tuple[Path, float, str], tmp_path: Path
) -> None:
    folder = shutil.copytree(finished[0], tmp_path / "copy")
    change(folder)
    before = {path: one for path, one in files_of(folder / "work").items() if not path.startswith((".dvc", ".graph"))}
    with pytest.raises(SystemExit, match=message):
        call(folder)
    after = {path: one for path, one in files_of(folder / "work").items() if not path.startswith((".dvc", ".graph"))}
    assert after == before


@pytest.mark.slow
def test_a_step_that_was_begun_with_other_settings_is_named_and_nothing_is_overwritten(
    finished: tuple[Path, float, str], tmp_path: Path
) -> None:
    folder = shutil.copytree(finished[0], tmp_path / "copy")
    lock = folder / "work" / "dvc.lock"
    stages = yaml.safe_load(lock.read_text())
    del stages["stages"]["crossed_dev"]  # as after a kill in this step
    lock.write_text(yaml.safe_dump(stages))
    graph = toy_graph()
    graph["steps"]["crossed_dev"]["options"] = {"num_beams": 3, "max_new_tokens": 12}
    write_graph(folder, graph)
    before = files_of(folder / "work" / "crossed_dev")
    process = start(folder, "--until", "crossed_dev")
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "crossed_dev/dev.rich was begun with other settings: num_beams was 2, is 3" in said
    assert "hf-multisource graph: a step failed" in said
    assert files_of(folder / "work" / "crossed_dev") == before


@pytest.mark.parametrize("stops", [True, False])
def test_an_interrupted_engine_leaves_no_program_running(tmp_path: Path, stops: bool) -> None:
    """`stops`: whether the grandchild ends at SIGTERM, or ignores it and is killed."""
    number = tmp_path / "number"
    grandchild = f"import os, signal, time; {'' if stops else 'signal.signal(signal.SIGTERM, signal.SIG_IGN); '}"
    grandchild += f"open({str(number)!r} + '.part', 'w').write(str(os.getpid())); "
    grandchild += f"os.rename({str(number)!r} + '.part', {str(number)!r}); time.sleep(600)"
    words = ["sh", "-c", f"{shlex.quote(sys.executable)} -c {shlex.quote(grandchild)}; true"]

    def interrupt() -> None:
        while not number.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    with terminable(), pytest.raises(Terminated):
        threading.Thread(target=interrupt).start()
        run_program(words, grace=0.1, patience=30 if stops else 0.5)
    left = int(number.read_text())  # a zombie, as long as no process has asked for its status
    assert not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE


# What is refused before anything runs.


def changed(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change of one key of a graph; None deletes it."""

    def change(graph: dict[str, Any]) -> None:
        *above, last = path.split(".")
        for key in above:
            graph = graph[key]
        if value is None:
            del graph[last]
        else:
            graph[last] = value

    return change


BAD = {
    "cycle": (changed("steps.clean.prepare", "crossed"), r"steps form a cycle: .*clean.*crossed|.*crossed.*clean"),
    "missing folder": (
        changed("corpora.pairs.path", "nowhere"),
        "corpora.pairs: missing corpus: there is no folder now",
    ),
    "missing split": (changed("corpora.pairs.split", "web"), "'pairs'.*web"),
    "missing name": (changed("steps.clean.prepare", "paris"), "steps.clean: there is no corpus, set or step 'paris'"),
    "language": (
        changed("corpora.pairs.languages", ["scarce", "xx"]),
        "unknown language 'xx'; languages: scarce, rich",
    ),
    "language of a step": (changed("steps.both.target", "xx"), "steps.both.target: unknown language 'xx'"),
    "kind": (changed("steps.clean", {"prepair": "pairs"}), "needs one key that says what .* it has prepair"),
    "key": (changed("steps.crossed.inot", "rich"), "steps.crossed: unknown key 'inot'; allowed: translate, by, into"),
    "section": (changed("corpuses", {}), "the file: unknown key 'corpuses'"),
    "no key": (changed("steps.crossed.into", None), "steps.crossed: the key 'into' is missing"),
    "option": (
        changed("steps.crossed.options", {"beams": 2}),
        "steps.crossed.options: unknown option 'beams' of trans",
    ),
    "value": (changed("steps.clean.options", {"max_words": "x"}), "steps.clean.options: --max_words must be a whole"),
    "given option": (changed("steps.clean.options", {"out": "x"}), "steps.clean.options: 'out' is set by the graph"),
    "given key": (
        changed("steps.both.options", {"sources": ["x"]}),
        "steps.both.options: 'sources' is set by the graph",
    ),
    "given full key": (
        changed("steps.both.options", {"data.sources": ["x"]}),
        "steps.both.options: 'data.sources' is set by the graph",
    ),
    "given folder": (
        changed("steps.both.options", {"output_dir": "x"}),
        "steps.both.options: 'output_dir' is set by the graph",
    ),
    "recipe key": (changed("steps.both.options", {"max_stepz": 2}), r"steps\.both: .*max_stepz"),
    "recipe": (changed("steps.both.train", "no.yaml"), r"steps\.both: .*no\.yaml"),
    "train on a set": (changed("steps.both.on", "crossed_dev"), "'crossed_dev' is a held-out set or is made of one"),
    "score on a corpus": (changed("steps.result.on", "pairs"), "'pairs' is no held-out set"),
    "score of no model": (changed("steps.result.score", "clean"), "'clean' is no step of kind train"),
    "other direction": (changed("steps.crossed.into", "target"), "'to_rich' translates into 'rich', not 'target'"),
    "column there": (changed("steps.crossed.translate", "bridge"), "'bridge' has 'rich' already"),
    "set lacks a source": (changed("steps.both.dev", "dev"), "steps.both.dev: 'dev' lacks 'rich'"),
    "two names": (changed("steps.pairs", {"prepare": "bridge"}), "steps.pairs: the name 'pairs' is given twice"),
    "weight": (changed("steps.all.mix", [{"corpus": "clean", "weight": -1}]), r"steps\.both: .*weight"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_graph_is_refused_by_name_and_writes_nothing(case: str, tmp_path: Path) -> None:
    change, message = BAD[case]
    graph = copy.deepcopy(toy_graph())
    change(graph)
    make_toy_graph(tmp_path, graph)
    before = files_of(tmp_path)
    with pytest.raises(SystemExit, match=f"hf-multisource graph: .*{message}"):
        call(tmp_path)
    assert files_of(tmp_path) == before


def test_unequal_line_counts_are_named(tmp_path: Path) -> None:
    make_toy_graph(tmp_path)
    with (tmp_path / "pairs" / "train.target").open("a") as file:
        file.write("one more\n")
    with pytest.raises(SystemExit, match=r"corpus 'pairs': .*train\.scarce has 30 lines, train\.target has 31 lines"):
        call(tmp_path, "--dry_run")


def test_a_held_out_set_inside_a_corpus_is_named(tmp_path: Path) -> None:
    make_toy_graph(tmp_path)
    for language in ("scarce", "target"):
        with (tmp_path / "pairs" / f"train.{language}").open("a") as file:
            file.write((tmp_path / "sets" / f"test.{language}").read_text())
    with pytest.raises(SystemExit, match="the held-out set 'test' is inside the corpus 'pairs': all of its rows"):
        call(tmp_path)
    graph = toy_graph()
    graph["held_out"]["test"] = {**graph["corpora"]["pairs"], "split": "train"}
    write_graph(tmp_path, graph)
    with pytest.raises(SystemExit, match="the held-out set 'test' is the corpus 'pairs': pairs"):
        call(tmp_path)
    assert not (tmp_path / "work").exists()


def test_every_corpus_that_a_training_reads_is_guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stages = stages_of(load_graph(make_toy_graph(tmp_path)))
    for name, corpora in (("to_rich", {"bridge-guarded"}), ("both", {"clean", "crossed-guarded"})):
        (words,) = stages[name].commands
        mixed = json.loads(words[words.index("--data.train") + 1])
        assert {entry["path"] for entry in mixed} == {f"work/{corpus}" for corpus in corpora}
        for corpus in corpora:
            prepared = stages[corpus].commands[-1]
            places = prepared[prepared.index("--held_out") + 1 : prepared.index("--out")]
            assert set(places) == {"sets:dev", "sets:test"}


COUNTS = json.dumps({"data": "pairs", "split": "train", "languages": ["scarce", "target"]})


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("clean", {"train.scarce": "mine"}),
        ("crossed", {"train.scarce": "mine"}),
        ("clean", {"train.scarce": "mine", "counts.json": COUNTS.replace("pairs", "others")}),
        ("clean", {"train.scarce": "mine", "counts.json": COUNTS, "notes.txt": "mine"}),
        ("crossed", {"train.scarce": "mine", "notes.json": "{}"}),
    ],
)
def test_a_folder_that_no_step_has_made_is_refused(name: str, files: dict[str, str], tmp_path: Path) -> None:
    make_toy_graph(tmp_path)
    (tmp_path / "work" / name).mkdir(parents=True)
    for file, content in files.items():
        (tmp_path / "work" / name / file).write_text(content)
    before = files_of(tmp_path)
    with pytest.raises(SystemExit, match=rf"steps\.{name}: work/{name} exists, but was not written by this step"):
        call(tmp_path)
    assert files_of(tmp_path) == before


def test_a_folder_that_a_killed_step_has_left_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill before DVC notes that `prepare` has finished, and one before `translate` notes its settings."""
    monkeypatch.chdir(tmp_path)
    stages = stages_of(load_graph(make_toy_graph(tmp_path)))
    Path("work/clean").mkdir(parents=True)
    Path("work/clean/counts.json").write_text(COUNTS)
    Path("work/clean/train.target").write_text("one\n")
    Path("work/crossed/train.rich.parts").mkdir(parents=True)
    Engine(Path("work"), stages).check_foreign()


def test_a_training_reads_its_tokenizer_and_a_translation_its_shortlist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    graph = toy_graph()
    graph["steps"]["to_rich"]["options"] = {"max_steps": 4, "load": "tokenizers/rich"}
    for name in ("crossed_dev", "result"):
        graph["steps"][name]["options"] = {"num_beams": 2, "shortlist": "words.txt"}
    make_toy_graph(tmp_path, graph)
    with pytest.raises(SystemExit, match=r"steps\.to_rich: tokenizer\.load must .*'tokenizers/rich': there is no such"):
        call(tmp_path, "--dry_run")
    write_lines(tmp_path / "words.txt", ["bado"])
    (tmp_path / "tokenizers/rich").mkdir(parents=True)
    (tmp_path / "tokenizers/rich/tokenizer_config.json").write_text("{}")
    stages = stages_of(load_graph("graph.yaml"))
    assert "tokenizers/rich" in stages["to_rich"].reads and "tokenizers/rich" not in stages["both"].reads
    assert [name for name, stage in stages.items() if "words.txt" in stage.reads] == ["crossed_dev", "result"]
    (tmp_path / "words.txt").unlink()
    with pytest.raises(
        SystemExit, match=r"steps\.crossed_dev: options: shortlist is 'words.txt', and there is no such"
    ):
        call(tmp_path, "--dry_run")


def with_options(options: dict[str, Any]) -> dict[str, Any]:
    """The toy graph with further keys of the recipe of its last model."""
    graph = toy_graph()
    graph["steps"]["both"]["options"] = {**graph["steps"]["both"]["options"], **options}
    return graph


def test_a_training_reads_its_initial_model_which_is_checked_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_toy_graph(tmp_path, with_options({"init_from": "models/first"}))
    with pytest.raises(SystemExit, match=r"steps\.both: model\.init_from: models/first is no folder of a model"):
        call(tmp_path, "--dry_run")
    sizes = {"sources": ["scarce"], "target": "target"}
    load_recipe("recipe.yaml", {**sizes, "d_model": 32}).draft_config().save_pretrained("models/first")
    with pytest.raises(
        SystemExit, match=r"steps\.both: model\.init_from is 'models/first': .* x 16 in this model, and "
    ):
        call(tmp_path, "--dry_run")
    load_recipe("recipe.yaml", sizes).draft_config().save_pretrained("models/first")
    stages = stages_of(load_graph("graph.yaml"))
    assert "models/first" in stages["both"].reads and "models/first" not in stages["to_rich"].reads


@pytest.mark.parametrize(
    "folder", ["work/to_rich", os.path.join(os.curdir, "work", "to_rich"), "work/to_rich/checkpoint-4"]
)
@pytest.mark.parametrize("key", ["init_from", "load"])
def test_a_training_from_the_model_of_another_step_runs_after_it(
    key: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (folder, str(Path(folder).absolute())):
        make_toy_graph(tmp_path, with_options({key: name}))
        assert "work/to_rich" in stages_of(load_graph("graph.yaml"))["both"].reads
    make_toy_graph(tmp_path, with_options({key: "work/to_richer"}))
    with pytest.raises(ValueError, match=r"steps\.both: .*work/to_richer"):
        stages_of(load_graph("graph.yaml"))


def test_a_training_may_set_the_encoders_of_its_sources_and_reads_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("encoders/rich").mkdir(parents=True)
    places = {"scarce": "organization/encoder", "rich": "encoders/rich"}
    entries = [{"name": name, "kind": "pretrained", "encoder": place} for name, place in places.items()]
    make_toy_graph(tmp_path, with_options({"model.sources": entries}))
    stage = stages_of(load_graph("graph.yaml"))["both"]
    (words,) = stage.commands
    assert json.loads(words[words.index("--model.sources") + 1]) == entries
    assert "encoders/rich" in stage.reads and "organization/encoder" not in stage.reads


def test_a_set_whose_texts_are_in_other_languages_is_inside_no_corpus(tmp_path: Path) -> None:
    graph = toy_graph()
    graph["held_out"]["bridge_dev"]["path"] = "empty"
    make_toy_graph(tmp_path, graph)
    (tmp_path / "empty").mkdir()
    write_lines(tmp_path / "empty/dev.scarce", ["ba", "do"])
    write_lines(tmp_path / "empty/dev.rich", ["", ""])
    graph["corpora"]["alone"] = {"path": "alone", "languages": ["rich"]}
    (tmp_path / "alone").mkdir()
    write_lines(tmp_path / "alone/train.rich", ["bado", "", "bado"])
    write_graph(tmp_path, graph)
    call(tmp_path, "--dry_run")


def test_an_unknown_step_after_until_and_a_missing_engine_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_toy_graph(tmp_path)
    with pytest.raises(SystemExit, match=r"--until x: there is no such step; steps that run: .*clean"):
        call(tmp_path, "--until", "x")
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(SystemExit, match=r'DVC, which is not installed: run pip install "\.\[graph\]" in a clone'):
        call(tmp_path)


def test_a_dry_run_lists_rows_and_unknown_times_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_toy_graph(tmp_path)
    before = files_of(tmp_path)
    call(tmp_path, "--dry_run")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines()]
    assert ["pairs", "scarce, target", "train", "30"] in cells
    assert ["crossed_test", "translate", "test, to_rich", "8", "unknown", "to do"] in cells
    assert ["both", "train", "all, crossed_dev", "at most 90", "unknown", "to do"] in cells
    assert ["time that is left: unknown"] in cells
    assert files_of(tmp_path) == before


def test_times_come_from_the_rates_of_finished_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_toy_graph(tmp_path, toy_graph(steps=300))
    (tmp_path / "work" / "to_rich").mkdir(parents=True)
    (tmp_path / "work" / "to_rich" / "train_summary.json").write_text('{"updates": 100, "seconds": 50.0}')
    (tmp_path / "work" / "crossed_dev").mkdir()
    record = {"sha256": "x", "counts": {"rows": 4}, "seconds": 4.0, "processes": 2}
    (tmp_path / "work" / "crossed_dev" / "dev.rich.json").write_text(json.dumps(record))
    call(tmp_path, "--dry_run")
    rows = {line.split("|")[1].strip(): line for line in capsys.readouterr().out.splitlines() if line[:1] == "|"}
    assert "| 2 min " in rows["both"] and "| 4 s " in rows["crossed_test"], "150 s, and 8 rows at 2 rows a second"


def test_all_trainings_of_a_graph_have_the_given_seed_and_a_folder_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_toy_graph(tmp_path)
    monkeypatch.chdir(tmp_path)
    plain, seeded = stages_of(load_graph("graph.yaml")), stages_of(load_graph("graph.yaml", seed=7))
    assert list(plain) == list(seeded)
    for name, stage in seeded.items():
        assert stage.folder == str(Path("work/seed-7") / name) and plain[name].folder == str(Path("work") / name)
        words = [*stage.commands[-1]]
        if stage.step.kind == "train":
            assert words[words.index("--seed") + 1] == "7" and "--seed" not in plain[name].commands[-1]
        else:
            assert words == [word.replace("work", "work/seed-7") for word in plain[name].commands[-1]]

    graph = toy_graph()
    graph["steps"]["both"]["options"] = {"training.seed": 1}
    write_graph(tmp_path, graph)
    with pytest.raises(SystemExit, match=r"steps\.both\.options: 'training.seed' is set, so --seed 7 cannot be given"):
        call(tmp_path, "--dry_run", "--seed", "7")
    with pytest.raises(SystemExit, match="seed is -1; it must be at least 0"):
        call(tmp_path, "--dry_run", "--seed", "-1")


def test_a_graph_is_drawn_for_mermaid_and_for_graphviz(tmp_path: Path) -> None:
    make_toy_graph(tmp_path)
    call(tmp_path, "--draw", "graph.mmd")
    call(tmp_path, "--draw", "graph.dot")
    mermaid, dot = ((tmp_path / f"graph.{end}").read_text() for end in ("mmd", "dot"))
    assert mermaid.startswith("flowchart TD\n") and dot.startswith("digraph {\n")
    names = dict(re.findall(r'(n\d+)[\[(]+"([\w-]+)<br/>', mermaid))
    edges = {(names[one], names[other]) for one, other in re.findall(r"(n\d+) --> (n\d+)", mermaid)}
    assert edges == set(re.findall(r'"([\w-]+)" -> "([\w-]+)"', dot))
    assert {("pairs", "clean"), ("crossed", "crossed-guarded"), ("crossed-guarded", "all"), ("all", "both")} <= edges
    assert not (tmp_path / "work").exists()


def test_launchers_stand_in_front_of_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    graph = toy_graph()
    graph["steps"]["crossed"]["launch"] = "accelerate launch --num_processes 2"
    graph["steps"]["both"]["launch"] = "srun --gres=gpu:1"
    stages = stages_of(load_graph(make_toy_graph(tmp_path, graph)))
    begin = ("accelerate", "launch", "--num_processes", "2", "-m", "hf_multisource.cli.translate", "work/to_rich")
    assert stages["crossed"].commands[0][: len(begin)] == begin
    assert stages["both"].commands[-1][:4] == ("srun", "--gres=gpu:1", "hf-multisource", "train")


def test_the_graph_of_the_page_is_whole_and_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```text\n(work:.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block.count("\n") < 100
    make_toy_graph(tmp_path)
    (tmp_path / "recipe.yaml").rename("my_recipe.yaml")
    (tmp_path / "graph.yaml").write_text(block, encoding="utf-8")
    for name, columns in {
        "kk_en": "kk en",
        "ru_en": "ru en",
        "kk_ru": "kk ru",
        "news": "en",
        "sets": "kk ru en",
    }.items():
        for split in ("train", "dev", "test"):
            for column in columns.split():
                (tmp_path / "data" / name).mkdir(parents=True, exist_ok=True)
                write_lines(tmp_path / "data" / name / f"{split}.{column}", [f"{name} {split} {column}"])
    call(tmp_path, "--dry_run")
    stages = stages_of(load_graph("graph.yaml"))
    assert {"kk_ru-guarded", "scarce_both-guarded", "back_both-guarded"} <= stages.keys()
    (words,) = stages["kk_ru_en"].commands
    tags = [entry.get("tag", {}) for entry in json.loads(words[words.index("--data.train") + 1])]
    assert tags == [{}, {"kk": "<BT>"}, {"kk": "<BT>"}], "the Russian is synthetic in the test set, too, without a tag"


def test_durations_in_words() -> None:
    assert [duration(seconds) for seconds in (4.2, 61, 3600 * 2 + 300)] == ["4 s", "1 min", "2 h 05 min"]
