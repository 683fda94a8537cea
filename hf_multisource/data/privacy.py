"""Mask secrets and shorten local paths in texts and settings that are recorded or published.

A secret is recognized by its key, such as `hub_token`, or by its form, such as `hf_` followed by letters and digits. A
local path is an absolute path in one of the usual places (`/home`, `/tmp`, `C:\\...`), in the current user's home, in
the working directory or in the folder of temporary files.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

MASK = "***"
INSTEAD = "log in with `hf auth login`, or give it in the environment (HF_TOKEN)"
# Words that mark a key as secret. The word "token" marks a key only if it is the whole key, because `pad_token` and
# `null_token` are not secret.
_KEY = (
    r"(?:password|passwd|passphrase|credentials?|client[-_]?secret|secret(?:[-_]?key)?|api[-_]?key"
    r"|access[-_]?key(?:[-_]?id)?|private[-_]?key"
    r"|(?:hub|hf|auth|access|api|github|gh|gitlab|wandb|refresh|session|bearer|security)[-_]?token)"
)
_SECRET_KEY = re.compile(rf"(?:.*[-_])?{_KEY}|token", re.IGNORECASE)
_KEY_IN_TEXT = rf"(?:(?<![A-Za-z0-9]){_KEY}|(?<![\w-])(?:--)?token)"
# Kind of secret, strings of which a text with such a secret contains at least one, and the pattern of the secret.
SECRETS: tuple[tuple[str, tuple[str, ...], re.Pattern[str]], ...] = (
    (
        "a Hugging Face token",
        ("hf_", "api_org_"),
        re.compile(r"(?<![A-Za-z0-9])(?:hf|api_org)_(?P<secret>[A-Za-z0-9]{20,})"),
    ),
    (
        "a GitHub token",
        ("gh", "github_pat_"),
        re.compile(r"(?<![A-Za-z0-9])(?:gh[pousr]|github_pat)_(?P<secret>[A-Za-z0-9_]{20,})"),
    ),
    ("a GitLab token", ("glpat-",), re.compile(r"glpat-(?P<secret>[\w-]{20,})")),
    ("an AWS key", ("AKIA", "ASIA"), re.compile(r"(?<![A-Za-z0-9])(?:AKIA|ASIA)(?P<secret>[A-Z0-9]{16})(?![A-Z0-9])")),
    (
        "an API key",  # "sk-" is also Slovak in data set names, which do not contain both digits and capitals
        ("sk-",),
        re.compile(r"(?<![\w-])sk-(?P<secret>(?=[\w-]{0,200}\d)(?=[\w-]{0,200}[A-Z])[\w-]{20,})"),
    ),
    ("a Slack token", ("xox",), re.compile(r"(?<![A-Za-z0-9])xox[abprs]-(?P<secret>[\w-]{10,})")),
    ("a Google API key", ("AIza",), re.compile(r"(?<![A-Za-z0-9])AIza(?P<secret>[\w-]{35})")),
    (
        "a bearer token",
        ("earer", "EARER"),
        re.compile(r"\bbearer\s+(?P<secret>(?=[\w.~+/-]{0,200}\d)[\w.~+/-]{16,}=*)", re.IGNORECASE),
    ),
    ("a password in a URL", ("://",), re.compile(r"://(?P<secret>[^\s/@'\"<>]{0,256}:[^\s/@'\"<>]{1,256})@")),
    (
        "a Weights & Biases key",
        ("wandb", "WANDB", "Wandb", "W&B"),
        re.compile(r"(?:wandb|W&B)[^\n]{0,60}?\b(?P<secret>[0-9a-f]{40})\b", re.IGNORECASE),
    ),
    ("a private key", ("PRIVATE KEY",), re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?P<secret>[^-]*)")),
    (
        "the value of a secret key",
        (),
        re.compile(
            rf"{_KEY_IN_TEXT}(?:[\"']?\s{{0,4}}[=:]\s{{0,4}}|\s{{1,4}}(?=['\"\w]))"
            r"(?:(?P<quote>[\"'])(?P<secret>[^\"'\s]{6,512})(?P=quote)"
            r"|(?P<plain>(?=[\w.~+/=-]{0,200}\d)(?=[\w.~+/=-]{0,200}[A-Za-z])[\w.~+/=-]{8,}))",
            re.IGNORECASE,
        ),
    ),
)
# Root folders in which users keep their data; paths in them may reveal names of users and projects.
_ROOTS = (
    r"(?:home|Users|root|tmp|var/tmp|var/folders|private|mnt|media|scratch|work|workspace|data|srv|Volumes|kaggle"
    r"|gpfs|lustre|nfs)"
)
_NAME = r"[^\s\"'`<>|,;:()\[\]{}*?\\]"  # a character of a path in running text
# The rest of a path in running text. A blank belongs to the path if exactly one word is between it and the next slash:
# "/home/jane doe/x" is one path, "/home/jane/x and then a/b" is not.
_REST = rf"{_NAME}+(?:(?<![./]) \w[\w.-]*/{_NAME}*)*"
_POSIX = re.compile(
    rf"(?:(?<![\w.~/\\)\]-])(?<!\b[A-Za-z]:)|(?<=file://))/{_ROOTS}/{_REST}|(?<![\w.~/-])(?:\.\./)+(?:home|Users)/{_REST}"
)
_WINDOWS = re.compile(
    r"(?<![A-Za-z0-9\\])[A-Za-z]:(?:\\{1,2}(?:[\w.$~-][\w .$~-]{0,63}\\{1,2}){1,32}[\w.$~-]+"
    r"|/(?:Users|home|data|temp|tmp|work)/[\w./$~-]+)"
)
_WINDOWS_PATH = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_WINDOWS_COMMAND = re.compile(r"(?<!\w)[A-Za-z]:\\|(?<![^\s\"'=])\\\\\w")  # contains C:\... or \\server\...
COMPONENTS = 2  # number of last components that are kept of a path outside the working directory and the home


def is_secret_key(key: str) -> bool:
    """Return whether a key is that of a secret.

    Args:
        key: The key, such as "hub_token", "training.hub_token" or "HF_TOKEN".

    Returns:
        True for keys of tokens, passwords and API keys; False for `pad_token` and other tokens of a tokenizer.
    """
    return _SECRET_KEY.fullmatch(key.rpartition(".")[2]) is not None


def refuse_secret_key(key: str) -> None:
    """Raise ValueError for a key of a recipe that is that of a secret.

    Args:
        key: The key.

    Raises:
        ValueError: If the key is secret; the message explains where to put secrets.
    """
    if is_secret_key(key):
        raise ValueError(f"{key!r} is a secret, and recipes are saved and published: {INSTEAD}")


def refuse_secrets(value: object, place: str = "") -> None:
    """Raise ValueError for secrets at any depth of a recipe.

    Args:
        value: The sections of the recipe, or a part of them.
        place: Place of the part in the recipe for error messages, such as "model.sources[0]".

    Raises:
        ValueError: If a key is secret, or a text has the form of a secret; the message names the place and never
            repeats the secret.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            inner = mask_secrets(f"{place}.{key}" if place else str(key))
            if is_secret_key(str(key)):
                refuse_secret_key(inner)
            refuse_secrets(str(key), place)
            refuse_secrets(item, inner)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            refuse_secrets(item, f"{place}[{i}]")
    elif isinstance(value, str):
        for _, what in find_secrets(value):
            raise ValueError(f"{place} holds {what}, and recipes are saved and published: {INSTEAD}")


def _spans(text: str) -> Iterator[tuple[int, int, int, int, str]]:
    """Yield start and end of each match, start and end of the secret in the match, and the kind of the secret."""
    for kind, marks, pattern in SECRETS:
        if not marks or any(mark in text for mark in marks):
            for match in pattern.finditer(text):
                group = "plain" if "plain" in pattern.groupindex and match["plain"] is not None else "secret"
                yield *match.span(), *match.span(group), kind


def find_secrets(text: str) -> Iterator[tuple[int, str]]:
    """Find texts that have the form of a secret.

    Args:
        text: Any text.

    Yields:
        Position and description of each secret, such as "a Hugging Face token (hf_***)".
    """
    for start, end, first, last, kind in _spans(text):
        shown = text[start:first] + MASK + text[last:end]
        yield start, f"{kind} ({' '.join(shown.split())})"


def mask_secrets(text: str) -> str:
    """Mask every text that has the form of a secret.

    Args:
        text: Any text.

    Returns:
        The text with `***` in place of each secret.
    """
    masked, end = [], 0
    for first, last in sorted({(first, last) for _, _, first, last, _ in _spans(text)}):
        if first >= end:
            masked += [text[end:first], MASK]
        end = max(end, last)
    return "".join([*masked, text[end:]])


def mask_words(words: Sequence[str]) -> list[str]:
    """Mask the secrets of a command line.

    Args:
        words: The words of the command line.

    Returns:
        The words, with `***` in place of the values of secret keys (`--key value`, `--key=value`, `KEY=value`) and of
        texts that have the form of a secret.
    """
    masked = []
    hidden = False  # whether the next words are values of a secret option
    for word in words:
        key, equals, value = word.partition("=")
        secret = is_secret_key(key.lstrip("-"))
        if word.startswith("--"):
            hidden = secret and not equals
        if secret and value:
            masked.append(f"{key}={MASK}")
        else:
            masked.append(MASK if hidden and not word.startswith("--") else mask_secrets(word))
    return masked


def _local_paths(text: str, folders: Sequence[str]) -> Iterator[re.Match[str]]:
    yield from _POSIX.finditer(text)
    if ":\\" in text or ":/" in text:
        yield from _WINDOWS.finditer(text)
    for folder in {str(Path.home()), os.getcwd(), tempfile.gettempdir(), *folders}:
        if len(folder) > 1 and folder in text:
            yield from re.finditer(rf"(?<![\w.~-]){re.escape(folder)}(?![\w-]){_NAME}*", text)


def find_local_paths(text: str, *folders: str) -> Iterator[tuple[int, str]]:
    """Find local paths in a text.

    Args:
        text: Any text.
        *folders: Folders whose paths are local in addition to the usual places.

    Yields:
        Position and text of each path.
    """
    found: dict[int, str] = {}
    for match in _local_paths(text, folders):
        path = match.group().rstrip(".")  # the end of a sentence
        found[match.start()] = max(found.get(match.start(), ""), path, key=len)
    yield from sorted(found.items())


def shorten_path(path: str) -> str:
    """Shorten an absolute path so that it does not reveal local folders.

    Args:
        path: A path, absolute or not, POSIX or Windows.

    Returns:
        The path relative to the working directory, or with `~` for the home, or else its last two components. A
        relative path is returned unchanged.
    """
    if _WINDOWS_PATH.match(path):
        windows = PureWindowsPath(path)
        names = [name for name in windows.parts[1:] if name]
        names = names[2:] if names[:1] == ["Users"] else names
        return "/".join(names[-COMPONENTS:]) or "."
    pure = PurePosixPath(path)
    if not pure.is_absolute() or len(pure.parts) < 2:
        return path
    for folder, start in ((os.getcwd(), ""), (str(Path.home()), "~/")):
        if folder != "/" and pure.is_relative_to(folder):
            rest = pure.relative_to(folder).as_posix()
            return (start + rest).removesuffix("/.")
    names = list(pure.parts[1:])
    names = names[2:] if names[0] in ("home", "Users") else names
    return "/".join(names[-COMPONENTS:]) or "."


def shorten_paths(text: str) -> str:
    """Shorten the absolute paths in a text, which may itself be an absolute path.

    Args:
        text: Any text.

    Returns:
        The text without local paths.
    """
    several = re.search(r"[\s,;:=]/", text[2:])  # several paths, as in en=/one/place,de=/another/place; not C:/one
    whole = (text.startswith("/") or _WINDOWS_PATH.match(text)) and "\n" not in text and not several
    if whole:
        return shorten_path(text)
    for start, path in sorted(find_local_paths(text), reverse=True):
        short = path.lstrip("./") if path.startswith("../") else path
        short = shorten_path(f"/{short}" if short != path else path)
        text = text[:start] + short + text[start + len(path) :]
    return text


def publishable_command(command: str) -> str:
    """Return a recorded command line without secrets and local paths.

    Args:
        command: A command line.

    Returns:
        The command line with secrets masked and absolute paths shortened.
    """
    try:
        words = split_command(command)
    except ValueError:  # unclosed quotes: not a valid command line
        return shorten_paths(mask_secrets(command))
    if all(word == same for word, same in zip(words, publishable_words(words), strict=True)):
        return command
    return shlex.join(publishable_words(words))


def split_command(command: str) -> list[str]:
    """Split a recorded command line into words, as `shlex.split` does, but keep the backslashes of Windows paths.

    Args:
        command: A command line.

    Returns:
        The words.

    Raises:
        ValueError: If a quotation mark is not closed.
    """
    lexer = shlex.shlex(command, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""  # as shlex.split does
    if _WINDOWS_COMMAND.search(command):
        lexer.escape = ""  # backslashes separate the folders of paths, and escape nothing
    return list(lexer)


def publishable_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command line without secrets and local paths.

    Args:
        words: The words.

    Returns:
        The words with secrets masked and absolute paths shortened.
    """
    short = []
    for word in mask_words(words):
        key, equals, value = word.partition("=")
        option = equals and re.fullmatch(r"-{0,2}[A-Za-z][\w.-]*", key)
        short.append(f"{key}={shorten_paths(value)}" if option else shorten_paths(word))
    return short


def publishable(value: Any) -> Any:
    """Return settings without secrets and local paths.

    Args:
        value: Texts, numbers, and lists and mappings of them.

    Returns:
        The settings with masked secrets (values of secret keys, and texts that have the form of a secret) and with
        shortened absolute paths.
    """
    if isinstance(value, Mapping):
        return {
            publishable(key): MASK if is_secret_key(str(key)) and item not in (None, False, True) else publishable(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [publishable(item) for item in value]
    return shorten_paths(mask_secrets(value)) if isinstance(value, str) else value
