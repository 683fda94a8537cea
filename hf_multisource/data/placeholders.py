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
#: Largest number of different placeholders of one kind in one row of texts, each of which has a token. No row of the
#: Firefox and Thunderbird strings has more than 8.
LIMIT = 16
#: All mask tokens, which replace placeholders in a masked text and are added tokens of a tokenizer.
MASK_TOKENS = tuple(f"<{kind}{number}>" for kind in KINDS for number in range(1, LIMIT + 1))
OPENING_TOKENS = {f"<{CLOSE}{number}>": f"<{OPEN}{number}>" for number in range(1, LIMIT + 1)}  # closing -> opening
#: Tokens that a translation may leave out, because another language may write another character than the source.
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
IDENTITY = "data-l10n-name"  # attribute of Fluent that identifies an element of the page, whatever its other attributes

ATTRIBUTE = r"""[^\s"'<>/=]++(?:\s*+=\s*+(?:\\?"[^"]*+"|'[^']*+'|[^\s"'=<>`]++))?+"""
PRINTF_END = r"(?:\d+|\*(?:\d+\$)?)?(?:\.(?:\d+|\*(?:\d+\$)?)?)?(?:hh|ll|[hlLqjzt])?(?:[diouxXeEfFgGaAcCsSpm@]|<\w+>)"
# Elements of XLIFF whose content is code of the translated document and not text. XLIFF gives each of them an id.
CODE_ELEMENTS = ("ph", "bpt", "ept", "it")
CODES = (
    *(rf"<{name}(?=\s[^<>]*\bid\s*+=)(?:\s++{ATTRIBUTE})*+\s*+>[^<]*+</{name}\s*+>" for name in CODE_ELEMENTS),
    rf"""<mrk(?=\s[^<>]*\b(?:mtype\s*+=\s*+["']protected|translate\s*+=\s*+["']no)["'])(?:\s++{ATTRIBUTE})*+\s*+>"""
    r"(?:[^<]|<(?!/?mrk\b))*+</mrk\s*+>",
)
PIECES = {
    "token": TOKEN_PATTERN,
    "comment": r"<!--.*?-->|<!\[CDATA\[|\]\]>",
    "code": "|".join(CODES),
    "tag": rf"</?[A-Za-z][\w:.-]*+(?:\s++{ATTRIBUTE})*+\s*+/?>",
    "link": (
        r"(?:(?<![\w.+-])[a-z][a-z0-9+.-]*+://(?=\w)|(?<![\w.])www\.(?=\w))"
        r"(?:[^\s<>\"'“”„(){}%\\&;]|%[0-9A-Fa-f]{2}|&(?!#?\w+;))*[\w/#=-]"
        r"|(?<![\w.+-])[\w.+-]++@[\w-]++(?:\.[\w-]*\w)+"
    ),
    "line": r"\r\n|[\n\r\t\v\f\x1c-\x1e\x85\u2028\u2029]",
    "backslash": r"""\\(?:u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[abfnrtv\\"'@?])""",
    "entity": r"&(?:#[0-9]+|#[xX][0-9A-Fa-f]+|[A-Za-z][\w.-]*+);",
    "format_tag": r"</?%(?:\d+\$)?[Ss]\s*+/?>",  # a tag whose name the program fills in
    # %name%, but not the printf directives of "%dx%d", "%ld%%" and "%s%s".
    "wrapped": r"%[A-Za-z][A-Za-z0-9_]*[A-Za-z0-9]%(?![\w%$])",
    "percent": r"%%",
    "named": r"%\([^()\s]+\)[-+#0 ]*+(?:\d+|\*)?(?:\.\d+)?[diouxXeEfFgGcrsa]",
    "printf": rf"%(?:\d+\$)?[-+#0'I ]*+{PRINTF_END}",
    "formatter": r"%(?:\d+\$|<)?[-+#0,(]*+\d*(?:\.\d+)?(?:[tT][A-Za-z]|[bBhHsScCdoxXeEfgGaAn])",
    # For texts of unknown format; the pattern is so general that it must not match after a number: "50%discount".
    "any_printf": r"(?:(?<!\d)%|%(?=\d+\$))(?:\d+\$)?[-+#0]*+\d*(?:\.\d+)?(?:hh|ll|[hlLqjzt])?[diufgGxXcsSp@]",
    "strftime": r"(?<!\d)%[-_0^#EO]?[aAbBCDeFhHIjklmMpPrRTuUVwWyYzZ](?![A-Za-z])",
    "qt": r"%L?(?:\d{1,2}|n)",
    # For texts of unknown format: a single digit, because "%50" is fifty percent in Turkish and Basque.
    "any_qt": r"(?:(?<!\d)|(?<=%\d))%L?(?:\d(?![\d$A-Za-z]|[.,]\d)|n(?![a-z]))",
    # LibreOffice: $(ARG1) and %PRODUCTNAME.
    "office": r"\$\([A-Za-z]\w*\)|(?<![\w%])%[A-Z]{4,}+[A-Z0-9]*+(?![\w%])",
    "mustache": r"\{\{[^{}]*+\}\}",
    "dollar": r"\$\{[^{}]*+\}",
    "number": r"(?<![\w&])#[1-9](?!\d)",
    "hash": r"#",
    "quoted": r"(?<!')'[{}][^']*+'",  # two apostrophes are a literal apostrophe
    "literal": r"""\{\s*+"(?:[^"\\]|\\.)*+"\s*+\}""",
    "number_literal": r"\{\s*+-?[0-9.]++\s*+\}",
    "doubled_brace": r"\{\{|\}\}",
    "brace": r"\{",
    "doubled_key": r"__|&&",
    "underscore": r"_(?=[^\W_])",
    "ampersand": r"&(?=[^\W_])",
    # For texts of unknown format: at the beginning of a word, and an ampersand also before a lower-case letter.
    "any_underscore": r"(?<!\w)_(?=[^\W\d_])",
    "any_ampersand": r"(?<![\w&])&(?=[^\W\d_])|(?<=\w)&(?=\p{Ll})",
    "any_tilde": r"(?<![\w~])~(?=[^\W\d_])|(?<=\w)~(?=\p{Ll})",
}
MARKUP = ("token", "comment", "code", "tag", "link", "line", "entity")
ESCAPED = (*MARKUP, "backslash")
#: Syntax -> its pieces, in the order of precedence if several pieces match at the same place.
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
    # Formats that gettext flags: the directives of the format, and other placeholders that a program may replace.
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
        *(
            "office",
            "format_tag",
            "wrapped",
            "percent",
            "named",
            "any_printf",
            "strftime",
            "any_qt",
            "mustache",
            "dollar",
        ),
        *("number", "literal", "brace", "any_underscore", "any_ampersand", "any_tilde"),
    ),
}
ANY = "any"
LIKE_ANY = ("c-format", "python-format")  # syntaxes in which braces are read like those of the syntax "any"
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
)  # pieces that are escape sequences of characters
FORMATS = ("printf", "formatter", "any_printf")
#: Syntaxes of texts that may be patterns of Java's `MessageFormat`, which prints `''` as one apostrophe and drops
#: single apostrophes.
MESSAGE_FORMATS = ("properties", "java-format")
KEYS = ("underscore", "ampersand", "any_underscore", "any_ampersand", "any_tilde")

TAG_PARTS = regex.compile(rf"</?([\w:.-]+)((?:\s++{ATTRIBUTE})*+)\s*+/?>(.*+)", regex.DOTALL)
ATTRIBUTES = regex.compile(ATTRIBUTE)
ATTRIBUTE_PARTS = regex.compile(r"""([^\s"'<>/=]++)(?:\s*+=\s*+\\?["']?([^"']*?)\\?["']?)?""")
FORMAT_PARTS = regex.compile(r"%(?:(\d+)\$|(<))?(.*?)((?:hh|ll|[hlLqjzt])?(?:[tT][A-Za-z]|[A-Za-z@]|<\w+>))")
FLUENT_SELECTOR = regex.compile(r"\s*+([^{}]*?)->")
SELECTOR = regex.compile(r"\s*(\w+)\s*,\s*(?:plural|selectordinal|select|choice)\b")
FLUENT = regex.compile(r"\s*(?:(\$[\w-]+)|(-?[A-Za-z][\w-]*(?:\.[\w-]+)?)(?:\s*+\((.*)\))?)\s*", regex.DOTALL)
MESSAGE_FORMAT = regex.compile(r"\s*(\w+)\s*(?:,.*)?", regex.DOTALL)
MESSAGE_FORMAT_ARGUMENT = regex.compile(r"\{\s*+[0-9]++\s*+[,}]")
APOSTROPHES = regex.compile(r"''|'[{}][^']*+'|'")  # a doubled apostrophe, quoted braces, or a single apostrophe
PYTHON_FORMAT = regex.compile(r"([\w.]*(?:\[[^\]]*\][\w.]*)*)(?:![rsa])?(?::.*)?", regex.DOTALL)


# Elements of XLIFF that mark only the beginning or only the end of a span. For the end, the element of the beginning is
# given. The first of the attributes `SPAN_REFERENCES` that an element has names its span.
SPAN_STARTS = frozenset(("sc", "bx", "bpt"))
SPAN_ENDS = {"ec": "sc", "ex": "bx", "ept": "bpt"}
SPAN_REFERENCES = ("startref", "rid", "id")
# Angular's ids of <x/>: tags with other attributes are numbered (START_LINK_1), but end with the same id (CLOSE_LINK).
ANGULAR_SPAN = regex.compile(r"(START|CLOSE)_(.+?)(?:_[0-9]++)?")


@dataclass(frozen=True)
class Placeholder:
    """A placeholder or a piece of markup in a text.

    Args:
        text: The characters in the text.
        kind: One of `KINDS`: a value ("ph"), an opening or closing tag ("open", "close"), a tag without a partner
            ("tag"), a link (URL or e-mail address), the marker of an access key ("key"), or an escape sequence of a
            character ("char").
        key: Identifier of the meaning. Placeholders of one kind with the same key are equivalent, even if they are
            written differently.
        start: Index of the first character.
        end: Index after the last character.
        arguments: Numbers, from 1, of the arguments that the placeholder takes by position, as in `%s` but not in
            `%1$s`.
        is_selector: Whether the placeholder contains variants of a text, such as plural forms, which have to be
            translated one by one.
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
    """Placeholders that the mask tokens of one masked text replace.

    Args:
        texts: Token -> characters of its first, second, ... occurrence in the text.
        start: White space before the text.
        end: White space after the text.
        chain: Tokens in a fixed order, because their arguments are taken by position.
        refused: Reason why the text was not masked; None if it was masked.
    """

    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    start: str = ""
    end: str = ""
    chain: tuple[str, ...] = ()
    refused: str | None = None

    @property
    def counts(self) -> dict[str, int]:
        """The number of occurrences of each token in the text."""
        return {token: len(texts) for token, texts in self.texts.items()}

    @property
    def required(self) -> int:
        """The number of tokens that a translation must contain, without escape sequences of characters."""
        return sum(count for token, count in self.counts.items() if token not in OPTIONAL_TOKENS)


@dataclass(frozen=True)
class MaskedTexts:
    """The masked texts of one row.

    Args:
        texts: Language -> masked text; None = absent.
        tables: Language -> placeholder table of the text. Absent texts have no table.
    """

    texts: Mapping[str, str | None]
    tables: Mapping[str, PlaceholderTable]

    @property
    def refused(self) -> str | None:
        """The reason why the row was not masked; None if it was masked."""
        return next((table.refused for table in self.tables.values()), None)

    @property
    def differing(self) -> list[str]:
        """The languages in which the number of occurrences of a token differs from the first text."""
        counts = {language: table.counts for language, table in self.tables.items()}
        expected = next(iter(counts.values()), {})
        return [language for language, found in counts.items() if found != expected]


def find_placeholders(text: str, syntax: str = ANY) -> list[Placeholder]:
    """Find the placeholders and the markup of a text.

    Args:
        text: The text.
        syntax: One of `SYNTAXES`, which defines the placeholders of a file format or program. "any" finds the
            placeholders of all of them, except forms that also occur in plain text, such as `% d` or an underscore
            within a word.

    Returns:
        The placeholders in the order of the text. They do not overlap, and exclude white space at both ends of the
        text.

    Raises:
        ValueError: If the syntax is unknown.

    Example:
        >>> [found.text for found in find_placeholders('Open <a href="%1$S">{ $name }</a> &amp; close')]
        ['<a href="%1$S">', '{ $name }', '</a>', '&amp;']
    """
    check_choice(list(SYNTAXES), syntax=syntax)
    return _pair_tags(_only_key(_Scanner(text, syntax).scan()))


def mask_texts(texts: Mapping[str, str | None], syntax: str = ANY) -> MaskedTexts:
    """Replace the placeholders of a row of texts by mask tokens; equivalent placeholders get the same token.

    A token consists of the kind and a number. The numbers count the different placeholders of the kind, first in the
    order of the first text, then of the second text, and so on. Pass the sources in the order of the model, and in
    training the target last. A placeholder that occurs twice is replaced by its token twice. A closing tag has the
    number of its opening tag. Escape sequences of characters (kind "char"), which include line breaks, are masked only
    if all texts of the row contain the same escape sequences.

    A row is refused and stays unchanged if a text has a selector, whose variants have to be translated one by one, or
    if there are more than `LIMIT` different placeholders of one kind.

    Args:
        texts: Language -> text, where all texts have the same meaning; None = absent.
        syntax: See [`find_placeholders`].

    Returns:
        The masked texts and their tables.

    Raises:
        ValueError: If the syntax is unknown.

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
            refused = _describe_selector(placeholder)
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


def variants_refusal(text: str, syntax: str = ANY) -> str:
    """Return the reason why a text with a selector, such as a plural, cannot be translated as a whole.

    Args:
        text: The text.
        syntax: See [`find_placeholders`].

    Returns:
        The reason; "" if the text has no selector.

    Raises:
        ValueError: If the syntax is unknown.
    """
    return next((_describe_selector(one) for one in find_placeholders(text, syntax) if one.is_selector), "")


def restore_text(masked: str, table: PlaceholderTable) -> str:
    """Replace the mask tokens of a text by the original placeholders.

    Args:
        masked: The masked text, or another text with the same tokens, such as the translation. Tokens of escape
            sequences (kind "char") may be left out.
        table: The placeholder table of the masked text.

    Returns:
        The text with placeholders, byte for byte, and with the white space of the table at both ends.

    Raises:
        ValueError: If a token occurs more or less often than in the table; the message names the token.
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


def broken_placeholders(
    source: str, text: str, syntax: str = ANY, access_key: str | None = None, message_format: bool | None = None
) -> list[str]:
    """Describe the differences in placeholders and markup between a translation and its source.

    Escape sequences of characters are not compared, because a translation may write "and" for `&amp;`.

    Args:
        source: The text that was translated.
        text: The translation.
        syntax: See [`find_placeholders`].
        access_key: The access key of the translation, if it is stored separately from the text.
        message_format: Whether the translation is a pattern of `MessageFormat`, whose apostrophes must be doubled.
            None: the source decides, see [`is_message_format`].

    Returns:
        One sentence for each error; an empty list if there are no errors.

    Raises:
        ValueError: If the syntax is unknown.

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
        if not faults:
            faults += _other_backslashes(source, text)
    if message_format is None:
        message_format = is_message_format([source], syntax)
    if message_format and "'" in _apostrophes(text, found):
        faults.append("A single apostrophe must be doubled ('') in a pattern of MessageFormat, which drops it.")
    if access_key is not None and access_key.casefold() not in "".join(_plain_parts(text, found)).casefold():
        faults.append(f'The access key "{access_key}" is not in the text.')
    if _blanks(source) != _blanks(text):
        wanted, there = (" and ".join(map(repr, _blanks(one))) for one in (source, text))
        faults.append(f"The white space at the beginning and the end must be {wanted}; it is {there}.")
    return faults


def shows_message_format(texts: Iterable[str], syntax: str = ANY) -> bool | None:
    """Return whether texts show that their program reads them as patterns of Java's `MessageFormat`.

    Only texts with an argument such as `{0}` count, because programs often print the others without `MessageFormat`.

    Args:
        texts: The texts, in any languages.
        syntax: See [`find_placeholders`].

    Returns:
        False if a text has a single apostrophe that quotes no brace, or if the syntax is not one of `MESSAGE_FORMATS`.
        Otherwise, True if a text has a doubled apostrophe. None if no text has such an apostrophe.

    Raises:
        ValueError: If the syntax is unknown.

    Example:
        >>> [shows_message_format([text], "properties") for text in ("Can''t open {0}", "Can't open {0}", "Open {0}")]
        [True, False, None]
    """
    check_choice(list(SYNTAXES), syntax=syntax)
    if syntax not in MESSAGE_FORMATS:
        return False
    apostrophes: set[str] = set()
    for text in texts:
        if "'" in text and _has_argument(found := find_placeholders(text, syntax)):
            apostrophes.update(_apostrophes(text, found))
    if "'" in apostrophes:
        return False
    return True if "''" in apostrophes else None


def is_message_format(sources: Iterable[str], syntax: str = ANY, file: bool | None = None) -> bool:
    """Return whether a text is a pattern of Java's `MessageFormat`, whose apostrophes are doubled.

    Args:
        sources: The sources of the text in all languages.
        syntax: See [`find_placeholders`].
        file: What the other texts of the file show, see [`shows_message_format`].

    Returns:
        Whether a source has an argument such as `{0}`, and the sources show that they are patterns or, if they show
        nothing, the file does.

    Raises:
        ValueError: If the syntax is unknown.
    """
    sources = list(sources)
    shown = shows_message_format(sources, syntax)
    has_argument = any(_has_argument(find_placeholders(source, syntax)) for source in sources)
    return has_argument and bool(file if shown is None else shown)


def double_apostrophes(text: str, syntax: str = ANY) -> str:
    """Double the single apostrophes of a text, as patterns of Java's `MessageFormat` need it.

    Args:
        text: The text, in which placeholders may be masked.
        syntax: See [`find_placeholders`].

    Returns:
        The text. Apostrophes that are doubled already, quote a brace or belong to a placeholder do not change.

    Raises:
        ValueError: If the syntax is unknown.

    Example:
        >>> double_apostrophes("L'image '{' de l''arbre {0}")
        "L''image '{' de l''arbre {0}"
    """
    found = find_placeholders(text, syntax)
    parts = (
        APOSTROPHES.sub(lambda match: "''" if match[0] == "'" else match[0], part) for part in _plain_parts(text, found)
    )
    kept = (*map(_text_of, found), "")
    return "".join(plain + placeholder for plain, placeholder in zip(parts, kept, strict=True))


def add_mask_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Add `MASK_TOKENS` to the vocabulary of a tokenizer, which then encodes each of them as a single token.

    The mask tokens are not special tokens, so `skip_special_tokens=True` keeps them in a text. An existing model needs
    `resize_token_embeddings(len(tokenizer))`. Whether blanks next to the tokens are kept depends on the tokenizer;
    tokenizers of `train_tokenizer` with `mask_tokens=True` keep them.

    Args:
        tokenizer: The tokenizer, which is changed in place. Existing tokens are not added again.

    Returns:
        The ids of the mask tokens, in the order of `MASK_TOKENS`.
    """
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in MASK_TOKENS])
    vocabulary = tokenizer.get_vocab()
    return [vocabulary[token] for token in MASK_TOKENS]


def differing_languages(texts: Mapping[str, str | None], syntax: str = ANY) -> list[str]:
    """Find the texts of a row whose placeholders differ from those of the first text.

    Escape sequences of characters are not compared, and the number of placeholders is not limited.

    Args:
        texts: Language -> text, where all texts have the same meaning; None = absent.
        syntax: See [`find_placeholders`].

    Returns:
        The languages of the differing texts.

    Raises:
        ValueError: If the syntax is unknown.
    """
    found = {
        language: Counter((one.kind, one.key) for one in find_placeholders(text, syntax) if one.kind != CHAR)
        for language, text in texts.items()
        if text is not None
    }
    expected = next(iter(found.values()), None)
    return [language for language, counts in found.items() if counts != expected]


class _Scanner:
    """Scanner that finds the placeholders of one text.

    Args:
        text: The text.
        syntax: The syntax.
    """

    def __init__(self, text: str, syntax: str) -> None:
        self.text = text
        self.syntax = syntax
        self.taken = 0  # number of arguments that have been taken by position so far
        self.partners = _partners(text) if "brace" in SYNTAXES[syntax] else {}

    def scan(self) -> Iterator[Placeholder]:
        """Yield the placeholders, with all access keys and with tags that are not paired yet."""
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
        """Return the placeholder of a match of the syntax's pattern; None if the match is not a placeholder."""
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
        if piece in ("code", "tag"):
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
        """Return the key (argument and type) of a directive such as `%5.1f`, and the arguments that it takes."""
        match = FORMAT_PARTS.fullmatch(text)
        number, again, options, conversion = match.groups() if match else (None, None, "", text)
        if number is not None:
            return f"%{int(number)}${conversion}", ()
        if again is not None or conversion in ("m", "n"):  # no argument: errno; Java's line end
            return text, ()
        first = self.taken + 1
        self.taken += 1 + options.count("*")
        return f"%{self.taken}${conversion}", tuple(range(first, self.taken + 1))

    def read_tag(self, text: str, start: int, end: int) -> Placeholder:
        """Return the placeholder of a tag or code element, with the arguments that placeholders in it take."""
        name, _, content = _tag_parts(text)
        inner = _Scanner(text[1:], self.syntax)
        inner.taken = self.taken
        arguments = tuple(number for one in inner.scan() if one.kind != TAG for number in one.arguments)
        self.taken = inner.taken
        key = _tag_key(text) + (repr(arguments) if arguments else "")
        is_alone = content or text.endswith("/>") or name in VOID_ELEMENTS
        return Placeholder(text, CLOSE if text[1] == "/" else TAG if is_alone else OPEN, key, start, end, arguments)

    def read_braces(self, content: str, start: int, end: int) -> Placeholder | None:
        """Return the placeholder of a pair of braces; None if it is not a placeholder in the syntax."""
        text = self.text[start:end]
        syntax = ANY if self.syntax in LIKE_ANY else self.syntax.removesuffix("-format")
        selector = FLUENT_SELECTOR.match(content) if syntax in ("fluent", ANY) else None
        if selector is None and syntax != "python-brace":
            selector = SELECTOR.match(content)
        if selector is not None:
            return Placeholder(text, VALUE, f"{selector[1].rstrip()} ->", start, end, (), True)
        if syntax in ("fluent", ANY) and (match := FLUENT.fullmatch(content)):
            variable, term, call = match.groups()
            if call is not None and not term.startswith("-"):
                used = regex.search(r"\$[\w-]+", call)
                return Placeholder(text, VALUE, used[0] if used else term, start, end)
            return Placeholder(text, VALUE, variable or term, start, end)
        if syntax not in ("fluent", "python-brace") and (match := MESSAGE_FORMAT.fullmatch(content)):
            return Placeholder(text, VALUE, match[1], start, end)
        if syntax in ("python-brace", ANY) and (match := PYTHON_FORMAT.fullmatch(content)):
            if match[1]:
                return Placeholder(text, VALUE, match[1], start, end)
            self.taken += 1
            return Placeholder(text, VALUE, str(self.taken - 1), start, end, (self.taken,))
        return None


def _partners(text: str) -> dict[int, int]:
    """Map the index of each opening brace with a partner to the index after the closing brace."""
    open_braces, partners = [], {}
    for match in regex.finditer(r"[{}]", text):
        if match[0] == "{":
            open_braces.append(match.start())
        elif open_braces:
            partners[open_braces.pop()] = match.end()
    return partners


def _tag_parts(tag: str) -> tuple[str, dict[str, str], str]:
    """Return the name of a tag in lower case, its attributes, and what follows the opening tag of a code element."""
    match = TAG_PARTS.fullmatch(tag)
    name, rest, content = match.groups() if match else (tag.strip("</>"), "", "")
    parts = (ATTRIBUTE_PARTS.fullmatch(one) for one in ATTRIBUTES.findall(rest))
    return name.lower(), {part[1].lower(): part[2] or "" for part in parts if part}, content


def _tag_key(tag: str) -> str:
    """Return the key of a tag or code element, which is equal for equal attributes in any order."""
    name, attributes, content = _tag_parts(tag)
    parts = [name]
    if IDENTITY in attributes:
        parts.append(f"{IDENTITY}={attributes[IDENTITY]}")
    elif attributes:
        parts.append(repr(sorted(attributes.items())))
    return " ".join([*parts, *content.split()])


def _span_code(tag: str) -> tuple[str, bool] | None:
    """Return the span that an element of XLIFF begins or ends without containing it, and whether it ends the span.

    Returns None for other tags. Both ends of a span have the same name, which no other tag has.
    """
    name, attributes, content = _tag_parts(tag)
    if not (content or tag.endswith("/>")):
        return None
    if name in SPAN_STARTS or name in SPAN_ENDS:
        number = next((attributes[one] for one in SPAN_REFERENCES if one in attributes), None)
        return None if number is None else (f"{SPAN_ENDS.get(name, name)} {number}", name in SPAN_ENDS)
    if name == "x" and (match := ANGULAR_SPAN.fullmatch(attributes.get("id", ""))):
        return f"x {match[2]}", match[1] == "CLOSE"
    return None


def _is_whole(tag: str) -> bool:
    """Return whether a tag neither begins nor ends a span, such as `<g/>` and code elements."""
    return _span_code(tag) is None and (tag.endswith("/>") or bool(_tag_parts(tag)[2]))


def _span(tag: str) -> tuple[str, bool]:
    """Return the name of the span that a tag begins or ends, and whether it ends the span."""
    return _span_code(tag) or (_tag_parts(tag)[0], tag.startswith("</"))


def _only_key(found: Iterable[Placeholder]) -> list[Placeholder]:
    """Remove the markers of access keys if there are several, because they are plain characters in this case."""
    placeholders = list(found)
    is_plain = sum(one.kind == KEY for one in placeholders) > 1
    return [one for one in placeholders if one.kind != KEY or not is_plain]


def _pair_tags(found: Sequence[Placeholder]) -> list[Placeholder]:
    """Give closing tags the key of their opening tags, and change or remove tags without a partner.

    Elements of XLIFF that mark only one end of a span, such as `<bx/>` and `<ex/>`, become opening and closing tags if
    they have a partner. A tag without a partner gets the kind "tag". It is removed if it is plain text, as in "press
    <Enter>": it is not an HTML element and has no attributes.
    """
    opened: list[tuple[int, str]] = []  # stack of open tags: index and name
    open_names: Counter[str] = Counter()  # names on the stack, so that it is searched only if it has the name
    partners: dict[int, int] = {}
    for i, one in enumerate(found):
        span = _span(one.text) if one.kind in (OPEN, CLOSE) else _span_code(one.text) if one.kind == TAG else None
        if span is None:
            continue
        name, is_end = span
        if not is_end:
            opened.append((i, name))
            open_names[name] += 1
        elif open_names[name]:
            other = None
            while other != name:  # tags that were opened after the partner stay alone
                place, other = opened.pop()
                open_names[other] -= 1
            partners[place], partners[i] = i, place
    paired = []
    for i, one in enumerate(found):
        if i in partners:
            is_end = partners[i] < i
            paired.append(replace(one, kind=CLOSE, key=found[partners[i]].key) if is_end else replace(one, kind=OPEN))
        elif one.kind not in (OPEN, CLOSE):
            paired.append(one)
        else:
            name, attributes, _ = _tag_parts(one.text)
            if name in ELEMENTS or any(attributes.values()) or ":" in name:
                paired.append(replace(one, kind=TAG, key=f"/{name}" if one.kind == CLOSE else one.key))
    return paired


def _shared_characters(found: Iterable[Sequence[Placeholder]]) -> set[str]:
    """Return the escape sequences that occur equally often in all texts."""
    counts = [Counter(one.key for one in placeholders if one.kind == CHAR) for placeholders in found]
    return (
        {key for key, count in counts[0].items() if all(other[key] == count for other in counts)} if counts else set()
    )


def _numbered(kind: str) -> str:
    """Return the kind that numbers a placeholder: closing tags have the numbers of opening tags."""
    return OPEN if kind == CLOSE else kind


def _mask(
    text: str, found: Sequence[Placeholder], numbers: Mapping[str, Mapping[str, int]]
) -> tuple[str, PlaceholderTable]:
    """Replace the placeholders of one text."""
    core = text.strip()
    start = len(text) - len(text.lstrip())
    parts, place, chain = [], 0, []
    replaced: dict[str, list[str]] = {}
    for one in found:
        number = numbers[_numbered(one.kind)].get(one.key)
        if number is None:
            continue
        token = f"<{one.kind}{number}>"
        parts += [core[place : one.start], token]
        place = one.end
        replaced.setdefault(token, []).append(one.text)
        if one.arguments:
            chain.append(token)
    masked = "".join([*parts, core[place:]])
    originals = {token: tuple(written) for token, written in replaced.items()}
    return masked, PlaceholderTable(originals, text[:start], text[start + len(core) :], tuple(chain))


def _missing_or_additional(expected: Sequence[Placeholder], found: Sequence[Placeholder]) -> Iterator[str]:
    """Compare how often each placeholder occurs."""

    def count(placeholders: Sequence[Placeholder], written: Callable[[Placeholder], str]) -> Counter[tuple[str, str]]:
        kept = [one for one in placeholders if one.kind != CHAR]
        return Counter((TAG if one.kind in (OPEN, CLOSE) else one.kind, written(one)) for one in kept)

    def key(one: Placeholder) -> str:
        is_end = one.kind in (OPEN, CLOSE, TAG) and _span(one.text)[1]
        return f"/{_tag_key(one.text)}" if is_end else one.key

    if count(expected, _text_of) == count(found, _text_of):  # the placeholders are equal except for their order
        return
    wanted, there = count(expected, key), count(found, key)
    shown = {(TAG if one.kind in (OPEN, CLOSE) else one.kind, key(one)): one.text for one in (*found, *expected)}
    for identity in dict.fromkeys([*wanted, *there]):
        name, number, needed = _short(shown[identity]), there[identity], wanted[identity]
        if identity[0] == KEY:
            name = f'the marker "{name}" of the access key'
        yield from _other_number(_capital(name), number, needed)


def _other_number(name: str, number: int, needed: int) -> Iterator[str]:
    """Describe the fault that something occurs more or less often than it must."""
    if number and needed and number != needed:
        yield f"{name} occurs {_times(number)}, but must occur {_times(needed)}."
    elif number < needed:
        yield f"{name} is missing."
    elif number > needed:
        yield f"{name} is not in the source."


def _other_backslashes(source: str, text: str) -> Iterator[str]:
    """Compare how often a backslash stands before a brace, which it makes a plain character in some formats."""
    for pair in (r"\{", r"\}"):
        yield from _other_number(pair, text.count(pair), source.count(pair))


def _describe_selector(placeholder: Placeholder) -> str:
    return f"{_short(placeholder.text)} contains a plural or a choice, whose variants must be translated separately"


def _text_of(placeholder: Placeholder) -> str:
    return placeholder.text


def _wrong_order(expected: Sequence[Placeholder], found: Sequence[Placeholder]) -> Iterator[str]:
    """Compare the order of placeholders that take their arguments by position."""
    wanted, there = ([one.text for one in placeholders if one.arguments] for placeholders in (expected, found))
    if sorted(wanted) == sorted(there) and wanted != there:
        listed, needed = (", ".join(map(_short, texts)) for texts in (there, wanted))
        yield f"The order of {listed} must be that of the source: {needed}."


def _broken_tags(expected: Sequence[Placeholder], found: Sequence[Placeholder]) -> Iterator[str]:
    """Find tags without a partner whose element has a partner in the source.

    As many equal tags as stand alone in the source may stand alone in the translation.
    """
    names = {_span(one.text)[0] for one in expected if one.kind == OPEN}
    allowed = Counter(one.key for one in expected if one.kind == TAG)
    alone = []
    for one in found:
        if one.kind == TAG and not _is_whole(one.text) and (span := _span(one.text))[0] in names:
            if not allowed[one.key]:
                alone.append((one.text, *span))
            allowed[one.key] -= allowed[one.key] > 0
    last_openings = {name: i for i, (_, name, is_end) in enumerate(alone) if not is_end}
    closed = set()
    for i, (tag, name, is_end) in enumerate(alone):
        if not is_end:
            if name not in closed:
                yield f"{_short(tag)} is not closed."
            continue
        closed.add(name)
        if last_openings.get(name, -1) > i:
            yield f"{_short(tag)} stands before its opening tag."
        else:
            yield f"{_short(tag)} has no opening tag."


def _plain_parts(text: str, found: Sequence[Placeholder]) -> Iterator[str]:
    """Yield the parts of a text between its placeholders."""
    place = 0
    for one in found:
        yield text[place : one.start]
        place = one.end
    yield text[place:]


def _has_argument(found: Iterable[Placeholder]) -> bool:
    """Return whether one of the placeholders is an argument of `MessageFormat`, such as `{0}`."""
    return any(MESSAGE_FORMAT_ARGUMENT.match(one.text) for one in found)


def _apostrophes(text: str, found: Sequence[Placeholder]) -> list[str]:
    """Return the single and doubled apostrophes and the quoted braces in the plain parts of a text."""
    return APOSTROPHES.findall("\0".join(_plain_parts(text, found)))


def _loose(text: str, found: Sequence[Placeholder]) -> tuple[int, int]:
    """Count the opening and the closing braces without a partner in the plain parts of a text."""
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
    """Return the white space at the beginning and at the end of a text."""
    core = text.strip()
    start = len(text) - len(text.lstrip())
    return text[:start], text[start + len(core) :]


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:] if sentence.startswith("the ") else sentence


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
