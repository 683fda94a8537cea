"""Score a test set separately by which sources are present: by number of sources, single source and subset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hf_multisource.data.rows import Row
from hf_multisource.evaluation.tables import format_table, score_cells
from hf_multisource.metrics.bootstrap import score_with_interval
from hf_multisource.metrics.table import METRICS, metrics_of
from hf_multisource.source_kinds import is_absent

LEAST_ROWS = 20  # minimum number of rows of a group by exact subset; scores of fewer rows are too noisy


def groups_by_presence(rows: Sequence[Row], sources: Sequence[str]) -> dict[str, dict[str, list[int]]]:
    """Group rows by the sources that they have.

    Args:
        rows: The rows.
        sources: Names of the sources.

    Returns:
        Row indices by kind of group and label. The kind `number` has the number of present sources as label, such as
        "2"; `with` and `without` the name of a source; `exactly` the names of all present sources, such as "de fr", for
        subsets with at least `LEAST_ROWS` rows. Groups that contain all rows are left out. Empty if all rows have the
        same sources.
    """
    present = [tuple(name for name in sources if not is_absent(row.get(name))) for row in rows]
    order = {subset: (len(subset), [sources.index(name) for name in subset]) for subset in present}

    def group(labels: Sequence[Any], own: Any) -> dict[str, list[int]]:
        found = {str(label): [i for i, subset in enumerate(present) if own(subset, label)] for label in labels}
        return {label: chosen for label, chosen in found.items() if 0 < len(chosen) < len(rows)}

    subsets = {
        " ".join(subset): [i for i, other in enumerate(present) if other == subset]
        for subset in sorted(order, key=order.__getitem__)
    }
    groups = {
        "number": group(range(len(sources) + 1), lambda subset, number: len(subset) == number),
        "with": group(sources, lambda subset, name: name in subset),
        "without": group(sources, lambda subset, name: name not in subset),
        "exactly": {label: chosen for label, chosen in subsets.items() if LEAST_ROWS <= len(chosen) < len(rows)},
    }
    return {kind: found for kind, found in groups.items() if found}


def measure_presence(
    hypotheses: Sequence[str],
    references: Sequence[str],
    rows: Sequence[Row],
    sources: Sequence[str],
    metrics: Sequence[str],
    *,
    n_bootstrap: int = 1000,
) -> dict[str, dict[str, dict[str, Any]]]:
    """Score every group of rows.

    Args:
        hypotheses: One hypothesis per row.
        references: One reference per row.
        rows: The rows.
        sources: Names of the sources.
        metrics: Names of the metrics.
        n_bootstrap: Number of bootstrap resamples.

    Returns:
        By kind of group and label, as in `groups_by_presence`: `n`, the number of rows, and for each metric `score`,
        `ci_low`, `ci_high` and `sd`.
    """
    groups = groups_by_presence(rows, sources)
    measured = {name: METRICS[name].measure(hypotheses, references, rows) for name in metrics} if groups else {}
    return {
        kind: {
            label: {
                "n": len(chosen),
                **{
                    name: score_with_interval(one, n_bootstrap, rows=np.array(chosen)) for name, one in measured.items()
                },
            }
            for label, chosen in found.items()
        }
        for kind, found in groups.items()
    }


def presence_labels(presence: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the groups of all kinds, by their label in tables.

    Args:
        presence: Output of `measure_presence`.

    Returns:
        Label, such as "2 sources" or "without de" -> scores of the group.
    """
    return {
        (f"{label} source{'s' * (label != '1')}" if kind == "number" else f"{kind} {label}"): entry
        for kind, found in presence.items()
        for label, entry in found.items()
    }


def presence_table(presence: Mapping[str, Mapping[str, Any]]) -> str:
    """Format the scores of all groups as a table.

    Args:
        presence: Output of `measure_presence`, with at least one group.

    Returns:
        The table.
    """
    groups = presence_labels(presence)
    metrics = metrics_of(next(iter(groups.values())))
    lines = [
        [label, str(entry["n"]), *(cell for name in metrics for cell in score_cells(name, entry[name]))]
        for label, entry in groups.items()
    ]
    columns = [column for name in metrics for column in (METRICS[name].label, "95 %")]
    return format_table(["sources present", "sentences", *columns], lines)
