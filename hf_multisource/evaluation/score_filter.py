"""Filter parallel text by dual conditional cross-entropy, computed by translation models of both directions.

Junczys-Dowmunt 2018, https://doi.org/10.18653/v1/W18-6478, Eq. 1 and 2. Model A translates x into y, model B back:

    H_A = -log P_A(y | x) / |y|,   H_B = -log P_B(x | y) / |x|,   score = |H_A - H_B| + (H_A + H_B) / 2

The lower the score, the better the row. |y| is the number of words plus one for the end of the sentence, so that scores
do not depend on the vocabularies. The paper instead uses exp(-score) and multiplies it by a domain score. Littell et
al. 2019 filter by YiSi-2, which needs word vectors of both languages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from itertools import islice
from pathlib import Path

from hf_multisource import MultiSourceProcessor
from hf_multisource.data.files import check_new_folder, write_json
from hf_multisource.data.interfaces import Model
from hf_multisource.data.prepare import COUNTS, check_languages, new_folder, write_columns
from hf_multisource.data.streams import TextRow, stream_rows
from hf_multisource.evaluation.decoding import digest_weights, load_model
from hf_multisource.evaluation.likelihood import log_probabilities
from hf_multisource.json_files import JsonObject
from hf_multisource.recipes.run_folder import data_of_run
from hf_multisource.recipes.schema import DataRecipe
from hf_multisource.recipes.shipped import RECIPE

SCORE = "score"  # name of the column that holds the scores
WINDOW = 2048  # number of rows that are held in memory and scored together


@dataclass(frozen=True)
class Direction:
    """Model of one translation direction.

    Args:
        run: Run folder of the model.
        data: The `data` section of the model's recipe.
        model: The model, in evaluation mode.
        processor: Processor of the model.
    """

    run: str
    data: DataRecipe
    model: Model
    processor: MultiSourceProcessor

    def can_score(self, row: TextRow) -> bool:
        """Return whether a row has the target and at least one source of the model.

        Args:
            row: The row.

        Returns:
            True if the model can score the row.
        """
        return bool(row[self.data.target]) and any(row[name] for name in self.data.sources)

    def cross_entropies(self, rows: Sequence[TextRow], batch_size: int) -> list[float]:
        """Compute the cross-entropy of the target of each row, given its sources.

        Args:
            rows: Rows with the target and a source.
            batch_size: Number of rows per batch.

        Returns:
            The cross-entropy of each target given its sources, in nats per word.
        """
        names = [*self.data.sources, self.data.target]
        read = self.data.model_rows([{name: row[name] for name in names} for row in rows])
        found = log_probabilities(self.model, self.processor, read, self.data.target, self.data.max_length, batch_size)
        return [-log / words for log, words in zip(found, self.words_scored(rows), strict=True)]

    def words_scored(self, rows: Sequence[TextRow]) -> list[float]:
        """Count the scored words of each target, plus one for the end of the sentence.

        Args:
            rows: Rows with the target.

        Returns:
            The counts. For a target that is longer than `max_length`, only the share of words that is actually scored
            is counted; otherwise the truncated words would lower the cross-entropy per word.
        """
        texts = [row[self.data.target] or "" for row in rows]
        ends = 1  # number of end tokens, which are never truncated
        tokens = [len(ids) - ends for ids in self.processor.tokenizer(text_target=texts)["input_ids"]]
        limit = self.data.max_length - ends
        shares = [min(limit / max(count, 1), 1) for count in tokens]
        return [share * len(text.split()) + 1 for share, text in zip(shares, texts, strict=True)]


def dual_cross_entropy(forward: float, backward: float) -> float:
    """Combine two cross-entropies into the score of a row.

    Args:
        forward: H_A, in nats per word.
        backward: H_B, in nats per word.

    Returns:
        The sum of their absolute difference and their mean.
    """
    return abs(forward - backward) + (forward + backward) / 2


def load_directions(forward: str, backward: str, device: str | None = None) -> tuple[Direction, Direction]:
    """Load a model and a model of the opposite direction.

    Args:
        forward: Run folder of model A.
        backward: Run folder of model B, which translates the target of A into one of the sources of A.
        device: Torch device; None: the GPU if there is one.

    Returns:
        Both directions.

    Raises:
        ValueError: If one of them is not a run or is a reverse run, or if B does not translate back.
    """
    recipes = {}
    for option, run in {"forward": forward, "backward": backward}.items():
        if (data := data_of_run(run)) is None:
            raise ValueError(f"{option} is {run!r}, which is no run folder: it has no {RECIPE}")
        recipes[option] = data
        if data.reverse:
            raise ValueError(f"{option} is {run!r}, a run with data.reverse: give one that is not reversed")
    for one, other in (("forward", "backward"), ("backward", "forward")):
        if recipes[one].target not in recipes[other].sources:
            raise ValueError(
                f"{other} is {(forward, backward)[one == 'forward']!r}, which does not read "
                f"{recipes[one].target!r}, the target of {one}; its sources are {', '.join(recipes[other].sources)}"
            )
    loaded = [
        Direction(run, data, *load_model(run, device))
        for run, data in zip((forward, backward), recipes.values(), strict=True)
    ]
    return loaded[0], loaded[1]


def score_rows(
    rows: Iterable[TextRow], directions: tuple[Direction, Direction], batch_size: int = 64
) -> Iterator[float | None]:
    """Score rows by dual conditional cross-entropy.

    Args:
        rows: The rows.
        directions: The two models.
        batch_size: Number of rows per batch.

    Yields:
        The score of each row; None if the row lacks the target or all sources of one of the models.

    Raises:
        ValueError: If a score is not a finite number.
    """
    rest = iter(rows)
    number = 0
    while window := list(islice(rest, WINDOW)):
        places = [i for i, row in enumerate(window) if all(one.can_score(row) for one in directions)]
        pairs = zip(*(one.cross_entropies([window[i] for i in places], batch_size) for one in directions), strict=True)
        scores = dict(zip(places, (dual_cross_entropy(*pair) for pair in pairs), strict=True))
        if wrong := [i for i, score in scores.items() if not math.isfinite(score)]:
            raise ValueError(f"row {number + wrong[0] + 1}: its score is {scores[wrong[0]]}; are the models damaged?")
        yield from (scores.get(i) for i in range(len(window)))
        number += len(window)


def choose_rows(scores: Sequence[float | None], keep: float | None, threshold: float | None) -> list[bool]:
    """Choose the rows with the lowest scores.

    Args:
        scores: One score per row; rows with None are never kept.
        keep: Share of the scored rows to keep; among equal scores, earlier rows are preferred. The number of kept rows
            is rounded, and half a row is rounded up.
        threshold: Maximum score of the rows to keep.

    Returns:
        For each row, whether it is kept.

    Raises:
        ValueError: If not exactly one of `keep` and `threshold` is given, or a value is not allowed.
    """
    if (keep is None) == (threshold is None):
        raise ValueError("give either keep, the share of rows, or threshold, the highest score")
    if keep is not None and not 0 < keep <= 1:
        raise ValueError(f"keep is {keep}; it must be a share above 0 and at most 1")
    if threshold is not None:
        if not 0 < threshold < math.inf:
            raise ValueError(f"threshold is {threshold}; it must be a finite number above 0")
        return [score is not None and score <= threshold for score in scores]
    known = sorted((score, i) for i, score in enumerate(scores) if score is not None)
    exact = Decimal(str(keep)) * len(known)  # in decimal digits, because 0.29 * 50 is less than 14.5 in floating point
    best = {i for _, i in known[: int(exact.to_integral_value(ROUND_HALF_UP))]}
    return [i in best for i in range(len(scores))]


def filter_corpus(
    data: str,
    out: Path,
    forward: str,
    backward: str,
    *,
    keep: float | None = None,
    threshold: float | None = None,
    languages: Sequence[str] = (),
    split: str = "train",
    batch_size: int = 64,
    device: str | None = None,
) -> JsonObject:
    """Write the rows of a split with low scores, a column with their scores, and `counts.json`.

    Args:
        data: A folder or the id of a Hub dataset.
        out: Folder to write to, new or empty: `<split>.<language>` for each language, and `<split>.score`.
        forward: See `load_directions`.
        backward: See `load_directions`.
        keep: See `choose_rows`.
        threshold: See `choose_rows`.
        languages: The columns to write; empty: all columns that the two models read or write.
        split: Name of the split.
        batch_size: Number of rows per batch.
        device: Torch device; None: the GPU if there is one.

    Returns:
        The content of `counts.json`: the settings, digests of both models, the numbers of rows that were read, had no
        score and were kept, and the highest score of the kept rows.

    Raises:
        FileExistsError: If `out` is not empty.
        ValueError: If a setting is not allowed, or no row is left; nothing is written in these cases.
    """
    choose_rows([], keep, threshold)
    check_new_folder(out)
    directions = load_directions(forward, backward, device)
    needed = list(dict.fromkeys(name for one in directions for name in (*one.data.sources, one.data.target)))
    columns = list(languages) or needed
    check_languages(columns)
    if SCORE in columns:
        raise ValueError(f"languages: {SCORE!r} is the column of the scores; rename the language")
    names = list(dict.fromkeys((*columns, *needed)))
    scores = list(score_rows(stream_rows(data, split, names), directions, batch_size))
    chosen = choose_rows(scores, keep, threshold)
    if not any(chosen):
        raise ValueError(f"no row of split {split!r} of {data} is left of {len(scores)}: keep more of them")
    counts = {
        "data": data,
        "split": split,
        "languages": columns,
        "keep": keep,
        "threshold": threshold,
        **{
            option: {"run": one.run, "weights_sha256": digest_weights(one.model)}
            for option, one in zip(("forward", "backward"), directions, strict=True)
        },
        "read": len(scores),
        "unscored": scores.count(None),
        "kept": sum(chosen),
        "highest_score": max(score for score, stays in zip(scores, chosen, strict=True) if stays and score is not None),
    }
    with new_folder(out) as folder:
        rows = zip(stream_rows(data, split, names), scores, chosen, strict=True)
        kept = ({**row, SCORE: f"{score:.6f}"} for row, score, stays in rows if stays)
        write_columns(folder, split, [*columns, SCORE], kept)
        write_json(folder / COUNTS, counts)
    return counts
