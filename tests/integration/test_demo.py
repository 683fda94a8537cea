"""The steps of `make demo`, with a model that is too small, and trained too little, to learn anything."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import yaml

import demo
from hf_multisource.evaluation.results import scored_splits
from hf_multisource.recipes.shipped import read_recipe
from prepare import demo_data
from runs import RECIPE, files_of

STEPS = 2


def test_the_demo_trains_scores_and_shows_and_skips_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = yaml.safe_load(read_recipe(demo.RECIPE))
    recipe["model"] |= {key: value for key, value in RECIPE["model"].items() if key != "combiner"}
    recipe["training"] |= {"max_steps": STEPS, "eval_steps": STEPS, "save_steps": STEPS, "use_cpu": True}
    recipe["tokenizer"]["vocab_size"] = 400
    (tmp_path / "demo.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "RECIPE", tmp_path / "demo.yaml")
    monkeypatch.setattr(demo_data, "write", partial(demo_data.write, train=40, dev=4, test=6))

    with pytest.raises(SystemExit, match=r"^demo: BLEU \d+\.\d with all sources; at least 90\.0 was expected$"):
        demo.main()
    shown = capsys.readouterr().out
    assert all(scored_splits(demo.FOLDER / name) == ["test"] for name in demo.RUNS)
    table = shown.split("What each source gives")[1].split("Some translations")[0]
    titles = [line.split("|")[1].strip() for line in table.splitlines() if "|" in line]
    conditions = [f"{kind}-{name}" for name in ("en", "de", "fr") for kind in ("wrong", "absent")]
    assert titles[2:] == ["all", *conditions, "en_only baseline"]
    for name in ("en", "de", "fr", "cs"):
        first = (demo.FOLDER / "data" / f"test.{name}").read_text("utf-8").splitlines()[0]
        assert f"{name:>12}  {first}\n" in shown
    assert shown.count("\n-> absent-en  ") == 3

    weights = {name: content for name, content in files_of(demo.FOLDER).items() if name.endswith(".safetensors")}
    monkeypatch.setattr(demo, "ENOUGH", 0.0)
    demo.main()
    assert capsys.readouterr().out.count("already trained") == 2
    assert weights == {name: content for name, content in files_of(demo.FOLDER).items() if name in weights}
