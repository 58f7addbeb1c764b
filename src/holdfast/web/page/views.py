"""Owns what each page is about: read from the engine, and put together for its template."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.clock import DAY, SECOND, Instant, after, seconds_between
from holdfast.domain.approvals import Approval
from holdfast.domain.conversations import Conversation
from holdfast.domain.decisions import WORDS, Decision, Fork, Fresh, Outcome, Refuse, Resume, Standing, Wait
from holdfast.domain.phases import MayContinue, Phase, continue_words
from holdfast.domain.pointers import Pointer, Rights
from holdfast.domain.records import record
from holdfast.domain.runtimes import KnownRuntime
from holdfast.domain.sessions import Session, SessionFilter, SessionPage, SessionState, SessionStatus
from holdfast.domain.turns import PastRequest, TurnStatus
from holdfast.domain.usage import NO_USAGE, Usage, UsageGroup
from holdfast.engine.explain import Explanation, Tree
from holdfast.engine.holdfast import Holdfast
from holdfast.engine.past import as_of_one_revision
from holdfast.engine.reading import Piece, Reader, ReadTurn, TurnBegins, TurnEnds
from holdfast.engine.wording import (
    MARKS,
    Manner,
    evidence_words,
    machine_words,
    measure_basis,
    measure_name,
    measure_value,
    objection_words,
    status_words,
    verdict,
)
from holdfast.errors import HoldfastError, InvalidInput
from holdfast.web.page import charts
from holdfast.web.page.rendering import written

View = dict[str, Any]

#: sessions on one page of the list
ROWS: Final = 50
#: turns that are loaded at a time
TURNS: Final = 10
#: that are refreshed at once
_MOST_TURNS: Final = 60
_OUTLINED: Final = 200
_HITS: Final = 20
_MOST_APPROVALS: Final = 200
#: providers keep what they read of a prompt for about this time
_WARM_SECONDS: Final = 300.0
#: a worker reports at least every ``recover_seconds``; three of these may be missed
_MISSED: Final = 3
_FILTERS: Final = ("q", "status", "agent", "provider", "project", "since")
_SPANS: Final = {"1d": 1, "7d": 7, "30d": 30, "90d": 90}


_TOLD: Final = Manner(written, codes=False, commands=False)


# --- the list ---


@record
class Row:
    session: Session
    state: SessionState
    words: str
    turns: int
    asked: Approval | None


def sessions(holdfast: Holdfast, chosen: Mapping[str, str], cursor: str | None) -> View:
    """``chosen`` are the filters that the address names, and the words to look for."""
    now, words = holdfast.store.now(), chosen.get("q")
    wanted = SessionFilter(
        status=_status(chosen.get("status")),
        agent=chosen.get("agent"),
        provider=chosen.get("provider"),
        project=chosen.get("project"),
        since=_since(chosen.get("since"), now),
        grep=words,
        by_activity=True,
    )
    page = holdfast.page(wanted, ROWS, cursor)
    found = None
    if words is not None and cursor is None:
        found = holdfast.search(
            words, agent=wanted.agent, provider=wanted.provider, project=wanted.project, since=wanted.since,
            limit=_HITS,
        )  # fmt: skip
    return {
        "rows": rows(holdfast, page),
        "unreadable": sorted(page.unreadable),
        "next_cursor": page.next_cursor,
        "filters": {**dict.fromkeys(_FILTERS, ""), **chosen},
        "chosen": chosen,
        "found": found,
        "statuses": list(SessionStatus),
        "spans": list(_SPANS),
        "providers": sorted({one.runtime.provider for one in holdfast.store.runtimes()}),
        "is_first": cursor is None,
        "now": now,
    }


def rows(holdfast: Holdfast, page: SessionPage) -> list[Row]:
    waits = any(state.status is SessionStatus.WAITING for state in page.states.values())
    asked = {str(one.session_id): one for one in holdfast.store.approvals()} if waits else {}
    return [_row(holdfast, one, page.states[one.id], asked.get(one.id)) for one in page.sessions]


def _row(holdfast: Holdfast, session: Session, state: SessionState, asked: Approval | None) -> Row:
    turns = holdfast.store.get_conversation(session.conversation_id).next_seq - 1
    return Row(session, state, status_words(session, state, asked), turns, asked)


def _status(given: str | None) -> SessionStatus | None:
    if given is None:
        return None
    if given not in set(SessionStatus):
        raise InvalidInput("status", f"is one of {', '.join(SessionStatus)}")
    return SessionStatus(given)


def _since(given: str | None, now: Instant) -> Instant | None:
    if given is None:
        return None
    if given not in _SPANS:
        raise InvalidInput("since", f"is one of {', '.join(_SPANS)}")
    return after(now, -_SPANS[given] * DAY / SECOND)


# --- one session ---


@record
class Guard:
    mark: str
    words: str
    evidence: str
    code: str
    standing: Standing
    is_in_the_way: bool


@record
class ShownTurn:
    read: ReadTurn
    pieces: tuple[Piece, ...]
    ends: TurnEnds | None


def session(holdfast: Holdfast, session_id: str, before: int | None = None, *, contents: bool = True) -> View:
    """``contents``: the reader may see what was said."""
    told = holdfast.why(session_id)
    found, store, now = told.session, holdfast.store, holdfast.store.now()
    state = holdfast.session_state(found.id)
    conversation = store.get_conversation(found.conversation_id)
    pointer = store.pointer(found.id, told.provider)
    asked = store.approvals(session_id=found.id)
    return {
        "session": found,
        "state": state,
        "status": status_words(found, state, asked[0] if asked else None),
        "told": told,
        "verdict": verdict(told, holdfast.policy.continue_, now, _TOLD),
        "button": button(told, state, asked),
        "may_words": continue_words(told.may_continue, found, holdfast.policy.continue_, now),
        "may_continue": told.may_continue is MayContinue.YES,
        "guards": [_guard(one) for one in told.decision.verdicts],
        "objections": [
            (WORDS[one.reason].holds, objection_words(one))
            for one in told.decision.verdicts
            # the verdict says the first of them
            if one.outcome is not Outcome.RESUME and one.reason is not told.decision.reason
        ],
        "judged_for": None if told.runtime is None else machine_words(told.runtime.machine),
        "price": price(told.decision, pointer, conversation, now),
        "pointer": pointer,
        "rights": None if pointer is None or pointer.rights is None else rights_words(pointer.rights),
        "worker": worker_words(holdfast, told.provider, now),
        "asked": asked,
        "phases": _phases(found),
        "commands": _commands(found, state),
        "newest": conversation.next_seq - 1,
        **(turns(holdfast, found.id, before) if contents else _NO_TURNS),
        "contents": contents,
        "now": now,
    }


def turns(holdfast: Holdfast, session_id: str, before: int | None = None, first: int | None = None) -> View:
    """The newest turns, or the newest before a turn, or those from ``first`` on, in order."""
    is_cut_off = holdfast.session_state(session_id).status is SessionStatus.INTERRUPTED
    reader = Reader(holdfast.store, session_id, is_cut_off=is_cut_off)
    newest = reader.conversation().next_seq - 1
    last = newest if before is None else min(newest, before - 1)
    # by numbers: a turn that was dropped is shown, too
    begin = max(1, last - TURNS + 1 if first is None else first, last - _MOST_TURNS)
    shown = list(_gathered(reader.walk(begin, last))) if last >= 1 else []
    runs = (TurnStatus.CLAIMED, TurnStatus.RUNNING)
    follows = not is_cut_off and any(one.read.turn.status in runs for one in shown)
    return {
        "session": reader.session,
        "turns": shown,
        "first": begin,
        "older": begin if begin > 1 and first is None else None,
        "has_newer": last < newest,
        "follows": follows,
        "writing": holdfast.store.partial_text(session_id) if follows else None,
        "now": holdfast.store.now(),
    }


_NO_TURNS: Final = {"turns": (), "first": 1, "older": None, "has_newer": True, "follows": False}


def one_turn(holdfast: Holdfast, session_id: str, seq: int) -> View:
    reader = Reader(holdfast.store, session_id)
    return {"session": reader.session, "turn": reader.turn(seq).turn}


def _gathered(pieces: Iterator[Piece]) -> Iterator[ShownTurn]:
    read: ReadTurn | None = None
    held: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, TurnBegins):
            read, held = piece.read, []
        elif isinstance(piece, TurnEnds) and read is not None:
            yield ShownTurn(piece.read, tuple(held), piece)
            read = None
        elif read is not None:
            held.append(piece)


def _guard(verdict: Any) -> Guard:
    return Guard(
        MARKS[verdict.standing],
        WORDS[verdict.reason].holds,
        evidence_words(verdict),
        verdict.reason.value,
        verdict.standing,
        verdict.outcome is not Outcome.RESUME,
    )


def button(told: Explanation, state: SessionState, asked: tuple[Approval, ...]) -> str:
    """The one thing to do next: answer, fork, wait, restore, fresh or continue."""
    if asked and told.may_continue is not MayContinue.FINAL:
        return "answer"
    if told.may_continue is MayContinue.FINAL:
        return "fork"
    if state.status in (SessionStatus.RUNNING, SessionStatus.QUEUED):
        return "wait"
    match told.decision:
        case Fresh():
            return "fresh"
        case Resume() | Fork() | Wait():
            return "continue"
        case Refuse():
            return "fork"


def price(
    decision: Decision, pointer: Pointer | None, conversation: Conversation, now: Instant
) -> list[tuple[str, str]]:
    """What the next turn would read before it does anything."""
    turns = conversation.next_seq - 1
    match decision:
        case Resume() | Fork() if pointer is not None:
            told = [("reads", "what the agent's own session holds")]
            if pointer.context is not None and pointer.context.tokens:
                used, window = pointer.context.tokens, pointer.context.window
                share = f", {used / window:.0%} of its window" if window else ""
                told = [("reads", f"{used:,} tokens{share}")]
            idle = seconds_between(pointer.updated_at, now)
            warm = "likely still warm" if idle < _WARM_SECONDS else "likely cold: the full price"
            return [*told, ("provider's cache", f"{warm}, last used {_long(idle)} ago")]
        case Fresh() if turns:
            return [
                (
                    "reads",
                    f"the history again, up to {turns} turn{'s' if turns != 1 else ''}, at the full price",
                )
            ]
        case Fresh():
            return [("reads", "nothing but the request")]
        case _:
            return []


def _long(seconds: float) -> str:
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return f"{max(0, int(seconds))} s"


def rights_words(rights: Rights) -> list[tuple[str, str]]:
    said = (
        ("permission mode", rights.permission_mode or "of the agent's settings"),
        ("allowed tools", ", ".join(sorted(rights.allowed_tools))),
        ("extra directories", ", ".join(sorted(rights.extra_dirs))),
        ("extra arguments", shlex.join(rights.extra_args)),
        ("ask a person before", ", ".join(sorted(rights.approve_tools))),
    )
    return [(name, words) for name, words in said if words]


def worker_words(holdfast: Holdfast, provider: str, now: Instant) -> tuple[bool, str]:
    """Whether a worker would take a turn of this provider now, and what is known of it."""
    seen = [one.last_seen_at for one in holdfast.store.runtimes() if one.runtime.provider == provider]
    limit = holdfast.policy.queue.recover_seconds * _MISSED
    if not seen:
        return (
            False,
            f"No worker has ever run {provider} here. Start one: holdfast worker --provider {provider}",
        )
    idle = seconds_between(max(seen), now)
    if idle > limit:
        return False, (
            f"No worker for {provider} has reported for {_long(idle)}. A turn waits in the queue until one runs: "
            f"holdfast worker --provider {provider}"
        )
    return True, f"A worker for {provider} reported {_long(idle)} ago."


def _phases(found: Session) -> list[tuple[str, str]]:
    """The phases of a session that uses them, each with its place: past, now or ahead."""
    if not found.uses_phases:
        return []
    order = [phase for phase in Phase if not phase.is_final]
    if found.phase.is_final:
        return [*((phase.value, "past") for phase in order), (found.phase.value, "now")]
    here = order.index(found.phase)
    places = (
        "past" if number < here else "now" if number == here else "ahead" for number in range(len(order))
    )
    return [(phase.value, place) for phase, place in zip(order, places, strict=True)]


def _commands(found: Session, state: SessionState) -> list[tuple[str, str]]:
    called = shlex.quote(found.name or found.id)
    cd = "" if state.directory is None else f"cd {shlex.quote(state.directory)} && "
    if found.finalized_at is not None:
        return [("Fork it", f'{cd}holdfast fork {called} "..."')]
    return [
        ("Continue it", f'{cd}holdfast resume {called} "..."'),
        ("Open it in the agent's own program", f"{cd}holdfast open {called}"),
        ("Read it", f"holdfast log {called}"),
    ]


def outline(holdfast: Holdfast, session_id: str) -> View:
    """The newest turns with the beginning of each request, oldest first."""
    store, found = holdfast.store, holdfast.session(session_id)
    conversation = store.get_conversation(found.conversation_id)
    last = conversation.next_seq - 1
    wanted = PastRequest(((1, last),), limit=_OUTLINED, calls=False, characters=90, unsent=True)
    read = as_of_one_revision(store, conversation, lambda now: store.read_past(now.id, now.revision, wanted))
    return {"session": found, "outline": [one.turn for one in reversed(read)], "newest": last, "shown": TURNS}


# --- the inbox ---


@record
class Question:
    approval: Approval
    session: Session | None
    is_expired: bool


def inbox(holdfast: Holdfast, approval_id: str | None = None) -> View:
    now = holdfast.store.now()
    if approval_id is None:
        asked = holdfast.approvals(limit=_MOST_APPROVALS)
    else:
        asked = (holdfast.approval(approval_id),)
    return {
        "questions": [_question(holdfast, one, now) for one in asked],
        "now": now,
        "alone": approval_id is not None,
    }


def _question(holdfast: Holdfast, approval: Approval, now: Instant) -> Question:
    try:
        asking = holdfast.session(approval.session_id)
    except HoldfastError:  # the question can be answered although its session cannot be read
        asking = None
    return Question(approval, asking, approval.is_expired(now))


# --- the fleet ---


@record
class Machine:
    name: str
    runtimes: tuple[tuple[KnownRuntime, bool], ...]  #: each with whether it reported lately


def fleet(holdfast: Holdfast, *, contents: bool = True) -> View:
    store, now = holdfast.store, holdfast.store.now()
    limit = holdfast.policy.queue.recover_seconds * _MISSED
    by_machine: dict[str, list[tuple[KnownRuntime, bool]]] = {}
    for known in sorted(store.runtimes(), key=lambda one: -one.last_seen_at):
        is_live = seconds_between(known.last_seen_at, now) <= limit
        by_machine.setdefault(known.runtime.machine, []).append((known, is_live))
    queued = store.list_sessions(SessionFilter(status=SessionStatus.QUEUED, subagents=True), ROWS)
    heads = [(one, store.head_turn(one.id)) for one in queued.sessions]
    waiting = sorted(
        ((one, head) for one, head in heads if head is not None), key=lambda pair: pair[1].created_at
    )
    return {
        "machines": [Machine(machine_words(name), tuple(found)) for name, found in by_machine.items()],
        "running": holdfast.running() if contents else (),  # their last calls are contents
        "queue": waiting,
        "orphans": store.orphans(ROWS),
        "counts": store.statistics(),
        "now": now,
    }


# --- the numbers ---


def numbers(holdfast: Holdfast, since: str | None, agent: str | None) -> View:
    store, now = holdfast.store, holdfast.store.now()
    begin = _since(since, now)
    told = holdfast.stats(begin, agent)
    figures = told.figures
    days = store.usage(UsageGroup.DAY, since=begin)[-90:]
    whole = sum((one.usage for one in days), NO_USAGE)
    tokens = [(one.key, one.usage.input_tokens + one.usage.output_tokens) for one in days]
    money = [(one.key, one.usage.cost_usd) for one in days]
    return {
        "measures": [
            (measure_name(one), measure_value(one), one, measure_basis(one)) for one in figures.measures
        ],
        "figures": figures,
        "since": since,
        "agent": agent,
        "spans": list(_SPANS),
        "providers": store.usage(UsageGroup.PROVIDER, since=begin),
        "agents": store.usage(UsageGroup.AGENT, since=begin),
        "days": days,
        "whole": whole,
        "tokens_chart": charts.columns("Tokens a day", tokens),
        "money_chart": charts.columns("Money a day", money, charts.dollars) if whole.cost_usd else None,
        "fresh_chart": charts.bars("Fresh starts, by reason", list(figures.fresh_starts.items())),
        "failures": _failures(holdfast),
        "now": now,
    }


def _failures(holdfast: Holdfast) -> list[tuple[str, int]]:
    """Failed turns by class, the most frequent first."""
    counts: dict[str, int] = {}
    for one in holdfast.store.statistics().turns:
        if one.failure is not None:
            counts[one.failure.value] = counts.get(one.failure.value, 0) + one.count
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


# --- the family ---


def lineage(holdfast: Holdfast, session_id: str, base: str) -> View:
    tree = holdfast.tree(session_id)
    nodes: list[charts.Node] = []
    _walk(holdfast, tree, nodes, base, session_id)
    return {
        "session": holdfast.session(session_id),
        "nodes": nodes,
        "picture": charts.family(nodes),
        "whole": sum((node.own for node in nodes), NO_USAGE),
        "now": holdfast.store.now(),
    }


_MOST_NODES: Final = 500


def _walk(holdfast: Holdfast, tree: Tree, nodes: list[charts.Node], base: str, here: str) -> None:
    """Without recursion, parents before their children."""
    rolled = _rolled(tree)
    left: list[tuple[Tree, int, int | None]] = [(tree, 0, None)]
    while left and len(nodes) < _MOST_NODES:
        one, depth, parent = left.pop()
        found = one.session
        status = holdfast.store.session_state(found.id).status
        nodes.append(
            charts.Node(
                f"{base}/s/{found.id}",
                found.title or found.agent,
                found.kind.value,
                status.value,
                depth,
                parent,
                found.usage,
                rolled[found.id],
                found.id == here,
            )
        )
        number = len(nodes) - 1
        left += [(child, depth + 1, number) for child in reversed(one.children)]


def _rolled(tree: Tree) -> dict[str, Usage]:
    """What each session has used together with everything below it."""
    order, sums = [tree], dict[str, Usage]()
    for one in order:
        order += one.children
    for one in reversed(order):
        sums[one.session.id] = sum((sums[child.session.id] for child in one.children), one.session.usage)
    return sums
