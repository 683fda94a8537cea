"""Every key of a recipe is listed with its type, its default and its meaning."""

from datetime import date
from typing import Any

import pytest

from hf_multisource.cli import recipes, train
from hf_multisource.recipes.keys import describe_keys
from hf_multisource.recipes.schema import (
    FAMILIES,
    common_keys,
    data_keys,
    documented_arguments,
    entry_keys,
    family_keys,
    first_sentence,
    known_keys,
    tokenizer_keys,
    training_keys,
)
from hf_multisource.recipes.values import check_value

GROUPS = {
    "data": data_keys(),
    "tokenizer": tokenizer_keys(),
    "common": common_keys(),
    **{name: family_keys(family) for name, family in FAMILIES.items()},
    "sources": entry_keys(),
    "training": training_keys(),
}
KEYS = [key for group in GROUPS.values() for key in group.values()]


def test_there_are_keys_of_every_group() -> None:
    assert {name: len(keys) > 2 for name, keys in GROUPS.items()} == dict.fromkeys(GROUPS, True)


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_the_help_of_train_lists_every_key(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    train.main([flag])
    text = capsys.readouterr().out
    assert text.index("Options:") < text.index("Keys of a recipe") < text.index("\ndata: the text\n")
    words = [line.split()[0] for line in text.split("Keys of a recipe")[1].splitlines() if line.startswith("  ")]
    assert {name for names in known_keys().values() for name in names} <= set(words)
    assert all(len(line) <= 80 for line in describe_keys().splitlines())


def test_every_key_has_a_meaning() -> None:
    assert [key.name for key in KEYS if not (key.meaning[:1].isupper() or key.meaning[:1] == '"')] == []
    assert [key.name for key in KEYS if not key.meaning.endswith((".", ")"))] == []


@pytest.mark.parametrize("wrong", [date(2024, 1, 1), {1: [date(2024, 1, 1)]}], ids=["date", "nested"])
def test_every_key_refuses_a_value_of_a_type_that_it_does_not_have(wrong: Any) -> None:
    anything = {"lr_scheduler_kwargs", "accelerator_config", "deepspeed"}  # mappings that Transformers hands on
    for key in KEYS:
        if isinstance(wrong, dict) and key.name in anything:
            continue
        with pytest.raises(ValueError, match=rf"^here\.{key.name} must be .*; got "):
            check_value(f"here.{key.name}", key.type, wrong)


def test_a_key_is_one_line_and_its_meaning_is_indented() -> None:
    text = describe_keys("data")
    assert "\n  max_length  whole number, 2 or more  [default: 128]\n      Largest length of a source" in text
    assert "\n  path  text that is not empty  required\n" in text
    assert "\n  concatenate  true or false  [default: false]\n" in text
    assert "noam_scale" not in text


def test_a_section_can_be_listed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    recipes.main(["--keys", "tokenizer"])
    assert capsys.readouterr().out == describe_keys("tokenizer")
    recipes.main(["--keys"])
    assert capsys.readouterr().out == describe_keys()
    with pytest.raises(SystemExit, match="unknown section 'tokens'; the sections of a recipe are data, tokenizer"):
        recipes.main(["--keys", "tokens"])


def test_arguments_are_read_from_a_docstring() -> None:
    def documented() -> None:
        """Do something.

        Args:
            one: The first,
                in two lines; None: nothing.
            two: The second: it has a colon.

        Returns:
            three: no argument.
        """

    expected = {"one": "The first, in two lines; null: nothing.", "two": "The second: it has a colon."}
    assert documented_arguments(documented) == expected
    assert documented_arguments(len) == {}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("One. Two.", "One."),
        ("A share, e.g. Half, of 5%%. Two.", "A share, e.g. Half, of 5%."),
        ("No end", "No end."),
        ("Rate of 1.5 points. `x` is", "Rate of 1.5 points."),
    ],
)
def test_the_first_sentence_of_a_help_text(text: str, sentence: str) -> None:
    assert first_sentence(text) == sentence
