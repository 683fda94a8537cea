"""Rerank n-best lists with a reverse model, which scores the sources given a candidate.

Lu et al. 2024 (https://arxiv.org/abs/2403.18769) rerank reconstructed words by a model that derives the words of the
daughter languages from them; Yee et al. 2019 (https://arxiv.org/abs/1908.05731) do so in translation. The score of
candidate y for the sources x_1, …, x_n that are present in a row is

    forward(y) + weight · 1/n Σ_i log p(x_i | y)

where forward(y) is the score of the beam search, including its length rule, and log p is summed over the tokens of x_i
and its end token. The mean over the sources makes the weight comparable between rows with one source and rows with
five.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from hf_multisource import MultiSourceProcessor
from hf_multisource.data.interfaces import Model
from hf_multisource.data.rows import Row
from hf_multisource.evaluation.decoding import (
    Search,
    decode_windows,
    digest_weights,
    fingerprint,
    load_weights,
    write_windows,
)
from hf_multisource.evaluation.likelihood import log_probabilities
from hf_multisource.json_files import JsonObject
from hf_multisource.metrics.symbols import edit_distance
from hf_multisource.metrics.table import METRICS
from hf_multisource.recipes.pretrained import load_processor
from hf_multisource.recipes.run_folder import data_of_run
from hf_multisource.recipes.schema import REVERSE_TARGET, reverse_row
from hf_multisource.source_kinds import is_absent

FORMULA = "forward + weight * mean over the sources present of sum(log p(source | candidate))"
# Weights tried by default. Forward scores are roughly means over tokens and reverse scores are sums over tokens, so
# useful weights are well below 1.
WEIGHTS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)


@dataclass(frozen=True)
class Candidate:
    """Entry of an n-best list with its two scores, which are None in a row without any source.

    Args:
        text: The hypothesis.
        forward: Score of the hypothesis in the beam search of the forward model.
        reverse: Mean over the present sources of the log-probability of the source's text given the hypothesis.
    """

    text: str
    forward: float | None
    reverse: float | None


@dataclass(frozen=True)
class ReverseModel:
    """A reverse model, ready to score.

    Args:
        name: Name of the reverse run.
        model: The model, in evaluation mode.
        processor: Processor of the model.
        max_length: Maximum length of texts, in tokens, as in the training of the model.
    """

    name: str
    model: Model
    processor: MultiSourceProcessor
    max_length: int


def load_reverse(run: str, sources: Sequence[str], target: str, device: str | None = None) -> ReverseModel:
    """Load the model of a reverse run.

    Args:
        run: The run folder.
        sources: Names of the sources that the model must be able to write.
        target: Name of the target that the model must read.
        device: Torch device; None: the GPU if there is one.

    Returns:
        The model.

    Raises:
        ValueError: If the run is not a reverse run, or has other sources or another target.
    """
    data = data_of_run(run)
    if data is None or not data.reverse:
        raise ValueError(f"rerank is {run!r}, which is no folder of a run with data.reverse true")
    if data.target != target:
        raise ValueError(f"rerank is {run!r}, whose target is {data.target!r}; it must be {target!r}")
    if unknown := [name for name in sources if name not in data.sources]:
        raise ValueError(
            f"rerank is {run!r}, which was not trained on source {unknown[0]!r}, only on {', '.join(data.sources)}"
        )
    return ReverseModel(Path(run).name, load_weights(run, device), load_processor(run), data.max_length)


def reverse_scores(
    reverse: ReverseModel,
    candidates: Sequence[Sequence[str]],
    rows: Sequence[Row],
    sources: Sequence[str],
    batch_size: int = 64,
) -> list[list[float | None]]:
    """Score candidates by the log-probability of the sources given each of them.

    Args:
        reverse: The reverse model.
        candidates: Candidate texts of each row; their number may differ between rows.
        rows: Rows of the sources; a source is absent if it is None, empty or left out.
        sources: Names of the sources.
        batch_size: Number of (candidate, source) pairs per batch.

    Shape:
        candidates N lists of K texts; rows N. Returns N lists of K numbers.

    Returns:
        The reverse score of each candidate: the summed log-probability of a source's tokens, averaged over the sources
        that are present in the row. None in a row without any source.
    """
    present = [[(name, str(row[name])) for name in sources if not is_absent(row.get(name))] for row in rows]
    pairs = dict.fromkeys(
        (name, text, word)
        for texts, words in zip(candidates, present, strict=True)
        for text in texts
        for name, word in words
    )
    reversed_rows = [reverse_row(*pair) for pair in pairs]
    found = log_probabilities(
        reverse.model, reverse.processor, reversed_rows, REVERSE_TARGET, reverse.max_length, batch_size
    )
    scores = dict(zip(pairs, found, strict=True))
    return [
        [fmean(scores[name, text, word] for name, word in words) if words else None for text in texts]
        for texts, words in zip(candidates, present, strict=True)
    ]


def rerank(candidates: Sequence[Sequence[Candidate]], weight: float) -> list[int]:
    """Choose the best candidate of every row.

    Args:
        candidates: The n-best list of each row, best first.
        weight: Weight of the reverse score.

    Shape:
        candidates N lists of K. Returns N numbers, each below K.

    Returns:
        Index of the best candidate of each row. Ties, and rows without scores, get the first candidate.
    """

    def total(one: Candidate) -> float:
        return -math.inf if one.forward is None or one.reverse is None else one.forward + weight * one.reverse

    return [max(range(len(row)), key=lambda k: total(row[k])) for row in candidates]


def reranked_texts(candidates: Sequence[Sequence[Candidate]], weight: float) -> list[str]:
    """Return the text of the best candidate of every row.

    Args:
        candidates: See `rerank`.
        weight: See `rerank`.

    Returns:
        One text per row.
    """
    return [row[k].text for row, k in zip(candidates, rerank(candidates, weight), strict=True)]


def choose_weight(
    candidates: Sequence[Sequence[Candidate]],
    references: Sequence[str],
    metric: str,
    rows: Sequence[Row] | None = None,
    weights: Sequence[float] = WEIGHTS,
) -> tuple[float, list[tuple[float, float]]]:
    """Choose the weight that maximizes the score of the reranked texts.

    Args:
        candidates: Candidates of a development set, see `rerank`.
        references: One reference per row.
        metric: Name of the metric.
        rows: The rows, for metrics that read the sources.
        weights: Weights to try.

    Returns:
        The best weight (the smallest one in case of ties), and every weight with its score.
    """
    measure, better = METRICS[metric].measure, METRICS[metric].higher_is_better
    curve = [(weight, measure(reranked_texts(candidates, weight), references, rows).score()) for weight in weights]
    best, _ = min(curve, key=lambda point: (-point[1] if better else point[1], point[0]))
    return best, curve


def oracle_texts(candidates: Sequence[Sequence[Candidate]], references: Sequence[str]) -> list[str]:
    """Return the oracle choice: the candidate of every row that is closest to the reference.

    Args:
        candidates: See `rerank`.
        references: One reference per row.

    Returns:
        The text with the smallest edit distance over white-space-separated symbols; the first one in case of ties.
    """
    texts = [[one.text for one in row] for row in candidates]
    distances = (
        edit_distance(row, [reference] * len(row)).sentences[:, 0]
        for row, reference in zip(texts, references, strict=True)
    )
    return [row[int(edits.argmin())] for row, edits in zip(texts, distances, strict=True)]


def find_candidates(
    model: Model,
    processor: MultiSourceProcessor,
    reverse: ReverseModel,
    rows: Sequence[Row],
    sources: Sequence[str],
    model_rows: Sequence[Row],
    out_path: Path,
    search: Search,
    *,
    batch_size: int = 64,
    title: str = "candidates",
) -> tuple[list[list[Candidate]], float]:
    """Decode n-best lists, score every candidate with the reverse model, and write both to a JSON Lines file.

    The file has one object per row: the row index (from 0), and the candidates with `text`, `forward` and `reverse`. A
    later call continues an interrupted one at the first missing row. If the file is complete, the function only reads
    it.

    Args:
        model: The forward model.
        processor: Processor of the model.
        reverse: The reverse model.
        rows: One dict of sources per sentence.
        sources: Names of the sources.
        model_rows: The same sentences in the form of the forward model's inputs.
        out_path: The file to write or to continue.
        search: The search; `n_best` is the number of candidates.
        batch_size: Number of sentences per decoding batch, and of (candidate, source) pairs per scoring batch.
        title: Prefix of the progress bar.

    Returns:
        The n-best list of each row, best first, and the total seconds over all starts.

    Raises:
        FileExistsError: If the file exists but was not written by this function.
        ValueError: If it was begun with other settings, rows or weights; the message says which.
    """
    settings = {
        **fingerprint(model, processor, model_rows, search),
        "reverse_weights_sha256": digest_weights(reverse.model),
        "reverse_max_length": reverse.max_length,
    }

    def windows(done: int) -> Iterator[list[str]]:
        decoded = decode_windows(model, processor, model_rows, search, batch_size=batch_size, done=done, title=title)
        for window in decoded:
            texts = [[hypothesis.text for hypothesis in hypotheses] for hypotheses in window]
            scores = reverse_scores(reverse, texts, rows[done : done + len(window)], sources, batch_size)
            yield [
                _line(done + i, [(one.text, one.score, back) for one, back in zip(hypotheses, backs, strict=True)])
                for i, (hypotheses, backs) in enumerate(zip(window, scores, strict=True))
            ]
            done += len(window)

    lines, seconds = write_windows(out_path, settings, len(rows), 1, windows)
    return [[Candidate(**one) for one in json.loads(line)["candidates"]] for line in lines], seconds


def _line(row: int, candidates: Sequence[tuple[str, float | None, float | None]]) -> str:
    """Format one line of the file; scores have six decimals, or are null in a row without any source."""

    def known(score: float | None) -> float | None:
        return None if score is None or math.isnan(score) else round(score, 6)

    entries = [asdict(Candidate(text, known(forward), known(back))) for text, forward, back in candidates]
    return json.dumps({"row": row, "candidates": entries}, ensure_ascii=False) + "\n"


def describe_reranking(reranking: JsonObject) -> str:
    """Describe how hypotheses were reranked, and the quality of the n-best lists.

    Args:
        reranking: Value of the key `reranking` in a report of `score`.

    Returns:
        One line.
    """
    metric = METRICS[reranking["metric"]]
    curve = dict(reranking["curve"] or ())
    weight = reranking["weight"]
    chosen = (
        f"chosen on {reranking['chosen_on']} ({metric.label} {metric.show(curve[weight])}, "
        f"{metric.show(curve[0.0])} with weight 0)"
        if curve
        else "given"
    )
    best = ", ".join(f"{METRICS[name].label} {METRICS[name].show(one)}" for name, one in reranking["oracle"].items())
    return (
        f"reranked by {reranking['run']}: weight {weight}, {chosen}; the candidate closest to the reference among "
        f"{reranking['n']}: {best}"
    )
