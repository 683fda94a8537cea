"""Model cards from `template.md` and the files of a run or of a committed row of results.

The card of a run is written to RUN/README.md, where the Hub expects it. If the run is still training or is not scored,
the card says so. The card of a row is written to model_cards/<table>-<name>.md, with the settings of the recipe that
the command of the row names.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PureWindowsPath

import jinja2
import yaml
from huggingface_hub import EvalResult, ModelCardData

from hf_multisource import COMBINATIONS, COMBINERS, MultiSourceConfig, RNNSourceAttention
from hf_multisource.data.files import write_text
from hf_multisource.data.interfaces import Family
from hf_multisource.data.privacy import publishable, publishable_command, shorten_path, split_command
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
from hf_multisource.recipes.recipe import (
    FAMILIES,
    SEPARATOR,
    DataRecipe,
    Recipe,
    TokenizerRecipe,
    load_recipe,
    parse_overrides,
)
from hf_multisource.recipes.schema import CATALOGUES, reverse_marker, source_marker
from hf_multisource.recipes.shipped import RECIPE, recorded_recipe
from hf_multisource.source_kinds import FORMS

PROGRAM = "hf-multisource"
CARDS = Path("model_cards")
TEMPLATE = Path(__file__).with_name("template.md")
CONDITIONS = {
    "absent": "*absent*: the source is taken away from every sentence.",
    "wrong": "*wrong*: the source is another sentence's, so that no sentence keeps its own.",
    "only": "*only*: all other sources are taken away from every sentence.",
}
# Classes whose docstrings explain the parts of a strategy.
DOCUMENTED: dict[str, type] = {
    **COMBINERS,
    **COMBINATIONS,
    **dict.fromkeys(("local_p", "general", "dot"), RNNSourceAttention),
}
# Language codes of ISO 639-1. The Hub rejects a card with other two-letter codes.
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
# Keys of a row that are known only after a run has finished or has been scored.
UNKNOWN = (
    *("parameters", "updates", "minutes", "hardware", "threads", "seed", "finished", "split", "scores", "search"),
    *("decoding_hardware", "sentences_per_second", "baseline", "date"),
)


@dataclass
class Subject:
    """Content of a model card.

    Args:
        row: A row of results; facts of a run that are not known yet are None.
        recipe: The recipe of the training.
        address: Hub id or folder for `from_pretrained`.
        plot: An attention plot, if there is one.
        published: Whether the weights are in the same repository as the card.
        ships_code: Whether the code is in the same folder as the weights.
    """

    row: JsonObject
    recipe: Recipe
    address: str
    plot: Path | None
    published: bool
    ships_code: bool

    @property
    def rebuilt(self) -> Recipe:
        """The recipe, with the configurations of wrapped encoders in the row in place of their checkpoints."""
        known = self.row.get("encoders", {})
        entries = self.recipe.source_entries()
        sources = [entry | ({"encoder": known[name]} if name in known else {}) for name, entry in entries.items()]
        return replace(self.recipe, model={**self.recipe.model, "sources": sources})


def subject_of_run(run: Path, split: str | None = None, address: str | None = None) -> Subject:
    """Read the content of a card from a run folder, which may be incomplete.

    Args:
        run: The run folder.
        split: Test split. Defaults to the split that was scored if there is only one.
        address: Hub id that the model will have. Defaults to the folder, shortened by `shorten_path`.

    Returns:
        The content of the card.

    Raises:
        FileNotFoundError: If the folder has no recipe.
        ValueError: If several splits were scored and none is named.
    """
    recipe = load_recipe(run / RECIPE)
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
    """Read the content of a card from a committed row and the recipe that its command names.

    Args:
        path: The file of the row.

    Returns:
        The content of the card.
    """
    row = read_result(path)
    recipe = recipe_of_command(row["commands"][0])
    others = [read_result(other) for other in path.parent.glob("*.json")]
    unfinished = {other["run"] for other in others if not other["finished"]}
    if row["baseline"] and row["baseline"]["run"] in unfinished:
        row["baseline"] = None
    plot = path.with_suffix(".png")
    named = {**row, "name": f"{row['table']}-{row['name']}"}
    words = split_command(row["commands"][0])
    address = words[words.index("--output_dir") + 1] if "--output_dir" in words[:-1] else f"runs/{row['run']}"
    return Subject(named, recipe, address, plot if plot.exists() else None, False, False)


def recipe_of_command(command: str) -> Recipe:
    """Return the recipe that a training command names, with the changes on the command line applied.

    Args:
        command: Command in `train_summary.json` or a row: `hf-multisource train RECIPE ...`, or in earlier results
            `python training/train.py RECIPE ...`.

    Returns:
        The recipe.

    Raises:
        ValueError: If it is not a training command.
    """
    words = [word for word in split_command(command) if word != "--resume"]
    names = [PureWindowsPath(word).name for word in words]  # the last component of POSIX paths, too
    starts = [i + 1 for i in range(len(words)) if names[i] == "train.py" or names[i - 1 : i + 1] == [PROGRAM, "train"]]
    if not starts or starts[0] == len(words):
        raise ValueError(f"no `{PROGRAM} train RECIPE` in the command {command!r}")
    name = os.path.expanduser(words[starts[0]])  # the command is recorded with `~` for the home
    return load_recipe(recorded_recipe(name), parse_overrides(words[starts[0] + 1 :]))


def strategy_text(strategy: str) -> str:
    """Return the descriptions and equations in the docstrings of a strategy's parts as Markdown."""
    text = ""
    for name in strategy.split(", "):
        prose = (inspect.getdoc(DOCUMENTED[name]) or "").split("\n\nArgs:")[0]
        for part in re.split(r"((?:^ {4}.*\n?)+)", prose, flags=re.MULTILINE):
            equation = part.startswith("    ")
            text += f"\n```text\n{inspect.cleandoc(part)}\n```\n\n" if equation else part
        text += "\n\n"
    return text.strip()


def encoders_text(subject: Subject) -> str:
    """Return a sentence that says which sources share an encoder."""
    config = subject.rebuilt.model_config(subject.recipe.tokenizer.vocab_size, {})
    names = config.source_names
    shared = {owner: [name for name in names if config.encoder_owner(name).name == owner] for owner in names}
    groups = [" and ".join(filter(None, [", ".join(group[:-1]), group[-1]])) for group in shared.values() if group[1:]]
    if not groups:
        return "Each source has its own encoder."
    if len(next(iter(shared.values()))) == len(names):
        return "One encoder reads all sources."
    return f"{'; '.join(groups)} share an encoder."


def family_of(recipe: Recipe) -> Family:
    """Return the model family of a recipe."""
    return FAMILIES[recipe.model.get("model_type", MultiSourceConfig.model_type)]


def snippet(subject: Subject) -> str:
    """Return example code that translates one sentence."""
    data = subject.recipe.data
    texts = {name: EXAMPLES.get(name, f"the text of {name}") for name in (*data.sources, data.target)}
    row = data.model_rows([texts])[0]  # with the separator or the markers that the model was trained with
    sources = {name: row[name] for name in data.model_sources}
    forms = subject.rebuilt.forms()
    kinds = {name: FORMS[forms.get(name, "text")] for name in sources}
    values = {
        name: quote(sources[name]) if kind.has_vocabulary else kind.example or "..." for name, kind in kinds.items()
    }
    lines = "".join(f"    {quote(name)}: {value},\n" for name, value in values.items())
    absent = "  # leave out what you do not have" if len(sources) > 1 else ""
    beams = (subject.row["search"] or {}).get("num_beams", 4)
    numpy = "import numpy\n" if any("numpy" in value for value in values.values()) else ""
    model = family_of(subject.recipe).__name__.replace("Config", "ForConditionalGeneration")
    return f"""{numpy}from hf_multisource import {model}, MultiSourceProcessor

address = {quote(subject.address)}
processor = MultiSourceProcessor.from_pretrained(address)
model = {model}.from_pretrained(address).eval()
sources = {{{absent}
{lines}}}
output = model.generate(**processor(**sources, return_tensors="pt"), num_beams={beams})
print(processor.batch_decode(output, skip_special_tokens=True)[0])"""


def quote(text: str) -> str:
    """Return a text as a Python string literal."""
    return json.dumps(text, ensure_ascii=False)


def examined(row: JsonObject) -> list[str]:
    """Return the elements of `CONDITIONS` in which sources were scored."""
    scores = row["scores"] or {}
    return [condition for condition in CONDITIONS if any(f"{condition}-{name}" in scores for name in row["sources"])]


def worth_table(row: JsonObject) -> str:
    """Return a table of the scores with each source absent, wrong or alone; "" if there are no such scores."""
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
    """Return the metadata for the Hub: languages, license, data, and scores of a finished run as `model-index`.

    Args:
        subject: The content of the card.

    Returns:
        The front matter of the card.
    """
    row, origin = subject.row, subject.recipe.data.origin or ""
    # A source whose name is a language code is assumed to be in this language. The language of others is unknown.
    # Sources of catalogues, whose texts have placeholders, are languages, also those with a code of three letters.
    is_catalogue = subject.recipe.data.kind == CATALOGUES or subject.recipe.data.placeholders is not None
    is_code = re.compile(r"[a-z]{2,3}" if is_catalogue else "|".join(LANGUAGES.split()))
    languages = [name for name in (*row["sources"], row["target"]) if is_code.fullmatch(name)]
    hub = re.findall(r"huggingface\.co/datasets/([\w.-]+/[\w.-]*\w)", origin)
    data = subject.recipe.data
    named = data.kind if data.kind == CATALOGUES else Path(data.path).name or "data"
    dataset = origin.split(",")[0].strip() if origin else named
    split = f"{row['split']}[:{row['limit']}]" if "limit" in row else row["split"]  # slice syntax of `datasets`
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
    """Return the best score on the development set; None if training did not measure it."""
    choose = max if METRICS[head_metric(row)].higher_is_better else min
    return choose((score for _, score in row["curve"]), default=None)


def terms(recipe: Recipe) -> str | None:
    """Return the URL of the terms of the data, which is the first URL in `origin`; None if there is no URL."""
    found = URL.search(recipe.data.origin or "")
    return re.split("[,;]", found.group())[0].rstrip(".") if found else None


def settings(recipe: Recipe) -> str:
    """Return the recipe as YAML, without settings that are elsewhere in the card or specific to one machine."""
    sections = asdict(recipe)
    chosen = {name: dict(sections[name]) for name in ("tokenizer", "model", "training")}
    for section, key in (("tokenizer", "load"), ("training", "output_dir"), ("training", "max_steps")):
        chosen[section].pop(key, None)
    if len(recipe.data.model_sources) == 1:
        chosen["model"].pop("combiner", None)  # all combiners are equal for one source
    return yaml.safe_dump(chosen, sort_keys=False, allow_unicode=True).strip()


def publishable_subject(subject: Subject) -> Subject:
    """Return the content of a card without secrets and local paths.

    Args:
        subject: The content of the card.

    Returns:
        The content, with masked secrets and shortened absolute paths in the row and the recipe.
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
    """Fill in the template, escaping all texts, masking secrets and shortening absolute paths.

    Args:
        subject: The content of the card.
        out: File of the card, to which links are relative.
        command: Command that creates this card.

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
    example = snippet(subject)  # uses the original recipe, which may name the checkpoint of a wrapped encoder
    subject = publishable_subject(subject)
    row = subject.row
    plain = len(subject.recipe.data.model_sources) == 1
    card = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        row=row,
        seeds=row["seed"] if isinstance(row["seed"], list) else [row["seed"]],
        recipe=subject.recipe,
        metadata=metadata(subject).to_yaml(),
        command=publishable_command(command),
        separator=SEPARATOR,
        marker=(reverse_marker if subject.recipe.data.reverse else source_marker)(subject.recipe.data.sources[0]),
        combiner="" if plain else strategy_text(row["combiner"]),
        encoders=encoders_text(subject),
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
    """Find the rows of results of single models; rows that summarize several models have no card.

    Args:
        results: The folder of all tables.

    Returns:
        The sorted files of the rows.
    """
    return [path for path in sorted(results.glob("*/*.json")) if "made_of" not in read_result(path)]


def card_of_row(path: Path, out: Path | None = None) -> tuple[Path, str]:
    """Return the card of a committed row.

    Args:
        path: The file of the row.
        out: File of the card. Defaults to a file in model_cards.

    Returns:
        The file of the card, and the text of the card.
    """
    out = out or CARDS / f"{path.parent.name}-{path.stem}.md"
    return out, render(subject_of_row(path), out, f"{PROGRAM} card --row {path.as_posix()}")


def write_card(out: Path, card: str) -> Path:
    """Write a card atomically.

    Args:
        out: The file.
        card: Text of the card.

    Returns:
        The file.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, card)
    return out
