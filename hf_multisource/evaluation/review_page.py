"""Make an HTML page for reviewing filled catalogues, a single self-contained file with only inline scripts."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from hf_multisource.data.translation_memory import Hint, TranslationMemory
from hf_multisource.evaluation.localization_answers import ACCESS_KEY
from hf_multisource.json_files import JsonObject

Place = tuple[str, str, str]  # file, key and part of a text

GENERATOR = '<meta name="generator" content="hf-multisource localize">'  # tag by which review pages are recognized
HEAD = 4096  # number of bytes at the start of a file in which the tag is searched
# Directives of the content security policy that default-src does not cover.
NO_MORE = "base-uri 'none'; form-action 'none'"

STYLE = """
:root { color-scheme: light dark; --line: #8886; --soft: #8881; --accent: #06c; --bad: #b00020; --good: #17663a; }
@media (prefers-color-scheme: dark) { :root { --accent: #6ab7ff; --bad: #ff8a80; --good: #7fd6a4; } }
* { box-sizing: border-box; }
body { font: 1rem/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 75rem; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1rem; margin: 0; overflow-wrap: anywhere; }
form { position: sticky; top: 0; z-index: 1; display: flex; flex-wrap: wrap; gap: .5rem 1rem; padding: .5rem 0;
  background: Canvas; border-bottom: 1px solid var(--line); }
label { white-space: nowrap; } input[type=search] { font: inherit; min-width: 12rem; }
article { border: 1px solid var(--line); border-radius: .5rem; margin: 1rem 0; padding: .75rem;
  scroll-margin-top: 6rem; }
article:focus-within, article:target { border-color: var(--accent); }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
[hidden] { display: none; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .25rem 1rem; margin: .5rem 0 0; }
dt { font-weight: 600; } dd { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.text { background: var(--soft); border-radius: .25rem; padding: 0 .4rem; }
.proposal { border-inline-start: .25rem solid var(--accent); font-size: 1.1rem; }
.refused .reason { color: var(--bad); } .state { color: var(--good); } .refused .state { color: var(--bad); }
.file { opacity: .8; font-size: .875rem; overflow-wrap: anywhere; }
@media (max-width: 40rem) { dl { grid-template-columns: minmax(0, 1fr); gap: 0; } dd { margin-bottom: .5rem; } }
@media print { form { display: none; } article { break-inside: avoid; } }
"""
SCRIPT = """
"use strict";
const form = document.querySelector("form"), items = [...document.querySelectorAll("article")];
const shown = document.getElementById("shown");
function filter() {
  const states = new Set([...form.querySelectorAll("input[type=checkbox]:checked")].map((box) => box.value));
  const most = Number(form.elements.most.value || 100) / 100, words = form.elements.words.value.toLowerCase();
  let count = 0;
  for (const item of items) {
    const unsure = Number(item.dataset.confidence ?? 0) <= most;
    item.hidden = !(states.has(item.dataset.state) && unsure && item.textContent.toLowerCase().includes(words));
    count += !item.hidden;
  }
  shown.textContent = `${count} of ${items.length} texts`;
}
form.hidden = false;
form.addEventListener("input", filter);
form.addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("keydown", (event) => {
  if (event.target.closest("input") || event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.key !== "j" && event.key !== "k") return;
  const visible = items.filter((item) => !item.hidden), at = visible.indexOf(document.activeElement);
  const next = visible[event.key === "j" ? at + 1 : Math.max(at - 1, 0)];
  if (next) next.focus();
});
filter();
"""


def find_hints(record: JsonObject, memory: TranslationMemory) -> dict[Place, Hint]:
    """Find translations of similar texts as hints for the texts that the memory did not answer.

    Args:
        record: The content of `OUT.json`.
        memory: The memory.

    Returns:
        Place -> hint, for the texts that have a hint.

    Raises:
        ImportError: If the package rapidfuzz is not installed.
    """
    found: dict[tuple[tuple[str, str], ...], Hint | None] = {}
    hints = {}
    for text in record["texts"]:
        if not text["memory"][1] and text["sources"] and text["origin"] != ACCESS_KEY:
            sources = tuple(text["sources"].items())
            if sources not in found:
                found[sources] = memory.similar(text["sources"])
            if hint := found[sources]:
                hints[text["file"], text["key"], text["part"]] = hint
    return hints


def is_review_page(path: Path) -> bool:
    """Return whether a file is a page that `review_page` made.

    Args:
        path: The file.

    Returns:
        True if it is.
    """
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return GENERATOR.encode() in file.read(HEAD)


def review_page(record: JsonObject, hints: Mapping[Place, Hint]) -> str:
    """Render the review page with all texts that were filled or refused.

    All content of catalogues is escaped. The content security policy of the page allows only its own style and script,
    which are identified by their digests.

    Args:
        record: The content of `OUT.json`.
        hints: Translations of similar texts.

    Returns:
        The page.
    """
    texts: Sequence[JsonObject] = record["texts"]
    target = str(record["settings"]["target"])
    states = Counter(_state(text) for text in texts)
    boxes = "\n".join(
        f'<label><input type="checkbox" value="{escape(state)}" checked> {escape(state)} ({count})</label>'
        for state, count in states.items()
    )
    known = any(text["confidence"] is not None for text in texts)
    policy = f"default-src 'none'; style-src {_digest(STYLE)}; script-src {_digest(SCRIPT)}; {NO_MORE}"
    articles = "\n".join(
        _article(number, text, target, hints.get((text["file"], text["key"], text["part"])))
        for number, text in enumerate(texts, 1)
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{GENERATOR}
<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Review of {escape(target)}: {len(texts)} texts</title>
<style>{STYLE}</style>
</head>
<body>
<h1>Review of {escape(target)}</h1>
<p>{len(texts)} texts were missing. The keys <kbd>j</kbd> and <kbd>k</kbd> go to the next and to the previous text.</p>
<form hidden aria-label="Filter">
{boxes}
<label{"" if known else " hidden"}>Confidence at most
<input type="number" name="most" min="0" max="100" value="100"> %</label>
<label>Contains <input type="search" name="words"></label>
<output id="shown"></output>
</form>
<main>
{articles}
</main>
<script>{SCRIPT}</script>
</body>
</html>
"""


def _digest(content: str) -> str:
    """Return the source expression with which a content security policy allows a style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _state(text: JsonObject) -> str:
    """Return the state of a text in one word: its origin, or "refused"."""
    return "refused" if text["reason"] else str(text["origin"])


def _article(number: int, text: JsonObject, target: str, hint: Hint | None) -> str:
    """Render one text with its sources, the proposed translation and the facts about it."""
    state, confidence = _state(text), text["confidence"]
    rows = [(name, _text(source, name)) for name, source in text["sources"].items()]
    if text["text"]:
        rows.append((target, _text(text["text"], target, "proposal")))
    rows += [("or", _text(other, target)) for other in text["others"]]
    if confidence is not None:
        rows.append(("confidence", f"{confidence:.0%}"))
    times, total = text["memory"]
    if total:
        rows.append(("memory", f"{times} of {total} entries with these sources have this translation"))
    if hint is not None:
        similar = f"{hint.similarity:.0%} like {_text(hint.source, hint.language)}: {_text(hint.text, target)}"
        rows.append(("similar", similar))
    if text["reason"]:
        rows.append(("refused", f'<span class="reason" dir="auto">{escape(text["reason"])}</span>'))
    cells = "\n".join(f"<dt>{escape(name)}</dt><dd>{value}</dd>" for name, value in rows)
    known = "" if confidence is None else f' data-confidence="{confidence:.4f}"'
    key = escape(f"{text['key']}{text['part']}".replace("\x04", " | "))
    return f"""<article id="t{number}" tabindex="-1" class="{"refused" if text["reason"] else "filled"}" \
data-state="{escape(state)}"{known} aria-labelledby="k{number}">
<h2 id="k{number}"><bdi>{key}</bdi> <span class="state">{escape(state)}</span></h2>
<div class="file"><bdi>{escape(text["file"])}</bdi></div>
<dl>
{cells}
</dl>
</article>"""


def _text(text: str, language: str, kind: str = "") -> str:
    """Render a text in a language; the browser derives the writing direction from its letters."""
    return f'<bdi class="text {kind}" dir="auto" lang="{escape(language)}">{escape(text)}</bdi>'


__all__ = ["find_hints", "is_review_page", "review_page"]
