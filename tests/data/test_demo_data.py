"""The demo's corpus: real phrases, divided among the sources so that none of them, nor any two, is enough."""

from __future__ import annotations

import os
import random
import runpy
import subprocess
import sys
from dataclasses import replace
from datetime import date, time
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from prepare import demo_data
from prepare.demo_data import FACTS, LANGUAGES, SOURCES, TARGET, Record, draw, generate, main, phrase, tell, write

SMALL = {"train": 40, "dev": 5, "test": 8}
GROUPS = [group for size in (1, 2) for group in combinations(SOURCES, size)]


def change(record: Record, name: str) -> Record:
    """Give one fact of a record the next of its values."""
    values = FACTS[name].values
    return {**record, name: values[(values.index(record[name]) + 1) % len(values)]}


@pytest.mark.parametrize(
    ("name", "value", "phrases"),
    [
        ("weekday", 0, ["Monday", "Montag", "lundi", "pondělí"]),
        ("day", date(2001, 5, 3), ["May 3", "3. Mai", "3 mai", "3. května"]),
        ("time", time(14, 30), ["2:30 PM", "14:30", "14:30", "14:30"]),
        ("year", date(1998, 1, 1), ["1998"] * 4),
        ("amount", (1, "duration-hour"), ["1 hour", "1 Stunde", "1 heure", "1 hodina"]),
        ("amount", (2, "duration-hour"), ["2 hours", "2 Stunden", "2 heures", "2 hodiny"]),
        ("amount", (5, "duration-hour"), ["5 hours", "5 Stunden", "5 heures", "5 hodin"]),
        ("price", (5, "EUR"), ["5 euros", "5 Euro", "5 euros", "5 eur"]),
        ("number", 23, ["twenty-three", "dreiundzwanzig", "vingt-trois", "dvacet tři"]),
    ],
)
def test_each_language_says_a_fact_as_its_speakers_do(name: str, value: Any, phrases: list[str]) -> None:
    assert [phrase(name, value, language) for language in LANGUAGES] == phrases


def test_a_record_is_told_as_one_list_of_what_the_language_holds() -> None:
    record = {
        "weekday": 0,
        "day": date(2001, 5, 3),
        "time": time(14, 30),
        "year": date(1998, 1, 1),
        "amount": (2, "duration-hour"),
        "price": (5, "EUR"),
        "number": 23,
    }
    assert {language: tell(record, language) for language in LANGUAGES} == {
        "en": "Monday, May 3, 2 hours, and 2:30 PM",
        "de": "3. Mai, 1998 und dreiundzwanzig",
        "fr": "lundi, 1998, 5 euros et 14:30",
        "cs": "pondělí, 3. května, 1998, 2 hodiny, 5 eur, dvacet tři a 14:30",
    }


def test_the_documented_table_is_the_one_in_use() -> None:
    lines = (demo_data.__doc__ or "").split("    fact      en  de  fr  cs")[1].split("\n\n")[0].splitlines()[1:]
    documented = {name: marks[:4] for name, *marks in map(str.split, lines)}
    told = {name: ["x" if s in fact.sources else "." for s in SOURCES] + ["x"] for name, fact in FACTS.items()}
    assert documented == told


@pytest.mark.parametrize("name", FACTS)
def test_changing_a_fact_changes_the_target_and_only_the_sources_that_hold_it(name: str) -> None:
    rng = random.Random(name)
    for _ in range(20):
        record = draw(rng)
        other = change(record, name)
        changed = {language for language in LANGUAGES if tell(record, language) != tell(other, language)}
        assert changed == {*FACTS[name].sources, TARGET}


@pytest.mark.parametrize("name", FACTS)
def test_every_value_has_a_phrase_of_its_own_wherever_it_is_told(name: str) -> None:
    for language in (*FACTS[name].sources, TARGET):
        assert len({phrase(name, value, language) for value in FACTS[name].values}) == len(FACTS[name].values)


def test_every_fact_is_held_by_a_source_and_most_by_two() -> None:
    held = [len(fact.sources) for fact in FACTS.values()]
    assert min(held) == 1 and max(held) == 2 and held.count(2) > len(held) / 2


@pytest.mark.parametrize("group", GROUPS, ids="+".join)
def test_one_source_or_two_leave_the_target_open(group: tuple[str, ...]) -> None:
    record = draw(random.Random(0))
    left_out = next(name for name, fact in FACTS.items() if not {*group} & {*fact.sources})
    other = change(record, left_out)
    assert [tell(record, source) for source in group] == [tell(other, source) for source in group]
    assert tell(record, TARGET) != tell(other, TARGET)


def test_the_same_seed_gives_the_same_rows_and_another_seed_others() -> None:
    assert generate(**SMALL, seed=3) == generate(**SMALL, seed=3)
    assert generate(**SMALL, seed=3) != generate(**SMALL, seed=4)


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_the_hash_seed_of_the_process_does_not_matter(hash_seed: str) -> None:
    code = "import ast, demo_data, sys; print(ascii(demo_data.generate(**ast.literal_eval(sys.argv[1]))))"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(demo_data.__file__).parent)}
    command = [sys.executable, "-c", code, repr(SMALL)]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == ascii(generate(**SMALL))


def test_the_size_of_the_training_set_does_not_move_the_rest() -> None:
    small, large = generate(**SMALL), generate(**{**SMALL, "train": 90})
    assert (small["dev"], small["test"]) == (large["dev"], large["test"])
    assert small["train"] == large["train"][: SMALL["train"]]


def test_splits_share_no_target_and_repeat_none() -> None:
    splits = generate()
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 12000, "dev": 300, "test": 500}
    assert len({row[TARGET] for rows in splits.values() for row in rows}) == 12800


def test_splits_stay_disjoint_where_draws_must_collide(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, fact in FACTS.items():
        if name != "weekday":
            monkeypatch.setitem(FACTS, name, replace(fact, values=fact.values[:1]))
    splits = generate(train=4, dev=1, test=2)
    assert len({row[TARGET] for rows in splits.values() for row in rows}) == 7


def test_a_line_has_only_plain_single_spaces() -> None:
    for rows in generate(**SMALL).values():
        for row in rows:
            assert set(row) == set(LANGUAGES)
            assert all(line == " ".join(line.split()) for line in row.values())


def test_an_empty_split_is_refused() -> None:
    with pytest.raises(ValueError, match="dev must be at least 1 record, got 0"):
        generate(train=3, dev=0, test=3)


def test_files_hold_the_rows_line_by_line(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "demo"
    assert len(write(folder, **SMALL, seed=5)) == 12 == len(list(folder.iterdir()))
    for split, rows in generate(**SMALL, seed=5).items():
        for language in LANGUAGES:
            text = (folder / f"{split}.{language}").read_bytes().decode("utf-8")
            assert text == "".join(row[language] + "\n" for row in rows)


def test_writing_again_writes_only_what_is_not_there(tmp_path: Path) -> None:
    write(tmp_path, **SMALL)
    assert write(tmp_path, **SMALL) == []
    (tmp_path / "dev.fr").unlink()
    assert write(tmp_path, **SMALL) == [tmp_path / "dev.fr"]


def test_other_text_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "train.de").write_text("mein Text\n")
    with pytest.raises(FileExistsError, match=r"train\.de holds other text"):
        write(tmp_path, **SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["train.de"]
    assert (tmp_path / "train.de").read_text() == "mein Text\n"


def test_a_file_cut_off_while_being_written_never_bears_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_half(path: Path, text: bytes) -> None:
        with path.open("wb") as file:
            file.write(text[: len(text) // 2])
        raise OSError("disk full")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="disk full"):
        patched.setattr(Path, "write_bytes", write_half)
        write(tmp_path, **SMALL)
    assert not list(tmp_path.glob("train.*"))
    assert len(write(tmp_path, **SMALL)) == 12
    assert not list(tmp_path.glob(".*"))


def test_the_command_writes_what_the_function_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(tmp_path), "--seed", "2", "--train", "40", "--dev", "5", "--test", "8"])
    assert "12 files written" in capsys.readouterr().out
    assert write(tmp_path, **SMALL, seed=2) == []


def test_the_command_reports_an_error_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--train", "0"])
    assert "error: train must be at least 1 record, got 0" in capsys.readouterr().err


@pytest.mark.parametrize("package", ["babel.dates", "num2words"])
def test_without_babel_or_num2words_the_extra_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r'num2words: run pip install "\.\[demo\]" in a clone'):
        runpy.run_path(demo_data.__file__)
