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
    groups: dict[str, dict[str, list[int]]] = {
        "number": {str(number): [] for number in range(len(sources) + 1)},
        "with": {name: [] for name in sources},
        "without": {name: [] for name in sources},
        "exactly": {},
    }
    subsets: dict[tuple[int, ...], list[int]] = {}
    for i, row in enumerate(rows):
        absent = [is_absent(row.get(name)) for name in sources]
        for name, lacks in zip(sources, absent, strict=True):
            groups["without" if lacks else "with"][name].append(i)
        groups["number"][str(absent.count(False))].append(i)
        subsets.setdefault(tuple(k for k, lacks in enumerate(absent) if not lacks), []).append(i)
    for subset in sorted(subsets, key=lambda subset: (len(subset), subset)):
        if len(subsets[subset]) >= LEAST_ROWS:
            groups["exactly"][" ".join(sources[k] for k in subset)] = subsets[subset]
    proper = {
        kind: {label: chosen for label, chosen in found.items() if 0 < len(chosen) < len(rows)}
        for kind, found in groups.items()
    }
    return {kind: found for kind, found in proper.items() if found}


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
