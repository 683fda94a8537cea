"""Fit the confidence of a run on its development set and optionally evaluate it on another split.

The n-best lists are written to `calibration/<split>-<digest>.jsonl` in the run's folder, one row per line, while they
are decoded. A later call continues an interrupted one and decodes no row twice. The digest covers the weights, the rows
and the search settings, so each combination has its own file. `confidence.json` is written when all rows are decoded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tqdm import tqdm

from hf_multisource.data.checks import check_at_least, check_choice
from hf_multisource.data.files import check_folder
from hf_multisource.data.placeholders import SYNTAXES
from hf_multisource.data.rows import Row, read_split
from hf_multisource.evaluation.confidence import CANDIDATES, Confidence, digest_weight_files
from hf_multisource.evaluation.decoding import OPTIMIZATIONS, write_windows
from hf_multisource.evaluation.tables import format_table
from hf_multisource.evaluation.text_translator import Candidate, TextTranslator, Translation, Translator
from hf_multisource.json_files import JsonObject
from hf_multisource.recipes.provenance import find_device
from hf_multisource.recipes.run_folder import rows_of_run
from hf_multisource.recipes.schema import DataRecipe
from hf_multisource.recipes.shipped import RECIPE

FOLDER = "calibration"  # name of the subfolder of the run folder that holds the decoded n-best lists
WINDOW = 128  # rows translated between two writes; if the process is killed, at most this many are lost


@dataclass(frozen=True)
class Calibration:
    """Options of [`calibrate`]: the rows on which the confidence is fitted, and how they are decoded.

    Args:
        run: Run folder.
        data: Folder or Hub id of the data; None: the value in the recipe.
        split: Name of the split; None: the recipe's `dev` split.
        evaluate: Name of another split on which the confidence is measured, such as "test"; None: no further split.
        target: Name of the target column; None: the value in the recipe.
        num_beams: Beam width; the confidence is valid for this beam width.
        max_new_tokens: Longest translation, in tokens; None: the default of [`TextTranslator`].
        syntax: Syntax of the placeholders; None: the syntax that the model was trained with, or else "any".
        limit: Number of lines of the split that are read; None: all.
        optimize: See [`Search`].
        device: Torch device; None: the GPU if there is one.

    Raises:
        ValueError: If a value is not allowed; the message names it.
    """

    run: str
    data: str | None = None
    split: str | None = None
    evaluate: str | None = None
    target: str | None = None
    num_beams: int = 5
    max_new_tokens: int | None = None
    syntax: str | None = None
    limit: int | None = None
    optimize: str | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        check_at_least(CANDIDATES, num_beams=self.num_beams)
        check_at_least(1, max_new_tokens=self.max_new_tokens, limit=self.limit)
        check_choice(list(SYNTAXES), syntax=self.syntax)
        check_choice(OPTIMIZATIONS, optimize=self.optimize)
        if not Path(self.run).is_dir():
            raise ValueError(f"there is no folder {self.run}; name the folder of a run")

    @property
    def search(self) -> dict[str, Any]:
        """Keyword arguments of `Translator.translate`."""
        return {
            "n_best": CANDIDATES,
            "num_beams": self.num_beams,
            "max_new_tokens": self.max_new_tokens,
            "syntax": self.syntax,
        }

    def which_data(self, sources: Sequence[str]) -> DataRecipe:
        """Return the data section of the run's recipe, overridden by the given options.

        Without a recipe, the section is built from the options alone.

        Args:
            sources: Names of the translator's sources.

        Returns:
            The data section; its `dev` is the split to read.

        Raises:
            FileNotFoundError: If the rows of a run on catalogues are missing.
            ValueError: If there is no recipe, and an option is missing.
        """
        given = {"path": self.data, "target": self.target, "dev": self.split}
        known: JsonObject = {key: value for key, value in given.items() if value is not None}
        if (data := rows_of_run(self.run, self.data)) is not None:
            return replace(data, **known)
        if missing := [name for name in ("data", "target", "split") if getattr(self, name) is None]:
            raise ValueError(f"{self.run} has no {RECIPE}, so give --{', --'.join(missing)}")
        return DataRecipe(sources=list(sources), **known)


def calibrate(job: Calibration, command: str, translator: Translator | None = None) -> Confidence:
    """Decode the development set, fit the confidence and store it in the run's folder.

    Args:
        job: Options of the calibration.
        command: The command line, which is recorded in `confidence.json`.
        translator: Translator of the rows; None: the model of the run.

    Returns:
        The confidence.

    Raises:
        ValueError: If a setting, the data or the model is unsuitable; the message names the reason.
    """
    find_device(job.device)
    folder = Path(job.run)
    check_folder(folder / FOLDER)
    digest = digest_weight_files(folder)
    translator = translator or TextTranslator.from_run(job.run, device=job.device, optimize=job.optimize)
    data = job.which_data(translator.sources)
    if job.evaluate == data.dev:
        raise ValueError(f"evaluate is {data.dev!r}, the split on which the confidence is fitted; name another one")
    splits = {
        name: read_split(data.path, name, list(translator.sources), data.target, limit=job.limit)
        for name in (data.dev, job.evaluate)
        if name is not None
    }

    def translated(name: str) -> tuple[list[Row], list[Translation], list[str]]:
        split = splits[name]
        rows = [{name: row[name] for name in translator.sources} for row in split.rows]
        settings = {
            **job.search,
            "optimize": job.optimize,
            "rows": len(rows),
            "rows_sha256": hashlib.sha256(json.dumps(rows).encode()).hexdigest(),
            "weights_sha256": digest,
        }
        own = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
        out = folder / FOLDER / f"{name}-{own}.jsonl"
        references = [row[data.target] or "" for row in split.rows]
        return rows, decode(translator, rows, out, settings, job.search), references

    found = Confidence.fit(
        *translated(data.dev),
        sources=translator.sources,
        num_beams=job.num_beams,
        search=translator.search_settings(job.max_new_tokens),
        weights_sha256=digest,
        facts={
            "split": data.dev,
            "syntax": job.syntax,
            "command": command,
            "date": datetime.now(timezone.utc).date().isoformat(),
            "versions": {name: version(name) for name in ("hf-multisource", "torch", "transformers")},
        },
    )
    found.save(folder)  # before the other split is decoded: an error there must not lose the fit
    if job.evaluate is not None:
        quality = asdict(found.measure_on(*translated(job.evaluate)))
        found = replace(found, facts={**found.facts, "evaluated": {"split": job.evaluate, **quality}})
        found.save(folder)
    return found


def decode(
    translator: Translator, rows: Sequence[Row], out: Path, settings: JsonObject, search: JsonObject
) -> list[Translation]:
    """Translate rows into a JSON Lines file, continuing a file that an earlier call has begun.

    Args:
        translator: Translator of the rows.
        rows: Rows of the sources.
        out: The file; `<out>.json` beside it holds the settings with which it was begun.
        settings: Everything that determines the translations.
        search: Keyword arguments of `Translator.translate`.

    Returns:
        The translation of each row.

    Raises:
        FileExistsError: If the file exists but was not written by this function.
    """

    def windows(done: int) -> Iterator[list[str]]:
        with tqdm(total=len(rows), initial=done, desc=out.stem, unit="row", dynamic_ncols=True) as bar:
            for start in range(done, len(rows), WINDOW):
                translated = translator.translate(rows[start : start + WINDOW], **search)
                yield [format_translation(translation) for translation in translated]
                bar.update(len(translated))

    lines, _ = write_windows(out, settings, len(rows), 1, windows)
    return [parse_translation(line) for line in lines]


def format_translation(translation: Translation) -> str:
    """Return a translation as a line of JSON.

    Args:
        translation: The translation.

    Returns:
        The line.
    """
    candidates = [{"text": one.text, "score": one.score} for one in translation.candidates]
    return json.dumps({"candidates": candidates}, ensure_ascii=False) + "\n"


def parse_translation(line: str) -> Translation:
    """Parse a line that [`format_translation`] has written.

    Args:
        line: The line.

    Returns:
        The translation. The reason why a row was refused is not restored.
    """
    return Translation(tuple(Candidate(**one) for one in json.loads(line)["candidates"]))


def describe_confidence(confidence: Confidence) -> str:
    """Format the quality of a newly fitted confidence as text.

    Args:
        confidence: Return value of [`calibrate`].

    Returns:
        Several lines: the errors by cross-validation, and the table of coverage against correctness; then the same
        figures for the split `evaluate`, if one was given.
    """
    facts = confidence.facts
    parts = [_describe_quality(facts["split"], facts["cross_validation"], "by cross-validation")]
    if evaluated := facts.get("evaluated"):
        how = f"by the confidence that was fitted on split {facts['split']!r}"
        parts.append(_describe_quality(evaluated["split"], evaluated, how))
    return "\n\n".join(parts)


def _describe_quality(split: str, quality: JsonObject, how: str) -> str:
    """Format the fields of `Quality` as text."""
    rows, refused = quality["rows"], quality["refused"]
    lines = [
        [
            f"{one['threshold']:.2f}",
            str(one["rows"]),
            f"{100 * one['covered']:.1f} %",
            "" if one["correct"] is None else f"{100 * one['correct']:.1f} %",
        ]
        for one in quality["coverage"]
    ]
    return "\n".join(
        [
            f"{rows} rows of split {split!r}: {quality['correct']} best candidates equal the "
            f"reference, {refused} translations were refused",
            f"expected calibration error {100 * quality['calibration_error']:.1f} %, Brier score "
            f"{quality['brier']:.3f} (a constant probability: {quality['brier_of_constant']:.3f}), {how}",
            "",
            format_table(["confidence at least", "rows", "of all rows", "of these correct"], lines),
        ]
    )
