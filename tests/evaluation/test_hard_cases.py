"""Hard texts one by one: each is written exactly, or refused with the reason, and nothing else in its file changes."""

from __future__ import annotations

import difflib
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from builders import tiny_config
from hard_texts import (
    AROUND,
    AS_THEY_ARE,
    FLUENT,
    GETTEXT,
    OLD,
    PROPERTIES,
    QT,
    QT_FORMS,
    XLIFF_1,
    XLIFF_2,
    XML,
    qt,
    qt_forms,
    xliff_1,
    xliff_2,
)
from hf_multisource import MultiSourceForConditionalGeneration, MultiSourceProcessor
from hf_multisource.data.catalogue_entries import FUZZY
from hf_multisource.data.catalogue_files import read_catalogue
from hf_multisource.evaluation import text_translator
from hf_multisource.evaluation.decoding import Hypothesis
from hf_multisource.evaluation.localization import Places, make_plan
from hf_multisource.evaluation.localization_answers import Options
from hf_multisource.evaluation.localization_run import localize
from hf_multisource.evaluation.text_translator import TextTranslator
from hf_multisource.recipes.tokenization import train_tokenizer

SOURCES = ["en", "de"]
DSB = "nplurals=4; plural=(n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3);"
PLURALS = {"de": "nplurals=2; plural=(n != 1);", "dsb": DSB}
GETTEXT_HEADER = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Plural-Forms: {}\\n"\n\n'


EMPTY = re.compile(
    r'(msgstr(\[\d\])? ""|#, [a-z-]+|<target( state="new")?></target>|<segment( state="initial")?>|'
    r'<translation type="unfinished"></translation>|<numerusform></numerusform>)\n'
)


@cache
def translator() -> TextTranslator:
    """A translator whose model is never asked: it writes "X " and its first source, masked."""
    tokenizer = train_tokenizer(["Open the page"], "bpe", 400, mask_tokens=True)
    model: Any = MultiSourceForConditionalGeneration(tiny_config("serial", SOURCES, vocab_size=len(tokenizer)))
    return TextTranslator(model, MultiSourceProcessor(tokenizer, SOURCES), max_length=256)


def echo(_: Any, __: Any, rows: Any, *___: Any, **____: Any) -> Any:
    texts = [next(text for name in SOURCES if (text := row[name])) for row in rows]
    return [[Hypothesis(f"X {text}", -1.0)] for text in texts], {}


def cases() -> dict[str, tuple[str, str | None, str, str]]:
    """Name of a case -> name of its file, and the file in English (None: there is none), German and Lower Sorbian."""
    found: dict[str, tuple[str, str | None, str, str]] = {}
    for name, table, sign in (("menu.ftl", FLUENT, " = "), ("menu.properties", PROPERTIES, "=")):
        for key in table:
            # An access key stands beside its label.
            group = [one for one in table if one == key or one == key.replace("accesskey", "label")]
            texts = [[(one, table[one][column]) for one in group] for column in (0, 1)]
            en, de = ("".join(f"{one}{sign}{text}\n" for one, text in side if text is not None) for side in texts)
            found[f"{name[5:]}-{key}"] = (name, en, de, OLD[name])
    for key, (message, translation) in GETTEXT.items():
        empty = [f'msgstr[{i}] ""\n' for i in range(4)] if "msgid_plural" in message else ['msgstr ""\n']
        german = f"{GETTEXT_HEADER.format(PLURALS['de'])}{message}\n{translation}\n"
        found[key] = ("a.po", None, german, f"{GETTEXT_HEADER.format(PLURALS['dsb'])}{message}\n{''.join(empty)}")
    for key, (name, en, de) in XML.items():
        around = "<resources>\n{}</resources>\n" if name == "strings.xml" else "<!-- License -->\n{}"
        found[key] = (name, around.format(f"{en}\n"), around.format(f"{de}\n"), around.format(""))
    held = dict(AS_THEY_ARE)
    for key, (text, forms) in QT_FORMS.items():
        held[f"qt-{key}"] = ("a.ts", qt_forms(text, forms), qt_forms(text, [""] * 4))
    for kind, file, table, write in (
        ("xliff1", "a.xlf", XLIFF_1, xliff_1),
        ("xliff2", "a.xliff", XLIFF_2, xliff_2),
        ("qt", "a.ts", QT, qt),
    ):
        for key, (message, translation) in table.items():
            held[f"{kind}-{key}"] = (file, write(message, translation), write(message, None))
    for key, (name, german, lower) in held.items():
        found[key] = (name, None, AROUND[name].format("de", german), AROUND[name].format("dsb", lower))
    return found


CASES = cases()
REFUSED = {  # case -> the reason
    "ftl-long": r"the source 'en' has \d+ tokens; the model reads at most 256",
    "ftl-many": "more than 16 different placeholders",
    "ftl-mixed": "the first source cannot be read here: a selector inside a text or another selector",
    "ftl-inner": "the first source cannot be read here: a selector inside a text or another selector",
    "properties-choice": "contains a plural or a choice, whose variants must be translated separately",
    "properties-choice-only": "contains a plural or a choice, whose variants must be translated separately",
    "properties-hash": "the text is a list of plural forms, whose number depends on the language",
    "properties-empty": "the text is empty in the first source",
    "properties-spaces": "the text is empty in the first source",
    "xliff1-long": r"the source 'en' has \d+ tokens; the model reads at most 256",
    "xliff1-plural": "contains a plural or a choice, whose variants must be translated separately",
    "xliff1-same-id": "the file has 2 entries with this key",
    "properties-y.accesskey": "no label is found that the access key belongs to",
}
WRITTEN = {  # case -> part -> its text, where this is not "X " and the English text
    "ftl-only": {"": "{ $n }{ $m }"},  # without words: copied
    "ftl-only-german": {},  # the first source has no such message
    "ftl-emoji": {"": "👩\u200d👩\u200d👧 { $n } ✅"},
    "ftl-plural": dict.fromkeys(["[one]", "[two]", "[few]", "[other]"], "X { $n } tabs"),  # also one: 1, 101, …
    "ftl-attributes": {"": "X Value", ".label": "X Label { $n }", ".accesskey": "X"},  # the English one is not in it
    "ftl-keyed": {".label": "{ -brand }", ".accesskey": "b"},
    "properties-blank": {"": " %S "},
    "properties-mustache": {"": "{{page}} / {{pages}}"},
    "properties-open.commandkey": {"": "o"},
    "properties-open.width": {"": "32em"},
    "po-plural": {"[0]": "X %d file"} | dict.fromkeys(["[1]", "[2]", "[3]"], "X %d files"),
    "po-printf": {"": "X %d of %s"},
    "po-percent": {"": "X 100%% of %s\n"},
    "po-context": {"": "X _Open"},
    "po-quotes": {"": 'X A "b" \\ c\td'},
    "po-python": {"": "X %(n)s and %(n)s"},
    "android-plural": {"[one]": "X %d day"} | dict.fromkeys(["[two]", "[few]", "[other]"], "X %d days"),
    "xliff1-only": {"": '<x id="1"/>'},
    "xliff1-blanks": {"": " %1$s "},
    "xliff1-empty": {"": "X etwas"},  # German is the only source
    "qt-same": {"": "%1"},
    "qt-vanished": {},  # the program has no such message any more
    "properties-x.accesskey": {"": "X"},  # of "X Save"; the English one, Q, is not in it
}


@pytest.mark.parametrize("case", CASES)
def test_a_hard_text_is_written_exactly_or_refused(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_translator, "decode_window", echo)
    file, english, german, empty = CASES[case]
    for language, text in (("en", english), ("de", german), ("dsb", empty)):
        if text is not None:
            (tmp_path / language).mkdir()
            (tmp_path / language / file).write_bytes(text.encode())
    sources = {name: tmp_path / name for name in SOURCES if (tmp_path / name).exists()}
    plan = make_plan(Places(target="dsb", sources=sources, target_path=tmp_path / "dsb"), SOURCES)
    record = localize(plan, tmp_path / "out", {"x": 1}, lambda: (translator(), None), Options())
    key = case.partition("-")[2].replace("\\", "") if file.startswith("menu") else None
    texts = {one["part"]: one for one in record["texts"] if key in (None, one["key"])}
    content = (tmp_path / "out" / file).read_bytes()
    new = {
        one.part: one for one in read_catalogue(file, content).entries if one.state == FUZZY and key in (None, one.key)
    }
    if case in REFUSED:
        assert new == {} and [one["state"] for one in texts.values()] == ["refused"]
        assert re.search(REFUSED[case], texts[""]["reason"])
    else:
        entries = read_catalogue(file, (empty if english is None else english).encode()).entries
        expected = {one.part: f"X {one.source or one.text}" for one in entries if key in (None, one.key)}
        assert {part: one.text for part, one in new.items()} == WRITTEN.get(case, expected)
        assert all(one["text"] == new[part].text for part, one in texts.items())
    # Lines are added; only an empty translation, and the flags beside it, give way.
    old, lines = (text.splitlines(keepends=True) for text in (empty, content.decode()))
    steps = difflib.SequenceMatcher(None, old, lines, autojunk=False).get_opcodes()
    gone = [line for kind, start, end, *_ in steps if kind in ("replace", "delete") for line in old[start:end]]
    assert all(EMPTY.fullmatch(line) for line in gone)


def test_the_cases_are_more_than_eighty() -> None:
    assert len(CASES) > 80 and {*REFUSED, *WRITTEN} <= {*CASES}
