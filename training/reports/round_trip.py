"""Round-trip test of `hf-multisource localize`: remove strings of a package, fill them, and compare the result.

    apt-get download firefox-esr-l10n-{dsb,hsb,cs,de,en-gb}
    python training/reports/round_trip.py runs/localization-dsb/shared/seed-1 --target dsb=firefox-esr-l10n-dsb_*.deb \\
        --source en=firefox-esr-l10n-en-gb_*.deb de=firefox-esr-l10n-de_*.deb cs=firefox-esr-l10n-cs_*.deb \\
        hsb=firefox-esr-l10n-hsb_*.deb --codes en=en-GB --name firefox
    python training/reports/round_trip.py runs/occitan --files all --name nautilus --target oc=nautilus-43.2/po/oc.po \\
        --source ca=nautilus-43.2/po/ca.po es=nautilus-43.2/po/es.po fr=nautilus-43.2/po/fr.po -- --memory data/occitan
    python training/reports/round_trip.py --copy hsb --target … --source … --codes … --name copies --out copies.json

A place is a folder, an archive, a package or a catalogue. The removed messages are a random share of all messages of
the target. `--files test` (the default with a run) removes only messages of files that the model has not seen in
training: files whose texts occur in the test split of the run's data more often than in other splits. The same text may
occur in another file, so that texts of a source in the training split are counted separately. `--files all` removes
messages of all files. A target without a path has no catalogues, so that all texts are missing and nothing is compared.

First, `fill_catalogue` fills in the removed texts themselves; texts that are not restored show a limit of the file
formats. Then `hf-multisource localize RUN` fills them. `disturbed` lists the files in which other bytes have changed:
the filled texts, their notes and marks are removed again, and the remaining files are compared. Mozilla's
compare-locales checks files of Firefox before the removal and afterwards. gettext files are checked by
`msgfmt --check --use-fuzzy`; without the second option, msgfmt skips entries that are marked as fuzzy, which are all
filled entries. polib converts .mo files of packages to .po files.
`--copy LANGUAGE` uses the texts of this source instead of a model. Arguments after `--` are passed to `localize`.
The results are written to the entry NAME of the JSON file OUT.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polib
from compare_locales.parser import Entity, getParser

from hf_multisource.cli.app import main as run_command
from hf_multisource.cli.options import parse_pairs
from hf_multisource.data.catalogue_entries import TRANSLATED, Catalogue, Identity, apply_edits, count_current
from hf_multisource.data.catalogue_files import fill_catalogue, read_catalogue
from hf_multisource.data.catalogue_places import LANG, read_place
from hf_multisource.data.catalogues import SPLITS, one_line
from hf_multisource.data.files import write_json
from hf_multisource.data.rows import read_split
from hf_multisource.evaluation.localization import Places, make_plan
from hf_multisource.evaluation.localization_answers import Options
from hf_multisource.evaluation.localization_run import localize
from hf_multisource.evaluation.text_translator import Candidate, Translation
from hf_multisource.json_files import JsonObject, read_json
from hf_multisource.metrics.table import METRICS
from hf_multisource.recipes.run_folder import rows_of_run
from hf_multisource.recipes.shipped import RECIPE

# In a subfolder, because the JSON files of docs/results/localization-dsb are rows of the table.
OUT = Path("docs/results/localization-dsb/round_trip/results.json")
PLACE = "lang"  # replaces the language's code in the paths of the work folder, so that all languages have equal paths
# Places in messages of compare-locales and msgfmt, which are removed before messages are compared.
PLACE_IN_FILE, LINE_NUMBER = re.compile(r" at line \d+, column \d+"), re.compile(r":\d+:")
LICENSE = re.compile("licen[cs]e|copyright", re.IGNORECASE)
MSGFMT = "msgfmt --check --use-fuzzy"  # filled entries are marked as fuzzy, which --check alone skips
NOTE, MSGSTR = "# From: ", re.compile(r"msgstr(\[\d+\])? ")  # beginnings of lines in .po files
PROJECT = """basepath = "."
locales = ["{0}"]
[[paths]]
reference = "{1}/**"
l10n = "{{l10n_base}}/{{locale}}/**"
"""
EXAMPLES = 5  # number of examples of refused texts, and of complaints of a checker, in the JSON file

Key = tuple[str, str]  # identifies a message: path and key
Text = tuple[str, str, str]  # identifies a text: path, key and part
Files = dict[str, Catalogue]


@dataclass(frozen=True)
class Known:
    """Texts in the data of a run, by split.

    Args:
        first: The first source of the data.
        pairs: Split -> texts of the first source and of the target in all rows.
        seen: Language and text of each source text in the training split.
    """

    first: str = ""
    pairs: Mapping[str, Collection[tuple[str, str]]] = field(default_factory=dict)
    seen: Collection[tuple[str, str]] = ()

    def split_of(self, pairs: Iterable[tuple[str, str]]) -> str:
        """Return the split that contains most of the texts of a file; "" if no split contains any of them."""
        counts = Counter(split for pair in pairs for split, known in self.pairs.items() if pair in known)
        return counts.most_common(1)[0][0] if counts else ""


def read_known(run: str, sources: Sequence[str], target: str) -> Known:
    """Read the rows of a run's data."""
    if (data := rows_of_run(run)) is None:
        raise ValueError(f"{run} has no {RECIPE}, so it is not the folder of a run")
    names = [name for name in data.sources if name in sources]
    rows = {split: read_split(data.path, split, names, target).rows for split in SPLITS}
    pairs = {split: {(str(row[names[0]]), str(row[target])) for row in found} for split, found in rows.items()}
    return Known(names[0], pairs, {(name, str(row[name])) for row in rows["train"] for name in names if row[name]})


def read_language(place: str, language: str, code: str, work: Path) -> Files:
    """Read the catalogues of a language, converting .mo to .po files, and write them to the work folder."""
    files = {}
    for neutral, catalogue in read_place(Path(place), language, code, unread={}).items():
        path = work / neutral.replace(LANG, PLACE)
        if Path(place).is_file() and path.suffix in (".po", ".mo"):
            path = path.with_stem("messages")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(catalogue.content)
        if path.suffix == ".mo":
            compiled, path = path, path.with_suffix(".po")
            polib.mofile(str(compiled)).save_as_pofile(str(path))
            compiled.unlink()
        name = path.relative_to(work).as_posix()
        files[name] = read_catalogue(name, path.read_bytes())
    return files


def texts_of(files: Files) -> dict[Text, str]:
    """Return the translated texts of a language."""
    return {
        (path, entry.key, entry.part): entry.text
        for path, catalogue in files.items()
        for entry in reversed(catalogue.entries)
        if entry.state == TRANSLATED and entry.text.strip()
    }


def removable(files: Files, guide: Collection[Text]) -> list[Key]:
    """Return the completely translated, unique messages that are also in the first source, or in a gettext file."""
    found = []
    for path, catalogue in files.items():
        numbers = count_current(catalogue.entries)
        first = {key for other, key, _ in guide if other == path}
        parts: dict[str, list[bool]] = {}
        for entry in catalogue.entries:
            whole = entry.state == TRANSLATED and bool(entry.text.strip()) and numbers[entry.identity] == 1
            parts.setdefault(entry.key, []).append(whole)
        damaged = {one.partition(": ")[0].partition(".")[0] for one in catalogue.unhandled}
        kept = [key for key, whole in parts.items() if all(whole) and key not in damaged]
        found += [(path, key) for key in kept if key in first or path.endswith(".po")]
    return found


def remove(catalogue: Catalogue, keys: Collection[str]) -> bytes:
    """Remove messages and their comments from a catalogue; in gettext files, remove only the translations."""
    if catalogue.path.endswith(".po"):
        return clear_po(catalogue.content, catalogue.encoding, keys)
    parser = getParser(catalogue.path)
    parser.readContents(catalogue.content)
    text, edits = parser.ctx.contents, []
    for entity in parser.walk():
        if isinstance(entity, Entity) and entity.key in keys:
            comment = entity.pre_comment
            start, end = entity.span
            if comment is not None and not LICENSE.search(comment.all):
                start = comment.span[0]
            edits.append((start, end + len(text[end:]) - len(text[end:].lstrip("\n")), ""))
    return apply_edits(text, edits).encode(catalogue.encoding)


def clear_po(content: bytes, encoding: str, keys: Collection[str], unmark: bool = False) -> bytes:
    """Remove the translations of some messages from a .po file; `unmark` also removes notes and marks of filling."""
    lines = content.decode(encoding).splitlines(keepends=True)
    starts = sorted(
        (
            entry.linenum - 1,
            entry.msgid if entry.msgctxt is None else f"{entry.msgctxt}\x04{entry.msgid}",
            entry.obsolete,
        )
        for entry in polib.pofile(content.decode(encoding))
    )
    ends = [*(start for start, _, _ in starts[1:]), len(lines)]
    for (start, key, obsolete), end in zip(starts, ends, strict=True):
        inside = False
        for number in range(start, end if key in keys and not obsolete else start):
            line = lines[number]
            if unmark and line.startswith(NOTE):
                lines[number] = ""
            elif unmark and line.startswith("#,"):
                flags = [flag for flag in line[2:].replace(",", " ").split() if flag != "fuzzy"]
                lines[number] = f"#, {', '.join(flags)}\n" if flags else ""
            elif found := MSGSTR.match(line):
                inside, lines[number] = True, f'{found[0]}""\n'
            elif inside and line.startswith('"'):
                lines[number] = ""
            else:
                inside = False
    return "".join(lines).encode(encoding)


def is_undisturbed(cut: Catalogue, filled: bytes, keys: Collection[str]) -> bool:
    """Return whether a filled file differs from the original file only in the filled messages.

    gettext files must be equal byte for byte after the filled texts are removed. Other files must contain all lines of
    the original file in order.
    """
    if cut.path.endswith(".po"):
        return clear_po(filled, cut.encoding, keys, unmark=True) == clear_po(cut.content, cut.encoding, keys)
    lines = iter(filled.splitlines())
    return all(line in lines for line in cut.content.splitlines())


def restore(original: Files, cut: Files, guide: Files, removed: Collection[Text]) -> JsonObject:
    """Fill in the removed texts themselves, and count the texts that are not restored."""
    refused, disturbed = list[str](), list[str]()
    texts: dict[str, dict[Identity, str]] = {}
    for text, value in texts_of(original).items():
        if text in removed:
            texts.setdefault(text[0], {})[text[1:]] = value
    for path, new in texts.items():
        filled = fill_catalogue(cut[path], new, guide.get(path))
        refused += [f"{path}: {key}{part}: {reason}" for (key, part), reason in filled.refused.items()]
        if not is_undisturbed(cut[path], filled.content, {key for key, _ in new.keys() - filled.refused.keys()}):
            disturbed.append(path)
    return {"texts": len(removed), "refused": len(refused), "examples": refused[:EXAMPLES], "disturbed": disturbed}


class Copies:
    """Translator that copies the text of one source, as a baseline.

    Args:
        sources: Names of the sources.
        language: The source to copy.
    """

    def __init__(self, sources: Sequence[str], language: str) -> None:
        self.sources, self.language = tuple(sources), language

    def translate(
        self,
        rows: Sequence[Mapping[str, str | None]],
        *,
        n_best: int = 1,
        num_beams: int = 5,
        max_new_tokens: int | None = None,
        syntax: str | None = None,
    ) -> list[Translation]:
        """Return the text of the language as the translation of each row that has it."""
        texts = [row.get(self.language) for row in rows]
        none = Translation(refused=f"there is no text in {self.language}")
        return [Translation((Candidate(text, -1.0),)) if text else none for text in texts]

    def search_settings(self, max_new_tokens: int | None = None) -> JsonObject:
        """Return no settings, because there is no search."""
        return {}


def check_fluent(work: Path, tree: Path, target: str, reference: str) -> list[str]:
    """Return errors and warnings of compare-locales, except for missing and obsolete messages."""
    project = work / "l10n.toml"
    project.write_text(PROJECT.format(target, reference), "utf-8")
    call = "from compare_locales.commands import CompareLocales; CompareLocales.call()"
    line = [sys.executable, "-c", call, "--json", "-", "--return-zero", str(project), str(tree), target]
    found = json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout)
    return [*complaints(found[0]["details"], "")]


def complaints(details: Any, path: str) -> Iterator[str]:
    """Yield the errors and warnings in the JSON output of compare-locales, a tree of folders with lists of notes."""
    for name, inner in details.items() if isinstance(details, dict) else ():
        yield from complaints(inner, f"{path}/{name}")
    for note in details if isinstance(details, list) else ():
        found = {kind: PLACE_IN_FILE.sub("", text) for kind, text in note.items() if kind in ("error", "warning")}
        yield from (f"{path[1:]}: {kind}: {text}" for kind, text in found.items())


def check_gettext(tree: Path) -> list[str]:
    """Return the messages of `msgfmt --check --use-fuzzy` on the .po files of a folder."""
    found = []
    for path in sorted(tree.rglob("*.po")):
        line = [*MSGFMT.split(), "-o", "/dev/null", str(path)]
        made = subprocess.run(line, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
        lines = [
            LINE_NUMBER.sub(":", line.replace(f"{tree}/", "")) for line in made.stderr.splitlines() if line.strip()
        ]
        found += lines or [f"{path.relative_to(tree)}: exit status {made.returncode}"] * (made.returncode != 0)
    return found


def compare(
    record: JsonObject, originals: Mapping[Text, str], is_seen: Callable[[Text], bool] | None = None
) -> JsonObject:
    """Compare the filled texts with the removed texts; `is_seen` tells whether a text was in the training data."""
    answers = {(one["file"], one["key"], one["part"]): one for one in record["texts"]}
    groups: dict[str, Counter[str]] = {}
    reasons: dict[str, list[str]] = {}
    for text, one in answers.items():
        origin = one["origin"] if one["state"] == "filled" else "refused"
        if origin == "refused":
            reasons.setdefault(one["reason"], []).append("/".join(text))
        right = text in originals and one["text"] == originals[text] and origin != "refused"
        learned = [] if is_seen is None else ["seen" if is_seen(text) else "unseen"]
        for name in (origin, "all", *learned):
            groups.setdefault(name, Counter()).update(texts=1, filled=int(origin != "refused"), right=int(right))
    whole = groups.get("all", Counter())
    number = len(originals)
    written = [(text, one) for text, one in answers.items() if text in originals and one["state"] == "filled"]
    pairs = {"all": [(one["text"], originals[text]) for text, one in written]}
    for text, one in written:
        pairs.setdefault(one["origin"], []).append((one["text"], originals[text]))
    return {
        "missing": len(answers),
        "removed_and_not_missing": len(originals.keys() - answers.keys()),
        "filled_share": whole["filled"] / max(len(answers), 1),
        "right_share": whole["right"] / number if number else None,
        "chrf_of_filled": {name: chrf(found) for name, found in sorted(pairs.items()) if found},
        "by_origin": {name: dict(found) for name, found in sorted(groups.items())},
        "refused": {reason: {"texts": len(found), "examples": found[:EXAMPLES]} for reason, found in reasons.items()},
    }


def chrf(pairs: Sequence[tuple[str, str]]) -> float:
    """Compute chrF from pairs of a filled text and the original text that had been removed."""
    return float(METRICS["chrf"].measure([text for text, _ in pairs], [wanted for _, wanted in pairs]).score())


def describe_check(before: Sequence[str], after: Sequence[str]) -> JsonObject:
    """Count complaints before and after the round trip, and list new complaints."""
    new = [*(Counter(after) - Counter(before)).elements()]
    return {"before": len(before), "after": len(after), "new": len(new), "examples": new[:EXAMPLES]}


def round_trip(args: argparse.Namespace, work: Path, say: Callable[[str], object]) -> JsonObject:
    """Run the round trip: remove texts, fill them, compare the result and check the files."""
    target, _, place = args.target.partition("=")
    places = parse_pairs("source", args.source, "en=en.deb")
    codes = parse_pairs("codes", args.codes, "en=en-GB", "LANGUAGE=CODE")
    sources = {name: read_language(one, name, codes.get(name, name), work / name) for name, one in places.items()}
    original = read_language(place, target, codes.get(target, target), work / "original" / target) if place else {}
    texts = {name: texts_of(files) for name, files in sources.items()}
    originals, guide = texts_of(original), next(iter(texts))
    for catalogue in [one for files in (original, *sources.values()) for one in files.values()]:
        held = {(catalogue.path, one.key, one.part): one.source for one in catalogue.entries if one.source}
        texts.setdefault("en", {}).update(held)  # the messages of gettext files
    known = read_known(args.run, [*places, "en"], target) if args.run else Known()

    def pair(text: Text) -> tuple[str, str]:
        return one_line(texts.get(known.first, {}).get(text, "")), one_line(originals[text])

    def is_seen(text: Text) -> bool:
        return any((name, one_line(found.get(text, ""))) in known.seen for name, found in texts.items())

    whole = removable(original, texts[guide].keys())
    by_file: dict[str, list[Text]] = {}
    for text in originals:
        by_file.setdefault(text[0], []).append(text)
    splits = {path: known.split_of(map(pair, found)) for path, found in by_file.items()}
    allowed = [one for one in whole if args.files == "all" or splits[one[0]] == "test"]
    number = round(args.share * len(whole))
    drawn = {*random.Random(args.seed).sample(sorted(allowed), min(number, len(allowed)))}
    removed = {text: value for text, value in originals.items() if text[:2] in drawn}
    if place and not removed:
        raise ValueError(
            f"nothing is removed: {len(allowed)} messages can be (--files {args.files}, --share {args.share})"
        )
    cut: Files = {}
    for path, catalogue in original.items():
        keys = {key for other, key in drawn if other == path}
        content = remove(catalogue, keys) if keys else catalogue.content
        (work / "cut" / target / path).parent.mkdir(parents=True, exist_ok=True)
        (work / "cut" / target / path).write_bytes(content)
        cut[path] = read_catalogue(path, content)
    if {*texts_of(cut)} != {*originals} - {*removed}:
        raise ValueError("the removal has changed other messages")
    files = len({path for path, _ in drawn})
    say(f"{len(drawn)} of {len(whole)} messages removed from {files} of {len(original)} files: {len(removed)} texts")

    filled = work / "filled" / target
    filled.parent.mkdir()
    at = {name: work / name for name in places}
    if args.run:
        line = ["localize", args.run, "--target", f"{target}={work / 'cut' / target}" if place else target]
        line += ["--source", *(f"{name}={one}" for name, one in at.items()), "--out", str(filled)]
        line += ["--codes", *args.codes] if args.codes else []
        run_command([*line, *args.rest])
        record = read_json(filled.with_name(f"{target}.json"))
    else:
        places_of = Places(target, at, work / "cut" / target if place else None, codes)
        copies = Copies([*places], args.copy)
        record = localize(make_plan(places_of, [*places]), filled, {}, lambda: (copies, None), Options())
    seen = sum(map(is_seen, removed)) if args.run else None
    done: dict[str, set[str]] = {}
    for one in record["texts"]:
        if one["state"] == "filled":
            done.setdefault(one["file"], set()).add(one["key"])
    disturbed = [
        path for path in cut if not is_undisturbed(cut[path], (filled / path).read_bytes(), done.get(path, set()))
    ]
    compiled = any(path.suffix == ".po" for path in filled.rglob("*"))
    if compiled:
        check = describe_check(check_gettext(work / "original" / target), check_gettext(filled))
    else:
        before, after = (check_fluent(work, work / one, target, guide) for one in ("original", "filled"))
        check = describe_check(before, after)
    return {
        "run": args.run,
        "copy": args.copy,
        "command": shlex.join(["python", "training/reports/round_trip.py", *args.given]),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "versions": {name: version(name) for name in ("hf-multisource", "compare-locales", "polib")},
        "places": {name: Path(one).name for name, one in {target: place or None, **places}.items() if one},
        "seed": args.seed,
        "share": args.share,
        "drawn_from": args.files,
        "files": {"all": len(original), **Counter(split or "unknown" for split in splits.values() if args.run)},
        "messages": {"all": len(whole), "drawn_from": len(allowed), "removed": len(drawn), "of_files": files},
        "texts": {"all": len(originals), "removed": len(removed), "seen_in_training": seen},
        "restored": restore(original, cut, sources[guide], removed.keys()),
        "result": compare(record, removed, is_seen if args.run else None),
        "disturbed": disturbed,
        "checker": MSGFMT if compiled else "compare-locales",
        "check": check,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command.

    Args:
        arguments: The command line. Defaults to the command line of this process.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", help="run folder of a trained model")
    parser.add_argument("--copy", metavar="LANGUAGE", help="source whose texts are copied, in place of a run")
    parser.add_argument("--target", required=True, metavar="LANGUAGE[=PATH]")
    parser.add_argument("--source", required=True, nargs="+", metavar="LANGUAGE=PATH")
    parser.add_argument("--codes", nargs="+", default=[], metavar="LANGUAGE=CODE")
    parser.add_argument("--files", choices=["test", "all"], help="default: test with a run, all without")
    parser.add_argument("--share", type=float, default=0.1, help="share of the messages that is removed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--name", default="firefox", help="name of the entry in OUT")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument(
        "--work", type=Path, help="folder for the trees, which must not be there; default: none is kept"
    )
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    own, rest = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    args = parser.parse_args(own)
    args.given, args.rest = given, rest
    if (args.run is None) == (args.copy is None):
        parser.error("give either a run or --copy LANGUAGE")
    args.files = args.files or ("test" if args.run else "all")
    with tempfile.TemporaryDirectory() as folder:
        work = args.work or Path(folder) / "work"
        work.mkdir(parents=True)
        found = round_trip(args, work, print)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(args.out, {**(read_json(args.out) if args.out.exists() else {}), args.name: found})
    result, check = found["result"], found["check"]
    right = (
        "" if result["right_share"] is None else f", {100 * result['right_share']:.1f} % of the removed exactly right"
    )
    print(f"{100 * result['filled_share']:.1f} % of {result['missing']} missing texts filled{right}")
    for name, one in result["by_origin"].items():
        print(f"  {name}: {one['texts']} texts, {one['filled']} filled, {one['right']} right")
    print(
        f"chrF of what was filled: {', '.join(f'{name} {one:.1f}' for name, one in result['chrf_of_filled'].items())}"
    )
    print(f"files in which anything else has changed: {len(found['disturbed'])}")
    print(f"{found['checker']}: {check['before']} complaints before, {check['after']} after, {check['new']} new")
    print(f"{args.out} has the entry {args.name}")


if __name__ == "__main__":
    main()
