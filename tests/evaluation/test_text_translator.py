"""Translations of texts with placeholders are whole, or refused with a reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from builders import tiny_config
from hf_multisource import MultiSourceForConditionalGeneration, MultiSourceProcessor
from hf_multisource.data.masking import TABLE, mask_sources
from hf_multisource.data.placeholders import MASK_TOKENS, broken_placeholders, restore_text
from hf_multisource.evaluation import text_translator
from hf_multisource.evaluation.decoding import Hypothesis, Search, decode_batch
from hf_multisource.evaluation.text_translator import TextTranslator
from hf_multisource.recipes.recipe import DataRecipe, Recipe
from hf_multisource.recipes.tokenization import train_tokenizer

SOURCES = ["en", "de"]
TEXTS = ["Sign in to the page", "Bei der Seite anmelden", "Pla boka"]
ROWS: list[Mapping[str, str | None]] = [
    {"en": "Open <b>%S</b> ", "de": "<b>%S</b> öffnen"},
    {"en": None, "de": " { $user } %1$S %2$S\n"},
    {"en": "Quit"},
    {"en": "&Save %s in %s", "de": "In %s %s &speichern"},
]


@cache
def make_translator(*, mask_tokens: bool = True, joined: bool = False) -> TextTranslator:
    """A translator with a model that has learned nothing; tests do not change it."""
    data = DataRecipe("data", SOURCES, "cs", concatenate=True) if joined else None
    names = data.model_sources if data else SOURCES
    tokenizer = train_tokenizer(TEXTS, "bpe", 400, mask_tokens=mask_tokens)
    torch.manual_seed(0)
    config = tiny_config("serial", names, vocab_size=len(tokenizer), initializer="normal", init_std=1.0)
    model: Any = MultiSourceForConditionalGeneration(config).eval()
    model.generation_config.exponential_decay_length_penalty = (4, 9.0)  # it has not learned to end a text
    return TextTranslator(model, MultiSourceProcessor(tokenizer, names), joined=data, max_length=48, batch_size=2)


def decoded_as(monkeypatch: pytest.MonkeyPatch, *hypotheses: Hypothesis) -> list[Any]:
    """Let the model say this of every row; return the rows that it was given."""
    rows: list[Any] = []

    def decode(_: Any, __: Any, given: Any, *___: Any, **____: Any) -> Any:
        rows.extend(given)
        return [list(hypotheses) for _ in given], {}

    monkeypatch.setattr(text_translator, "decode_window", decode)
    return rows


@pytest.mark.parametrize("joined", [False, True])
def test_every_candidate_has_the_placeholders_of_its_first_source(
    joined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = make_translator(joined=joined)
    ids = translator.processor.tokenizer.convert_tokens_to_ids([*MASK_TOKENS])
    # The model likes to write placeholders, so that no limit must force them.
    monkeypatch.setattr(translator.model.generation_config, "sequence_bias", {(i,): 20.0 for i in ids}, raising=False)
    assert translator.sources == ("en", "de")
    found = translator.translate(ROWS, n_best=3, num_beams=4, max_new_tokens=24)
    whole = 0
    for row, translation in zip(ROWS, found, strict=True):
        assert bool(translation.candidates) == (translation.refused == "")
        source = row.get("en") or row["de"] or ""
        for candidate in translation.candidates:
            assert broken_placeholders(source, candidate.text) == []
            whole += 1
        scores = [candidate.score for candidate in translation.candidates]
        assert scores == sorted(scores, reverse=True)
        assert len({candidate.text for candidate in translation.candidates}) == len(scores)
    assert whole > 1


@pytest.mark.parametrize(
    ("sources", "text", "expected"),
    [
        ({"en": "Can''t open {0}"}, "L''open '<ph1>'", "L''open ''{0}''"),
        ({"en": "Open {0}", "de": "{0} geht's''s"}, "L'open <ph1>", "L'open {0}"),  # contradictory
        ({"en": "Open {0}", "de": "{0}, geht''s"}, "L'open <ph1>", "L''open {0}"),
        ({"en": "Can't open {0}"}, "L'open <ph1>", "L'open {0}"),  # no MessageFormat
        ({"en": "Öffne {0}", "de": "Can't open {0}"}, "L'open <ph1>", "L'open {0}"),
        ({"en": "Open {0}"}, "L'open <ph1>", "L'open {0}"),  # nothing shows it
        ({"en": "Open"}, "L'open", "L'open"),
    ],
)
def test_apostrophes_are_doubled_for_message_formats(
    sources: dict[str, str], text: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded_as(monkeypatch, Hypothesis(text, -1.0))
    (found,) = make_translator().translate([sources], syntax="properties")
    assert [one.text for one in found.candidates] == [expected]


def test_apostrophes_are_doubled_without_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded_as(monkeypatch, Hypothesis("L'open {0}", -1.0))
    (found,) = make_translator(mask_tokens=False).translate([{"en": "Can''t open {0}"}], syntax="java-format")
    assert [one.text for one in found.candidates] == ["L''open {0}"]


@pytest.mark.parametrize("longest", [4, 5, 7])
def test_a_translation_whose_placeholders_are_forced_is_refused(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of such a text says nothing: the limit forces the placeholders, and only then is an end allowed."""
    monkeypatch.setattr(text_translator, "REPLACEMENT", "\0")  # the model writes bytes at random
    rows = [{"en": "Open %1$S in %2$S"}, {"en": "%1$S%2$S"}]
    translator = make_translator()
    monkeypatch.setattr(translator.model.generation_config, "exponential_decay_length_penalty", (1, 1e3))
    for translation in translator.translate(rows, max_new_tokens=longest):
        assert "has no end of its own: it reached the largest number of tokens" in translation.refused
    tables = [translator._model_row(row, "any")[TABLE] for row in rows]
    encoded = translator.processor(en=["a", "b"], return_tensors="pt")
    search = Search(num_beams=2, n_best=2, max_new_tokens=longest)
    for found, row, table in zip(
        decode_batch(translator.model, translator.processor, encoded, search, tables=tables), rows, tables, strict=True
    ):
        for hypothesis in found:  # all placeholders are there, and the end
            assert broken_placeholders(row["en"], restore_text(hypothesis.text, table)) == []
            assert hypothesis.is_cut


@pytest.mark.parametrize("mask_tokens", [True, False])
def test_an_end_at_the_limit_is_forced_only_after_placeholders(mask_tokens: bool) -> None:
    translator = make_translator(mask_tokens=mask_tokens)
    end = translator.model.generation_config.eos_token_id
    model: Any = SimpleNamespace(device="cpu", generation_config=SimpleNamespace(eos_token_id=[end, 5]))
    processor: Any = SimpleNamespace(
        tokenizer=translator.processor.tokenizer, batch_decode=lambda ids, **_: ["x"] * len(ids)
    )
    plain, placed = (mask_sources({"en": text}, ["en"], "any")[TABLE] for text in ("x", "%s"))
    texts = {(2, 6, end, end): (False, False), (2, 6, 7, end): (False, mask_tokens), (2, 6, 7, 6): (True, True)}
    texts[2, 6, 7, 5] = (False, mask_tokens)  # another token that ends texts
    for ids, expected in texts.items():
        model.generate = lambda ids=ids, **_: SimpleNamespace(sequences=torch.tensor([ids, ids]))
        found = decode_batch(model, processor, {}, Search(num_beams=1, max_new_tokens=3), tables=[plain, placed])
        assert tuple(hypotheses[0].is_cut for hypotheses in found) == expected, ids


@pytest.mark.parametrize("mask_tokens", [True, False])
def test_a_translation_whose_end_is_forced_is_refused(mask_tokens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Marian, BART, mBART and Pegasus have `forced_eos_token_id`, so that a cut translation has an end, too."""
    translator = make_translator(mask_tokens=mask_tokens)
    settings = translator.model.generation_config
    monkeypatch.setattr(settings, "exponential_decay_length_penalty", None)
    for forced in (None, settings.eos_token_id):
        monkeypatch.setattr(settings, "forced_eos_token_id", forced)
        (found,) = translator.translate([{"en": "open the window"}], max_new_tokens=4)
        assert "has no end of its own: it reached the largest number of tokens" in found.refused


def test_the_positions_of_the_decoder_limit_the_translation() -> None:
    sources: list[Any] = [{"name": name, "position_embedding": "sinusoidal"} for name in SOURCES]
    learned: dict[str, Any] = {"position_embedding": "learned", "max_position_embeddings": 16}
    config = tiny_config("serial", sources, vocab_size=400, **learned)
    processor = make_translator().processor
    model: Any = MultiSourceForConditionalGeneration(config)
    translator = TextTranslator(model, processor, max_length=48)
    assert translator.search_settings()["max_new_tokens"] == 16
    with pytest.raises(ValueError, match="max_new_tokens is 17, but the decoder of the model has 16 positions"):
        translator.translate([{"en": "open"}], max_new_tokens=17)


def test_rows_are_translated_alike_in_any_batch() -> None:
    translator = make_translator()
    together = translator.translate(ROWS, max_new_tokens=8)
    for row, expected in zip(ROWS, together, strict=True):
        alone = translator.translate([row], max_new_tokens=8)[0]
        assert alone.refused == expected.refused
        assert [one.text for one in alone.candidates] == [one.text for one in expected.candidates]
        assert [one.score for one in alone.candidates] == pytest.approx([one.score for one in expected.candidates])


def test_what_the_model_reads_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = decoded_as(monkeypatch, Hypothesis("<ph1>: <open1>x<close1>", -1.0))
    found = make_translator().translate([{"en": " <i>Sign</i> %S", "de": "%S <i>an</i>"}])
    assert [(row["en"], row["de"]) for row in rows] == [("<open1>Sign<close1> <ph1>", "<ph1> <open1>an<close1>")]
    assert [one.text for one in found[0].candidates] == [" %S: <i>x</i>"]


def test_an_escape_sequence_of_all_sources_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = decoded_as(monkeypatch, Hypothesis("Foo abo <ph1>", -1.0))
    found = make_translator().translate([{"en": "Open &amp; %S", "de": "%S &amp; mehr"}])
    assert rows[0]["de"] == "<ph1> <char1> mehr"
    assert [one.text for one in found[0].candidates] == ["Foo abo %S"]


def test_without_mask_tokens_texts_are_read_as_they_are_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = decoded_as(monkeypatch, Hypothesis("Foo", -0.5), Hypothesis("Foo %S", -1.0))
    found = make_translator(mask_tokens=False).translate([{"en": " Open %S"}])
    assert rows[0]["en"] == " Open %S"
    assert [(one.text, one.score) for one in found[0].candidates] == [(" Foo %S", -1.0)]


@pytest.mark.parametrize(
    ("hypotheses", "reason"),
    [
        ([Hypothesis("Foo", -1.0)], r"<ph1> occurs 0 times"),
        ([Hypothesis("Foo <ph1> { $x }", -1.0), Hypothesis("Foo", -2.0)], r"\{ \$x \} is not in the source"),
        ([Hypothesis("Foo <ph1>", -1.0, is_cut=True)], "it has no end|has no end"),
        ([Hypothesis("  ", -1.0)], "is empty"),
        ([Hypothesis("Foo\ufffd <ph1>", -1.0)], r"has a character of which a part is missing \(U\+FFFD\)"),
    ],
)
def test_a_row_is_refused_if_the_whole_beam_is_broken(
    monkeypatch: pytest.MonkeyPatch, hypotheses: list[Hypothesis], reason: str
) -> None:
    decoded_as(monkeypatch, *hypotheses)
    found = make_translator().translate([{"en": "Open %S"}], num_beams=2)[0]
    assert found.candidates == ()
    assert re.search(reason, found.refused)


def test_broken_cut_equal_and_empty_beams_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded_as(
        monkeypatch,
        Hypothesis("Foo", -1.0),
        Hypothesis("Foo <ph1>", -1.5, is_cut=True),
        Hypothesis("Bar <ph1>", -2.0),
        Hypothesis(" Bar <ph1>", -2.5),
        Hypothesis("<ph1>", -3.0),
        Hypothesis("Baz <ph1>", -1e9),
    )
    found = make_translator().translate([{"en": "Open %S"}], n_best=4, num_beams=6)[0]
    assert [(one.text, one.score) for one in found.candidates] == [("Bar %S", -2.0), ("%S", -3.0)]


def test_a_replacement_character_of_a_source_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded_as(monkeypatch, Hypothesis("Foo \ufffd", -1.0))
    assert make_translator().translate([{"en": "\ufffd is shown"}])[0].candidates[0].text == "Foo \ufffd"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "no source is present; the sources are en, de"),
        ({"en": " ", "de": None}, "no source is present"),
        ({"en": "{ $n ->\n [one] tab\n *[other] tabs\n}"}, "whose variants must be translated separately"),
        ({"en": "a", "de": "word " * 60}, "the source 'de' has 300 tokens; the model reads at most 48"),
        (
            {"en": " ".join(f"%{i}$S" for i in range(1, 7))},
            "must have 6 placeholders and an end, but fewer than 6 tokens in all",
        ),
    ],
)
def test_rows_that_cannot_be_translated_are_refused_and_the_others_are_not(
    row: Mapping[str, str | None], reason: str
) -> None:
    refused, other = make_translator().translate([row, {"en": "%S", "de": "%S"}], max_new_tokens=6)
    assert refused.candidates == ()
    assert re.search(reason, refused.refused)
    assert other == make_translator().translate([{"en": "%S", "de": "%S"}], max_new_tokens=6)[0]


def test_no_rows_are_no_translations() -> None:
    assert make_translator().translate([]) == []


def test_a_beam_without_any_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded_as(monkeypatch, Hypothesis("", -1e9), Hypothesis("", None))
    found = make_translator().translate([{"en": "Open"}])
    assert found[0].refused == "no translation of the beam is whole; the best one: the beam is empty"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.translate([{"en": "a"}, {"fr": "b"}]), "row 1: unknown source 'fr'; the sources are en, de"),
        (lambda t: t.translate([{"en": 3}]), "row 0, en: must be a text or None, but is 3"),
        (lambda t: t.translate([], syntax="tex"), "syntax"),
        (lambda t: t.translate([], n_best=0), "n_best"),
        (lambda t: t.translate([], num_beams=1), "num_beams"),
        (lambda t: t.translate([], n_best=6), "num_beams"),
    ],
)
def test_bad_calls_are_refused_by_name(call: Callable[[TextTranslator], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(make_translator())


def test_a_run_is_loaded_with_its_limit_and_its_joined_sources(tmp_path: Path) -> None:
    made = make_translator(joined=True)
    made.model.save_pretrained(tmp_path)
    made.processor.save_pretrained(tmp_path)
    recipe = Recipe(DataRecipe("data", SOURCES, "cs", concatenate=True, max_length=31))
    recipe.training["output_dir"] = str(tmp_path)
    recipe.save(tmp_path / "recipe.yaml")
    translator = TextTranslator.from_run(str(tmp_path), device="cpu")
    assert translator.sources == ("en", "de") and translator.max_length == 31 and translator.masks
    assert translator.translate(ROWS[:1], max_new_tokens=6) == made.translate(ROWS[:1], max_new_tokens=6)
    replace(recipe, data=replace(recipe.data, concatenate=False, reverse=True)).save(tmp_path / "recipe.yaml")
    with pytest.raises(ValueError, match=r"data\.reverse"):
        TextTranslator.from_run(str(tmp_path), device="cpu")
