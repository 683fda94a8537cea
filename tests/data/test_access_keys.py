"""Keyboard shortcuts and sizes in CSS, which are not translated."""

from __future__ import annotations

import pytest

from cpu_time import cpu_seconds
from hf_multisource.data.access_keys import is_fixed


@pytest.mark.parametrize(
    ("key", "part", "text", "fixed"),
    [
        ("save-shortcut", ".key", "S", True),
        ("save-shortcut", ".key[macos]", "S", True),
        ("save.commandkey", "", "s", True),
        ("saveCommandKey", "", "s", True),
        ("save.mnemonic", "", "S", False),  # an access key
        ("save.mnemonic", "", "83", True),  # the code of a key
        ("CTL_SaveMnemonic", "", " 83", True),
        ("mnemonic.words", "", "24", False),
        ("save.accesskey", "", "83", True),
        ("save-shortcut", "", "S", True),
        ("save.key", "", "Save", False),  # several characters
        ("registry.key", "", "鍵", False),
        ("save.label", "", "S", False),
        ("save-shortcut", ".label", "S", False),  # the attribute counts
        ("monkey", "", "S", False),
        ("zoom", ".keycode", "VK_F11", True),
        ("zoom", "", "VK_F11 is a key", False),
        ("dialog", ".style", "width: 32em; min-height: 20.5em", True),
        ("dialog", ".style", "width:32em;height:20px;", True),
        ("dialog", ".style", "width: 32em; color: red", False),
        ("dialog.width", "", " 30em ", True),
        ("dialog.width", "", ".5rem", True),
        ("size", "", "30 items", False),
        ("size", "", "width: large", False),
        ("size", "", "", False),
    ],
)
def test_shortcuts_and_sizes_are_fixed(key: str, part: str, text: str, fixed: bool) -> None:
    assert is_fixed(key, part, text) == fixed


@pytest.mark.parametrize("piece", ["width: ", "width-", "width:3em;", "3", "a-", "VK_", "width:3em; "])
def test_a_long_text_is_quickly_known_not_to_be_a_size(piece: str) -> None:
    assert not is_fixed("a.style", "", piece * 5000 + "!")
    assert cpu_seconds(lambda: is_fixed("a.style", "", piece * 5000 + "!"), 0.8) < 0.8
