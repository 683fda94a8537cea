"""What filling the catalogues of a language must not do: replace, lose or overwrite what is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_multisource.data.catalogue_entries import ambiguous
from hf_multisource.evaluation.localization import Places, Plan, make_plan


def write(place: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, "utf-8")


def plan_of(place: Path, files: Mapping[str, str], spoken: Sequence[str] = ("en", "de"), **changes: Any) -> Plan:
    """The plan for places named after languages, of which `dsb` is the target."""
    write(place, files)
    found = {one.stem: one for one in sorted(place.iterdir()) if one.stem in ("en", "de", "dsb")}
    target = found.pop("dsb", None)
    return make_plan(Places(**{"target": "dsb", "sources": found, "target_path": target, **changes}), spoken)


def test_a_key_that_occurs_several_times_is_refused_before_a_model_is_asked(tmp_path: Path) -> None:
    unit = '<trans-unit id="a"><source>A</source>{}</trans-unit>'
    text = '<xliff version="1.2"><file source-language="en"><body>{}</body></file></xliff>'
    translated = text.format(unit.format("<target>HUMAN</target>") + unit.format(""))
    plan = plan_of(tmp_path, {"de.xlf": text.format(unit.format("<target>D</target>")), "dsb.xlf": translated})
    assert [one.reason for one in plan.missing] == [ambiguous(2)]
