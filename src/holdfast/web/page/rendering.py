"""Owns how things look on the page: templates, and agents' texts as HTML that cannot do anything.

Everything that a template prints passes ``_shown``: characters that move, hide or reorder text are written out, and
HTML is escaped. Only what this module made itself is exempt.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import nh3
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.token import STANDARD_TYPES
from pygments.util import ClassNotFound

from holdfast.clock import Instant, age, duration, seconds_between, to_datetime, to_iso
from holdfast.domain.records import record
from holdfast.domain.telling.tool_calls import ToolCall
from holdfast.domain.usage import cost_words
from holdfast.engine.html_page import ATTRIBUTES, LONGEST_MARKDOWN, SCHEMES, TAGS, SafeMarkdown
from holdfast.escape import lines, one_line

HERE: Final = Path(__file__).parent
POLICY: Final = "; ".join(
    (
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:"),
        *("connect-src 'self'", "worker-src 'self'", "form-action 'self'", "base-uri 'none'"),
        "frame-ancestors 'none'",
    )
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    # a form must name its origin: with no-referrer browsers send "null"
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
#: of one text; the rest is in the export
LONGEST_SHOWN: Final = 200_000
LONGEST_OUTPUT: Final = 20_000
_LONGEST_CODE: Final = 20_000
_MOST_DIFF_LINES: Final = 400
_CLASSES: Final = {"span": set(filter(None, STANDARD_TYPES.values()))}


# --- texts ---


def _shown(value: object) -> object:
    return "\n".join(lines(value)) if isinstance(value, str) and not isinstance(value, Markup) else value


def text_html(text: str, limit: int = LONGEST_SHOWN) -> Markup:
    """A text as it is, cut if it is very long."""
    cut = f"\n… {len(text) - limit:,} more characters are in the export" if len(text) > limit else ""
    return Markup(escape("\n".join(lines(text[:limit])) + cut))  # noqa: S704 - escaped here


def _highlighted(code: str, language: str, _: str) -> str:
    """A block of code with classes; "" leaves it to markdown-it, which escapes it."""
    try:
        lexer = get_lexer_by_name(language) if language and len(code) <= _LONGEST_CODE else None
    except ClassNotFound:
        lexer = None
    return "" if lexer is None else highlight(code, lexer, HtmlFormatter(nowrap=True))


_MARKDOWN: Final = (
    SafeMarkdown("commonmark", {"html": False, "highlight": _highlighted})
    .enable(["table", "strikethrough"])
    .disable("image")
)


@lru_cache(maxsize=512)
def markdown_html(text: str) -> Markup:
    """An agent's Markdown, through two gates: see ``engine.html_page``."""
    if len(text) > LONGEST_MARKDOWN:
        return Markup('<div class="plain">{}</div>').format(text_html(text))
    rendered = _MARKDOWN.render("\n".join(lines(text)))
    clean = nh3.clean(
        rendered, tags={*TAGS, "span"}, attributes=ATTRIBUTES, allowed_classes=_CLASSES,
        url_schemes=set(SCHEMES), link_rel="noopener noreferrer",
    )  # fmt: skip
    return Markup("\n".join(lines(clean)))  # noqa: S704 - cleaned by nh3


# --- edits as diffs ---


@record
class DiffLine:
    kind: str  #: "add", "del", "at" or "same"
    text: str


@record
class FileDiff:
    path: str
    lines: tuple[DiffLine, ...]
    cut: int = 0  #: lines that are not shown


def diffs_of(arguments: Mapping[str, Any]) -> list[FileDiff]:
    """What a call would change, if its arguments say so in one of the ways that agents have."""
    named = _path_name(arguments)
    path = "" if named is None else str(arguments[named])
    edits = arguments.get("edits")
    pairs = [one for one in edits if isinstance(one, Mapping)] if isinstance(edits, list) else [arguments]
    found = [_edit(path, one) for one in pairs]
    patch = next((arguments[k] for k in ("patch", "input", "diff") if isinstance(arguments.get(k), str)), "")
    if patch and any(line.startswith(("+", "-", "@@", "*** ")) for line in patch.split("\n", 50)[:50]):
        found.append(_limited(path, map(_patch_line, patch.split("\n"))))
    content = arguments.get("content")
    if path and isinstance(content, str) and not any(found):
        found.append(_limited(path, (DiffLine("add", line) for line in content.split("\n"))))
    return [one for one in found if one is not None]


def _path_name(arguments: Mapping[str, Any]) -> str | None:
    return next((k for k in ("file_path", "path", "filePath", "absolute_path") if k in arguments), None)


def beside_diffs(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that the diffs of a call do not show whole: a person who approves the call approves all of them."""
    named = _path_name(arguments)
    shown = {named} if named is not None and isinstance(arguments[named], str) else set[str]()
    edits = arguments.get("edits")
    if isinstance(edits, list) and all(isinstance(one, Mapping) and _is_plain_edit(one) for one in edits):
        shown.add("edits")
    elif _is_plain_edit({k: v for k, v in arguments.items() if k in _EDIT_NAMES}):
        shown |= _EDIT_NAMES
    patch = next((k for k in ("patch", "input", "diff") if isinstance(arguments.get(k), str)), None)
    content = arguments.get("content")
    has_edits = bool(shown & {"edits", *_EDIT_NAMES})
    if patch is not None:
        shown.add(patch)
    elif isinstance(content, str) and not has_edits:
        shown.add("content")
    return {name: value for name, value in arguments.items() if name not in shown}


_EDIT_NAMES: Final = frozenset({"old_string", "new_string", "oldString", "newString"})


def _is_plain_edit(edit: Mapping[str, Any]) -> bool:
    """Whether the diff of an edit shows all of it."""
    names = set(edit)
    is_known = names in ({"old_string", "new_string"}, {"oldString", "newString"})
    return is_known and all(isinstance(text, str) and len(text) <= LONGEST_OUTPUT for text in edit.values())


def _edit(path: str, edit: Mapping[str, Any]) -> FileDiff | None:
    for old_name, new_name in (("old_string", "new_string"), ("oldString", "newString")):
        old, new = edit.get(old_name), edit.get(new_name)
        if isinstance(old, str) and isinstance(new, str):
            changed = difflib.unified_diff(
                old[:LONGEST_OUTPUT].split("\n"), new[:LONGEST_OUTPUT].split("\n"), lineterm="", n=3
            )
            return _limited(path, (_patch_line(line) for number, line in enumerate(changed) if number > 1))
    return None


def _patch_line(line: str) -> DiffLine:
    kind = {"+": "add", "-": "del", "@": "at", "*": "at"}.get(line[:1], "same")
    return DiffLine(kind, line[1:] if kind in ("add", "del") else line.removeprefix(" "))


def _limited(path: str, found: Iterator[DiffLine]) -> FileDiff:
    every = tuple(found)
    return FileDiff(path, every[:_MOST_DIFF_LINES], max(0, len(every) - _MOST_DIFF_LINES))


def _arguments(call: ToolCall) -> Mapping[str, Any]:
    try:
        found = json.loads(call.arguments)
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) else {}


def _pretty(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


# --- times, sizes, names ---


def written(instant: Instant) -> str:
    return f"{to_datetime(instant):%Y-%m-%d %H:%M} UTC"


def _moment(instant: Instant) -> Markup:
    """In UTC; the script of the page shows it in the reader's zone."""
    return Markup('<time datetime="{}">{}</time>').format(to_iso(instant), written(instant))


def _ago(instant: Instant, now: Instant) -> Markup:
    words = age(instant, now) if seconds_between(instant, now) >= 1 else "now"
    return Markup('<time class="ago" datetime="{}">{}</time>').format(to_iso(instant), words)


def _tokens(count: int) -> str:
    for unit, size in (("M", 1_000_000), ("k", 1000)):
        if count >= size:
            return f"{count / size:.1f}".removesuffix(".0") + unit
    return str(count)


def _money(cost: float) -> str:
    if not cost:
        return "–"
    return f"${cost:,.2f}" if cost >= 0.01 else cost_words(cost)


def _place(directory: str | None) -> str:
    return "" if directory is None else Path(directory).name or directory


def _environment() -> Environment:
    env = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "line": lambda value, limit=300: one_line(value, limit),
        "text": text_html,
        "exact": lambda value: Markup(escape(value)),  # noqa: S704 - for a field, whose text is sent back
        "output": lambda value: text_html(value, LONGEST_OUTPUT),
        "markdown": markdown_html,
        "moment": _moment,
        "ago": _ago,
        "duration": duration,
        "tokens": _tokens,
        "money": _money,
        "place": _place,
        "arguments": _arguments,
        "diffs": diffs_of,
        "beside_diffs": beside_diffs,
        "pretty": _pretty,
        "kind": lambda value: type(value).__name__,
    }
    env.globals["told_when"] = written
    return env


TEMPLATES: Final = _environment()
