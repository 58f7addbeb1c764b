"""Owns ``/docs``: the OpenAPI document as one page, which loads nothing from another host and runs no script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from holdfast.domain.tokens import Role
from holdfast.web.access import may

router = APIRouter(tags=["docs"], include_in_schema=False)

_POLICY: Final = (
    "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}
#: each verb of the Store contract has a route: they come last, as most readers need none of them
_LAST: Final = "store"
_STYLE: Final = """
:root { color-scheme: light dark; --ink: light-dark(#1c1e21, #e4e5e7); --dim: light-dark(#5c6066, #a2a6ad);
    --line: light-dark(#dcdee1, #383b40); --paper: light-dark(#fff, #17181a); --accent: light-dark(#0b5fad, #86bdf0); }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 64rem; padding: 1.5rem 1rem 6rem; background: var(--paper); color: var(--ink);
    font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; text-transform: capitalize; }
h3 { font-size: .95rem; margin: 1rem 0 .25rem; }
a { color: var(--accent); } p { margin: .5rem 0; } .dim { color: var(--dim); }
nav a { margin-right: 1rem; white-space: nowrap; }
details { border-top: 1px solid var(--line); } details:last-of-type { border-bottom: 1px solid var(--line); }
summary { cursor: pointer; padding: .45rem 0; overflow-wrap: anywhere; }
details > div { padding: 0 0 1rem 1.1rem; }
code, .method { font-family: ui-monospace, monospace; font-size: .9em; }
.method { display: inline-block; min-width: 4.2em; font-weight: 600; color: var(--accent); }
table { border-collapse: collapse; width: 100%; display: block; overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: .25rem 1rem .25rem 0; border-top: 1px solid var(--line); }
th { font-weight: 600; color: var(--dim); border-top: 0; }
pre { white-space: pre-wrap; font: inherit; margin: .5rem 0; }
"""


@router.get("/docs")
def docs(request: Request) -> HTMLResponse:
    request.state.verb = "docs"
    return HTMLResponse("".join(_pieces(request.app.openapi())), headers=_HEADERS)


@router.get("/docs.css")
def style(request: Request) -> Response:
    request.state.verb = "docs"
    return Response(_STYLE, media_type="text/css", headers=_HEADERS)


def _pieces(document: Mapping[str, Any]) -> Iterator[str]:
    tagged: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tagged.setdefault(operation["tags"][0], []).append(
                "".join(_operation(document, method, path, operation))
            )
    tags = sorted(tagged, key=lambda tag: tag == _LAST)
    about = document["info"]
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    # relative, as a proxy may serve all of this below a path
    yield f'<title>{escape(about["title"])} API</title><link rel="stylesheet" href="docs.css"></head><body><main>'
    yield f"<h1>{escape(about['title'])} API</h1>"
    yield f'<p class="dim">{escape(about["summary"])}, version {escape(about["version"])}. '
    yield '<a href="openapi.json">openapi.json</a> has the same for programs.</p><nav aria-label="Sections">'
    yield from (f'<a href="#{escape(tag)}">{escape(tag)}</a>' for tag in tags)
    yield "</nav>"
    for tag in tags:
        yield f'<section id="{escape(tag)}"><h2>{escape(tag)}</h2>{"".join(tagged[tag])}</section>'
    yield "</main></body></html>\n"


def _operation(
    document: Mapping[str, Any], method: str, path: str, operation: Mapping[str, Any]
) -> Iterator[str]:
    words = str(operation.get("description", "")).strip()
    first = words.partition("\n")[0]
    yield f'<details><summary><span class="method">{escape(method.upper())}</span> <code>{escape(path)}</code>'
    yield f' <span class="dim">{escape(first)}</span></summary><div><pre>{escape(words)}</pre>'
    if operation.get("security") == []:
        yield '<p class="dim">Without a token.</p>'
    else:
        verb = operation["operationId"].rpartition(".")[2]
        roles = ", ".join(role.value for role in Role if may(role, verb))
        yield f'<p class="dim">Roles: {escape(roles)}.</p>'
    parameters = [
        (one["name"], one["in"], one.get("required", False), one["schema"])
        for one in operation.get("parameters", ())
    ]
    yield from _table("Parameters", parameters)
    for content in operation.get("requestBody", {}).get("content", {}).values():
        yield from _table("Body", _fields(document, content["schema"]))
    yield "</div></details>"


def _fields(
    document: Mapping[str, Any], schema: Mapping[str, Any]
) -> list[tuple[str, str, bool, Mapping[str, Any]]]:
    found = _resolved(document, schema)
    needed = found.get("required", ())
    return [(name, "body", name in needed, part) for name, part in found.get("properties", {}).items()]


def _resolved(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object itself; of several alternatives, the first object."""
    for one in (schema, *schema.get("anyOf", ())):
        if "$ref" in one:
            found: Mapping[str, Any] = document["components"]["schemas"][_named(one)]
            return found
    return schema


def _table(title: str, rows: list[tuple[str, str, bool, Mapping[str, Any]]]) -> Iterator[str]:
    if not rows:
        return
    yield f'<h3>{title}</h3><table><thead><tr><th scope="col">name</th><th scope="col">in</th>'
    yield '<th scope="col">type</th></tr></thead><tbody>'
    for name, place, is_needed, schema in rows:
        needed = "" if is_needed else ' <span class="dim">optional</span>'
        yield f"<tr><td><code>{escape(name)}</code>{needed}</td><td>{escape(place)}</td>"
        yield f"<td><code>{escape(_type(schema))}</code></td></tr>"
    yield "</tbody></table>"


def _named(schema: Mapping[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _type(schema: Mapping[str, Any]) -> str:
    """In a few words."""
    if "$ref" in schema:
        return _named(schema)
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(map(_type, schema["anyOf"])))
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    words = str(schema.get("format") or schema.get("type", "anything"))
    limits = [f"{sign} {schema[key]}" for key, sign in (("minimum", "≥"), ("maximum", "≤")) if key in schema]
    default = [f"default {schema['default']}"] if schema.get("default") not in (None, "") else []
    return ", ".join([words, *limits, *default])
