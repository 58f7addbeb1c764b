"""Owns the command search: the sessions in which words were said, each with a snippet and the command that continues it."""

from __future__ import annotations

import os

import click

from holdfast.cli import output
from holdfast.cli.arguments import hint_at_mistyped, parse_moment, project_directory, provider_option
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.output import Block, Cell, Paragraph, Tone, cell, tell
from holdfast.clock import Instant, age, to_iso
from holdfast.config_files import current_directory
from holdfast.domain.search import MOST_HITS, FoundIn, SearchHit, SearchPage
from holdfast.engine.documents import search_document
from holdfast.errors import NotFound
from holdfast.escape import visible

_PARTS = {
    FoundIn.PROMPT: "prompt",
    FoundIn.ANSWER: "answer",
    FoundIn.TOOL_CALL: "tool call",
    FoundIn.TOOL_RESULT: "tool result",
}
_LONGEST_TITLE = 76  #: fits a terminal of 80 columns


@command(
    "search",
    "holdfast search apply network",
    "holdfast search src/network/main.tf --since 7d",
    "holdfast search main.tf --agent terraform-architect --json",
)
@click.argument("words", nargs=-1, required=True)
@click.option("--agent", metavar="NAME", help="Only sessions of this agent.")
@provider_option(help="Only turns with this provider: claude, codex, …")
@click.option("--project", metavar="DIR", help="Only sessions of this directory, and of those below it.")
@click.option("--since", metavar="WHEN", help="Only turns that ended then or later: 2h, 3d, 2026-01-08, …")
@click.option("--limit", type=click.IntRange(1, MOST_HITS), default=20, show_default=True, metavar="N",
              help=f"At most this many sessions, and no more than {MOST_HITS}.")  # fmt: skip
@pass_invocation
@click.pass_context
def search(  # noqa: PLR0913 - each filter is an option
    ctx: click.Context,
    run: Invocation,
    words: tuple[str, ...],
    agent: str | None,
    provider: str | None,
    project: str | None,
    since: str | None,
    limit: int,
) -> None:
    """Find sessions by what was said and done in them.

    Searches prompts, answers, tool calls and results. WORDS are found in any case and order; a path, or a name such as snake_case, is found as a whole and by its
    parts. No character has a special meaning. Turns with all words are found; if there are none, those with some
    of them. Put -- before words that begin with a dash.

    In a pipe, prints one line for each session, separated by tabs: id, turn, time, agent, name, directory, where
    the words are, the snippet with the matches in brackets, the command that continues the session.

    Exit code 3 if nothing was found, 0 otherwise.
    """
    now = run.holdfast.store.now()
    page = run.holdfast.search(
        " ".join(words),
        agent=agent,
        provider=provider,
        project=project,
        since=None if since is None else parse_moment("since", since, now),
        limit=limit,
    )
    here = str(current_directory(os.environ))
    if run.json:
        output.document(search_document(page, here))
        if not page.hits:
            ctx.exit(NotFound.exit_code)
        return
    _show(page, here, now)
    if page.pending:
        tell(f"{page.pending} turns are not indexed yet, and were not searched: search again to continue")
    if not page.hits:
        hint_at_mistyped(provider, project_directory(project))
        raise NotFound("words", " ".join(words))
    if not page.all_words:
        tell("no turn has all of the words: these have some of them")
    if page.more:
        tell(f"there are more: --limit shows up to {MOST_HITS}")


def _show(page: SearchPage, here: str, now: Instant) -> None:
    if output.is_terminal():
        output.blocks([_block(hit, here, now) for hit in page.hits])
        return
    for hit in page.hits:
        output.line(
            hit.session_id, hit.turn, to_iso(hit.at), hit.agent, hit.name or "", hit.directory or "",
            _PARTS[hit.found_in], "".join(f"[{text}]" if is_match else text for text, is_match in hit.snippet.pieces()),
            hit.continue_with(here),
        )  # fmt: skip


def _block(hit: SearchHit, here: str, now: Instant) -> Block:
    turns = "" if hit.turns == 1 else f", {hit.turns} turns"
    title = cell(hit.name or hit.purpose, limit=_LONGEST_TITLE).text
    where = f"turn {hit.turn}, {_PARTS[hit.found_in]}{turns}"
    about = f"{hit.session_id}, {hit.agent}, {age(hit.at, now)} ago, {where}"
    head = [cell(line) for line in (title, about, hit.directory) if line]
    return Paragraph(
        (
            (Cell(head[0].text, Tone.STRONG),),
            *((Cell(line.text, Tone.DIM),) for line in head[1:]),
            tuple(
                Cell(visible(text), Tone.GOOD if match else Tone.PLAIN)
                for text, match in hit.snippet.pieces()
            ),
        ),
        cell(hit.continue_with(here), Tone.DIM),
    )
