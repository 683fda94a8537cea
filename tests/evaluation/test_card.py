"""Model cards, of runs in whatever state and of the committed rows."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from transformers import AutoModelForSeq2SeqLM, ViTConfig

from hf_multisource import COMBINERS, MultiSourceForConditionalGeneration
from hf_multisource.cli import card, results, score, train
from hf_multisource.evaluation.results import RESULTS, make_row, pool_seeds, render
from hf_multisource.publishing.card import (
    CARDS,
    card_of_row,
    recipe_of_command,
    rows_of_models,
    strategy_text,
    subject_of_row,
    subject_of_run,
    write_card,
)
from hf_multisource.recipes.averaging import average_checkpoints
from hf_multisource.recipes.recipe import DataRecipe, Recipe, load_recipe
from hf_multisource.recipes.shipped import recorded_recipe
from scored import OPTIONS, figures, made_up_row, make_run

ROOT = Path(__file__).resolve().parents[2]
ROWS = rows_of_models(ROOT / RESULTS)
MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
SECTIONS = [
    *("How it combines its sources", "Use it", "Scores", "What each source is worth", "Data", "Training", "Limits"),
    "License",
]
COMMANDS = ["hf-multisource train demo --path texts"]
feature = pytest.mark.feature("Hub", "Model card")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", tmp_path)


def with_origin(run: Path, origin: str | None) -> None:
    path = run / "recipe.yaml"
    recipe = yaml.safe_load(path.read_text("utf-8"))
    recipe["data"]["origin"] = origin
    path.write_text(yaml.safe_dump(recipe), "utf-8")


def written(run: Path, *options: str) -> ModelCard:
    card.main([str(run), *options])
    return ModelCard.load(run / "README.md")


def made_up_card(tmp_path: Path, name: str = "x", **fields: Any) -> ModelCard:
    """The card of a committed row that was made up."""
    command = fields.pop("command", "python training/train.py training/configs/multi30k_en_de_fr_cs.yaml")
    row = made_up_row(name, fields.pop("sources", "en de"), table="multi30k", curve=[[100, 20.0]], **fields)
    row["commands"][0] = f"{command} --sources en de"
    path = tmp_path / "table" / "x.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(row))
    out = tmp_path / "card.md"
    card.main(["--row", str(path), "--out", str(out)])
    return ModelCard.load(out)


def headings(text: str) -> list[str]:
    """The headings of a card, as a reader of the rendered page sees them."""
    tokens = MARKDOWN.parse(text)
    inline = [after for token, after in pairwise(tokens) if token.type == "heading_open"]
    return ["".join(part.content for part in line.children or []) for line in inline]


def code(text: str, language: str) -> str:
    return "".join(re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL))


def test_a_row_of_several_seeds_shows_their_mean_and_each_of_them(tmp_path: Path) -> None:
    table = tmp_path / "texts"
    table.mkdir()
    one, other = (
        made_up_row("serial", "en de", table="texts", seed=seed, minutes=minutes, commands=COMMANDS, perplexity=2.0)
        for seed, minutes in ((1, 60.0), (2, 70.0))
    )
    other["scores"] = {"all": figures(28.0)}
    row = {**pool_seeds([one, other], "serial"), "table": "texts", "name": "serial"}
    (table / "serial.json").write_text(json.dumps(row), "utf-8")
    _, text = card_of_row(table / "serial.json")
    assert "| BLEU | 26.5 ± 2.1 | 25.0 | 28.0 |" in text and "| metric | score | seed 1 | seed 2 | signature |" in text
    assert "in 65.0 minutes on an abacus (2 threads), means over the seeds 1, 2;" in text
    assert "- Scores are means over 2 training runs with different seeds; another run may differ" in text
    assert "one seed" not in text


@feature
def test_a_scored_run_gives_a_card_that_the_hub_reads(run: Path) -> None:
    with_origin(run, "Some texts, https://huggingface.co/datasets/org/texts; for research only")
    (run / "versions.json").write_text('{"python": "3.11"}')
    score.main([str(run), *OPTIONS, "--absent", "--adversarial", "--draws", "1", "--attention-plot", "3"])
    found = written(run)
    row = make_row(run, "", "run")
    data = found.data.to_dict()
    assert data["language"] == ["en", "de", "cs"]
    assert (data["library_name"], data["pipeline_tag"]) == ("transformers", "translation")
    assert data["tags"] == ["multi-source", "serial"]
    assert (data["license"], data["license_name"]) == ("other", "terms-of-the-training-data")
    assert data["license_link"] == "https://huggingface.co/datasets/org/texts"
    assert data["datasets"] == ["org/texts"]
    assert data["metrics"] == ["bleu", "chrf"]
    assert data["model-index"][0]["name"] == "run"
    (result,) = data["model-index"][0]["results"]
    assert result["task"] == {"type": "translation"}
    assert result["dataset"] == {"name": "Some texts", "type": "org/texts", "split": "test"}
    assert {metric["type"]: metric["value"] for metric in result["metrics"]} == {
        metric: round(row["scores"]["all"][metric]["score"], 2) for metric in ("bleu", "chrf")
    }
    text = found.text
    for line in ("1. en\n2. de\n", "![Cross-attention", "(scores/test.attention-3.png)", "for research only.\n"):
        assert line in text
    assert "1,000 updates in 1.5 minutes on an abacus (1 threads), seed 7" in text
    assert "python training/train.py x.yaml\nhf-multisource score" in text
    assert "python 3.11, hf-multisource" in text
    for source in ("en", "de"):
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {source} ")]
        cells = [cell.strip() for cell in line.strip("|").split("|")][1:]
        scores = [row["scores"][f"{condition}-{source}"] for condition in ("absent", "wrong")]
        numbers = [entry[metric]["score"] for metric in ("bleu", "chrf") for entry in scores]
        assert [cell.split()[0] for cell in cells] == [f"{number:.1f}" for number in numbers]
        assert f"({numbers[2] - row['scores']['all']['chrf']['score']:+.1f})" in cells[2]
    assert "Unfinished" not in text
    assert "None" not in text


@pytest.mark.parametrize(("limit", "examples"), [(5, "the first 5 examples of"), (100, "")])
def test_a_card_of_the_first_examples_says_so(limit: int, examples: str, run: Path) -> None:
    score.main([str(run), *OPTIONS, "--limit", str(limit)])  # the split has 12
    found, row = written(run), make_row(run, "texts", "run")
    assert f"\nOn {examples} `test`, with every".replace("  ", " ") in found.text
    (result,) = found.data.to_dict()["model-index"][0]["results"]
    assert result["dataset"]["split"] == ("test[:5]" if examples else "test")
    table = " ".join(render("texts", [row]).split())
    assert f"Test set: test{', first 5 examples' if examples else ''} (cs)." in table
    pooled = pool_seeds([row, {**row, "seed": 8}], "run")
    assert pooled.get("limit") == (5 if examples else None)


def test_seeds_of_several_machines_name_each_of_them_once() -> None:
    rows = [
        {
            **made_up_row("serial", "en de", seed=seed, commands=COMMANDS, perplexity=2.0),
            "hardware": hardware,
            "decoding_hardware": f"{hardware}, 1 threads",
            "versions": {"torch": torch, "sacrebleu": "2.6.0"},
        }
        for seed, (hardware, torch) in enumerate([("A CPU", "2.13.0+cpu"), ("A GPU", "2.11.0"), ("A GPU", "2.11.0")])
    ]
    pooled = pool_seeds(rows, "serial")
    assert pooled["hardware"] == "A CPU and A GPU"
    assert pooled["decoding_hardware"] == "A CPU, 1 threads and A GPU, 1 threads"
    assert pooled["versions"] == {"torch": "2.13.0+cpu and 2.11.0", "sacrebleu": "2.6.0"}


def test_a_card_of_several_seeds_says_how_many_examples_were_scored(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    rows = [
        made_up_row("serial", "en de", table="texts", seed=seed, commands=COMMANDS, perplexity=2.0, limit=1200)
        for seed in (1, 2)
    ]
    row = {**pool_seeds(rows, "serial"), "table": "texts", "name": "serial"}
    (tmp_path / "texts" / "serial.json").write_text(json.dumps(row), "utf-8")
    _, text = card_of_row(tmp_path / "texts" / "serial.json")
    assert "\nOn the first 1,200 examples of `test`, with every" in text
    rows[1]["limit"] = 7
    with pytest.raises(ValueError, match="the runs are no seeds of one recipe: limit is 1200 and 7"):
        pool_seeds(rows, "serial")


ENGLISH, GERMAN, CZECH = "A dog runs across the meadow.", "Ein Hund läuft über die Wiese.", "Pes běží přes louku."
MARKED = {"concatenate": True, "mark_sources": True}


@feature
@pytest.mark.parametrize(
    ("settings", "sources"),
    [
        ({}, {"en": ENGLISH, "de": GERMAN}),
        ({"concatenate": True}, {"all": f"{ENGLISH} | {GERMAN}"}),
        (MARKED, {"all": f"<en> {ENGLISH} <de> {GERMAN}"}),
        ({"reverse": True}, {"target": f"<2en> {CZECH}"}),
    ],
    ids=["sources", "joined", "marked", "reverse"],
)
def test_the_example_of_a_card_runs(
    settings: dict[str, Any], sources: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the card does not tell where on this machine the run is
    names: dict[str, Any] = {}
    text = written(make_run(tmp_path / "run", tmp_path, **settings)).text
    exec(compile(code(text, "python"), "README.md", "exec"), names)
    assert names["sources"] == sources
    assert isinstance(names["model"], MultiSourceForConditionalGeneration)
    assert names["output"].shape[0] == 1


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "Translates 2 sources of one sentence into cs."),
        ({"concatenate": True}, "One encoder reads all sources joined in one line, in this order, with ` | ` between"),
        (MARKED, "in this order, each behind a token with its name, such as `<en>`. This baseline"),
        (
            {"reverse": True},
            "This reverse model writes en or de from cs. A token before the text, such as `<2en>`, names",
        ),
    ],
    ids=["sources", "joined", "marked", "reverse"],
)
def test_a_card_tells_what_the_input_of_its_model_looks_like(
    settings: dict[str, Any], told: str, tmp_path: Path
) -> None:
    text = " ".join(written(make_run(tmp_path / "run", tmp_path, **settings)).text.split())
    assert told in text
    assert ("with ` | ` between them" in text) == (settings == {"concatenate": True})
    assert ("a baseline with a single source" in text) is False


def test_the_card_of_an_averaged_model_says_so_and_not_that_its_weights_were_chosen(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run / "recipe.yaml"
    recipe = yaml.safe_load(path.read_text("utf-8"))
    recipe["training"] |= {"load_best_model_at_end": True, "eval_strategy": "steps", "metric_for_best_model": "bleu"}
    path.write_text(yaml.safe_dump(recipe), "utf-8")
    average_checkpoints([run, run, run], tmp_path / "average")
    chosen, averaged = (
        "Best BLEU on the development set, by which the weights were chosen",
        "averaged over 3 checkpoints",
    )
    for folder, told, silent in ((run, chosen, averaged), (tmp_path / "average", averaged, "Best BLEU")):
        score.main([str(folder), *OPTIONS])
        text = written(folder).text
        assert told in text and silent not in text
    monkeypatch.chdir(tmp_path)
    summary = json.loads((run / "train_summary.json").read_text("utf-8"))
    command = "hf-multisource train multi30k_en_de_fr_cs --sources en de"
    (tmp_path / "average/train_summary.json").write_text(json.dumps({**summary, "command": command}), "utf-8")
    results.main(["row", "average", "--table", "table", "--name", "x", "--results", "."])
    _, text = card_of_row(Path("table/x.json"))
    assert averaged in text and "Best BLEU" not in text


def test_a_card_whose_writing_breaks_off_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = write_card(tmp_path / "cards" / "x.md", "old\n")

    def break_off(path: Path, content: str, **_: Any) -> None:
        path.write_bytes(content[:2].encode())
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_text", break_off)
    with pytest.raises(OSError, match="disk full"):
        write_card(out, "new\n")
    assert out.read_bytes() == b"old\n"


def test_the_address_on_the_hub_takes_the_place_of_the_folder(run: Path) -> None:
    text = written(run, "--address", 'org/na"me').text
    assert 'address = "org/na\\"me"\n' in text
    assert str(run) not in code(text, "python")


@feature
def test_a_run_that_is_still_training_or_not_scored_says_so(run: Path) -> None:
    text = written(run).text
    assert "Not scored yet: `hf-multisource score RUN --adversarial --absent` does it." in text
    assert "Not examined yet" in text
    assert "1,000 updates" in text
    assert "has not finished" not in text
    assert "The recipe does not say where the text is from" in text
    (run / "train_summary.json").unlink()
    found = written(run)
    assert "> **Training has not finished.** What follows is what was planned." in found.text
    assert "updates in" not in found.text
    assert "None" not in found.text
    data = found.data.to_dict()
    assert data["license"] == "unknown"
    assert not {"model-index", "metrics", "license_name", "datasets"} & set(data)


def test_a_run_without_recipe_has_no_card(run: Path) -> None:
    (run / "recipe.yaml").unlink()
    with pytest.raises(SystemExit, match=r"hf-multisource card: .*recipe\.yaml"):
        card.main([str(run)])
    assert not (run / "README.md").exists()


@feature
def test_an_unfinished_row_says_so_and_claims_nothing_on_the_hub(tmp_path: Path) -> None:
    baseline = {
        "run": "runs_en",
        "bleu": {"difference": 2.0, "p_value": 0.004},
        "chrf": {"difference": 1.0, "p_value": 0.1},
    }
    finished = made_up_card(tmp_path, baseline=baseline)
    assert "Against `runs_en` (paired bootstrap): BLEU +2.0 (p = 0.004), chrF +1.0 (p = 0.100).\n" in finished.text
    assert "model-index" in finished.data.to_dict()
    unfinished = made_up_card(tmp_path, baseline=baseline, finished=False)
    assert "> **Unfinished.** The last fifth of the updates" in unfinished.text
    assert "Against" not in unfinished.text
    assert "model-index" not in unfinished.data.to_dict()
    assert "| BLEU | 25.0 |" in unfinished.text
    other = made_up_row("en", "en", table="multi30k", run="runs_en", finished=False)
    (tmp_path / "table" / "en.json").write_text(json.dumps(other))
    assert "Against" not in made_up_card(tmp_path, baseline=baseline).text  # nothing is compared with an unfinished run


def test_a_condition_that_was_not_scored_is_not_explained_and_a_gap_stays_empty(tmp_path: Path) -> None:
    scores = {"all": figures(25.0), "wrong-de": figures(21.0, draws=5), "absent-en": figures(9.0)}
    scores["wrong-de"]["chrf"]["draws_sd"] = 0.5
    text = made_up_card(tmp_path, scores=scores).text
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    assert lines[-4] == ["source", "BLEU, absent", "BLEU, wrong", "chrF, absent", "chrF, wrong"]
    assert lines[-2][:3] == ["en", "9.0 ± 0.8 (-16.0)", ""]
    assert lines[-1][:3] == ["de", "", "21.0 (5 draws, sd 0.2) (-4.0)"]
    assert "- *wrong*: the source is another sentence's" in text
    assert "±: standard deviation of the score over bootstrap resamples" in text
    assert "| BLEU | 25.0 | [24.0, 27.0] |" in text
    assert "*only*" not in text
    assert "- Scores come from one training run (one seed)" in text
    assert "Not examined: no score with a source absent or wrong." in made_up_card(tmp_path).text


@pytest.mark.parametrize(
    "name", ["a: b # \"c\" 'd'", "- x\n---\nlicense: mit", "ž{{ 1 }}|`y`", "%YAML &a *b !!python/name:os"]
)
def test_no_name_breaks_the_front_matter(tmp_path: Path, name: str) -> None:
    found = made_up_card(tmp_path, name=name, split=name, target="no", combiner="flat")
    data = found.data.to_dict()
    assert data["model-index"][0]["name"] == f"multi30k-{name}"
    assert data["model-index"][0]["results"][0]["dataset"]["split"] == name
    assert (data["license"], data["language"]) == ("other", ["en", "de", "no"])
    assert headings(found.text)[0] == f"multi30k-{' '.join(name.split())}"
    assert headings(found.text)[1:] == SECTIONS


HOSTILE = [
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "--> <h1>free</h1> <!--",
    "```\n# free\n```bash\nrm\n```",
    "~~~\nx\n~~~ ~~gone~~ **fat** __fat__ _slant_",
    "`````x````` ` `",
    "[link](https://evil.org) ![picture](https://evil.org/x.png) <https://evil.org>",
    "# free",
    "- item",
    "1. item",
    "> quoted",
    "===\n---\n---\nlicense: mit",
    "a|b|c\\|d `|` &lt;b&gt; &#60;b>",
    "{{ 7 * 7 }}{% raw %} {# x #} $$x$$ \\(y\\)",
    "https://evil.org/<b>x</b>`y`[z](https://evil.org)",
]


@feature
@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_recipe_or_a_command_is_markup_in_a_card(run: Path, text: str) -> None:
    path = run / "recipe.yaml"
    recipe = yaml.safe_load(path.read_text("utf-8"))
    splits = {split: f"{text} {split}" for split in ("train", "dev", "test")}
    recipe["data"] |= {"origin": text, "target": text, **splits}
    recipe["training"]["run_name"] = text
    path.write_text(yaml.safe_dump(recipe), "utf-8")
    summary = json.loads((run / "train_summary.json").read_text("utf-8"))
    command = shlex.join(["hf-multisource", "train", "x", "--origin", text])
    (run / "train_summary.json").write_text(json.dumps({**summary, "command": command, "hardware": text}), "utf-8")
    (run / "versions.json").write_text(json.dumps({"python": text}), "utf-8")
    found = written(run, f"--address={text}")
    assert headings(found.text) == ["run", *SECTIONS]
    tokens = MARKDOWN.parse(found.text)
    fences = {token.info: token.content for token in tokens if token.type == "fence"}
    assert fences.keys() == {"text", "python", "bash", "yaml"}
    assert fences["bash"] == f"{' '.join(command.split())}\n"
    assert yaml.safe_load(fences["yaml"])["training"]["run_name"] == text
    assert json.loads(fences["python"].split("address = ")[1].splitlines()[0]) == text
    kinds = {token.type for token in tokens}
    assert not kinds & {"table_open", "blockquote_open", "hr", "code_block"}
    assert [token.content for token in tokens if token.type == "html_block"] == [tokens[0].content]
    assert tokens[0].content.strip().endswith("Do not edit. -->")
    parts = [part for token in tokens for part in token.children or []]
    assert not {part.type for part in parts} & {"html_inline", "link_open", "image", "strong_open", "em_open", "s_open"}
    line = " ".join(text.split())
    shown = ["".join(part.content for part in token.children or []) for token in tokens if token.type == "inline"]
    assert f"{line}." in " ".join(shown).replace("  ", " "), "origin is shown as it is"
    names = [part.content for part in parts if part.type == "code_inline"]
    assert [name for name in names if name.startswith(line)] == [f"{line} {split}" for split in splits]
    data = found.data.to_dict()
    assert data["license"] in ("other", "unknown")
    assert not {"<", "`", "["} & set(data.get("license_link", ""))


@feature
def test_no_name_of_a_row_ends_the_comment_or_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "a) --><b>x"
    folder.mkdir()
    row = made_up_row("x", "en de", table="multi30k")
    row["commands"][0] = "hf-multisource train multi30k_en_de_fr_cs --sources en de"
    (folder / "x.json").write_text(json.dumps(row))
    (folder / "x.png").write_bytes(b"")
    card.main(["--row", f"{folder.name}/x.json", "--out", "card.md"])
    tokens = MARKDOWN.parse(ModelCard.load(tmp_path / "card.md").text)
    assert tokens[0].content.strip().endswith("Do not edit. -->")
    images = [part for token in tokens for part in token.children or [] if part.type == "image"]
    assert [image.attrs["src"] for image in images] == ["a%29%20--%3E%3Cb%3Ex/x.png"]
    assert not [part for token in tokens for part in token.children or [] if part.type == "html_inline"]


@feature
def test_no_secret_and_no_place_of_this_machine_gets_into_a_card(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "hf_" + "aB3d" * 8
    monkeypatch.chdir(tmp_path)
    summary = json.loads((run / "train_summary.json").read_text("utf-8"))
    command = (
        f"hf-multisource train {tmp_path}/x.yaml --hub_token {token} --load=/home/me/a/tokenizer --output_dir {run}"
    )
    (run / "train_summary.json").write_text(json.dumps({**summary, "command": command}), "utf-8")
    with_origin(run, "my texts in /home/me/private/texts")
    text = (written(run).text) + str(written(run).data)
    for private in (token, "aB3d", "/home/me", str(tmp_path), str(Path.home())):
        assert private not in text
    words = "hf-multisource train x.yaml --hub_token '***' --load=a/tokenizer --output_dir run"
    assert words in code(text, "bash")
    assert 'address = "run"\n' in text


@feature
def test_no_secret_and_no_place_of_this_machine_gets_into_a_row(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    summary = json.loads((run / "train_summary.json").read_text("utf-8"))
    command = f"hf-multisource train {tmp_path}/x.yaml --hub_token short --load /home/me/a/tokenizer"
    (run / "train_summary.json").write_text(json.dumps({**summary, "command": command}), "utf-8")
    score.main([str(run), *OPTIONS])
    commands = make_row(run, "", "x")["commands"]
    assert commands[0] == "hf-multisource train x.yaml --hub_token '***' --load a/tokenizer"
    assert commands[1].startswith("hf-multisource score run --num_beams 2")


def test_only_names_that_are_codes_of_languages_are_given_as_languages(tmp_path: Path) -> None:
    data = made_up_card(tmp_path, sources="en draft xx", target="cs").data.to_dict()
    assert data["language"] == ["en", "cs"]


def test_the_names_of_the_sources_of_catalogues_are_languages(tmp_path: Path) -> None:
    data = made_up_card(
        tmp_path, sources="en hsb", target="dsb", command="hf-multisource train localization_dsb"
    ).data.to_dict()
    assert data["language"] == ["en", "hsb", "dsb"]


def test_the_plot_beside_a_row_is_linked_from_where_the_card_lies(tmp_path: Path) -> None:
    assert "## Attention" not in made_up_card(tmp_path).text
    (tmp_path / "table" / "x.png").write_bytes(b"")
    assert "](table/x.png)" in made_up_card(tmp_path).text


def test_the_card_of_a_row_needs_neither_the_run_nor_the_checkpoint_of_a_wrapped_encoder(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    score.main([str(run), *OPTIONS])
    ViTConfig(hidden_size=12, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2).save_pretrained("vit")
    recipe = Recipe(DataRecipe("text", ["en", "de"], "cs"), training={"output_dir": "run"})
    recipe.model["sources"] = [{"name": "de", "kind": "pretrained", "encoder": "vit", "freeze": True}]
    recipe.save(tmp_path / "x.yaml")  # which the run's command names
    recipe.save(run / "recipe.yaml")
    config = recipe.model_config(280, {})
    config.save_pretrained(run)
    results.main(["row", str(run), "--table", "table", "--name", "x", "--results", str(tmp_path)])
    shutil.rmtree("vit")
    assert written(run).text.count("photo.jpg") == 1
    shutil.rmtree(run)
    card.main(["--row", "table/x.json", "--out", "card.md"])
    text = ModelCard.load(tmp_path / "card.md").text
    assert '    "en": "A dog runs across the meadow.",\n    "de": "photo.jpg",\n' in code(text, "python")
    assert "encoder: vit\n" in code(text, "yaml"), "the settings are those that were given"
    subject = subject_of_row(Path("table/x.json"))
    made = subject.rebuilt.model_config(280, {})
    assert [source.to_dict() for source in made.sources] == [source.to_dict() for source in config.sources]
    assert len(subject.row["encoders"]["de"]) < len(config.sources[1].to_dict()["encoder"])


def test_the_example_of_a_row_loads_what_its_command_writes(tmp_path: Path) -> None:
    path = ROOT / "docs/results/localization-dsb/hsb.json"
    row = json.loads(path.read_text("utf-8"))
    other = tmp_path / path.name
    for changed, address in (
        (row, "runs/localization-dsb/hsb/seed-1"),
        ({**row, "commands": ["hf-multisource train demo"]}, "runs/hsb"),
    ):
        other.write_text(json.dumps(changed), encoding="utf-8")
        assert subject_of_row(other).address == address


@pytest.mark.parametrize(("speed", "shown"), [(262.74333, "), 262.74 sentences a second."), (None, ").")])
def test_the_speed_of_decoding_is_rounded_and_may_be_unknown(speed: float | None, shown: str, tmp_path: Path) -> None:
    row = json.loads((ROOT / "docs/results/localization-dsb/hsb.json").read_text("utf-8"))
    path = tmp_path / "hsb.json"
    path.write_text(json.dumps({**row, "sentences_per_second": speed}), encoding="utf-8")
    _, text = card_of_row(path, tmp_path / "card.md")
    (line,) = (line for line in text.splitlines() if line.startswith("Decoded on"))
    assert line.endswith(shown)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_a_combiner_is_told_by_its_docstring(combiner: str) -> None:
    text = strategy_text(combiner)
    equation = code(text, "text")
    assert equation.strip()
    assert "Args" not in text
    doc = COMBINERS[combiner].__doc__ or ""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("```")]
    assert lines == [line.strip() for line in doc.split("Args:")[0].splitlines() if line.strip()]
    assert all(line in doc for line in equation.splitlines())


@pytest.mark.parametrize(
    "command",
    [
        "hf-multisource train multi30k_en_de_fr_cs",
        f"/bin/hf-multisource train {ROOT}/hf_multisource/recipes/configs/multi30k_en_de_fr_cs.yaml",
        "python training/train.py training/configs/multi30k_en_de_fr_cs.yaml",
        "accelerate launch training/train.py multi30k_en_de_fr_cs",
    ],
)
def test_a_command_gives_the_recipe_that_it_trained_with(command: str) -> None:
    recipe = recipe_of_command(f"{command} --resume --combiner flat --sources en de --max_steps 7")
    assert (recipe.data.sources, recipe.model["combiner"], recipe.training["max_steps"]) == (["en", "de"], "flat", 7)


@pytest.mark.parametrize("program", ["hf-multisource train", r"python D:\repository\training\train.py"])
def test_a_command_with_windows_paths_gives_their_folders(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = r"D:\recipes\mine.yaml"
    Recipe(DataRecipe("text", ["en", "de"], "cs"), training={"output_dir": "run"}).save(Path(name))
    recipe = recipe_of_command(rf"{program} {name} --path 'D:\my texts' --output_dir D:\runs\mine")
    assert (recipe.data.path, recipe.training["output_dir"]) == (r"D:\my texts", r"D:\runs\mine")


@pytest.mark.parametrize("command", ["python training/score.py x", "hf-multisource train", "train x", "x train y"])
def test_what_trains_no_recipe_is_refused(command: str) -> None:
    with pytest.raises(ValueError, match=f"no `hf-multisource train RECIPE` in the command '{command}'"):
        recipe_of_command(command)


def test_the_former_path_of_a_shipped_recipe_is_still_understood_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (
        "training/configs/no.yaml",
        "configs/demo.yaml",
        "training/configs/demo",
        "x/training/configs/demo.yaml",
    ):
        assert recorded_recipe(name) == name
        with pytest.raises(FileNotFoundError, match=f"no file {name}, and no shipped recipe"):
            recipe_of_command(f"python training/train.py {name}")
    assert recorded_recipe("training/configs/demo.yaml") == "demo"
    Path("training/configs").mkdir(parents=True)
    Path("training/configs/demo.yaml").write_text("mine")
    assert recorded_recipe("training/configs/demo.yaml") == "training/configs/demo.yaml"


def test_the_script_trains_by_the_commands_that_result_pages_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[Recipe, str]] = []
    monkeypatch.setattr(train, "train_recipe", lambda recipe, resume, command: trained.append((recipe, command)))
    monkeypatch.chdir(tmp_path)
    row = json.loads((ROOT / RESULTS / "multi30k" / "flat.json").read_text("utf-8"))
    script, *arguments = shlex.split(row["commands"][0])[1:]
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    runpy.run_path(str(ROOT / script), run_name="__main__")
    [(recipe, command)] = trained
    assert recipe == recipe_of_command(row["commands"][0])
    assert command.startswith("hf-multisource train multi30k_en_de_fr_cs --load")


def test_another_text_has_another_origin() -> None:
    path = "multi30k_en_de_fr_cs"
    assert load_recipe(path).data.origin is not None
    assert load_recipe(path, {"path": "mine"}).data.origin is None
    assert load_recipe(path, {"origin": "my own", "data.path": "mine"}).data.origin == "my own"


def test_card_refuses_options_that_do_not_belong_together() -> None:
    for arguments, message in [
        (["--all", "--out", "x.md"], "leave out --out"),
        (["--all", "--split", "test"], "belong to a run"),
        ([], "give one of RUN, --row FILE and --all"),
    ]:
        with pytest.raises(SystemExit, match=message):
            card.main(arguments)


# What is committed.


@feature
def test_every_committed_row_has_a_card_that_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    cards = dict(card_of_row(path.relative_to(ROOT)) for path in ROWS)
    assert cards
    made = {path.relative_to(ROOT) for path in (ROOT / CARDS).glob("*.md")}
    assert made - {CARDS / "README.md"} == set(cards)
    for path, text in cards.items():
        assert path.read_text("utf-8") == text, f"{path} is stale: hf-multisource card --all"
        ModelCard(text)


@pytest.mark.parametrize("path", ROWS, ids=lambda path: path.stem)
def test_the_recipe_of_a_committed_row_still_gives_the_model_that_was_scored(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    subject = subject_of_row(path)
    recipe: Recipe = subject.recipe
    assert (recipe.data.sources, recipe.data.target) == (subject.row["sources"], subject.row["target"])
    size = recipe.tokenizer.vocab_size
    own = dict.fromkeys(recipe.data.model_sources, size) if recipe.tokenizer.separate else {}
    with torch.device("meta"):
        model = AutoModelForSeq2SeqLM.from_config(subject.rebuilt.model_config(size, own))
    more = sum(parameter.numel() for parameter in model.parameters()) - subject.row["parameters"]
    # There may be fewer symbols than the recipe allows.
    symbols = recipe.tokenizer.kind == "symbols"
    assert (
        (0 <= more < size * recipe.model["d_model"] and more % recipe.model["d_model"] == 0) if symbols else more == 0
    )


def test_a_run_tells_its_combiner_before_it_is_scored_as_after(run: Path, tmp_path: Path) -> None:
    for folder in (run, make_run(tmp_path / "joined", tmp_path, concatenate=True)):
        before = subject_of_run(folder).row["combiner"]
        score.main([str(folder), *OPTIONS])
        assert subject_of_run(folder).row["combiner"] == before == make_row(folder, "", "x")["combiner"]
