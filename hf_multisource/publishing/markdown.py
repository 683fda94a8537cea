"""Escape arbitrary text for Markdown, so that it is displayed literally and cannot end a code block."""

from __future__ import annotations

import re
from urllib.parse import quote

# URLs are not escaped, so that they stay links. None of these characters begins markup within a URL.
URL = re.compile(r"https?://[A-Za-z0-9\-._~:/?#@!$&+,;=%]+")
# Characters that begin markup or HTML anywhere. Underscores do so only at the edge of a word.
MARKUP = re.compile(r"[\\`*\[\]<>|~$]|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;)")
# Line beginnings of headings, quotations, list items, rules and underlines of headings.
LINE_START = re.compile(r"^(\d{1,9})(?=[.)](?:\s|$))|^(?=[#+\-=])")


def one_line(text: object) -> str:
    """Return a text in one line.

    Args:
        text: Any text.

    Returns:
        The words of the text with single blanks between them.
    """
    return " ".join(str(text).split())


def escape(text: object) -> str:
    """Escape a text for a line of Markdown.

    Args:
        text: Any text.

    Returns:
        One line that Markdown displays as the text; URLs stay links.
    """
    line, escaped, end = one_line(text), "", 0
    for address in URL.finditer(line):
        escaped += MARKUP.sub(_escape_character, line[end : address.start()]) + address.group()
        end = address.end()
    escaped += MARKUP.sub(_escape_character, line[end:])
    return LINE_START.sub(r"\1\\", escaped)


def _escape_character(match: re.Match[str]) -> str:
    entities = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
    return entities.get(match.group(), f"\\{match.group()}")


def code_span(text: object) -> str:
    """Return a text as inline code.

    Args:
        text: Any text.

    Returns:
        The text in one line, between more backticks than the longest run of backticks in it.
    """
    line = one_line(text)
    ticks = "`" * (_longest_run(line, shortest=0) + 1)
    edge = " " if line.startswith("`") or line.endswith("`") or not line else ""
    return f"{ticks}{edge}{line}{edge}{ticks}"


def code_block(text: str, language: str) -> str:
    """Return a text as a code block.

    Args:
        text: Lines of any text.
        language: The language, such as "yaml".

    Returns:
        The text between fences that are longer than any run of backticks in it.
    """
    fence = "`" * (_longest_run(text, shortest=2) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _longest_run(text: str, shortest: int) -> int:
    return max([shortest, *map(len, re.findall("`+", text))])


def comment(text: object) -> str:
    """Return a text for the inside of an HTML comment.

    Args:
        text: Any text.

    Returns:
        The text in one line, which cannot end the comment.
    """
    return one_line(text).replace(">", "&gt;")


def cell(text: str) -> str:
    """Return Markdown for a cell of a table.

    Args:
        text: One line of Markdown.

    Returns:
        The line with its vertical bars escaped; bars that are escaped already stay.
    """
    return re.sub(r"(?<!\\)\|", r"\\|", text)


def link_target(path: str) -> str:
    """Return a path as the target of a link.

    Args:
        path: A relative path.

    Returns:
        The path with all characters quoted that could end the link.
    """
    return quote(path, safe="/")
