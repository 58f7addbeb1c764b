"""Owns a session as one HTML page: no script, no request to anywhere, and nothing that an agent wrote is more than text.

Needs the extra ``export``. An agent's Markdown passes two gates: markdown-it escapes all HTML in it and takes only links
of three schemes, and nh3 lets only the tags and attributes below through.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from html import escape
from typing import Final

import nh3
from markdown_it import MarkdownIt

from holdfast.domain.telling.tool_calls import CallOutcome
from holdfast.domain.turns import TurnStatus
from holdfast.engine.reading import (
    Answers,
    AttemptBegins,
    CallEnds,
    Notes,
    Piece,
    Reader,
    Says,
    TurnBegins,
    TurnEnds,
    When,
)
from holdfast.engine.session_log import AuditEntry
from holdfast.escape import lines, one_line

#: a longer text is shown as it is: reading Markdown takes long for some texts
LONGEST_MARKDOWN: Final = 64 * 1024
_LONGEST = 300

#: what an agent's Markdown may become
TAGS: Final = frozenset(
    (
        *("p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "code", "em", "strong"),
        *("s", "hr", "br", "a", "table", "thead", "tbody", "tr", "th", "td"),
    )
)  # fmt: skip
ATTRIBUTES: Final = {"a": {"href", "title"}, "ol": {"start"}}
SCHEMES: Final = frozenset({"http", "https", "mailto"})

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c1e21; --paper: #ffffff; --dim: #62676e; --line: #d9dce1; --tint: #f3f5f8;
  --link: #0b57c4; --good: #16703a; --bad: #b3261e; --warn: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e6ea; --paper: #16181c; --dim: #9aa1ab; --line: #343941;
  --tint: #20242a; --link: #7fb2ff; --good: #6fcf8f; --bad: #ff8a80; --warn: #f0bf5f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 50rem; padding: 1.5rem 1rem 4rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.6 system-ui, sans-serif; overflow-wrap: anywhere; }
h1, h2, h3, h4, h5, h6 { line-height: 1.3; margin: 1.2em 0 .4em; }
body > header h1 { font-size: 1.6rem; margin: 0 0 .6rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 0; font-size: .9rem; }
dt { color: var(--dim); } dd { margin: 0; }
article { border-top: 1px solid var(--line); margin-top: 2rem; padding-top: .8rem; }
article > h2 { font-size: 1.05rem; margin: 0 0 .7rem; }
article > h2 a { color: inherit; text-decoration: none; }
article > h2 small { color: var(--dim); font-weight: 400; font-size: .85rem; }
.mark { border: 1px solid var(--line); border-radius: 1rem; padding: .05rem .55rem; white-space: nowrap; }
.dropped > :not(h2) { opacity: .65; }
.prompt { background: var(--tint); border-left: 3px solid var(--link); border-radius: .3rem; padding: .6rem .9rem;
  margin: 0 0 1rem; white-space: pre-wrap; }
.text > :first-child { margin-top: 0; } .text > :last-child { margin-bottom: 0; }
.text { margin: .8rem 0; } .text h1 { font-size: 1.25rem; } .text h2 { font-size: 1.12rem; }
.text h3, .text h4, .text h5, .text h6 { font-size: 1rem; }
.says { color: var(--dim); }
.plain { white-space: pre-wrap; }
a { color: var(--link); }
code, pre, .call { font-family: ui-monospace, monospace; font-size: .85rem; }
code { background: var(--tint); border-radius: .2rem; padding: .1rem .25rem; }
pre { background: var(--tint); border-radius: .3rem; padding: .7rem .9rem; margin: .5rem 0; max-height: 30rem;
  overflow: auto; white-space: pre-wrap; }
pre code { background: none; padding: 0; }
hr { border: 0; border-top: 1px solid var(--line); }
blockquote { border-left: 3px solid var(--line); margin: .6rem 0; padding-left: .9rem; color: var(--dim); }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border: 1px solid var(--line); padding: .25rem .6rem; text-align: left; }
.call { margin: .2rem 0; } .call summary { cursor: pointer; } .call span { color: var(--dim); }
.ok > summary b { color: var(--good); } .error > summary b { color: var(--bad); } .open > summary b { color: var(--warn); }
.note, .end { color: var(--dim); font-size: .85rem; margin: .4rem 0; }
.end.failed { color: var(--bad); } .end.waiting { color: var(--warn); }
@media print { pre { max-height: none; } }
"""

_HASH: Final = b64encode(sha256(_STYLE.encode()).digest()).decode()
_POLICY: Final = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'"


class SafeMarkdown(MarkdownIt):
    """Takes only links of ``SCHEMES``."""

    def validateLink(self, url: str) -> bool:  # noqa: N802 - markdown-it's name
        """A link of another scheme stays as it was written."""
        return url.partition(":")[0].lower() in SCHEMES


_MARKDOWN: Final = (
    SafeMarkdown("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")
)


def html_page(reader: Reader, when: When) -> Iterator[str]:
    """The pieces of the page, in order."""
    title = _line(reader.session.name or reader.session.id)
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<header>\n<h1>{title}</h1>\n<dl>\n"
    )
    for name, value in reader.facts(when):
        yield f"<dt>{_line(name)}</dt><dd>{_line(value)}</dd>\n"
    yield "</dl>\n</header>\n<main>\n"
    is_open = False
    for piece in reader.walk():
        if is_open and isinstance(piece, TurnBegins | AuditEntry):
            yield "</article>\n"
        is_open = not isinstance(piece, AuditEntry)
        yield _piece(piece, when)
    yield f"{'</article>' if is_open else ''}\n</main>\n</body>\n</html>\n"


def _piece(piece: Piece, when: When) -> str:
    match piece:
        case TurnBegins():
            return _heading(piece, when)
        case Says(text):
            return f'<div class="text says">{markdown_html(text)}</div>\n'
        case Answers(text):
            return f'<div class="text">{markdown_html(text)}</div>\n'
        case CallEnds():
            return _call(piece)
        case Notes(text):
            return _note(text)
        case AttemptBegins():
            return _note(piece.words)
        case TurnEnds():
            return _end(piece, when)
        case AuditEntry():
            by = "" if piece.by is None else f" (by {piece.by})"
            return _note(f"{when(piece.at)}: {piece.kind}: {piece.words}{by}")


def _heading(begins: TurnBegins, when: When) -> str:
    read = begins.read
    seq = read.turn.seq
    marks = "".join(f' <span class="mark">{_line(mark)}</span>' for mark in read.marks)
    dropped = ' class="dropped"' if read.is_dropped else ""
    return (
        f'<article id="turn-{seq}"{dropped}>\n<h2><a href="#turn-{seq}">Turn {seq}</a>'
        f' <small>{_line(when(read.turn.at))}{marks}</small></h2>\n<div class="prompt">{_text(read.turn.prompt)}</div>\n'
    )


def _call(ends: CallEnds) -> str:
    call = ends.call
    kind = {CallOutcome.OK: "ok", CallOutcome.ERROR: "error"}.get(call.outcome, "open")
    note = f" <span>{_line(ends.note)}</span>" if ends.note else ""
    parts = (f"<pre>{_text(text)}</pre>" for text in (_indented(call.arguments), call.output) if text)
    return (
        f'<details class="call {kind}"><summary><b>{ends.mark}</b> {_line(call.words)}{note}</summary>'
        f"{''.join(parts)}</details>\n"
    )


def _end(ends: TurnEnds, when: When) -> str:
    words = ", ".join(filter(None, (ends.words(when), ends.spent)))
    status = ends.read.turn.status
    kind = {TurnStatus.FAILED: " failed", TurnStatus.CANCELLED: " failed", TurnStatus.DONE: ""}
    return f'<p class="end{kind.get(status, " waiting")}">{_line(words, None)}</p>\n' if words else ""


def _note(text: str) -> str:
    return f'<p class="note">{_line(text, None)}</p>\n'


def markdown_html(text: str) -> str:
    """An agent's Markdown as HTML that can be put into any page."""
    if len(text) > LONGEST_MARKDOWN:
        return f'<div class="plain">{_text(text)}</div>'
    rendered = _MARKDOWN.render("\n".join(lines(text)))
    clean = nh3.clean(
        rendered, tags=set(TAGS), attributes=ATTRIBUTES, url_schemes=set(SCHEMES), link_rel="noopener noreferrer"
    )  # fmt: skip
    # an entity of the text may be a character that reorders the others: it is one only now
    return "\n".join(lines(clean))


def _indented(arguments: str) -> str:
    return json.dumps(json.loads(arguments), indent=2, ensure_ascii=False)


def _text(text: str) -> str:
    return escape("\n".join(lines(text)))


def _line(text: str, limit: int | None = _LONGEST) -> str:
    return escape(one_line(text, limit))
