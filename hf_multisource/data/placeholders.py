"""Placeholders and markup in user-interface strings: find them, replace them by tokens, and put them back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html.entities import html5

import regex
from transformers import AddedToken, PreTrainedTokenizerBase

from hf_multisource.data.checks import check_choice

VALUE, OPEN, CLOSE, TAG, LINK, KEY, CHAR = KINDS = ("ph", "open", "close", "tag", "link", "key", "char")
#: Largest number of different placeholders of one kind in one row of texts: each has a token. No row of the Firefox and
#: Thunderbird strings has more than 8.
LIMIT = 16
#: All tokens that a masked text may hold; a tokenizer gets them as added tokens.
MASK_TOKENS = tuple(f"<{kind}{number}>" for kind in KINDS for number in range(1, LIMIT + 1))
OPENING_TOKENS = {f"<{CLOSE}{number}>": f"<{OPEN}{number}>" for number in range(1, LIMIT + 1)}  # by closing token
#: Tokens that a translation may leave out: another language may write another character than an escape sequence.
OPTIONAL_TOKENS = frozenset(token for token in MASK_TOKENS if token.startswith(f"<{CHAR}"))
TOKEN_PATTERN = rf"<(?:{'|'.join(KINDS)})[0-9]+>"
TOKEN = regex.compile(TOKEN_PATTERN)

ELEMENT_NAMES = """
a abbr address article aside b bdi bdo big blockquote body br button caption center cite code dd del details dfn div
dl dt em figure font footer form h1 h2 h3 h4 h5 h6 head header hr html i iframe img input ins kbd label legend li link
main map mark menu meta nav nobr ol option p pre q qt rp rt ruby s samp script section select small span strike strong
style sub summary sup svg table tbody td textarea tfoot th thead time title tr tt u ul var video wbr
"""
ELEMENTS = frozenset(ELEMENT_NAMES.split())
VOID_ELEMENTS = frozenset(("br", "hr", "img", "input", "link", "meta", "wbr"))
IDENTITY = "data-l10n-name"  # an attribute of Fluent that alone says which element of the page a tag stands for

ATTRIBUTE = r"""[^\s"'<>/=]++(?:\s*+=\s*+(?:\\?"[^"]*+"|'[^']*+'|[^\s"'=<>`]++))?+"""
PRINTF_END = r"(?:\d+|\*(?:\d+\$)?)?(?:\.(?:\d+|\*(?:\d+\$)?)?)?(?:hh|ll|[hlLqjzt])?(?:[diouxXeEfFgGaAcCsSpm@]|<\w+>)"
PIECES = {
    "token": TOKEN_PATTERN,
    "comment": r"<!--.*?-->|<!\[CDATA\[|\]\]>",
    "tag": rf"</?[A-Za-z][\w:.-]*+(?:\s++{ATTRIBUTE})*+\s*+/?>",
    "link": (
        r"(?:(?<![\w.+-])[a-z][a-z0-9+.-]*+://(?=\w)|(?<![\w.])www\.(?=\w))"
        r"(?:[^\s<>\"'“”„(){}%\\&;]|%[0-9A-Fa-f]{2}|&(?!#?\w+;))*[\w/#=-]"
        r"|(?<![\w.+-])[\w.+-]++@[\w-]++(?:\.[\w-]*\w)+"
    ),
    "line": r"\r\n|[\n\r\t\v\f\x1c-\x1e\x85\u2028\u2029]",
    "backslash": r"""\\(?:u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[abfnrtv\\"'@?{}])""",
    "entity": r"&(?:#[0-9]+|#[xX][0-9A-Fa-f]+|[A-Za-z][\w.-]*+);",
    "format_tag": r"</?%(?:\d+\$)?[Ss]\s*+/?>",  # a name of an element that the program fills in
    # %name%, but not the printf directives of "%dx%d", "%ld%%" and "%s%s".
    "wrapped": r"%[A-Za-z][A-Za-z0-9_]*[A-Za-z0-9]%(?![\w%$])",
    "percent": r"%%",
    "named": r"%\([^()\s]+\)[-+#0 ]*(?:\d+|\*)?(?:\.\d+)?[diouxXeEfFgGcrsa]",
    "printf": rf"%(?:\d+\$)?[-+#0'I ]*{PRINTF_END}",
    "formatter": r"%(?:\d+\$|<)?[-+#0,(]*\d*(?:\.\d+)?(?:[tT][A-Za-z]|[bBhHsScCdoxXeEfgGaAn])",
    # Without the type, so loose that it must not follow a number: "50%discount".
    "any_printf": r"(?:(?<!\d)%|%(?=\d+\$))(?:\d+\$)?[-+#0]*\d*(?:\.\d+)?(?:hh|ll|[hlLqjzt])?[diufgGxXcsSp@]",
    "strftime": r"(?<!\d)%[-_0^#EO]?[aAbBCDeFhHIjklmMpPrRTuUVwWyYzZ](?![A-Za-z])",
    "qt": r"%L?(?:\d{1,2}|n)",
    "any_qt": r"(?<!\d)%L?(?:\d{1,2}(?![\d$.A-Za-z])|n(?![a-z]))",
    "mustache": r"\{\{[^{}]*+\}\}",
    "dollar": r"\$\{[^{}]*+\}",
    "number": r"(?<![\w&])#[1-9](?!\d)",
    "hash": r"#",
    "quoted": r"(?<!')'[{}][^']*+'",  # two apostrophes stand for one, which quotes nothing
    "literal": r"""\{\s*+"(?:[^"\\]|\\.)*+"\s*+\}""",
    "number_literal": r"\{\s*+-?[0-9.]++\s*+\}",
    "doubled_brace": r"\{\{|\}\}",
    "brace": r"\{",
    "doubled_key": r"__|&&",
    "underscore": r"_(?=[^\W_])",
    "ampersand": r"&(?=[^\W_])",
    # Without the type: only at the beginning of a word, and an ampersand also before a small letter.
    "any_underscore": r"(?<!\w)_(?=[^\W\d_])",
    "any_ampersand": r"(?<![\w&])&(?=[^\W\d_])|(?<=\w)&(?=\p{Ll})",
}
MARKUP = ("token", "comment", "tag", "link", "line", "entity")
ESCAPED = (*MARKUP, "backslash")
#: Syntax -> the pieces that it knows; where two begin at one place, the first is taken.
SYNTAXES: dict[str, tuple[str, ...]] = {
    "html": MARKUP,
    "fluent": (*MARKUP, "literal", "number_literal", "brace"),
    "printf": (*ESCAPED, "percent", "printf"),
    "gtk": (*ESCAPED, "percent", "printf", "doubled_key", "underscore"),
    "python": (*ESCAPED, "percent", "named", "printf"),
    "python-brace": (*ESCAPED, "doubled_brace", "brace"),
    "icu": (*ESCAPED, "quoted", "brace"),
    "icu-variant": (*ESCAPED, "quoted", "brace", "hash"),
    "java": (*ESCAPED, "percent", "formatter", "quoted", "brace"),
    "qt": (*MARKUP, "qt", "doubled_key", "ampersand"),
    "android": (*ESCAPED, "percent", "formatter"),
    "properties": (*ESCAPED, "format_tag", "wrapped", "percent", "printf", "mustache", "number", "brace"),
    # What gettext flags: the directives of the format, and whatever else a program may replace.
    "c-format": (
        *ESCAPED,
        *("format_tag", "wrapped", "percent", "printf", "mustache", "dollar", "number", "literal", "brace"),
        *("any_underscore", "any_ampersand"),
    ),
    "python-format": (
        *ESCAPED,
        *("format_tag", "wrapped", "percent", "named", "printf", "mustache", "dollar", "number", "literal", "brace"),
        *("any_underscore", "any_ampersand"),
    ),
    "python-brace-format": (*ESCAPED, "doubled_brace", "brace", "any_underscore", "any_ampersand"),
    "java-format": (*ESCAPED, "quoted", "brace", "any_underscore", "any_ampersand"),
    "any": (
        *ESCAPED,
        *("format_tag", "wrapped", "percent", "named", "any_printf", "strftime", "any_qt", "mustache", "dollar"),
        *("number", "literal", "brace", "any_underscore", "any_ampersand"),
    ),
}
ANY = "any"
LIKE_ANY = ("c-format", "python-format")  # in which braces may belong to any program
PATTERNS = {
    name: regex.compile("|".join(f"(?P<{piece}>{PIECES[piece]})" for piece in pieces), regex.DOTALL)
    for name, pieces in SYNTAXES.items()
}
CHARACTERS = (
    "line",
    "backslash",
    "percent",
    "quoted",
    "literal",
    "number_literal",
    "doubled_brace",
    "doubled_key",
)  # pieces
FORMATS = ("printf", "formatter", "any_printf")
KEYS = ("underscore", "ampersand", "any_underscore", "any_ampersand")

TAG_PARTS = regex.compile(rf"</?([\w:.-]+)((?:\s++{ATTRIBUTE})*+)\s*+/?>")
ATTRIBUTE_PARTS = regex.compile(r"""([^\s"'<>/=]++)(?:\s*+=\s*+\\?["']?([^"']*?)\\?["']?)?""")
FORMAT_PARTS = regex.compile(r"%(?:(\d+)\$|(<))?(.*?)((?:hh|ll|[hlLqjzt])?(?:[tT][A-Za-z]|[A-Za-z@]|<\w+>))")
SELECTOR = regex.compile(r"\s*([^{}]*?)\s*->|\s*(\w+)\s*,\s*(?:plural|selectordinal|select|choice)\b")
FLUENT = regex.compile(r"\s*(?:(\$[\w-]+)|(-?[A-Za-z][\w-]*(?:\.[\w-]+)?)\s*(?:\((.*)\))?)\s*", regex.DOTALL)
MESSAGE_FORMAT = regex.compile(r"\s*(\w+)\s*(?:,.*)?", regex.DOTALL)
PYTHON_FORMAT = regex.compile(r"([\w.]*(?:\[[^\]]*\][\w.]*)*)(?:![rsa])?(?::.*)?", regex.DOTALL)


@dataclass(frozen=True)
class Placeholder:
    """One placeholder, or piece of markup, in a text.

    Args:
        text: The characters as they stand in the text.
        kind: One of `KINDS`: a value ("ph"), an opening or closing tag, a tag that stands alone, a link (URL or e-mail
            address), the marker of an access key, or an escape sequence of a character ("char").
        key: Placeholders of one kind with the same key mean the same, in whatever language and form they stand.
        start: Index of the first character.
        end: Index behind the last character.
        arguments: Numbers of the arguments, from 1, that are taken by their order, as `%s` does and `%1$s` does not.
        is_selector: Whether it holds variants of a text, as plural forms: these have to be translated one by one.
    """

    text: str
    kind: str
    key: str
    start: int
    end: int
    arguments: tuple[int, ...] = ()
    is_selector: bool = False


@dataclass(frozen=True)
class PlaceholderTable:
    """What the tokens of one masked text stand for.

    Args:
        texts: Token -> the characters of its first, second, ... occurrence in the text.
        start: White space before the text.
        end: White space behind the text.
        chain: Tokens whose order is fixed, since the arguments they take depend on the order.
        refused: Why the text was not masked; None: it was.
    """

    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    start: str = ""
    end: str = ""
    chain: tuple[str, ...] = ()
    refused: str | None = None

    @property
    def counts(self) -> dict[str, int]:
        """How often each token occurs in the text."""
        return {token: len(texts) for token, texts in self.texts.items()}

    @property
    def required(self) -> int:
        """How many tokens a translation must have; it may leave out escape sequences of characters."""
        return sum(count for token, count in self.counts.items() if token not in OPTIONAL_TOKENS)


@dataclass(frozen=True)
class MaskedTexts:
    """The masked texts of one row.

    Args:
        texts: The texts by language, with tokens; None = absent.
        tables: By language, what the tokens stand for in the text of this language; absent texts have none.
    """

    texts: Mapping[str, str | None]
    tables: Mapping[str, PlaceholderTable]

    @property
    def refused(self) -> str | None:
        """Why the row was not masked; None: it was."""
        return next((table.refused for table in self.tables.values()), None)

    @property
    def differing(self) -> list[str]:
        """The languages in which a token occurs more or less often than in the first text."""
        counts = {language: table.counts for language, table in self.tables.items()}
        expected = next(iter(counts.values()), {})
        return [language for language, found in counts.items() if found != expected]


def find_placeholders(text: str, syntax: str = ANY) -> list[Placeholder]:
    """Find the placeholders and the markup of a text.

    Args:
        text: The text.
        syntax: One of `SYNTAXES`: what the format or the program takes for a placeholder. "any" knows them all, but not
            forms that also occur in plain text, such as `% d` or an underscore within a word.

    Returns:
        The placeholders in the order of the text. They do not overlap. White space at both ends is not among them.

    Raises:
        ValueError: If there is no such syntax.

    Example:
        >>> [found.text for found in find_placeholders('Open <a href="%1$S">{ $name }</a> &amp; close')]
        ['<a href="%1$S">', '{ $name }', '</a>', '&amp;']
    """
    check_choice(list(SYNTAXES), syntax=syntax)
    return _pair_tags(_only_key(_Scanner(text, syntax).scan()))


def mask_texts(texts: Mapping[str, str | None], syntax: str = ANY) -> MaskedTexts:
    """Replace the placeholders of a row of texts by tokens; placeholders that mean the same get the same token.

    A token tells the kind, and a number that counts the different placeholders of this kind, in the order of the first
    text that has them, the second one, and so on: give the sources in the order of the model, and in training the
    target last. A placeholder that occurs twice has its token twice. A closing tag has the number of its opening tag.
    Escape sequences of characters (kind "char") are only masked if all texts of the row have the same ones; line breaks
    are among them.

    A row is refused and stays as it is if a text has a selector, whose variants are to be translated one by one, or if
    there are more different placeholders of one kind than `LIMIT`.

    Args:
        texts: Texts of one meaning by language; None = absent.
        syntax: As [`find_placeholders`] has it.

    Returns:
        The masked texts and their tables.

    Raises:
        ValueError: If there is no such syntax.

    Example:
        >>> row = mask_texts({"en": "{ $n } of <b>%S</b> ", "de": "<b>%S</b>: { $n }"})
        >>> row.texts
        {'en': '<ph1> of <open1><ph2><close1>', 'de': '<open1><ph2><close1>: <ph1>'}
        >>> row.tables["en"].texts["<ph1>"]
        ('{ $n }',)
    """
    present = {language: text for language, text in texts.items() if text is not None}
    found = {language: find_placeholders(text.strip(), syntax) for language, text in present.items()}
    shared = _shared_characters(found.values())
    numbers: dict[str, dict[str, int]] = {kind: {} for kind in KINDS}
    refused = None
    for placeholder in (one for placeholders in found.values() for one in placeholders):
        if placeholder.is_selector:
            refused = f"{_short(placeholder.text)} holds variants of a text, which are to be translated one by one"
            break
        known = numbers[_numbered(placeholder.kind)]
        if placeholder.kind != CHAR or placeholder.key in shared:
            known.setdefault(placeholder.key, len(known) + 1)
        if len(known) > LIMIT:
            refused = f"the texts have more than {LIMIT} different placeholders of the kind {placeholder.kind!r}"
            break
    if refused is not None:
        return MaskedTexts(dict(texts), {language: PlaceholderTable(refused=refused) for language in present})
    masked: dict[str, str | None] = dict.fromkeys(texts)
    tables = {}
    for language, text in present.items():
        masked[language], tables[language] = _mask(text, found[language], numbers)
    return MaskedTexts(masked, tables)


def restore_text(masked: str, table: PlaceholderTable) -> str:
    """Replace the tokens of a masked text by the placeholders that they replaced.

    Args:
        masked: The text, or another one with the same tokens, such as its translation. Tokens of escape sequences (kind
            "char") may be left out.
        table: What the tokens stand for.

    Returns:
        The text with placeholders, byte for byte, and with the white space of the table at both ends.

    Raises:
        ValueError: If a token occurs more or less often than in the table; the message names it.
    """
    if table.refused is not None:
        return masked
    found = Counter(TOKEN.findall(masked))
    for token in [*table.texts, *found]:
        expected = len(table.texts.get(token, ()))
        if found[token] != expected and not (token in OPTIONAL_TOKENS and found[token] < expected):
            most = "at most " if token in OPTIONAL_TOKENS else ""
            raise ValueError(
                f"{token} occurs {_times(found[token])} in the text; it must occur {most}{_times(expected)}"
            )
    left = {token: iter(texts) for token, texts in table.texts.items()}
    return table.start + TOKEN.sub(lambda match: next(left[match[0]]), masked) + table.end


def broken_placeholders(source: str, text: str, syntax: str = ANY, access_key: str | None = None) -> list[str]:
    """Say what is broken in a translation: compare its placeholders and markup with those of its source.

    Escape sequences of characters are not compared: a translation may write "and" for `&amp;`.

    Args:
        source: The text that was translated.
        text: The translation.
        syntax: As [`find_placeholders`] has it.
        access_key: The letter that is the access key of the translation, where it is stored apart from the text.

    Returns:
        One sentence for each fault; nothing: all is right.

    Raises:
        ValueError: If there is no such syntax.

    Example:
        >>> broken_placeholders("Delete <b>%S</b>?", "</b>Wulašowaś %S<b>?")
        ['</b> stands before its opening tag.']
    """
    expected, found = find_placeholders(source, syntax), find_placeholders(text, syntax)
    faults = [*_missing_or_additional(expected, found)]
    if not faults:
        faults += _wrong_order(expected, found)
    faults += _broken_tags(expected, found)
    if "brace" in SYNTAXES[syntax]:
        faults += [
            f'A brace "{brace}" stands without its partner.'
            for brace, there, before in zip("{}", _loose(text, found), _loose(source, expected), strict=True)
            if there and not before
        ]
    if access_key is not None and access_key.casefold() not in "".join(_plain_parts(text, found)).casefold():
        faults.append(f'The access key "{access_key}" is not in the text.')
    if _blanks(source) != _blanks(text):
        wanted, there = (" and ".join(map(repr, _blanks(one))) for one in (source, text))
        faults.append(f"The white space at the beginning and the end must be {wanted}; it is {there}.")
    return faults


def add_mask_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Add `MASK_TOKENS` to the vocabulary of a tokenizer, which then encodes each as one token and decodes it again.

    They are no special tokens: `skip_special_tokens=True` leaves them in a text. A model that exists already needs
    `resize_token_embeddings(len(tokenizer))`. Whether blanks beside the tokens are kept depends on the tokenizer: those
    that `train_tokenizer` makes with `mask_tokens=True` keep them.

    Args:
        tokenizer: The tokenizer, which is changed. Tokens that it has already are not added again.

    Returns:
        Their ids, in the order of `MASK_TOKENS`.
    """
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in MASK_TOKENS])
    vocabulary = tokenizer.get_vocab()
    return [vocabulary[token] for token in MASK_TOKENS]


def differing_languages(texts: Mapping[str, str | None], syntax: str = ANY) -> list[str]:
    """Find the texts of a row whose placeholders are not those of its first text.

    Escape sequences of characters are not compared, and no number of placeholders is too large.

    Args:
        texts: Texts of one meaning by language; None = absent.
        syntax: As [`find_placeholders`] has it.

    Returns:
        The languages of these texts.

    Raises:
        ValueError: If there is no such syntax.
    """
    found = {
        language: Counter((one.kind, one.key) for one in find_placeholders(text, syntax) if one.kind != CHAR)
        for language, text in texts.items()
        if text is not None
    }
    expected = next(iter(found.values()), None)
    return [language for language, counts in found.items() if counts != expected]


class _Scanner:
    """Finds the placeholders of one text.

    Args:
        text: The text.
        syntax: The syntax.
    """

    def __init__(self, text: str, syntax: str) -> None:
        self.text = text
        self.syntax = syntax
        self.taken = 0  # arguments that are taken by their order so far
        self.partners = _partners(text) if "brace" in SYNTAXES[syntax] else {}

    def scan(self) -> Iterator[Placeholder]:
        """Yield the placeholders; tags are not paired yet, and all access keys are there."""
        place, pattern = 0, PATTERNS[self.syntax]
        while match := pattern.search(self.text, place):
            piece, start, end = str(match.lastgroup), match.start(), match.end()
            if piece == "brace":
                end = self.partners.get(start, 0)
            placeholder = self.read(piece, start, end) if end else None
            if placeholder is not None:
                yield placeholder
            place = start + 1 if placeholder is None else end

    def read(self, piece: str, start: int, end: int) -> Placeholder | None:
        """Return a placeholder; None if the characters, which look like one, are none."""
        text = self.text[start:end]
        if piece in CHARACTERS:
            return Placeholder(text, CHAR, text, start, end)
        if piece in KEYS:
            return Placeholder(text, KEY, text, start, end)
        if piece == "link":
            return Placeholder(text, LINK, text, start, end)
        if piece == "entity":
            is_char = text[1] == "#" or text[1:] in html5
            return Placeholder(text, CHAR if is_char else VALUE, text, start, end)
        if piece in ("token", "comment"):
            return Placeholder(text, TAG, " ".join(text.split()), start, end)
        if piece == "tag":
            return self.read_tag(text, start, end)
        if piece == "brace":
            return self.read_braces(text[1:-1], start, end)
        if piece in FORMATS:
            key, arguments = self.read_format(text)
            return Placeholder(text, VALUE, key, start, end, arguments)
        if piece == "format_tag":
            directive = text.strip("</> ")
            key, arguments = self.read_format(directive)
            key = "".join(text.split()).replace(directive, key)
            return Placeholder(text, VALUE, key, start, end, arguments)
        key = text.replace("L", "") if piece.endswith("qt") else "".join(text.split())
        return Placeholder(text, VALUE, key, start, end)

    def read_format(self, text: str) -> tuple[str, tuple[int, ...]]:
        """Return the key of a directive such as `%5.1f` (argument and type), and the arguments that it takes."""
        match = FORMAT_PARTS.fullmatch(text)
        number, again, options, conversion = match.groups() if match else (None, None, "", text)
        if number is not None:
            return f"%{int(number)}${conversion}", ()
        if again is not None or conversion in ("m", "n"):  # takes no argument: errno; a line end of Java
            return text, ()
        first = self.taken + 1
        self.taken += 1 + options.count("*")
        return f"%{self.taken}${conversion}", tuple(range(first, self.taken + 1))

    def read_tag(self, text: str, start: int, end: int) -> Placeholder:
        """Return a tag, with the arguments that placeholders in its attributes take."""
        name, attributes = _tag_parts(text)
        inner = _Scanner(text[1:], self.syntax)
        inner.taken = self.taken
        arguments = tuple(number for one in inner.scan() if one.kind != TAG for number in one.arguments)
        self.taken = inner.taken
        key = f"{IDENTITY}={attributes[IDENTITY]}" if IDENTITY in attributes else repr(sorted(attributes.items()))
        if arguments:
            key += repr(arguments)
        kind = CLOSE if text[1] == "/" else TAG if text.endswith("/>") or name in VOID_ELEMENTS else OPEN
        return Placeholder(text, kind, f"{name} {key}" if attributes or arguments else name, start, end, arguments)

    def read_braces(self, content: str, start: int, end: int) -> Placeholder | None:
        """Return what a pair of braces holds, if it is a placeholder of the syntax."""
        text = self.text[start:end]
        syntax = ANY if self.syntax in LIKE_ANY else self.syntax.removesuffix("-format")
        if syntax != "python-brace" and (selector := SELECTOR.match(content)):
            return Placeholder(text, VALUE, f"{selector[1] or selector[2]} ->", start, end, (), True)
        if syntax in ("fluent", ANY) and (match := FLUENT.fullmatch(content)):
            variable, name, call = match.groups()
            if call is not None and not name.startswith("-"):
                used = regex.search(r"\$[\w-]+", call)
                return Placeholder(text, VALUE, used[0] if used else name, start, end)
            return Placeholder(text, VALUE, variable or name, start, end)
        if syntax not in ("fluent", "python-brace") and (match := MESSAGE_FORMAT.fullmatch(content)):
            return Placeholder(text, VALUE, match[1], start, end)
        if syntax in ("python-brace", ANY) and (match := PYTHON_FORMAT.fullmatch(content)):
            if match[1]:
                return Placeholder(text, VALUE, match[1], start, end)
            self.taken += 1
            return Placeholder(text, VALUE, str(self.taken - 1), start, end, (self.taken,))
        return None


def _partners(text: str) -> dict[int, int]:
    """For each opening brace of a text that is closed again, the index behind its closing brace."""
    open_braces, partners = [], {}
    for match in regex.finditer(r"[{}]", text):
        if match[0] == "{":
            open_braces.append(match.start())
        elif open_braces:
            partners[open_braces.pop()] = match.end()
    return partners


def _tag_parts(tag: str) -> tuple[str, dict[str, str]]:
    """The name of a tag, in small letters, and its attributes."""
    match = TAG_PARTS.fullmatch(tag)
    name, rest = match.groups() if match else (tag.strip("</>"), "")
    parts = (ATTRIBUTE_PARTS.fullmatch(one) for one in regex.findall(ATTRIBUTE, rest))
    return name.lower(), {part[1].lower(): part[2] or "" for part in parts if part}


def _only_key(found: Iterable[Placeholder]) -> list[Placeholder]:
    """Leave out the markers of access keys if there are several: they are plain characters then."""
    placeholders = list(found)
    is_plain = sum(one.kind == KEY for one in placeholders) > 1
    return [one for one in placeholders if one.kind != KEY or not is_plain]


def _pair_tags(found: Sequence[Placeholder]) -> list[Placeholder]:
    """Give closing tags the key of their opening tags. Tags without partners stand alone, or are plain text.

    Plain text is what only looks like a tag, as in "press <Enter>": no element of HTML, and without attributes.
    """
    opened: list[int] = []
    partners: dict[int, int] = {}
    for i, one in enumerate(found):
        if one.kind == OPEN:
            opened.append(i)
        elif one.kind == CLOSE:
            name = _tag_parts(one.text)[0]
            for place in range(len(opened) - 1, -1, -1):
                if _tag_parts(found[opened[place]].text)[0] == name:
                    partners[opened[place]], partners[i] = i, opened[place]
                    del opened[place:]
                    break
    paired = []
    for i, one in enumerate(found):
        if one.kind not in (OPEN, CLOSE):
            paired.append(one)
        elif i in partners:
            paired.append(one if one.kind == OPEN else replace(one, key=found[partners[i]].key))
        else:
            name, attributes = _tag_parts(one.text)
            if name in ELEMENTS or any(attributes.values()) or ":" in name:
                paired.append(replace(one, kind=TAG, key=f"/{name}" if one.kind == CLOSE else one.key))
    return paired


def _shared_characters(found: Iterable[Sequence[Placeholder]]) -> set[str]:
    """The escape sequences that all texts have equally often."""
    counts = [Counter(one.key for one in placeholders if one.kind == CHAR) for placeholders in found]
    return (
        {key for key, count in counts[0].items() if all(other[key] == count for other in counts)} if counts else set()
    )


def _numbered(kind: str) -> str:
    """The kind whose numbers a kind uses: closing tags have those of opening tags."""
    return OPEN if kind == CLOSE else kind


def _mask(
    text: str, found: Sequence[Placeholder], numbers: Mapping[str, Mapping[str, int]]
) -> tuple[str, PlaceholderTable]:
    """Replace the placeholders of one text."""
    core = text.strip()
    start = len(text) - len(text.lstrip())
    parts, place, chain = [], 0, []
    replaced: dict[str, tuple[str, ...]] = {}
    for one in found:
        number = numbers[_numbered(one.kind)].get(one.key)
        if number is None:
            continue
        token = f"<{one.kind}{number}>"
        parts += [core[place : one.start], token]
        place = one.end
        replaced[token] = (*replaced.get(token, ()), one.text)
        if one.arguments:
            chain.append(token)
    masked = "".join([*parts, core[place:]])
    return masked, PlaceholderTable(replaced, text[:start], text[start + len(core) :], tuple(chain))


def _missing_or_additional(expected: Sequence[Placeholder], found: Sequence[Placeholder]) -> Iterator[str]:
    """Compare how often each placeholder occurs."""

    def count(placeholders: Sequence[Placeholder], written: Callable[[Placeholder], str]) -> Counter[tuple[str, str]]:
        kept = [one for one in placeholders if one.kind != CHAR]
        return Counter((TAG if one.kind in (OPEN, CLOSE) else one.kind, written(one)) for one in kept)

    def key(one: Placeholder) -> str:
        return f"/{_tag_parts(one.text)[0]}" if one.kind in (OPEN, CLOSE, TAG) and one.text[1:2] == "/" else one.key

    if count(expected, _text_of) == count(found, _text_of):  # if anything is wrong, then the order
        return
    wanted, there = count(expected, key), count(found, key)
    shown = {(TAG if one.kind in (OPEN, CLOSE) else one.kind, key(one)): one.text for one in (*found, *expected)}
    for identity in dict.fromkeys([*wanted, *there]):
        name, number, needed = _short(shown[identity]), there[identity], wanted[identity]
        if identity[0] == KEY:
            name = f'the marker "{name}" of the access key'
        if number and needed and number != needed:
            yield f"{_capital(name)} occurs {_times(number)}, but must occur {_times(needed)}."
        elif number < needed:
            yield f"{_capital(name)} is missing."
        elif number > needed:
            yield f"{_capital(name)} is not in the source."


def _text_of(placeholder: Placeholder) -> str:
    return placeholder.text


def _wrong_order(expected: Sequence[Placeholder], found: Sequence[Placeholder]) -> Iterator[str]:
    """Compare placeholders that take their arguments in order."""
    wanted, there = ([one.text for one in placeholders if one.arguments] for placeholders in (expected, found))
    if sorted(wanted) == sorted(there) and wanted != there:
        listed, needed = (", ".join(map(_short, texts)) for texts in (there, wanted))
        yield f"The order of {listed} must be that of the source: {needed}."


def _broken_tags(expected: Sequence[Placeholder], found: Sequence[Placeholder]) -> Iterator[str]:
    """Find tags without partners, of elements that have partners in the source."""
    names = {_tag_parts(one.text)[0] for one in expected if one.kind == OPEN}
    alone = [(one.text, name) for one in found if one.kind == TAG and (name := _tag_parts(one.text)[0]) in names]
    for i, (tag, name) in enumerate(alone):
        if not tag.startswith("</"):
            if not any(other.startswith("</") and its == name for other, its in alone[:i]):
                yield f"{_short(tag)} is not closed."
        elif any(not other.startswith("</") and its == name for other, its in alone[i:]):
            yield f"{_short(tag)} stands before its opening tag."
        else:
            yield f"{_short(tag)} has no opening tag."


def _plain_parts(text: str, found: Sequence[Placeholder]) -> Iterator[str]:
    """The parts of a text between its placeholders."""
    place = 0
    for one in found:
        yield text[place : one.start]
        place = one.end
    yield text[place:]


def _loose(text: str, found: Sequence[Placeholder]) -> tuple[int, int]:
    """How many opening braces without a partner the plain parts of a text have, and how many closing ones."""
    opened = closed = 0
    for brace in regex.findall("[{}]", "\0".join(_plain_parts(text, found))):
        if brace == "{":
            opened += 1
        elif opened:
            opened -= 1
        else:
            closed += 1
    return opened, closed


def _blanks(text: str) -> tuple[str, str]:
    """The white space at the beginning and at the end."""
    core = text.strip()
    start = len(text) - len(text.lstrip())
    return text[:start], text[start + len(core) :]


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:] if sentence.startswith("the ") else sentence


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
