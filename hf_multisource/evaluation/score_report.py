"""Printable text of the reports that `scoring` writes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from hf_multisource.evaluation.tables import format_table, score_cells
from hf_multisource.json_files import JsonObject
from hf_multisource.metrics.table import METRICS, metrics_of
from hf_multisource.recipes.tokenization import unknown_note

PERPLEXITY = "perplexity"  # key of the perplexity in a draw of a condition


def table(scored: JsonObject) -> str:
    """Format the scores of all conditions as a table."""
    lines = []
    metrics = metrics_of(scored["all"])
    head = metrics[0]
    for condition, entry in scored.items():
        line = [condition]
        for name in metrics:
            if name not in entry:  # scored earlier with other metrics
                line += ["", ""]
                continue
            deviation = entry[name]["draws_sd"]
            _, spread = score_cells(name, entry["draws"][0][name])
            if deviation is not None:
                spread = f"± {METRICS[name].show(deviation, more=1)} over {len(entry['draws'])} draws"
            line += [METRICS[name].show(entry[name]["score"], more=1), spread]
        perplexities = [draw.get(PERPLEXITY, {}).get("score") for draw in entry["draws"]]  # older reports lack it
        first = entry["draws"][0]
        tokens, whole = (one.get(PERPLEXITY, {}).get("tokens") for one in (first, scored["all"]["draws"][0]))
        some = "" if tokens == whole else f" ({tokens} of {whole} tokens)"  # rows that lost all sources are left out
        line.append("" if None in perplexities else f"{statistics.fmean(perplexities):.2f}{some}")
        worst = max((draw.get(head, {}).get("p_value", 0.0) for draw in entry["draws"]), default=0.0)
        line += ["" if condition == "all" else f"{worst:.3f}", str(first["sentences_per_second"])]
        lines.append(line)
    columns = [column for name in metrics for column in (METRICS[name].label, "95 %")]
    return format_table(["condition", *columns, "perplexity", f"p to all ({METRICS[head].label})", "sent/s"], lines)


def mean_scores(reports: Sequence[JsonObject]) -> str:
    """Return the mean scores of several seeds with all sources, and their standard deviations.

    Args:
        reports: Return value of `score` for each seed; at least two.

    Returns:
        Such as "exact match 37.21 ± 0.42, edit distance 1.2312 ± 0.0210".
    """
    entries = [report["conditions"]["all"] for report in reports]
    parts = []
    for name in metrics_of(entries[0]):
        show, scores = METRICS[name].show, [entry[name]["score"] for entry in entries]
        mean, deviation = statistics.fmean(scores), statistics.stdev(scores)
        parts.append(f"{METRICS[name].label} {show(mean, more=1)} ± {show(deviation, more=1)}")
    return ", ".join(parts)


def left_out(report: JsonObject) -> str:
    """Describe which lines of the test split were not scored, and which symbols are unknown.

    Args:
        report: Return value of `score`.

    Returns:
        One sentence per line; empty if every line was scored, all files were readable and all symbols are known.
    """
    counts, split = report["data"], report["split"]
    reasons = {"dropped_empty_target": "have no reference", "dropped_no_source": "have no source"}
    lines = [
        f"{counts[key]} of the {counts['lines']} lines of split {split!r} are not scored: they {reason}"
        for key, reason in reasons.items()
        if counts[key]
    ]
    for name in report["sources"]:
        if count := counts.get(f"unreadable.{name}"):
            lines.append(f"{count} files of source {name!r} cannot be read and count as absent")
    if report["unknown"]:
        lines.append(unknown_note(split, report["unknown"]))
    return "\n".join(lines)
