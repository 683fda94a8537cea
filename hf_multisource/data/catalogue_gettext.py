"""Read gettext files (.po, .pot, .mo), and fill .po files. Filling an entry changes only the lines of the entry."""

from __future__ import annotations

import codecs
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from hf_multisource.data.catalogue_entries import (
    DONE,
    FUZZY,
    OBSOLETE,
    TRANSLATED,
    UNTRANSLATED,
    Catalogue,
    Changes,
    Edit,
    Entry,
    ForeignFileError,
    Identity,
    Span,
    by_key,
    decode,
    lines_of,
    newline_of,
    note_line,
)
from hf_multisource.data.plural_forms import FORMULA

CONTEXT = "\x04"  # separator of context and message that gettext uses in .mo files
CHARSET = re.compile(rb"charset=([A-Za-z0-9_-]+)")
HEADER_BYTES = 1 << 16  # number of bytes at the start of a file that are searched for the charset
# Character sets listed in gettext's manual. Further codecs of Python, such as zlib, are not text encodings.
ALLOWED = re.compile(
    r"utf-?8|(us-)?ascii|iso-?8859-\d+|windows-125\d|cp\d{3,4}|koi8-[rut]|gb2312|gbk|gb18030|big5(-?hkscs)?|"
    r"euc-(jp|kr|tw)|shift_jis|johab|tis-620",
    re.IGNORECASE,
)
# Character sets with one byte for each character. Their texts with letters outside ASCII are hardly ever valid UTF-8.
SINGLE_BYTE = re.compile(
    r"(us-)?ascii|iso-?8859-\d+|windows-125\d|cp([4-8]\d\d|125\d)|koi8-[rut]|tis-620", re.IGNORECASE
)
LINE = re.compile(r'(msgctxt|msgid_plural|msgid|msgstr|msgstr\[(\d{1,3})\])?\s*"((?:[^"\\]|\\.)*)"\s*')
ESCAPE = re.compile(r"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)")
LETTERS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
ESCAPED = {"\\": "\\\\", '"': '\\"', **{letter: f"\\{name}" for name, letter in LETTERS.items()}}
MESSAGE = re.compile(rb"^(?:\xef\xbb\xbf)?[ \t]*(?:#~[ \t]*)?msgid", re.MULTILINE)  # a line of every .po and .pot file
# Note on the origin of a text that `localize` filled earlier, such as `From: memory, model (confidence 0.83)`
ORIGIN = "(?:memory|model|copy|access key)"
ORIGIN_NOTE = re.compile(rf"From: {ORIGIN}(?:, {ORIGIN})*(?: \([^()]*\))?")
# Fields of the header that describe the source's translation. The other fields of this kind get new values.
DROPPED_FIELDS = (
    *("X-Generator", "X-Language", "X-Poedit-Language", "X-Poedit-Country", "X-Crowdin-Language"),
    *("X-Launchpad-Export-Date", "X-POOTLE-MTIME"),
)
CREATION_DATE = re.compile(r"^POT-Creation-Date: *(\d.*)", re.MULTILINE)
FLAG = re.compile(r"range:\s*[^\s,]+|[^\s,]+")
LEGAL = re.compile(r"\blicen[cs](?:e[ds]?|ing)\b|copyright|\(c\)|©|public domain", re.IGNORECASE)
# First line of a statement about copyright or license; lines above it are the title and the names of translators.
STATEMENT = re.compile(r"#\s*(?:Copyright|COPYRIGHT|\([Cc]\)|©|SPDX|Licen[cs]e:|This (?:file|program|package)\b)")
# A translator with e-mail address or years, such as `# Jana Nowak <jana@example.org>, 2020.`
TRANSLATOR = re.compile(r"#\s?\w[^<,]*(?:<[^<>]*(?:@| at )[^<>]*>.*|, *\d{4}(?:[-–, ]+\d{4})*\.?)", re.IGNORECASE)
COPYRIGHT = re.compile(r"copyright|\(c\)|©", re.IGNORECASE)
HEADING = re.compile(r"#\s*(?:Translators?|Contributors?|Authors?)\s*:?", re.IGNORECASE)  # of a list of translators
LITTLE, BIG = b"\xde\x12\x04\x95", b"\x95\x04\x12\xde"  # first bytes of .mo files


@dataclass
class Block:
    """The lines of one entry of a .po file.

    Args:
        line: Line number of the first line.
        obsolete: Whether its lines begin with `#~`.
        comment_lines: Index of the first character, and text, of each line that begins with `#` but not with `#~`:
            comments, references (`#:`), flags (`#,`) and the previous message (`#|`).
        pieces: Keyword ("msgctxt", "msgid", "msgid_plural", "msgstr", "msgstr[0]", …) -> the text, line by line.
        spans: Keyword -> the span of its lines.
        misplaced: Whether a comment follows the previous message, which gettext does not allow.
    """

    line: int
    obsolete: bool = False
    misplaced: bool = False
    comment_lines: list[tuple[int, str]] = field(default_factory=list)
    pieces: dict[str, list[str]] = field(default_factory=dict)
    spans: dict[str, Span] = field(default_factory=dict)

    @cached_property
    def texts(self) -> dict[str, str]:
        """The texts by keyword; read only after the block is complete."""
        return {name: "".join(pieces) for name, pieces in self.pieces.items()}

    @cached_property
    def key(self) -> str:
        """The key of the entry: context and message."""
        context = self.texts.get("msgctxt")
        return self.texts["msgid"] if context is None else f"{context}{CONTEXT}{self.texts['msgid']}"

    @property
    def comments(self) -> list[str]:
        """The comments, without their marks."""
        lines = [line for _, line in self.comment_lines if not line.startswith(("#,", "#|"))]
        return [line[2:].strip() if line[1:2] in (".", ":") else line[1:].strip() for line in lines]

    @property
    def translator_comments(self) -> list[str]:
        """The lines with translators' comments, with their marks."""
        return [line for _, line in self.comment_lines if _is_by_translator(line)]

    @property
    def flags(self) -> list[tuple[int, str]]:
        """Index and content of each line with flags."""
        return [(place, line[2:]) for place, line in self.comment_lines if line.startswith("#,")]

    @property
    def note_place(self) -> int:
        """Index at which a translator's comment is inserted: after those of the entry, before all other lines."""
        return next((place for place, line in self.comment_lines if not _is_by_translator(line)), self._message_place)

    @property
    def flag_place(self) -> int:
        """Index at which a line with flags is inserted: before the previous message (`#|`), or before the message."""
        return next((place for place, line in self.comment_lines if line.startswith("#|")), self._message_place)

    @property
    def _message_place(self) -> int:
        return min(start for start, _ in self.spans.values())

    @property
    def fuzzy(self) -> bool:
        """Whether the entry has the flag `fuzzy`, which asks for a review."""
        return "fuzzy" in self.flag_names

    @property
    def flag_names(self) -> tuple[str, ...]:
        """The flags, such as `fuzzy` and `c-format`."""
        return tuple(flag for _, flags in self.flags for flag in FLAG.findall(flags))

    @property
    def header(self) -> bool:
        """Whether the entry is the header of the file, whose msgid is empty."""
        return self.key == "" and not self.obsolete

    @property
    def forms(self) -> dict[str, str]:
        """The keywords of the translations by part."""
        return {name.removeprefix("msgstr"): name for name in self.pieces if name.startswith("msgstr")}


def read_po(path: str, content: bytes) -> Catalogue:
    """Read a .po or .pot file.

    Args:
        path: Path of the file, used in error messages.
        content: Content of the file as bytes.

    Returns:
        The catalogue; plural forms are parts `[0]`, `[1]`, ….

    Raises:
        ForeignFileError: If the file cannot be read and has no line with msgid.
        ValueError: If the character set is not allowed, the file cannot be decoded or is UTF-8 in spite of its header,
            or a line is not in the syntax of gettext.
    """
    try:
        encoding = _charset(path, content[:HEADER_BYTES])
        if _is_utf_8_instead(encoding, content):
            raise ValueError(
                f"{path}: the header says charset={encoding}, but the texts are UTF-8: correct it to charset=UTF-8"
            )
        blocks = _blocks(path, decode(path, content, encoding))
    except ValueError as error:
        if MESSAGE.search(content):
            raise
        raise ForeignFileError(path, "no line begins with msgid, so it is no file of gettext") from error
    entries, header = [], ""
    for block in blocks:
        if block.header:
            header = header or block.texts.get("msgstr", "")
            continue
        for part, name in block.forms.items():
            text = block.texts[name]
            state = OBSOLETE if block.obsolete else UNTRANSLATED if not text else FUZZY if block.fuzzy else TRANSLATED
            message, plural = block.texts["msgid"], block.texts.get("msgid_plural")
            sources = (message, plural) if part and plural is not None else None
            source = sources[part != "[0]"] if sources else message
            flags = tuple(flag for flag in block.flag_names if flag != "fuzzy")
            comment = "\n".join(block.comments)
            entries.append(Entry(block.key, part, text, state, comment, source, flags=flags, sources=sources))
    return Catalogue(path, content, tuple(entries), encoding=encoding, header=header)


def fill_po(
    catalogue: Catalogue, texts: Mapping[Identity, str], reference: Catalogue | None, notes: Mapping[str, str]
) -> Changes:
    """Fill the untranslated entries of a .po file, and mark them as fuzzy.

    Args:
        catalogue: The file.
        texts: The new texts. For an entry with plural forms, all missing forms are required.
        reference: Not used, because gettext files contain all entries.
        notes: Key -> a line that becomes a comment on the message.

    Returns:
        The changes.
    """
    text = catalogue.text
    newline = newline_of(text)
    blocks: dict[str, Block] = {}
    for block in _blocks(catalogue.path, text):
        if not block.obsolete and not block.header:
            blocks.setdefault(block.key, block)
    edits, refused = list[Edit](), dict[Identity, str]()
    for key, parts in by_key(texts).items():
        given = {part: texts[key, part] for part in parts}
        if reason := _refusal(blocks.get(key), given, catalogue):
            refused |= {(key, part): reason for part in parts}
            continue
        block = blocks[key]
        for part, one in given.items():
            name = block.forms[part]
            edits.append((*block.spans[name], _written(name, one, newline)))
        edits.append((block.note_place, block.note_place, note_line("#", notes.get(key), newline)))
        # If a reviewer emptied an entry that was filled before, the note on the origin of the old text is removed.
        old = [place for place, line in block.comment_lines if ORIGIN_NOTE.fullmatch(line.removeprefix("# "))]
        edits += [(place, text.index("\n", place) + 1, "") for place in old]
        if block.flags and not block.fuzzy:
            place, flags = block.flags[0]
            place = text.index("#,", place)
            edits.append((place, place + len("#,"), "#, fuzzy," if flags.strip() else "#, fuzzy"))
        elif not block.fuzzy:
            edits.append((block.flag_place, block.flag_place, f"#, fuzzy{newline}"))
    return Changes(tuple(edits), refused)


def empty_po(catalogue: Catalogue, language: str, plural_forms: str) -> str:
    """Return a gettext file for another language that has the same messages without translations.

    The developers' comments (`#.`), references and flags are kept, and so are copyright and license of the file. What
    belongs to the other translation is left out: obsolete messages, previous messages, the flag `fuzzy`, the
    translators' comments, and the title and the translators of the file. Translators' comments of templates are kept.

    Args:
        catalogue: The file in any language, or a template.
        language: Code of the other language.
        plural_forms: Value of the header `Plural-Forms`, such as `nplurals=2; plural=(n != 1);`.

    Returns:
        The text of the file, whose header names UTF-8 as its encoding.
    """
    text = catalogue.text
    newline = newline_of(text)
    number = int(plural_forms.partition("=")[2].partition(";")[0])
    blocks = [block for block in _blocks(catalogue.path, text) if not block.obsolete]
    first = next((block for block in blocks if block.header), blocks[0] if blocks else Block(1))
    header = _written("msgstr", _new_header(catalogue.header, language, plural_forms), newline)
    entries = [[*_legal_lines(first.translator_comments), 'msgid ""', header]]
    for block in blocks:
        if block.header:
            continue
        lines = block.translator_comments if catalogue.path.lower().endswith(".pot") else []
        lines += [line for mark in ("#.", "#:") for _, line in block.comment_lines if line.startswith(mark)]
        if flags := [flag for flag in dict.fromkeys(block.flag_names) if flag != "fuzzy"]:
            lines.append(f"#, {', '.join(flags)}")
        message = (block.spans[name] for name in ("msgctxt", "msgid", "msgid_plural") if name in block.spans)
        lines += [text[start:end] for start, end in message]
        names = [f"msgstr[{i}]" for i in range(number)] if "msgid_plural" in block.pieces else ["msgstr"]
        entries.append([*lines, *(_written(name, "", newline) for name in names)])
    return newline.join("".join(f"{line.rstrip()}{newline}" for line in lines) for lines in entries)


def _new_header(header: str, language: str, plural_forms: str) -> str:
    """Return the header of a new file, with the values that msginit writes if it does not know the translator."""
    date = CREATION_DATE.search(header)
    fields = {
        "PO-Revision-Date": date[1] if date else "",
        "Last-Translator": "Automatically generated",
        "Language-Team": "none",
        "Language": language,
        "MIME-Version": "1.0",
        "Content-Type": "text/plain; charset=UTF-8",
        "Content-Transfer-Encoding": "8bit",
        "Plural-Forms": plural_forms,
    }
    removed = (*fields, *DROPPED_FIELDS)
    kept = [line for line in header.split("\n") if line and line.partition(":")[0] not in removed]
    return "".join(f"{line}\n" for line in (*kept, *(f"{name}: {value}" for name, value in fields.items())))


def _legal_lines(lines: Sequence[str]) -> list[str]:
    """Return the lines of a file's comment from the first statement on copyright or license, without translators."""
    found = next((i for i, line in enumerate(lines) if LEGAL.search(line)), None)
    if found is None:
        return []
    if not STATEMENT.match(lines[found]):  # inside a sentence: go back to the start of the paragraph
        found = max((i + 1 for i, line in enumerate(lines[:found]) if line == "#"), default=0)
    kept: list[str] = []
    for line in lines[found:]:
        goes_on = bool(kept) and COPYRIGHT.search(kept[-1]) is not None and "<" not in line  # names the holder
        of_translators = TRANSLATOR.fullmatch(line) or HEADING.fullmatch(line)
        if LEGAL.search(line) or goes_on or not of_translators:
            kept.append(line)
    while kept[-1] == "#":
        kept.pop()
    return kept


def _is_by_translator(line: str) -> bool:
    """Return whether a comment line is a translator's, which begins with `#` and none of gettext's other marks."""
    return not line.startswith(("#.", "#:", "#,", "#|"))


def decompiled(catalogue: Catalogue) -> Catalogue:
    """Return a .po file with the messages and translations of a .mo file, which has no comments and flags.

    Args:
        catalogue: The .mo file.

    Returns:
        The .po file.
    """
    header = re.sub(r"(?m)^(Content-Type:.*charset=).*$", r"\1UTF-8", catalogue.header)
    blocks = [f'msgid ""\n{_written("msgstr", header, chr(10))}']
    parts_of: dict[str, list[Entry]] = {}
    for entry in catalogue.entries:
        parts_of.setdefault(entry.key, []).append(entry)
    for key, entries in parts_of.items():
        context, found, _ = key.partition(CONTEXT)
        texts = dict(zip(("msgid", "msgid_plural"), entries[0].sources or (entries[0].source or "",), strict=False))
        texts |= {f"msgstr{entry.part}": entry.text for entry in entries}
        texts = {"msgctxt": context, **texts} if found else texts
        blocks.append("".join(_written(name, text, "\n") for name, text in texts.items()))
    return read_po(f"{catalogue.path.removesuffix('.mo')}.po", "\n".join(blocks).encode())


def read_mo(path: str, content: bytes) -> Catalogue:
    """Read a compiled .mo file.

    Args:
        path: Path of the file, used in error messages.
        content: Content of the file as bytes.

    Returns:
        The catalogue.

    Raises:
        ForeignFileError: If the file does not begin with the magic number of .mo files.
        ValueError: If the file is damaged, its texts are longer than the file, or its character set is not allowed.
    """
    order = {LITTLE: "<", BIG: ">"}.get(content[:4])
    if order is None and content:
        raise ForeignFileError(path, f"it begins with {content[:4].hex()}, so it is no .mo file of gettext")
    if len(content) < 20:
        raise ValueError(f"{path}: damaged: it has {len(content)} bytes, fewer than the header of a .mo file")
    number, ids, translations = struct.unpack_from(f"{order}3I", content, 8)
    pairs: list[tuple[bytes, bytes]] = []
    total = 0
    for i in range(number):
        pair = []
        for table in (ids, translations):
            if table + 8 * number > len(content):
                raise ValueError(f"{path}: damaged: a table of {number:,} texts at byte {table:,} passes the end")
            length, start = struct.unpack_from(f"{order}2I", content, table + 8 * i)
            total += length
            if start + length > len(content) or total > len(content):
                raise ValueError(f"{path}: damaged: text {i} is longer than what is left of the file")
            pair.append(content[start : start + length])
        pairs.append((pair[0], pair[1]))
    header = next((one for key, one in pairs if not key), b"")
    encoding = _charset(path, header)
    if _is_utf_8_instead(encoding, b"\0".join(text for pair in pairs for text in pair)):
        encoding = "utf-8"  # compiled files are only read, and their header cannot be corrected
    entries = []
    for key, translation in pairs:
        if key:
            message, *plurals = decode(path, key, encoding).split("\0")
            forms = decode(path, translation, encoding).split("\0")
            source = message.partition(CONTEXT)[2] or message
            sources = (source, plurals[0]) if plurals else None
            for i, form in enumerate(forms):
                part, state = f"[{i}]" if plurals else "", TRANSLATED if form else UNTRANSLATED
                text = sources[i > 0] if sources else source
                entries.append(Entry(message, part, form, state, source=text, sources=sources))
    return Catalogue(path, content, tuple(entries), encoding=encoding, header=decode(path, header, encoding))


def _charset(path: str, header: bytes) -> str:
    """Return the character set in the header of a file; UTF-8 if the header names none."""
    found = CHARSET.search(header)
    name = found[1].decode("ascii") if found else "utf-8"
    if name == "CHARSET":  # the placeholder in templates
        return "utf-8"
    if not ALLOWED.fullmatch(name):
        raise ValueError(f"{path}: charset is {name[:40]}; it must be UTF-8 or another character set of gettext")
    try:
        codecs.lookup(name)
    except LookupError as error:
        raise ValueError(f"{path}: charset {name} is unknown to Python; convert the file to UTF-8") from error
    return name.lower()


def _is_utf_8_instead(encoding: str, texts: bytes) -> bool:
    """Return whether texts outside ASCII are UTF-8, although a header names a set with one byte for each character."""
    if texts.isascii() or not SINGLE_BYTE.fullmatch(encoding):
        return False
    try:
        texts.decode()
    except UnicodeDecodeError:
        return False
    return True


def _blocks(path: str, text: str) -> Iterable[Block]:
    """Split a .po file into entries."""
    block, last, found = Block(1), "", list[Block]()
    for number, (place, line) in enumerate(lines_of(text), 1):
        start, end = place + line.startswith("\ufeff"), place + len(line)  # without a byte order mark
        body = line.strip().lstrip("\ufeff")
        obsolete = body.startswith("#~")
        if obsolete:
            body = body[2:].strip()
            if body.startswith("|"):  # a previous version of the message
                continue
        comment = body.startswith("#") or (obsolete and not body)
        keyword = re.match(r"msg\w+", body)
        starts = comment or (keyword is not None and keyword[0] in ("msgctxt", "msgid"))
        if block.forms and (starts or not body):
            found.append(block)
            block, last = Block(number), ""
        if not body or (obsolete and comment):
            continue
        if comment:
            if block.pieces:
                raise ValueError(f"{path}, line {number}: a comment inside an entry")
            previous = block.comment_lines and block.comment_lines[-1][1].startswith("#|")
            block.misplaced = block.misplaced or bool(previous and not body.startswith("#|"))
            block.comment_lines.append((start, body))
            continue
        if not (match := LINE.fullmatch(body)):
            raise ValueError(
                f"{path}, line {number}: not gettext: a line is a comment (#), empty, or msgctxt, msgid, msgid_plural, "
                f'msgstr or msgstr[N] with a text in "", or only such a text'
            )
        name = match[1] or last
        if (
            not name
            or (match[1] and name in block.pieces)
            or (name.startswith("msgstr") and "msgid" not in block.pieces)
        ):
            raise ValueError(f"{path}, line {number}: {name or 'a text'} is out of place")
        block.obsolete, last = obsolete, name
        block.pieces.setdefault(name, []).append(_unescaped(match[3]))
        block.spans[name] = (block.spans.get(name, (start, 0))[0], end)
    if block.forms:
        found.append(block)
    elif block.pieces:
        raise ValueError(f"{path}: the entry that begins at line {block.line} has no msgstr")
    return found


def _unescaped(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] in "01234567":
            return chr(int(code, 8))
        return chr(int(code[1:], 16)) if code[0] == "x" and len(code) > 1 else LETTERS.get(code, code)

    return ESCAPE.sub(replace, text)


def _written(name: str, text: str, newline: str) -> str:
    """Return the lines of a translation."""
    lines = ["".join(ESCAPED.get(letter, letter) for letter in line) for _, line in lines_of(text)]
    if len(lines) > 1:
        lines.insert(0, "")
    quoted = [f'"{line}"' for line in lines or [""]]
    return f"{name} {newline.join(quoted)}{newline}"


def _refusal(block: Block | None, given: Mapping[str, str], catalogue: Catalogue) -> str:
    """Return the reason why an entry cannot be filled; "" if it can be filled."""
    if block is None:
        return "the file has no such entry; add it with msgmerge first"
    if block.misplaced:
        return "a comment of the entry follows its previous message (#|); gettext requires it before: move it"
    if unknown := [part for part in given if part not in block.forms]:
        return f"the entry has no {'msgstr' + unknown[0]}; it has {', '.join(block.forms.values())}"
    if any(block.texts[block.forms[part]] for part in given):
        return DONE
    if any(block.texts[name] for name in block.forms.values()):
        return "some plural forms are translated already, and gettext marks all forms of an entry as fuzzy at once"
    if missing := [name for part, name in block.forms.items() if part not in given and not block.texts[name]]:
        reason = f"{', '.join(missing)} of the entry would stay empty"
        number = FORMULA.search(catalogue.header)
        if number and int(number[1]) < len(block.forms):
            reason += f", and the header has nplurals={number[1]}: correct the line Plural-Forms in the header"
        return reason
    for text in given.values():
        if not text:
            return "the text is empty"
        for end in (str.startswith, str.endswith):
            if end(text, "\n") != end(block.texts["msgid"], "\n"):
                return "the text and msgid must both begin or end with a line break, or neither of them"
        try:
            text.encode(catalogue.encoding)
        except UnicodeEncodeError as error:
            return f"{text[error.start]!r} is not in the file's character set, {catalogue.encoding}"
    return ""
