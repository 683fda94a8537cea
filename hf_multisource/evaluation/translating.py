"""Translate text from one file per source, or from one table of all sources.

Line i of every file belongs to sentence i; a source without a file is absent. A table has one of three forms: a `.csv`
or `.tsv` file whose header names the columns; one tab-separated column per source, in the model's order; or one JSON
object per line, source name -> text. An empty line, an empty cell and null mean that the source is absent in this
sentence. A sentence without any source is translated as an empty line, and a warning is logged.

For a source of pictures or sound, each text is the path of a file, relative to the folder of the file that names it
(for standard input, to the current folder). Features come from an array in a separate file and cannot be part of a
table.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from hf_multisource import MultiSourceProcessor
from hf_multisource.data.checks import check_at_least, check_choice
from hf_multisource.data.files import parse_lines, read_lines
from hf_multisource.data.masking import mask_sources, remembered_syntax
from hf_multisource.data.media import find_unreadable, forms_of, read_features
from hf_multisource.data.rows import Row, place_of_file
from hf_multisource.data.tables import find_delimiter, read_table
from hf_multisource.evaluation.decoding import (
    Search,
    check_output,
    decode_windows,
    format_lines,
)
from hf_multisource.evaluation.ensembles import load_members
from hf_multisource.evaluation.shards import Share, decode_shards
from hf_multisource.json_files import JsonObject
from hf_multisource.messages import shown
from hf_multisource.recipes.pretrained import load_config, load_processor
from hf_multisource.recipes.provenance import find_device, hardware
from hf_multisource.recipes.recipe import UNREADABLE, DataRecipe
from hf_multisource.recipes.run_folder import data_of_run
from hf_multisource.source_kinds import FORMS

LONGEST_SOURCE = 1024  # default maximum length of a source, in tokens, if neither the recipe nor the model sets one


def rows_from_files(files: dict[str, str], forms: Mapping[str, str] | None = None) -> list[Row]:
    """Join line-aligned files.

    Args:
        files: Source name -> path.
        forms: Form of each source that is not a text, see `media`.

    Returns:
        One dict per line.

    Raises:
        ValueError: If the files differ in length; the message gives every length.
    """
    columns: dict[str, list[Any]] = {}
    for name, path in files.items():
        kind = FORMS[(forms or {}).get(name, "text")]
        columns[name] = read_features(Path(path)) if kind.column == "arrays" else read_lines(path, pipes=True)
        if kind.column == "files":
            columns[name] = [place_of_file(Path(path).parent, line) for line in columns[name]]
    if len({len(column) for column in columns.values()}) > 1:
        lengths = ", ".join(f"{name} ({files[name]}) has {len(column)}" for name, column in columns.items())
        raise ValueError(f"the sources differ in their number of lines: {lengths}")
    return [dict(zip(columns, line, strict=True)) for line in zip(*columns.values(), strict=True)]


def rows_from_tabs(lines: Sequence[str], sources: Sequence[str], place: str) -> list[Row]:
    """Split lines at tabs, one column per source.

    Args:
        lines: The lines of a table.
        sources: Names of the columns.
        place: Name of the table, for error messages.

    Returns:
        One dict per line.

    Raises:
        ValueError: If a line has another number of columns; the message names the line.
    """
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        columns = line.split("\t")
        if len(columns) != len(sources):
            raise ValueError(
                f"{place}, line {number}: {len(columns)} columns between tabs; the model's sources are {len(sources)}: "
                f"{', '.join(sources)} (an absent one is an empty column)"
            )
        rows.append(dict(zip(sources, columns, strict=True)))
    return rows


def rows_from_jsonl(lines: Sequence[str], sources: Sequence[str], place: str) -> list[Row]:
    """Parse one JSON object per line, source name -> text or null.

    Args:
        lines: The lines of a table.
        sources: The allowed names.
        place: Name of the table, for error messages.

    Returns:
        One dict per line.

    Raises:
        ValueError: If a line is not such an object, or names an unknown source; the message names the line.
    """
    rows: list[Row] = []
    for number, row in enumerate(parse_lines(lines, place), 1):
        if not isinstance(row, dict) or not all(isinstance(text, str | None) for text in row.values()):
            raise ValueError(f"{place}, line {number}: must be an object of named text (or null), but is {shown(row)}")
        if unknown := [name for name in row if name not in sources]:
            listed = ", ".join(sources)
            raise ValueError(f"{place}, line {number}: unknown source {unknown[0]!r}; the model's are {listed}")
        rows.append(row)
    return rows


@dataclass(frozen=True)
class Translation:
    """Options of [`translate`]: model, input, output and search.

    Args:
        model: Run folder, model folder or Hub id.
        files: Source name -> file with one text per line; empty: `table` has all sources.
        ensemble: Further models that decode together with the first one.
        table: File of all sources, with a header where its name ends in one of `DELIMITERS`; None: standard input.
        jsonl: Whether the table holds JSON lines.
        out: File to write, or to continue; None: standard output.
        search: How to decode. Without a `max_length`, sources are truncated to [`source_limit`].
        batch_size: Number of sentences per batch.
        unreadable: Whether pictures and recordings that cannot be read are an "error" or "absent".
        device: Torch device; None: the GPU if there is one.

    Raises:
        ValueError: If a value is not allowed; the message names it.
    """

    model: str
    files: Mapping[str, str]
    search: Search
    ensemble: Sequence[str] = ()
    table: str | None = None
    jsonl: bool = False
    out: str | None = None
    batch_size: int = 32
    unreadable: str = "error"
    device: str | None = None

    def __post_init__(self) -> None:
        check_at_least(1, batch_size=self.batch_size)
        check_choice(UNREADABLE, unreadable=self.unreadable)
        if self.files and (self.table or self.jsonl):
            named = " --".join(self.files)
            raise ValueError(f"give one file per source (--{named}) or a table (--input, --jsonl), not both")


def announce_standard_input(job: Translation, sources: Sequence[str]) -> None:
    """Announce on standard error that standard input is read, if it is a terminal and the command waits for input.

    Args:
        job: Options of the translation.
        sources: The sources that may be given.
    """
    if job.files:
        expected = next((f"the lines of {name}" for name, file in job.files.items() if file == "-"), None)
    elif job.table not in (None, "-"):
        expected = None
    elif job.jsonl:
        expected = "lines with one JSON object each"
    elif len(sources) == 1:
        expected = f"the lines of {sources[0]}"
    else:
        expected = f"lines with the texts of {', '.join(sources)} between tabs"
    if expected and sys.stdin.isatty():
        print(f"reading {expected} from standard input; end with Ctrl-D", file=sys.stderr)


def read_rows(
    job: Translation, sources: Sequence[str], forms: Mapping[str, str], parts: Mapping[str, Any]
) -> list[Row]:
    """Read the sentences to translate.

    Args:
        job: Options of the translation.
        sources: The sources that may be given.
        forms: Form of each source that is not a text, see `media`.
        parts: Parts of the processor, by source.

    Returns:
        One dict per sentence.

    Raises:
        ValueError: If the input is malformed, or a file that it names cannot be read.
    """
    files = dict(job.files)
    announce_standard_input(job, sources)
    if files:
        rows = rows_from_files(files, forms)
    else:
        place = job.table or "standard input"
        if not job.jsonl and find_delimiter(place):
            cells = read_table(place, sources, pipes=True).values()
            rows = [dict(zip(sources, row, strict=True)) for row in zip(*cells, strict=True)]
        else:
            lines = read_lines(job.table or "-", pipes=True)
            rows = rows_from_jsonl(lines, sources, place) if job.jsonl else rows_from_tabs(lines, sources, place)
        for number, row in enumerate(rows, 1):
            for name, value in row.items():
                kind = FORMS[forms.get(name, "text")]
                if value and kind.column == "arrays":
                    raise ValueError(
                        f"{place}, line {number}: features of {name!r} cannot be given in a table: use --{name} FILE"
                    )
                if kind.column == "files":
                    row[name] = place_of_file(Path(job.table or "").parent, value)
    whole = [{**dict.fromkeys(sources), **row} for row in rows]
    for name, places in find_unreadable(whole, forms, parts=parts).items():
        for i, reason in places.items():
            if job.unreadable == "error":
                raise ValueError(f"line {i + 1}, {name}: {reason} (--unreadable absent treats it as absent)")
            print(f"line {i + 1}, {name}: {reason}: treated as absent", file=sys.stderr)
            rows[i][name] = None
    return rows


def source_limit(model: str, config: Any, processor: MultiSourceProcessor) -> int:
    """Return the length, in tokens, to which `translate` truncates sources by default.

    Args:
        model: Run folder, model folder or Hub id.
        config: The model's configuration.
        processor: The model's processor.

    Returns:
        For a run folder, `data.max_length` of its recipe. For another model, the smallest of `LONGEST_SOURCE`, the
        model's learned position tables, and the limits of wrapped encoders and of tokenizers.
    """
    if (data := data_of_run(model)) is not None:
        return data.max_length
    texts = [name for name, form in forms_of(processor).items() if FORMS[form].has_vocabulary]
    lengths = [processor.get_tokenizer(name).model_max_length for name in texts]
    return min(LONGEST_SOURCE, position_limit(config, processor), *lengths)


def position_limit(config: Any, processor: MultiSourceProcessor) -> int:
    """Return the number of tokens that each text source of a model can have.

    Args:
        config: The model's configuration.
        processor: The model's processor.

    Returns:
        The smallest of `LONGEST_SOURCE`, the learned position tables of the sources, and the limits of wrapped
        encoders.
    """
    forms = forms_of(processor)
    limits = [LONGEST_SOURCE]
    for source in (source for source in config.sources if FORMS[forms[source.name]].has_vocabulary):
        settings = config.encoder_settings(source.name)
        if getattr(settings, "position_embedding", None) == "learned":
            limits.append(settings.max_position_embeddings)
        limits.append(getattr(source.encoder, "max_position_embeddings", LONGEST_SOURCE))
    return min(limits)


def check_new_tokens(name: str, config: Any, max_new_tokens: int) -> None:
    """Check that a decoder has a position for each token of a translation.

    Args:
        name: Name of the model in the message.
        config: The model's configuration.
        max_new_tokens: Longest translation, in tokens.

    Raises:
        ValueError: If the learned positions of the decoder are fewer.
    """
    known = decoder_limit(config)
    if known is not None and max_new_tokens > known:
        raise ValueError(f"max_new_tokens is {max_new_tokens}, but the decoder of {name} has {known} positions")


def decoder_limit(config: Any) -> int | None:
    """Return the number of tokens that a decoder can write.

    Args:
        config: The model's configuration.

    Returns:
        The number of learned positions; None: there are none, so any number.
    """
    limit: int | None = None
    if getattr(config, "position_embedding", None) == "learned":
        limit = config.max_position_embeddings
    return limit


def joined_sources(model: str) -> DataRecipe | None:
    """Return the data section of a run that joined its sources into one; None for any other model."""
    data = data_of_run(model)
    return data if data and data.concatenate else None


def source_options(model: str) -> list[str]:
    """Return the names of the sources that can be given to a model, each in a separate file.

    Args:
        model: Run folder, model folder or Hub id.

    Returns:
        Names of the model's sources; for a run that joined its sources into one, the names before joining.

    Raises:
        ValueError: If there is no such model.
    """
    joined = joined_sources(model)
    return list(joined.sources if joined else load_config(model).source_names)


def check_shared(job: Translation) -> None:
    """Check that several processes can share a translation.

    Args:
        job: Options of the translation.

    Raises:
        ValueError: If the output or the input is a stream, which several processes cannot share.
    """
    if job.out is None:
        raise ValueError("several processes cannot share standard output: give --out FILE")
    for name, place in {**job.files, **({} if job.files else {"input": job.table or "-"})}.items():
        if place == "-" or not Path(place).is_file():
            raise ValueError(f"--{name} {place}: several processes each read the input, so it must be a regular file")


def describe_job(job: Translation, search: Search, model: Any) -> JsonObject:
    """Return the provenance that is recorded in the JSON file beside the output.

    Args:
        job: Options of the translation.
        search: Settings of the search.
        model: The model.

    Returns:
        JSON values by name.
    """
    return {
        "model": job.model,
        "ensemble": list(job.ensemble),
        "inputs": dict(job.files) or {"table": job.table or "standard input"},
        "options": {**search.described(), "batch_size": job.batch_size},
        "hardware": hardware(model.device),
        "versions": {name: version(name) for name in ("hf-multisource", "torch", "transformers")},
    }


def translate(job: Translation) -> None:
    """Translate and write one line per sentence, or `search.n_best` lines of index, score and text between tabs.

    If `accelerate launch` starts several processes, they share the sentences, and each process writes its part of
    `out`.

    Args:
        job: Options of the translation.

    Raises:
        ValueError: If the sentences cannot be read; the message says where.
        KeyboardInterrupt: If the user or the system ends the translation; the message says how to continue.
    """
    share = Share.of_this_process()
    device = job.device
    if share.count > 1:
        check_shared(job)
        if device is None and torch.cuda.is_available():
            device = f"cuda:{os.environ.get('LOCAL_RANK', share.index)}"
    if job.out:
        check_output(Path(job.out))
    find_device(device)
    config, processor = load_config(job.model), load_processor(job.model)
    sources, joined = source_options(job.model), joined_sources(job.model)
    rows = read_rows(job, sources, {} if joined else forms_of(processor), processor.source_processors)
    if syntax := remembered_syntax(processor.tokenizer):
        rows = [mask_sources(row, sources, syntax) for row in rows]
    if joined:
        rows = joined.arrange_rows([{**dict.fromkeys(sources), **row} for row in rows])
    search = job.search
    members = {name: load_config(name) for name in (job.model, *job.ensemble)}
    for name, one in members.items():
        check_new_tokens(name, one, search.max_new_tokens)
    if search.max_length is None:
        limits = [position_limit(one, processor) for one in members.values()]
        search = replace(search, max_length=min(source_limit(job.model, config, processor), *limits))
    model = load_members(job.model, job.ensemble, processor, device, search.optimize)
    if job.out:
        facts = describe_job(job, search, model)
        try:
            whole = decode_shards(
                model, processor, rows, Path(job.out), search, batch_size=job.batch_size, facts=facts, share=share
            )
            if not whole:
                print(
                    f"process {share.index} of {share.count} (RANK, WORLD_SIZE) has written its part; {job.out} "
                    "appears with the last part",
                    file=sys.stderr,
                )
        except KeyboardInterrupt as error:  # Ctrl-C or SIGTERM
            raise type(error)(f"the same command continues {job.out}") from error
        except (OSError, ValueError) as error:
            if share.index > 0:  # the launcher shows only the errors of the first process
                print(f"process {share.index}: {error}", file=sys.stderr)
            raise
        return
    index = 0
    for window in decode_windows(model, processor, rows, search, batch_size=job.batch_size):
        for hypotheses in window:
            sys.stdout.write(format_lines(index, hypotheses))
            index += 1
        sys.stdout.flush()
