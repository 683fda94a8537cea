"""Decode rows into a text file in order; an interrupted run continues at the first missing row."""

import hashlib
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm
from transformers import LogitsProcessorList

from hf_multisource import DataCollatorForMultiSource, MultiSourceProcessor
from hf_multisource.data.checks import check_at_least, check_choice, check_finite
from hf_multisource.data.encoding import MixedExamples, encode_rows
from hf_multisource.data.files import check_folder, single_line, write_json
from hf_multisource.data.interfaces import Model
from hf_multisource.data.masking import TABLE, has_mask_tokens, refusal, restore_masked
from hf_multisource.data.media import digest
from hf_multisource.data.placeholder_constraint import placeholder_constraint
from hf_multisource.data.placeholders import MASK_TOKENS, PlaceholderTable
from hf_multisource.data.rows import Row
from hf_multisource.evaluation.line_sampling import line_sampling
from hf_multisource.evaluation.target_tokens import target_tokens
from hf_multisource.json_files import JsonObject, read_json
from hf_multisource.recipes.pretrained import load_config, load_processor, load_saved_model
from hf_multisource.recipes.provenance import find_device
from hf_multisource.source_kinds import count_from, is_absent

logger = logging.getLogger(__name__)

LENGTH_PENALTY = "transformers: sum(log p) / length**length_penalty"
LENGTH_NORMALIZATION = "Wu et al. 2016, at every step: sum(log p) / ((5 + length) / 6)**length_normalization"
OPTIMIZATIONS = ("best", "int8")
SAMPLING = ("temperature", "top_k", "top_p", "seed")  # fields of `Search` that only sampling reads
# Batches whose rows are sorted by length together; one window is lost if the process is killed. 16 batches would be 4 %
# faster but lose more.
WINDOW = 8


class Hypothesis(NamedTuple):
    """One hypothesis of a decoded row.

    Args:
        text: The text.
        score: Length-normalized log probability; None if scores were not requested.
        is_cut: Whether the hypothesis of a masked row was cut at `max_new_tokens`: it has no end token there, or has
            placeholders that may have been forced to come before the end.
    """

    text: str
    score: float | None
    is_cut: bool = False


class Decoded(NamedTuple):
    """Output of `decode`: the hypotheses of every row, best first, and the total decoding seconds over all starts."""

    rows: list[list[Hypothesis]]
    seconds: float

    @property
    def best(self) -> list[str]:
        """Texts of the best hypotheses, one per row."""
        return [hypotheses[0].text for hypotheses in self.rows]


@dataclass(frozen=True)
class Search:
    """Settings of the search for hypotheses.

    Args:
        num_beams: Beam width; 1 is greedy.
        length_penalty: Exponent p of `LENGTH_PENALTY`.
        max_new_tokens: Maximum length of a hypothesis, in tokens.
        max_length: Maximum length of a source, in tokens; longer sources are truncated. None: no truncation.
        n_best: 0 writes only the best hypothesis; K >= 1 writes the K best hypotheses with their scores.
        length_normalization: Exponent of `LENGTH_NORMALIZATION`, which replaces `LENGTH_PENALTY`; None:
            `LENGTH_PENALTY` applies.
        optimize: One of `OPTIMIZATIONS`, the arithmetic that `optimize_for_inference` selects; None: the arithmetic of
            the checkpoint.
        shortlist: Text file in the target's language; only the tokens that occur in it are generated. None: all tokens.
        do_sample: Whether each line is sampled by [`LineSampling`]; requires `num_beams` 1.
        temperature: With `do_sample`: temperature by which the logits are divided.
        top_k: With `do_sample`: number of most likely tokens to sample from; 0: all.
        top_p: With `do_sample`: sample from the smallest set of most likely tokens with this total probability; 1: all.
        seed: With `do_sample`: seed of the random numbers; every line has its own random stream.

    Raises:
        ValueError: If a value is not allowed, such as a seed of 2**64 or more; `n_best` exceeds `num_beams`;
            `length_normalization` is set for greedy search or together with `length_penalty`; or an option of sampling
            is given without `do_sample`.
    """

    num_beams: int = 10
    length_penalty: float = 1.0
    max_new_tokens: int = 128
    max_length: int | None = None
    n_best: int = 0
    length_normalization: float | None = None
    optimize: str | None = None
    shortlist: str | None = None
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_at_least(1, num_beams=self.num_beams, max_new_tokens=self.max_new_tokens)
        check_at_least(2, max_length=self.max_length)  # one token and the end token
        check_at_least(0, n_best=self.n_best)
        check_finite(length_penalty=self.length_penalty, length_normalization=self.length_normalization)
        check_choice(OPTIMIZATIONS, optimize=self.optimize)
        if self.n_best and not 2 <= self.num_beams >= self.n_best:
            raise ValueError(
                f"n_best is {self.n_best} with num_beams {self.num_beams}; scored hypotheses come from the beam: "
                "num_beams must be at least 2 and at least n_best"
            )
        if self.length_normalization is not None and (self.num_beams < 2 or self.length_penalty != 1.0):
            raise ValueError(
                f"length_normalization is {self.length_normalization} with num_beams {self.num_beams} and "
                f"length_penalty {self.length_penalty}; it needs a beam and stands in for the length penalty"
            )
        self._check_sampling()

    def _check_sampling(self) -> None:
        check_at_least(0, top_k=self.top_k, seed=self.seed)
        check_finite(temperature=self.temperature, top_p=self.top_p)
        if self.temperature <= 0:
            raise ValueError(f"temperature must be above 0, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if self.seed >= 2**64:
            raise ValueError(f"seed must be below 2**64, not {self.seed}")
        if self.do_sample and self.num_beams != 1:
            raise ValueError(f"num_beams is {self.num_beams} with do_sample; samples are drawn with num_beams 1")
        unused = [f.name for f in fields(self) if f.name in SAMPLING and getattr(self, f.name) != f.default]
        if unused and not self.do_sample:
            raise ValueError(f"{unused[0]} is {getattr(self, unused[0])} without do_sample, which alone reads it")

    def settings(self) -> JsonObject:
        """Return the settings by name, without those that have no effect (such as the unused length rule)."""
        unused = {"length_penalty" if self.length_normalization is not None else "length_normalization"}
        unused |= {name for name in ("optimize", "shortlist") if getattr(self, name) is None}
        if not self.do_sample:
            unused |= {"do_sample", *SAMPLING}
        return {key: setting for key, setting in asdict(self).items() if key not in unused}

    def described(self) -> JsonObject:
        """Return the settings with the formula of the length rule, as reports record them."""
        if self.length_normalization is not None:
            return {**self.settings(), "length_normalization_formula": LENGTH_NORMALIZATION}
        return {**self.settings(), "length_penalty_formula": LENGTH_PENALTY}


def load_weights(name: str, device: str | None = None, optimize: str | None = None) -> Model:
    """Load a model from a folder or the Hub, ready to decode.

    Args:
        name: Folder or Hub id.
        device: Torch device; None: the GPU if there is one.
        optimize: See [`Search`].

    Returns:
        The model.

    Raises:
        ValueError: If there is no such model, its weights are missing, damaged or of another configuration, or the
            device is unavailable or does not support `optimize`.
    """
    place = find_device(device)
    config = load_config(name)
    settings = Path(name) / "generation_config.json"
    if settings.is_file():
        read_json(settings)
    model = load_saved_model(name, config=config)
    model.generation_config.max_length = None  # `Search.max_new_tokens` sets the limit
    model.generation_config.length_normalization = None  # `Search` selects the length rule
    model.to(place).eval()
    for chosen in model.optimize_for_inference(int8=optimize == "int8") if optimize else ():
        logger.info(chosen)
    return model


def load_model(name: str, device: str | None = None, optimize: str | None = None) -> tuple[Model, MultiSourceProcessor]:
    """Load model and processor from a folder or the Hub, ready to decode.

    Args:
        name: Folder or Hub id.
        device: See [`load_weights`].
        optimize: See [`Search`].

    Returns:
        Model and processor.

    Raises:
        ValueError: If one of the two cannot be loaded; the message says why.
    """
    processor = load_processor(name)
    return load_weights(name, device, optimize), processor


def decode_batch(
    model: Model,
    processor: MultiSourceProcessor,
    batch: Mapping[str, torch.Tensor],
    search: Search,
    lines: Sequence[int] = (),
    tables: Sequence[PlaceholderTable] = (),
) -> list[list[Hypothesis]]:
    """Search for the best hypotheses of every example of a padded batch.

    Args:
        model: Model with `generate` and `device`; with `tables`, also `generation_config`.
        processor: Processor with `batch_decode`; with `tables` or a shortlist, also `tokenizer`.
        batch: The inputs of the model.
        search: The search.
        lines: Indices of the examples in the whole input, which seed the sampling of each example.
        tables: For masked examples, the placeholders that each translation must contain; empty if the examples are not
            masked.

    Returns:
        The hypotheses of every example, best first. Hypotheses of masked examples still contain mask tokens.
    """
    width = max(1, search.n_best)
    rule: JsonObject = {}
    is_masked = bool(tables) and has_mask_tokens(processor.tokenizer)
    if search.num_beams > 1:  # greedy search ignores the length penalty and warns about it
        rule["length_penalty"] = search.length_penalty
    if search.length_normalization is not None:
        rule.update(length_normalization=search.length_normalization, early_stopping=False)
    if search.shortlist is not None:
        rule["shortlist"] = target_tokens(processor, search.shortlist)
        if is_masked:
            masks = torch.tensor(processor.tokenizer.convert_tokens_to_ids([*MASK_TOKENS]))
            rule["shortlist"] = torch.cat([rule["shortlist"], masks]).unique()
    if tables:  # a forced end, which Marian, BART, mBART and Pegasus have, would hide that a translation is cut
        rule["forced_eos_token_id"] = None
    processors = LogitsProcessorList()
    if is_masked:
        ends = model.generation_config.eos_token_id
        processors += placeholder_constraint(tables, processor.tokenizer, ends, search.max_new_tokens)
    if search.do_sample:
        processors += line_sampling(
            lines,
            search.max_new_tokens,
            model.device,
            search.seed,
            search.temperature,
            search.top_k,
            search.top_p,
        )
    if processors:  # passing even an empty list would slow the search down
        rule["logits_processor"] = processors
    with torch.inference_mode():
        output = model.generate(
            **{key: tensor.to(model.device) for key, tensor in batch.items()},
            num_beams=search.num_beams,
            max_new_tokens=search.max_new_tokens,
            num_return_sequences=width,
            do_sample=False,
            return_dict_in_generate=True,
            fold_beams=True,
            **rule,
        )
    texts = processor.batch_decode(output.sequences, skip_special_tokens=True)
    texts = [single_line(text) for text in texts]
    scores = output.sequences_scores.tolist() if search.n_best else [None] * len(texts)
    cut = [False] * len(texts)
    if tables:
        used = _tokens_until_end(output.sequences, model.generation_config.eos_token_id)
        # At the limit, the constraint forces missing placeholders and the end: such a text has an end, but is cut.
        limits = [search.max_new_tokens - (is_masked and table.required > 0) for table in tables]
        cut = [count > limits[i // width] for i, count in enumerate(used)]
    hypotheses = [Hypothesis(*parts) for parts in zip(texts, scores, cut, strict=True)]
    return [hypotheses[i : i + width] for i in range(0, len(hypotheses), width)]


def _tokens_until_end(sequences: torch.Tensor, end_token_ids: int | Sequence[int]) -> list[float]:
    """Return the number of tokens of each sequence, with its first end token and without the decoder's start token.

    The number is infinite if the sequence has no end token.
    """
    ends = torch.tensor(end_token_ids, device=sequences.device).reshape(-1)
    is_end = torch.isin(sequences[:, 1:], ends)
    places = is_end.int().argmax(dim=1) + 1.0
    used: list[float] = places.masked_fill(~is_end.any(dim=1), torch.inf).tolist()
    return used


def decode_window(
    model: Model,
    processor: MultiSourceProcessor,
    rows: Sequence[Row],
    search: Search,
    *,
    batch_size: int,
    first: int = 0,
    advance: Callable[[int], object] = int,
) -> tuple[list[list[Hypothesis]], Counter[str]]:
    """Decode one window of rows in batches of sentences of similar length.

    Args:
        model: Model with `generate`, `state_dict` and `device`.
        processor: Processor with `source_names`, `__call__` and `batch_decode`.
        rows: The rows of the window. Either all of them were masked by `mask_sources`, or none was.
        search: The search and its limits.
        batch_size: Number of sentences per batch.
        first: Index of the first row of the window in the whole input.
        advance: Callback for progress; it receives the number of newly decoded rows.

    Returns:
        The hypotheses of every row, and counts. Hypotheses are empty (score nan) for rows without any source and for
        rows that `refusal` refuses; hypotheses of masked rows still contain mask tokens. The counts are `silent` (rows
        without any source), `refused` (refused rows) and `truncated.<source>` (rows whose source was truncated).
    """
    collate = DataCollatorForMultiSource(processor)
    window = [{name: row.get(name) for name in processor.source_names} for row in rows]
    present = [i for i, row in enumerate(window) if not all(map(is_absent, row.values()))]
    spoken = [i for i in present if not refusal(rows[i].get(TABLE), search.max_new_tokens)]
    encoded, cut = encode_rows(processor, [window[i] for i in spoken], None, search.max_length or sys.maxsize)
    place = {i: k for k, i in enumerate(spoken)}
    counts: Counter[str] = Counter(cut)
    counts.update(silent=len(window) - len(present), refused=len(present) - len(spoken))
    lengths = dict(zip(spoken, longest(encoded), strict=True))
    spoken.sort(key=lambda i: -lengths[i])  # longest first, so that an out-of-memory error occurs at the start
    nothing = Hypothesis("", float("nan") if search.n_best else None)
    results = [[nothing] * max(1, search.n_best) for _ in window]
    advance(len(window) - len(spoken))
    for start in range(0, len(spoken), batch_size):
        batch = spoken[start : start + batch_size]
        tensors = collate([_example(encoded, place[i], first + i) for i in batch])
        tables = [rows[i][TABLE] for i in batch if TABLE in rows[i]]
        decoded = decode_batch(model, processor, tensors, search, [first + i for i in batch], tables)
        for i, hypotheses in zip(batch, decoded, strict=True):
            results[i] = hypotheses
        advance(len(batch))
    return results, counts


def _example(examples: Sequence[Any], place: int, number: int) -> Any:
    """Return an example, which error messages call by its number in the whole input."""
    with count_from(number - place):
        return examples[place]


def restore_window(
    results: Sequence[Sequence[Hypothesis]], rows: Sequence[Row], counts: Counter[str]
) -> list[list[Hypothesis]]:
    """Restore the placeholders in the hypotheses of masked rows, and turn each hypothesis into a single line.

    Args:
        results: The hypotheses of each row, as [`decode_window`] returns them.
        rows: The rows.
        counts: Counter whose `broken` is increased for each row whose best hypothesis lacks a placeholder. Hypotheses
            that lack a placeholder become empty.

    Returns:
        The hypotheses; rows that are not masked keep theirs unchanged.
    """
    restored = []
    for row, hypotheses in zip(rows, results, strict=True):
        table = row.get(TABLE)
        if table is not None and not refusal(table):
            texts = [_restored(hypothesis.text, table) for hypothesis in hypotheses]
            counts["broken"] += bool(hypotheses[0].text) and texts[0] is None
            hypotheses = [
                Hypothesis(single_line(text or ""), one.score, one.is_cut)
                for one, text in zip(hypotheses, texts, strict=True)
            ]
        restored.append(list(hypotheses))
    return restored


def _restored(text: str, table: PlaceholderTable) -> str | None:
    """Return the text with its placeholders restored; None if one is missing."""
    try:
        return restore_masked(text, table)
    except ValueError:
        return None


def decode_windows(
    model: Model,
    processor: MultiSourceProcessor,
    rows: Sequence[Row],
    search: Search,
    *,
    batch_size: int,
    done: int = 0,
    title: str = "decoding",
) -> Iterator[list[list[Hypothesis]]]:
    """Decode `rows[done:]` with a progress bar; yield the hypotheses of one window of rows after the other, in order.

    Within a window, sentences of similar length share a batch. Rows without any source, and rows that cannot be masked,
    get empty hypotheses (score nan). Hypotheses of masked rows contain the placeholders of their sources.
    """
    counts: Counter[str] = Counter()
    with tqdm(total=len(rows), initial=done, desc=title, unit="sent", dynamic_ncols=True) as bar:
        for start in range(done, len(rows), WINDOW * batch_size):
            window = rows[start : start + WINDOW * batch_size]
            results, found = decode_window(
                model, processor, window, search, batch_size=batch_size, first=start, advance=bar.update
            )
            yield restore_window(results, window, found)
            counts.update(found)
    report_counts(counts, processor.source_names, search.max_length, title)


def report_counts(counts: Mapping[str, int], sources: Sequence[str], max_length: int | None, title: str) -> None:
    """Log a warning for each nonzero count of [`decode_window`] and [`restore_window`]."""
    cut_rows = {name: count for name in sources if (count := counts.get(f"truncated.{name}", 0))}
    if cut_rows:
        listed = ", ".join(f"{name} in {count} rows" for name, count in cut_rows.items())
        logger.warning("%s: sources longer than %d tokens were cut (max_length): %s", title, max_length, listed)
    if silent := counts.get("silent", 0):
        logger.warning("%s: %d rows have no source at all; their translation is empty", title, silent)
    if refused := counts.get("refused", 0):
        logger.warning(
            "%s: %d rows have placeholders that cannot be masked; their translation is empty", title, refused
        )
    if broken := counts.get("broken", 0):
        logger.warning("%s: %d rows got a translation with other placeholders; it is left out", title, broken)


def longest(examples: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the length in tokens of the longest text source of every example; 0 without any text source."""
    if isinstance(examples, MixedExamples):
        return [max(lengths, default=0) for lengths in examples.text_lengths]
    return [max(len(row or ()) for row in example.values()) for example in examples]


def fingerprint(model: Model, processor: MultiSourceProcessor, rows: Sequence[Row], search: Search) -> JsonObject:
    """Return everything that determines the hypotheses: search, rows and weights, but not the batch size."""
    names = list(processor.source_names)
    values = [[None if is_absent(row.get(name)) else row[name] for name in names] for row in rows]
    text = json.dumps(values, default=digest)  # pictures in files are represented by their paths
    if any(TABLE in row for row in rows):
        text += json.dumps([asdict(row[TABLE]) for row in rows])
    settings = search.settings()
    if search.shortlist is not None:
        tokens = target_tokens(processor, search.shortlist).numpy().tobytes()
        settings["shortlist_sha256"] = hashlib.sha256(tokens).hexdigest()
    return {
        **settings,
        "sources": names,
        "rows": len(rows),
        "rows_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "weights_sha256": digest_weights(model),
    }


def digest_weights(model: Model) -> str:
    """Return the SHA-256 of the names and values of all weights of a model."""
    weights = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        weights.update(name.encode())
        weights.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return weights.hexdigest()


def format_lines(index: int, hypotheses: Sequence[Hypothesis]) -> str:
    """Format one line per hypothesis: the text, or row index, score and text separated by tabs."""
    return "".join(f"{text}\n" if score is None else f"{index}\t{score:.6f}\t{text}\n" for text, score, _ in hypotheses)


def _parse(line: str, scored: bool) -> Hypothesis:
    if not scored:
        return Hypothesis(line, None)
    _, score, text = line.split("\t", 2)
    return Hypothesis(text, float(score))


def check_output(path: Path) -> None:
    """Check that a file can be written or continued, without creating anything.

    Args:
        path: The file.

    Raises:
        OSError: If the path is a folder, or its parent folder cannot be created or written to.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name a file")
    check_folder(path.parent)


def _resume(out_path: Path, sidecar: Path, settings: JsonObject, rows: int, lines_per_row: int) -> tuple[int, float]:
    """Return the number of complete rows and the seconds so far.

    An incomplete last row is cut off. For a new file, the settings are written beside it. A file with all rows must be
    the one that was written.
    """
    check_output(out_path)
    content = out_path.read_bytes() if out_path.exists() else b""
    lines = content.split(b"\n")[:-1]  # text after the last line end is an incomplete line
    if content and not sidecar.exists():
        raise FileExistsError(
            f"{out_path} exists, but {sidecar.name} is missing, so it cannot be continued: give another --out"
        )
    stored = read_json(sidecar) if lines else {}
    before = stored.get("settings", {})
    changed = [key for key in settings if before.get(key) != settings[key]]
    if changed and len(lines) >= stored.get("lines_per_row", 1):
        differences = "; ".join(f"{key} was {before.get(key)!r}, is {settings[key]!r}" for key in changed)
        causes = "the input, --limit or, for a shuffled source, --seed differs"
        hint = f" ({causes})" if {"rows", "rows_sha256"} & set(changed) else ""
        raise ValueError(
            f"{out_path} was begun with other settings: {differences}{hint}. It is unchanged; go back to those "
            f"settings, give another --out, or delete it and {sidecar.name}"
        )
    done = 0 if changed else len(lines) // lines_per_row
    written = stored.get("sha256", "")  # only beside a finished file
    if done > rows or (done == rows and written and written != hashlib.sha256(content).hexdigest()):
        raise ValueError(
            f"{out_path} is not the file that {sidecar.name} describes: it was changed after it was written. It is "
            f"unchanged now; give another --out, or delete it and {sidecar.name}"
        )
    if done == 0:  # no row is complete, so earlier settings do not matter
        out_path.parent.mkdir(parents=True, exist_ok=True)
        write_json(sidecar, {"settings": settings, "lines_per_row": lines_per_row, "seconds": 0.0})
    if content:
        os.truncate(out_path, sum(len(line) + 1 for line in lines[: done * lines_per_row]))
    return done, stored.get("seconds", 0.0) if done else 0.0


def write_windows(
    out_path: Path, settings: JsonObject, rows: int, lines_per_row: int, windows: Callable[[int], Iterator[list[str]]]
) -> tuple[list[str], float]:
    """Write the lines of rows as they are produced; a later call continues at the first missing row.

    Args:
        out_path: The file. `<out_path>.json` beside it holds the settings with which it was begun and, once the file
            is finished, its SHA-256.
        settings: Everything that determines the lines.
        rows: Number of rows.
        lines_per_row: Number of lines per row.
        windows: Generator function. It takes the number of rows that are already written and yields the lines of the
            remaining rows window by window: one text per row, line ends included.

    Returns:
        All lines of the file, including those of earlier starts, and the seconds over all starts.

    Raises:
        FileExistsError: If the file exists but was not written by this function.
        ValueError: If it was begun with other settings (the message says which), or changed after it was finished.
    """
    sidecar = out_path.with_name(out_path.name + ".json")
    done, seconds = _resume(out_path, sidecar, settings, rows, lines_per_row)
    record = {"settings": settings, "lines_per_row": lines_per_row}
    with out_path.open("a", encoding="utf-8", newline="\n") as out:
        began = time.perf_counter() - seconds
        for window in windows(done) if done < rows else ():
            out.write("".join(window))
            out.flush()
            seconds = round(time.perf_counter() - began, 3)
            write_json(sidecar, {**record, "seconds": seconds})
    content = out_path.read_bytes()
    finished = {**record, "seconds": seconds, "sha256": hashlib.sha256(content).hexdigest()}
    if read_json(sidecar) != finished:
        write_json(sidecar, finished)
    return content.decode("utf-8").split("\n")[:-1], seconds


def decode(
    model: Model,
    processor: MultiSourceProcessor,
    rows: Sequence[Row],
    out_path: str | Path,
    search: Search,
    *,
    batch_size: int = 64,
    title: str = "decoding",
) -> Decoded:
    """Decode rows into a text file; a later call continues at the first missing row.

    The file holds one line per row. With `search.n_best` = K, it holds K lines per row: row index (from 0), score and
    text, separated by tabs. `<out_path>.json` beside it holds the settings with which it was begun.

    Args:
        model: Model with `generate`, `state_dict` and `device`.
        processor: Processor with `source_names`, `__call__` and `batch_decode`.
        rows: One dict per sentence that maps each source name to a text or a medium (see `media`). A source is absent
            if it is None, "" or left out.
        out_path: The file to write or to continue.
        search: The search and its limits.
        batch_size: Number of sentences per batch; may change between starts.
        title: Prefix of the progress bar and of warnings.

    Returns:
        All hypotheses of the file, including those of earlier starts.

    Raises:
        FileExistsError: If the file exists but was not written by this function.
        ValueError: If it was begun with other settings, rows or weights (the message says which), or changed after it
            was finished.
    """
    lines_per_row = max(1, search.n_best)

    def windows(done: int) -> Iterator[list[str]]:
        for window in decode_windows(model, processor, rows, search, batch_size=batch_size, done=done, title=title):
            yield [format_lines(done + i, hypotheses) for i, hypotheses in enumerate(window)]
            done += len(window)

    settings = fingerprint(model, processor, rows, search)
    lines, seconds = write_windows(Path(out_path), settings, len(rows), lines_per_row, windows)
    hypotheses = [_parse(line, search.n_best > 0) for line in lines]
    return Decoded([hypotheses[i : i + lines_per_row] for i in range(0, len(hypotheses), lines_per_row)], seconds)
