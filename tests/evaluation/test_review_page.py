"""The page for reviewers: self-contained, and safe whatever the catalogues hold."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

from hf_multisource.data.translation_memory import Hint, TranslationMemory
from hf_multisource.evaluation.review_page import find_hints, review_page
from hf_multisource.json_files import JsonObject

HOSTILE = [
    "</script><script>alert(1)</script>",
    '"><img src=x onerror="alert(1)">',
    "' onfocus='alert(1)' autofocus='",
    "<!-- <style>*{display:none}</style>",
    "&lt;b&gt; &amp; &#60;",
    "javascript:alert(1) {{7*7}} ${7*7} %s",
    "שלום <bdo dir=rtl>\u202eevil",
    "]]></title></style><h1>x",
]
TAGS = "html head meta title style body h1 p kbd form label input output main article h2 bdi span div dl dt dd script"


class Page(HTMLParser):
    """The tags, attributes and text of a page, and the content of each kind of element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.inside, []).append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


def record_of(*texts: JsonObject) -> JsonObject:
    whole = {"file": "a.ftl", "key": "open", "part": "", "sources": {"en": "Open"}, "state": "filled", "text": "Wócyń"}
    rest = {"origin": "model", "confidence": None, "reason": "", "memory": [0, 0], "others": []}
    return {"settings": {"target": "dsb"}, "texts": [{**whole, **rest, **text} for text in texts]}


def test_nothing_of_the_catalogues_becomes_markup() -> None:
    for evil in HOSTILE:
        text = {"file": evil, "key": evil, "part": evil, "sources": {evil: evil}, "text": evil, "origin": evil}
        record = record_of({**text, "reason": evil, "others": [evil], "memory": [1, 1]})
        record["settings"]["target"] = evil
        markup = review_page(record, {(evil, evil, evil): Hint(evil, evil, evil, 0.8)})
        page, plain = Page(markup), Page(review_page(record_of({**text, **dict.fromkeys(("file", "key"), "x")}), {}))
        assert {tag for tag, _ in page.tags} <= set(TAGS.split())
        attributes = {name for _, found in page.tags for name in found}
        assert not {name for name in attributes if name.startswith("on") or name in ("src", "href", "style")}
        assert page.texts["bdi"].count(evil) >= 5
        assert page.texts["script"] == plain.texts["script"]
        assert page.texts["style"] == plain.texts["style"]


def test_the_policy_allows_the_style_and_the_script_of_the_page_and_nothing_else() -> None:
    page = Page(review_page(record_of({}, {"confidence": 0.5}), {}))
    policy = next(found["content"] for tag, found in page.tags if found.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    for kind in ("style", "script"):
        (content,) = page.texts[kind]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
        assert not re.search(r"https?:|//|url\(|@import|innerHTML|eval", content)
    assert policy.startswith("default-src 'none'; ")


def test_a_text_shows_its_sources_what_is_proposed_and_why_it_is_refused() -> None:
    texts: list[JsonObject] = [
        {"sources": {"en": "Open", "he": "פתח"}, "confidence": 0.834, "others": ["Wócyniś"]},
        {"key": "save", "origin": "memory", "memory": [2, 3]},
        {"key": "x\x04quit", "part": "[few]", "text": "", "reason": "%S is missing.", "state": "refused"},
    ]
    markup = review_page(record_of(*texts), {("a.ftl", "open", ""): Hint("en", "Opens", "Wócynja", 0.889)})
    page = Page(markup)
    articles = [found for tag, found in page.tags if tag == "article"]
    assert [one["data-state"] for one in articles] == ["model", "memory", "refused"]
    assert [one.get("data-confidence") for one in articles] == ["0.8340", None, None]
    assert all(found["dir"] == "auto" for tag, found in page.tags if "text" in str(found.get("class", "")).split())
    assert '<bdi class="text " dir="auto" lang="he">פתח</bdi>' in markup
    assert "<dt>confidence</dt><dd>83%</dd>" in markup
    assert "2 of 3 entries with these sources have this translation" in markup
    assert "89% like" in markup
    assert "x | quit[few]" in page.texts["bdi"]
    assert "%S is missing." in page.texts["span"]
    boxes = [found["value"] for tag, found in page.tags if tag == "input" and found["type"] == "checkbox"]
    assert boxes == ["model", "memory", "refused"]


def test_hints_are_looked_for_where_the_memory_has_no_answer() -> None:
    memory = TranslationMemory()
    memory.add({"en": "Open a file"}, "Dataju wócyniś")
    texts: list[JsonObject] = [
        {"key": "a", "sources": {"en": "Open the file"}},
        {"key": "b", "sources": {"en": "Open a file"}, "memory": [1, 1]},
        {"key": "c", "sources": {"en": "Quit"}},
        {"key": "d", "sources": {}},
    ]
    hints = find_hints(record_of(*texts), memory)
    assert {key: hint.text for (_, key, _), hint in hints.items()} == {"a": "Dataju wócyniś"}
