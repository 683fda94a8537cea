"""The page that puts experiments side by side, from made-up rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hf_multisource.data.files import write_json
from reports import protoform
from scored import cells_of


def write_experiment(results: Path, name: str, rows: dict[str, Any], published: list[dict[str, Any]]) -> None:
    folder = results / name
    folder.mkdir()
    facts = {"sources": ["a", "b"], "target": "old", "command": f"hf-multisource reproduce {name}"}
    labels = {"serial": "in turn", "flat": "at once", "both": "together"}
    shown = {"rows": {row: {"label": label} for row, label in labels.items()}, "published": published}
    (folder / "experiment.yaml").write_text(yaml.safe_dump({**facts, **shown}, sort_keys=False), encoding="utf-8")
    for row, scores in rows.items():
        write_json(folder / f"{row}.json", {"name": row, "scores": {"all": scores}})


def test_rows_of_all_experiments_stand_in_one_table_with_published_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = {"score": 41.25, "seeds": [41.0, 41.5], "seeds_sd": 0.35}
    one = {"exact_match": exact, "edit_distance": {"score": 1.5, "seeds": [1, 2], "seeds_sd": 0.71}}
    other = {"exact_match": {"score": 50.0}, "edit_distance": {"score": 0.9}}
    known = [{"label": "GRU", "citation": "A 2024", "scores": {"exact_match": 40.1}}]
    write_experiment(tmp_path, "protoform-east", {"serial": one}, [])
    write_experiment(tmp_path, "west", {"serial": other, "both": other}, known)
    (tmp_path / "protoform").mkdir()
    (tmp_path / "protoform" / "notes.md").write_text("They do.\n\nThe rest.\n", encoding="utf-8")
    protoform.main(["protoform-east", "west", "--results", str(tmp_path)])
    page = (tmp_path / "protoform.md").read_text("utf-8")
    assert capsys.readouterr().out == f"{tmp_path / 'protoform.md'}\n"
    assert [line for line in cells_of(page) if len(line) == 5 and "---" not in line[0]] == [
        ["row", "east, exact match", "east, edit distance", "west, exact match", "west, edit distance"],
        ["in turn", "41.2 ± 0.3 (2)", "1.500 ± 0.710 (2)", "50.0", "0.900"],
        ["together", "", "", "50.0", "0.900"],
        ["*GRU*", "", "", "40.1", ""],
    ]
    assert page.index("They do.") < page.index("](west.png)") < page.index("- *GRU* (west): A 2024\n")
    assert "## What they show\n\nThe rest.\n" in page and "from a, b to old; `hf-multisource reproduce west`\n" in page


def test_an_experiment_without_results_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"protoform\.py: .*no-such"):
        protoform.main(["no-such", "--results", str(tmp_path)])
    assert not (tmp_path / "protoform.md").exists()
