"""`hf-multisource localize`: fill the catalogues of a language from the catalogues of other languages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_multisource.cli import options
from hf_multisource.cli.command import make_main
from hf_multisource.data.files import check_folder, write_text
from hf_multisource.data.translation_memory import import_rapidfuzz
from hf_multisource.evaluation.confidence import Confidence
from hf_multisource.evaluation.decoding import Search
from hf_multisource.evaluation.localization import Places, make_plan
from hf_multisource.evaluation.localization_answers import Options, Probability
from hf_multisource.evaluation.localization_report import describe_counts, preview
from hf_multisource.evaluation.localization_run import check_output, describe_settings
from hf_multisource.evaluation.localization_run import localize as localize_catalogues
from hf_multisource.evaluation.review_page import find_hints, is_review_page, review_page
from hf_multisource.evaluation.shards import describe_settings as describe_model
from hf_multisource.evaluation.text_translator import TextTranslator, Translator
from hf_multisource.evaluation.translating import source_options
from hf_multisource.recipes.run_folder import data_of_run

NAME = "localize"
SETTINGS = {"bare": options.BARE_OPTIMIZE}
NUM_BEAMS = 5  # default beam width of runs without a confidence; a confidence records the width of its fit


def localize(
    run: Annotated[str, typer.Argument(help="Run folder, model folder or Hub id.")],
    target: Annotated[
        str, typer.Option("--target", metavar="LANGUAGE[=PATH]", help="Language to fill, and its catalogues.")
    ],
    source: Annotated[
        list[str],
        typer.Option(
            "--source", metavar="LANGUAGE=PATH ...", help="Catalogues of the sources; the first is the guide."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder to write, or file if the catalogues are one file each.")],
    codes: Annotated[
        list[str] | None,
        typer.Option("--codes", metavar="LANGUAGE=CODE ...", help="Codes in paths that are not the names: en=en-GB."),
    ] = None,
    source_language: Annotated[
        str,
        typer.Option(
            "--source_language", help="Language of messages in gettext, Qt and XLIFF, and of files without a code."
        ),
    ] = "en",
    memory: Annotated[
        list[str] | None,
        typer.Option("--memory", metavar="FOLDER ...", help="Training rows that `hf-multisource catalogues` wrote."),
    ] = None,
    drop_copies: Annotated[
        bool, typer.Option("--drop_copies", help="Ignore target texts that equal only the text of the source language.")
    ] = False,
    min_confidence: Annotated[
        float | None,
        typer.Option("--min_confidence", help="Write no translation of the model whose probability is lower."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry_run", help="Print what would be filled from where; translate and write nothing.")
    ] = False,
    review: Annotated[
        Path | None, typer.Option("--review", metavar="FILE", help="Write a page in HTML for reviewers.")
    ] = None,
    num_beams: Annotated[
        int | None,
        typer.Option(
            "--num_beams", help=f"Beam width, at least 2; default: that of confidence.json, else {NUM_BEAMS}."
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max_new_tokens", help="Longest translation, in tokens; default: that of the run.")
    ] = None,
    optimize: options.Optimize = None,
    device: options.Device = None,
) -> None:
    """Fill missing texts of a language's catalogues from a translation memory and a model, and mark them for review.

    \b
        hf-multisource localize runs/mine --target dsb=l10n/dsb --source en=l10n/en de=l10n/de --out filled/dsb
        hf-multisource localize runs/mine --target dsb=dsb.po --source de=de.po cs=cs.po --out new.po
        hf-multisource localize runs/mine --target dsb --source en=en.xpi hsb=hsb.xpi --out dsb --review review.html

    Only missing texts are filled; comments, order and existing translations of the target stay unchanged. Without a
    PATH, the target gets the files of the first source. The memory contains the translations of the target and of
    --memory, and is used if all sources of a text are equal. The model translates the other texts. OUT.json lists the
    origin of each text, and the reasons for refused texts. The same command continues an interrupted run and writes the
    same files.
    """
    language, equals, path = target.partition("=")
    if not language or (equals and not path):
        raise ValueError(f"--target {target}: write LANGUAGE or LANGUAGE=PATH, such as dsb=l10n/dsb")
    places = Places(
        target=language,
        sources={name: Path(place) for name, place in options.parse_pairs("source", source, "en=l10n/en").items()},
        target_path=Path(path) if equals else None,
        codes=options.parse_pairs("codes", codes or (), "en=en-GB", "LANGUAGE=CODE"),
        source_language=source_language,
        drop_copies=drop_copies,
    )
    search = Options(NUM_BEAMS if num_beams is None else num_beams, max_new_tokens, min_confidence)
    check_places(places, out)
    if review is not None:
        import_rapidfuzz()  # fail before the translation if rapidfuzz is missing
        check_review(review, places, out)
    spoken = source_options(run)
    if (data := data_of_run(run)) is not None and data.target != language:
        raise ValueError(
            f"--target is {language!r}, and {run} translates into {data.target!r}; if this language has another code "
            f"in paths, write --target {data.target} --codes {data.target}=CODE"
        )
    plan = make_plan(places, spoken)
    for place in memory or ():
        plan.memory.read(place, [name for name in spoken if name != language], language)
    check_output(plan, out)
    if dry_run:
        print(describe_counts(preview(plan)))
        return
    loaded = load_run(run, search, num_beams, optimize, device)
    search = Options(loaded.num_beams, max_new_tokens, min_confidence)
    settings = describe_settings(places, plan, search, loaded.settings)
    try:
        record = localize_catalogues(plan, out, settings, lambda: (loaded.translator, loaded.confidence), search)
    except KeyboardInterrupt as error:  # Ctrl-C or SIGTERM
        raise type(error)(f"the same command continues {out}") from error
    print(describe_counts(record["counts"]))
    if review is not None:
        review.parent.mkdir(parents=True, exist_ok=True)
        write_text(review, review_page(record, find_hints(record, plan.memory)))
        print(f"{review} is written: open it in a browser")
    print(f"{out} is written; {out.name}.json says where each text is from")


@dataclass(frozen=True)
class Loaded:
    """A loaded run.

    Args:
        translator: Translator with the model.
        confidence: Confidence of the run; None if the run has no confidence.
        num_beams: The beam width.
        settings: Settings that identify model and confidence.
    """

    translator: Translator
    confidence: Probability | None
    num_beams: int
    settings: dict[str, Any]


def load_run(run: str, search: Options, num_beams: int | None, optimize: str | None, device: str | None) -> Loaded:
    """Load a run, and warn if its confidence was fitted with another search.

    Args:
        run: Run folder, model folder or Hub id.
        search: Options with the length limit of translations and the smallest confidence.
        num_beams: Beam width. Defaults to the beam width of the confidence, or to `NUM_BEAMS`.
        optimize: See `Search`.
        device: Torch device. Defaults to the GPU if there is one.

    Returns:
        The loaded run.

    Raises:
        ValueError: If the model cannot be loaded, or a required confidence is missing.
    """
    confidence = Confidence.load(run)
    if confidence is None and search.min_confidence is not None:
        raise ValueError(
            f"--min_confidence needs the file confidence.json, which {run} lacks: run `hf-multisource calibrate`"
        )
    if confidence is not None and num_beams not in (None, confidence.num_beams):
        raise ValueError(
            f"--num_beams is {num_beams}; the confidence of {run} was fitted to translations with "
            f"{confidence.num_beams} beams"
        )
    translator = TextTranslator.from_run(run, device=device, optimize=optimize)
    if confidence is not None:
        confidence.warn_of_other_search(run, translator.search_settings(search.max_new_tokens))
    model = describe_model(translator.model, translator.processor, [], Search())
    names = ("weights_sha256", "config_sha256", "processor_sha256")
    settings = {
        **{name: model[name] for name in names},
        "max_length": translator.max_length,
        "optimize": optimize,
        "confidence": [*confidence.weights, confidence.bias] if confidence else None,
    }
    if num_beams is None:
        num_beams = confidence.num_beams if confidence else NUM_BEAMS
    return Loaded(translator, confidence, num_beams, settings)


def check_places(places: Places, out: Path) -> None:
    """Raise ValueError for an output inside a folder that is read.

    Args:
        places: The catalogues.
        out: The output.

    Raises:
        ValueError: If the output is in the place of a language, and writing it would change the place.
    """
    for name, place in {**places.sources, places.target: places.target_path}.items():
        if place is not None and place.is_dir() and out.resolve().is_relative_to(place.resolve()):
            raise ValueError(f"--out {out} is in {place}, where the catalogues of {name!r} are: name another place")


def check_review(review: Path, places: Places, out: Path) -> None:
    """Check that the page for reviewers does not overwrite another file.

    Args:
        review: The page.
        places: The catalogues.
        out: The output.

    Raises:
        FileExistsError: If the file exists and was not written by this command.
        OSError: If the folder of the page cannot be written to, or the page is a folder.
        ValueError: If the page is one of the files of the output, or in the place of a language.
    """
    page = review.resolve()
    written = [out, *(out.with_name(f"{out.name}{suffix}") for suffix in (".work", ".json"))]
    if any(page.is_relative_to(place.resolve()) for place in written):
        raise ValueError(f"--review {review} is what --out writes: name a file elsewhere, such as review.html")
    for name, place in {**places.sources, places.target: places.target_path}.items():
        if place is not None and page.is_relative_to(place.resolve()) and place.is_dir():
            raise ValueError(f"--review {review} is in {place}, where the catalogues of {name!r} are")
    if review.is_dir():
        raise IsADirectoryError(f"--review {review} is a folder: name a file, such as review.html")
    if review.exists() and not is_review_page(review):
        raise FileExistsError(f"--review {review} exists, and is no review page of this command: name another file")
    check_folder(review.parent)


main = make_main(NAME, localize, **SETTINGS)

if __name__ == "__main__":
    main()
