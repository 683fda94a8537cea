"""Texts that are hard to localize: each is filled whole or refused by name, and nothing else in the files changes."""

from __future__ import annotations

import json
from pathlib import Path

from hard_texts import FLUENT, OLD, PROPERTIES
from hf_multisource.cli.app import main
from hf_multisource.data.catalogue_entries import FUZZY, TRANSLATED
from hf_multisource.data.catalogue_files import read_catalogue
from hf_multisource.data.placeholders import broken_placeholders
from hf_multisource.evaluation.missing_texts import EMPTY
from small_run import save_run

REFUSED = {"many", "mixed", "inner", "long", "empty", "spaces", "choice", "choice-only", "y.accesskey"}
FILLED = {
    "twice",
    "only",
    "emoji",
    "plural",
    "platform",
    "keyed",
    "attributes",
    "printf",
    "x.label",
    "x.accesskey",
    "open.width",
}


def write_language(place: Path, column: int) -> None:
    place.mkdir(parents=True)
    for name, texts, sign in (("menu.ftl", FLUENT, " = "), ("menu.properties", PROPERTIES, "=")):
        lines = [f"{key}{sign}{texts[column]}\n" for key, texts in texts.items() if texts[column] is not None]
        (place / name).write_text("".join(lines), "utf-8")


def test_hard_texts_are_filled_whole_or_refused_and_nothing_else_changes(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run")
    for column, language in enumerate(("en", "de")):
        write_language(tmp_path / language, column)
    (tmp_path / "dsb").mkdir()
    for name, text in OLD.items():
        (tmp_path / "dsb" / name).write_bytes(text.encode())
    places = [f"--target=dsb={tmp_path}/dsb", "--source", f"en={tmp_path}/en", f"de={tmp_path}/de"]
    main(["localize", run, *places, "--out", f"{tmp_path}/out", "--max_new_tokens", "40", "--device", "cpu"])
    record = json.loads((tmp_path / "out.json").read_text("utf-8"))
    texts = {(text["file"], text["key"], text["part"]): text for text in record["texts"]}
    written = set()
    for name, old in OLD.items():
        content = (tmp_path / "out" / name).read_bytes()
        rest = iter(content.decode().splitlines(keepends=True))
        assert all(line in rest for line in old.splitlines(keepends=True))  # in this order
        assert (b"\r\n" in content) == ("\r\n" in old)
        assert content.count(b"\n") == content.count(b"\r\n") or "\r\n" not in old
        for entry in read_catalogue(name, content).entries:
            if entry.key == "own":
                assert entry.state == TRANSLATED
                continue
            found = texts[name, entry.key, entry.part]
            assert (found["state"], found["text"], entry.state) == ("filled", entry.text, FUZZY)
            if found["origin"] != "access key":
                first = next(iter(found["sources"].values()))
                syntax = "fluent" if name == "menu.ftl" else "properties"
                assert broken_placeholders(first, entry.text, syntax) == []
            written.add((name, entry.key, entry.part))
    refused = texts.keys() - written
    assert all(texts[place]["state"] == "refused" and texts[place]["reason"] for place in refused)
    english = {*FLUENT, *(key.replace("\\", "") for key in PROPERTIES)} - {"only-german"}
    assert {key for _, key, _ in texts} == english
    assert {key for _, key, _ in refused} >= REFUSED
    assert {key for _, key, _ in written} >= FILLED
    assert texts["menu.properties", "empty", ""]["reason"] == EMPTY
