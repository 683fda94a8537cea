"""Conditions in which a test set is decoded, and the scores of one condition.

all          every source as it is
wrong-X      source X shuffled within the test set so that no sentence keeps its own (adversarial); several draws
absent-X     source X removed from every sentence
only-X       every source except X removed
reranked     every source as it is, the n-best lists reranked by a reverse model (see `reranking`)
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from hf_multisource.data.placeholders import broken_placeholders
from hf_multisource.data.rows import Row
from hf_multisource.evaluation.decoding import Decoded
from hf_multisource.evaluation.perturbations import make_absent, make_wrong
from hf_multisource.json_files import JsonObject
from hf_multisource.metrics.bootstrap import measure_metric, paired_bootstrap
from hf_multisource.metrics.table import metrics_of
from hf_multisource.source_kinds import is_absent

RERANKED = "reranked"


def conditions(
    rows: Sequence[Row],
    sources: Sequence[str],
    *,
    adversarial: bool = False,
    absent: bool = False,
    only: bool = False,
    draws: int = 5,
    seed: int = 0,
) -> dict[str, list[list[Row]]]:
    """Return the rows of every requested condition.

    Args:
        rows: The sentences.
        sources: Names of the sources.
        adversarial: Whether to shuffle each source.
        absent: Whether to remove each source.
        only: Whether to keep each source alone.
        draws: Number of different shuffles of each source.
        seed: Seed of the shuffles.

    Returns:
        The draws of each condition by its name, `all` first; conditions without shuffles have one draw.
    """
    chosen = {"all": [list(rows)]}
    for source in sources:
        if adversarial:
            chosen[f"wrong-{source}"] = [make_wrong(rows, source, seed, draw) for draw in range(draws)]
        if absent and len(sources) > 1:  # without its only source, a model has no input
            chosen[f"absent-{source}"] = [make_absent(rows, [source])]
        if only and len(sources) > 1:
            chosen[f"only-{source}"] = [make_absent(rows, [other for other in sources if other != source])]
    return chosen


def measure(
    decoded: Decoded, rows: Sequence[Row], target: str, metrics: Sequence[str], congruent: Sequence[str] | None
) -> JsonObject:
    """Score the hypotheses of one decoding.

    Args:
        decoded: The hypotheses.
        rows: The unperturbed sentences, with references and all sources.
        target: Name of the column of the references.
        metrics: Names of the metrics.
        congruent: The hypotheses of condition `all` for the comparison; None if `decoded` is condition `all`.

    Returns:
        Scores, significance of the difference to condition `all`, and decoding speed.
    """
    references = [row[target] or "" for row in rows]
    figures: JsonObject = {
        "seconds": decoded.seconds,
        "sentences_per_second": round(len(references) / decoded.seconds, 2) if decoded.seconds else None,
    }
    for name in metrics:
        figures[name] = measure_metric(name, decoded.best, references, rows)
    if congruent is not None:
        compared = paired_bootstrap(decoded.best, congruent, references, rows, metrics=metrics)
        for name, comparison in compared.items():
            figures[name].update(comparison)
    return figures


def count_whole(hypotheses: Sequence[str], rows: Sequence[Row], sources: Sequence[str], syntax: str) -> JsonObject:
    """Count the hypotheses in which all placeholders and markup are intact.

    Args:
        hypotheses: One per row; empty ones are not counted, because no text is written for their rows.
        rows: The rows.
        sources: Names of the sources that were read. The hypothesis is compared with the first source that is present.
        syntax: Syntax of the placeholders, see `broken_placeholders`.

    Returns:
        `syntax`; `rows`; `written`, the number of nonempty hypotheses; and `whole`, the number of intact ones among
        them.
    """
    written = [(text, row) for text, row in zip(hypotheses, rows, strict=True) if text.strip()]
    firsts = (next((str(row[name]) for name in sources if not is_absent(row[name])), "") for _, row in written)
    whole = sum(not broken_placeholders(first, text, syntax) for first, (text, _) in zip(firsts, written, strict=True))
    return {"syntax": syntax, "rows": len(rows), "written": len(written), "whole": whole}


def summarize(draws: Sequence[JsonObject]) -> JsonObject:
    """Return the mean score over the draws and its standard deviation (None for one draw), with the draws."""
    summary: JsonObject = {}
    for name in metrics_of(draws[0]):
        scores = [draw[name]["score"] for draw in draws]
        deviation = statistics.stdev(scores) if len(scores) > 1 else None
        summary[name] = {"score": statistics.fmean(scores), "draws_sd": deviation}
    return {**summary, "draws": list(draws)}
