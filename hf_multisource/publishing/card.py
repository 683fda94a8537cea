"""Model cards, made from `template.md` and the files of a run or of a committed row of results.

The card of a run is written to RUN/README.md, where the Hub looks for it; if the run is still training or is not
scored, the card says so. The card of a row is written to model_cards/<table>-<name>.md; its settings are those of the
recipe that the row's command names.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import jinja2
import yaml
from huggingface_hub import EvalResult, ModelCardData

from hf_multisource import COMBINATIONS, COMBINERS, MultiSourceConfig, RNNSourceAttention
from hf_multisource.data.interfaces import Family
from hf_multisource.data.privacy import publishable, publishable_command, shorten_path
from hf_multisource.evaluation.results import (
    SPREAD,
    attention_plots,
    format_score,
    head_metric,
    length_rule,
    make_row,
    read_result,
    scored_splits,
    training_facts,
    wrapped_encoders,
)
from hf_multisource.evaluation.tables import format_table
from hf_multisource.json_files import JsonObject
from hf_multisource.metrics.table import METRICS, metrics_of
from hf_multisource.publishing.markdown import (
    URL,
    cell,
    code_block,
    code_span,
    comment,
    escape,
    link_target,
    one_line,
)
from hf_multisource.recipes.catalogue import recorded_recipe
from hf_multisource.recipes.recipe import (
    FAMILIES,
    SEPARATOR,
    DataRecipe,
    Recipe,
    TokenizerRecipe,
    load_recipe,
    parse_overrides,
)
from hf_multisource.recipes.schema import CATALOGUES
from hf_multisource.source_kinds import FORMS

PROGRAM = "hf-multisource"
CARDS = Path("model_cards")
TEMPLATE = Path(__file__).with_name("template.md")
CONDITIONS = {
    "absent": "*absent*: the source is taken away from every sentence.",
    "wrong": "*wrong*: the source is another sentence's, so that no sentence keeps its own.",
    "only": "*only*: all other sources are taken away from every sentence.",
}
# Where the parts of a strategy are explained.
DOCUMENTED: dict[str, type] = {
    **COMBINERS,
    **COMBINATIONS,
    **dict.fromkeys(("local_p", "general", "dot"), RNNSourceAttention),
}
# ISO 639-1. The Hub refuses a card with any other two letters.
LANGUAGES = """
aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en eo es
et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka kg ki kj
kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv
ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti
tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
EXAMPLES = {
    "cs": "Pes běží přes louku.",
    "de": "Ein Hund läuft über die Wiese.",
    "en": "A dog runs across the meadow.",
    "es": "Un perro corre por el prado.",
    "fr": "Un chien court dans le pré.",
}
# Facts that exist only after a run has finished, or has been scored.
UNKNOWN = (
    *("parameters", "updates", "minutes", "hardware", "threads", "seed", "finished", "split", "scores", "search"),
    *("decoding_hardware", "sentences_per_second", "baseline", "date"),
)


@dataclass
class Subject:
    """Facts that a card is made of.

    Args:
        row: A row of results; None where a run does not know yet.
        recipe: The recipe of the training.
        address: What `from_pretrained` takes.
        plot: An attention plot, if there is one.
        published: Whether the weights lie where the card will.
        ships_code: Whether the code lies beside the weights.
    """

    row: JsonObject
    recipe: Recipe
    address: str
    plot: Path | None
    published: bool
    ships_code: bool

    @property
    def rebuilt(self) -> Recipe:
        """The recipe, with configurations of wrapped encoders, where the row holds them, in place of checkpoints."""
        known = self.row.get("encoders", {})
        entries = self.recipe.source_entries()
        sources = [entry | ({"encoder": known[name]} if name in known else {}) for name, entry in entries.items()]
        return replace(self.recipe, model={**self.recipe.model, "sources": sources})


def subject_of_run(run: Path, split: str | None = None, address: str | None = None) -> Subject:
    """Read a run folder, whatever it has so far.

    Args:
        run: The run folder.
        split: Test split; None: the only one that was scored.
        address: Hub id that the model is to have; None: the folder, as `shorten_path` has it.

    Returns:
        The card's subject.

    Raises:
        FileNotFoundError: If the folder has no recipe.
        ValueError: If several splits were scored and none is named.
    """
    recipe = load_recipe(run / "recipe.yaml")
    data = recipe.data
    names = {"sources": data.model_sources if data.reverse else data.sources, "target": data.model_target}
    joined = "concatenated" if len(names["sources"]) > 1 else ""
    row: JsonObject = {
        **dict.fromkeys(UNKNOWN),
        **{"name": run.name, "run": run.name, "combiner": joined, **names},
        **{"commands": [], "curve": [], "versions": {}},
    }
    address = address or shorten_path(run.as_posix())
    subject = Subject(row, recipe, address, None, True, (run / "modeling_multisource.py").exists())
    if (run / "config.json").exists():
        row["encoders"] = wrapped_encoders(read_result(run / "config.json"))
    if len(data.model_sources) > 1:
        row["combiner"] = subject.rebuilt.model_config(recipe.tokenizer.vocab_size, {}).strategy
    if (run / "train_summary.json").exists():
        facts = training_facts(run, data.metrics[0])
        row |= {**facts, "commands": [facts["command"]]}
        if split or scored_splits(run):
            row |= make_row(run, "", run.name, split)
    if (run / "versions.json").exists():
        row["versions"] = {**read_result(run / "versions.json"), **row["versions"]}
    plots = attention_plots(run, row["split"]) if row["split"] else []
    subject.plot = plots[0] if plots else None
    return subject


def subject_of_row(path: Path) -> Subject:
    """Read a committed row, and the recipe that its command names.

    Args:
        path: The row.

    Returns:
        The card's subject.
    """
    row = read_result(path)
    recipe = recipe_of_command(row["commands"][0])
    others = [read_result(other) for other in path.parent.glob("*.json")]
    unfinished = {other["run"] for other in others if not other["finished"]}
    if row["baseline"] and row["baseline"]["run"] in unfinished:
        row["baseline"] = None
    plot = path.with_suffix(".png")
    named = {**row, "name": f"{row['table']}-{row['name']}"}
    return Subject(named, recipe, f"runs/{row['run']}", plot if plot.exists() else None, False, False)


def recipe_of_command(command: str) -> Recipe:
    """Return the recipe that a training command names, with the changes on the command line applied.

    Args:
        command: As `train_summary.json` and rows hold it: `hf-multisource train RECIPE ...`, or `python
            training/train.py RECIPE ...` of earlier results.

    Returns:
        The recipe.

    Raises:
        ValueError: If it is no such command.
    """
    words = [word for word in shlex.split(command) if word != "--resume"]
    starts = [
        i + 1
        for i, word in enumerate(words)
        if Path(word).name == "train.py" or [Path(one).name for one in words[i - 1 : i + 1]] == [PROGRAM, "train"]
    ]
    if not starts or starts[0] == len(words):
        raise ValueError(f"no `{PROGRAM} train RECIPE` in the command {command!r}")
    name = os.path.expanduser(words[starts[0]])  # recorded with `~` for the home
    return load_recipe(recorded_recipe(name), parse_overrides(words[starts[0] + 1 :]))


def strategy_text(strategy: str) -> str:
    """The docstrings of a strategy's parts as Markdown: what they do, and their equations."""
    text = ""
    for name in strategy.split(", "):
        prose = (inspect.getdoc(DOCUMENTED[name]) or "").split("\n\nArgs:")[0]
        for part in re.split(r"((?:^ {4}.*\n?)+)", prose, flags=re.MULTILINE):
            equation = part.startswith("    ")
            text += f"\n```text\n{inspect.cleandoc(part)}\n```\n\n" if equation else part
        text += "\n\n"
    return text.strip()


def family_of(recipe: Recipe) -> Family:
    """The configuration class of a recipe's model."""
    return FAMILIES[recipe.model.get("model_type", MultiSourceConfig.model_type)]


def snippet(subject: Subject) -> str:
    """Python that translates one sentence."""
    sources = {name: EXAMPLES.get(name, f"the text of {name}") for name in subject.row["sources"]}
    if subject.recipe.data.concatenate:
        sources = {"all": SEPARATOR.join(sources.values())}
    forms = subject.rebuilt.forms()
    kinds = {name: FORMS[forms.get(name, "text")] for name in sources}
    values = {
        name: quote(sources[name]) if kind.has_vocabulary else kind.example or "..." for name, kind in kinds.items()
    }
    texts = "".join(f"    {quote(name)}: {value},\n" for name, value in values.items())
    absent = "  # leave out what you do not have" if len(sources) > 1 else ""
    beams = (subject.row["search"] or {}).get("num_beams", 4)
    numpy = "import numpy\n" if any("numpy" in value for value in values.values()) else ""
    model = family_of(subject.recipe).__name__.replace("Config", "ForConditionalGeneration")
    return f"""{numpy}from hf_multisource import {model}, MultiSourceProcessor

address = {quote(subject.address)}
processor = MultiSourceProcessor.from_pretrained(address)
model = {model}.from_pretrained(address).eval()
sources = {{{absent}
{texts}}}
output = model.generate(**processor(**sources, return_tensors="pt"), num_beams={beams})
print(processor.batch_decode(output, skip_special_tokens=True)[0])"""


def quote(text: str) -> str:
    """A text as Python source."""
    return json.dumps(text, ensure_ascii=False)


def examined(row: JsonObject) -> list[str]:
    """The conditions, of those in `CONDITIONS`, in which sources were scored."""
    scores = row["scores"] or {}
    return [condition for condition in CONDITIONS if any(f"{condition}-{name}" in scores for name in row["sources"])]


def worth_table(row: JsonObject) -> str:
    """Scores of each source absent, wrong and alone; empty if none was measured."""
    scores, asked = row["scores"] or {}, examined(row)
    columns = [(condition, metric) for metric in metrics_of(scores.get("all", {})) for condition in asked]
    lines = []
    for name in row["sources"]:
        line = [escape(name)]
        for condition, metric in columns:
            entry = scores.get(f"{condition}-{name}")
            if not entry or metric not in entry:
                line.append("")
                continue
            difference = entry[metric]["score"] - scores["all"][metric]["score"]
            line.append(f"{format_score(entry, metric)} ({METRICS[metric].show(difference, sign=True)})")
        lines.append(line)
    header = ["source", *(f"{METRICS[metric].label}, {condition}" for condition, metric in columns)]
    return format_table(header, lines) if columns else ""


def metadata(subject: Subject) -> ModelCardData:
    """What the Hub reads: languages, licence, data, and the scores of a finished run as `model-index`.

    Args:
        subject: The card's subject.

    Returns:
        The card's front matter.
    """
    row, origin = subject.row, subject.recipe.data.origin or ""
    # Named by the code of a language, a source is taken to be in it; others ("draft") say nothing of theirs.
    languages = [name for name in (*row["sources"], row["target"]) if name in LANGUAGES.split()]
    hub = re.findall(r"huggingface\.co/datasets/([\w.-]+/[\w.-]*\w)", origin)
    data = subject.recipe.data
    named = data.kind if data.kind == CATALOGUES else Path(data.path).name or "data"
    dataset = origin.split(",")[0].strip() if origin else named
    split = f"{row['split']}[:{row['limit']}]" if "limit" in row else row["split"]  # the slices of `datasets`
    results = [
        EvalResult(
            task_type="translation",
            dataset_type=hub[0] if hub else dataset,
            dataset_name=dataset,
            dataset_split=split,
            metric_type=metric,
            metric_name=METRICS[metric].label,
            metric_value=round(row["scores"]["all"][metric]["score"], 2),
            metric_args={"signature": row["scores"]["all"][metric]["signature"]},
        )
        for metric in metrics_of((row["scores"] or {}).get("all", {}))
        if row["finished"]
    ]
    link = terms(subject.recipe)
    return ModelCardData(
        language=list(dict.fromkeys(languages)) or None,
        license="other" if link else "unknown",
        license_name="terms-of-the-training-data" if link else None,
        license_link=link,
        library_name="transformers",
        pipeline_tag="translation",
        tags=["multi-source", *(row["combiner"].split(", ") if row["combiner"] else [])],
        datasets=hub or None,
        metrics=metrics_of(row["scores"]["all"]) if row["scores"] else None,
        model_name=row["name"] if results else None,
        eval_results=results or None,
    )


def best_of(row: JsonObject) -> float | None:
    """The best score on the development set; None if training measured none."""
    choose = max if METRICS[head_metric(row)].higher_is_better else min
    return choose((score for _, score in row["curve"]), default=None)


def terms(recipe: Recipe) -> str | None:
    """Where the terms of the data are found: the first address in `origin`."""
    found = URL.search(recipe.data.origin or "")
    return re.split("[,;]", found.group())[0].rstrip(".") if found else None


def settings(recipe: Recipe) -> str:
    """The recipe without what is said elsewhere or is of one machine only."""
    sections = asdict(recipe)
    chosen = {name: dict(sections[name]) for name in ("tokenizer", "model", "training")}
    for section, key in (("tokenizer", "load"), ("training", "output_dir"), ("training", "max_steps")):
        chosen[section].pop(key, None)
    if len(recipe.data.model_sources) == 1:
        chosen["model"].pop("combiner", None)  # all are alike then
    return yaml.safe_dump(chosen, sort_keys=False, allow_unicode=True).strip()


def publishable_subject(subject: Subject) -> Subject:
    """Return a subject without secrets and without paths of this machine.

    Args:
        subject: The card's subject.

    Returns:
        The subject, with secrets masked and absolute paths shortened in its row and its recipe.
    """
    commands = [publishable_command(command) for command in subject.row["commands"]]
    sections = publishable(asdict(subject.recipe))
    recipe = Recipe(
        DataRecipe(**sections["data"]),
        TokenizerRecipe(**sections["tokenizer"]),
        sections["model"],
        sections["training"],
    )
    return replace(subject, row={**publishable(subject.row), "commands": commands}, recipe=recipe)


def render(subject: Subject, out: Path, command: str) -> str:
    """Fill in the template. Every text is escaped; secrets are masked and absolute paths shortened.

    Args:
        subject: The card's subject.
        out: Where the card will lie; links lead from there.
        command: What makes this card.

    Returns:
        Markdown with front matter.
    """
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "line": one_line,
        "text": escape,
        "code": code_span,
        "block": code_block,
        "comment": comment,
        "cell": cell,
        "target": link_target,
        "thousands": lambda number: f"{number:,}",
        "length_rule": length_rule,
    }
    example = snippet(subject)  # of the recipe as it is: it may name the checkpoint of a wrapped encoder
    subject = publishable_subject(subject)
    row = subject.row
    plain = len(subject.recipe.data.model_sources) == 1
    card = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        row=row,
        seeds=row["seed"] if isinstance(row["seed"], list) else [row["seed"]],
        recipe=subject.recipe,
        metadata=metadata(subject).to_yaml(),
        command=publishable_command(command),
        joined=subject.recipe.data.concatenate,
        separator=SEPARATOR,
        combiner="" if plain else strategy_text(row["combiner"]),
        transformer=family_of(subject.recipe) is MultiSourceConfig,
        snippet=example,
        published=subject.published,
        ships_code=subject.ships_code,
        limit=row.get("limit"),
        metrics={name: METRICS[name] for name in metrics_of((row["scores"] or {}).get("all", {}))},
        spread=SPREAD,
        head=METRICS[head_metric(row)],
        worth=worth_table(row),
        notes=[CONDITIONS[condition] for condition in examined(row)],
        plot=subject.plot and Path(os.path.relpath(subject.plot, out.parent)).as_posix(),
        best=best_of(row),
        settings=settings(subject.recipe),
        terms=terms(subject.recipe),
    )
    return re.sub(r"\n{3,}", "\n\n", card)


def rows_of_models(results: Path) -> list[Path]:
    """Find the rows of results that are each about one model; others are made of several, and have no card.

    Args:
        results: The folder of all tables.

    Returns:
        Their files, sorted.
    """
    return [path for path in sorted(results.glob("*/*.json")) if "made_of" not in read_result(path)]


def card_of_row(path: Path, out: Path | None = None) -> tuple[Path, str]:
    """The card of a committed row.

    Args:
        path: The row.
        out: Where the card will lie; None: in model_cards.

    Returns:
        Where it belongs, and the card.
    """
    out = out or CARDS / f"{path.parent.name}-{path.stem}.md"
    return out, render(subject_of_row(path), out, f"{PROGRAM} card --row {path.as_posix()}")


def write_card(out: Path, card: str) -> Path:
    """Write a card.

    Args:
        out: The file.
        card: Its text.

    Returns:
        The file.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(card, encoding="utf-8", newline="\n")
    return out
