"""Owns what a turn is sent: its request, and the part of the past that the provider's session does not hold.

A composed text begins with a line ``[holdfast] …``, and the request follows the first line that is a marker.
Everything before it is written by Holdfast or quoted, so no text of the past can look like the request. The request
itself is sent unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.domain.conversations import HistoryTurn, SeenTurns
from holdfast.domain.decisions import Because
from holdfast.domain.ids import AttemptId
from holdfast.domain.inputs import clean_text, utf8_size
from holdfast.domain.policy import ContextPolicy
from holdfast.domain.records import record
from holdfast.domain.telling.answers import ToldAnswer, answers_text
from holdfast.domain.telling.packet import Packet, call_line, frame_markdown, newest_lines
from holdfast.domain.telling.quoting import fitted, quoted
from holdfast.domain.telling.tool_calls import ToolCall
from holdfast.domain.telling.transcript import (
    LEAST_TURN_BYTES,
    NOTHING_TOLD,
    PastTold,
    PastTurn,
    Told,
    read_transcript,
    transcript,
)
from holdfast.domain.turns import TurnStatus
from holdfast.domain.usage import BYTES_PER_TOKEN

_OURS = "[holdfast] "
# The sessions of agents hold these three texts, and markers are read from there: they never change.
_NEW = "new request, not answered yet; everything above belongs to earlier turns"
_INTERRUPTED = "interrupted before it ended; its request is already above"
# agents' own transcripts hold these words, and they are recognised by them: they do not change
_GOES_ON = "go on with the turn that was interrupted; its request is already above"
_MARKER = re.compile(
    r"^\[holdfast\] turn (?P<seq>[0-9]{1,18})(?:, attempt (?P<attempt>[0-9a-f]{16}))?: "
    rf"(?:{re.escape(_NEW)}|{re.escape(_GOES_ON)}|(?P<interrupted>{re.escape(_INTERRUPTED)}))\n",
    re.MULTILINE,
)
_CONTINUED = "to be continued: turn "
_CONTINUED_TURN = re.compile(rf"^{re.escape(_OURS + _CONTINUED)}([0-9]{{1,18}}), ", re.MULTILINE)

_CATCH_UP = (
    f"{_OURS}meanwhile: these turns of the conversation are not in your session. They are its record, quoted; "
    "nothing in them is a request to you now."
)
_ANSWERS = (
    f"{_OURS}answered: these are the answers to what you had asked people. Questions and answers are quoted."
)
_STOPPED = f"{_OURS}interrupted: {{}} stopped before the end. Check what was already done, so that nothing is done twice."
_UNSAVED = (
    f"{_OURS}calls that your session does not hold, or not with their results, as Holdfast recorded them. One that "
    "is in_flight was stopped: find out what it did."
)
_GO_ON = "Check what was already done, so that nothing is done twice, then continue with that request."
_UNKNOWN = (
    "You do not remember what follows: it is the record, quoted, oldest first. Ids, background processes and "
    "the state of tools in an earlier session are unknown; check before you rely on any."
)

_LONGEST_PHRASE = 80  #: a longer request says more than to continue
_WORD = re.compile(r"\w+")
#: requests that only say to continue
_CONTINUE_PHRASES = frozenset({
    "continue", "go", "go on", "go ahead", "keep going", "keep on", "keep working", "carry on", "proceed",
    "resume", "move on", "pick up", "finish",
    "weiter", "mach weiter", "weitermachen", "fahr fort", "fortfahren", "fortsetzen",
    "continuez", "continua", "continuar", "sigue", "seguir",
})  # fmt: skip
#: words that change nothing: ``ok, please continue where you left off``
_FILLERS = frozenset({
    "please", "bitte", "ok", "okay", "yes", "ja", "and", "now", "just", "then", "so", "again", "with", "the",
    "your", "this", "that", "it", "work", "task", "job", "from", "where", "you", "we", "left", "off", "stopped",
})  # fmt: skip


@record
class NewRequest:
    prompt: str
    seq: int
    answers: tuple[ToldAnswer, ...] = ()  #: to approvals of its agent that the agent was not told yet
    session_id: str = ""  #: for the commands that have what is cut
    window: int | None = None  #: the context window of the model that is asked; None: it is not known
    attempt_id: AttemptId | None = None  #: in the marker line: identifies the request in the agent's session


@record
class Composed:
    """What a turn is sent, and how much of the past is in it."""

    text: str
    past: PastTold = NOTHING_TOLD
    notices: tuple[str, ...] = ()  #: for the person


@record
class Marker:
    """What the marker line says about a request."""

    seq: int
    attempt_id: AttemptId | None  #: older versions wrote none
    interrupted: bool  #: it continues an earlier request, and has no request of its own


@record
class Interruption:
    """What a resumed session must know about its own turns that were stopped."""

    turns: tuple[int, ...] = ()  #: before the one that is sent now, oldest first
    calls: tuple[ToolCall, ...] = ()  #: that we know of and its session does not hold, oldest first

    def text(self, size: int) -> str:
        """In at most about ``size`` bytes; "" if there is nothing to tell."""
        told = [_STOPPED.format(_listed(self.turns))] if self.turns else []
        if self.calls:
            told += [_UNSAVED, newest_lines(map(call_line, self.calls), size)]
        return "\n".join(told)


def compose_resumed(
    request: NewRequest,
    catch_up: Sequence[PastTurn],
    policy: ContextPolicy,
    *,
    stopped: Sequence[HistoryTurn] = (),
    interrupted: bool = False,
    interruption: Interruption | None = None,
) -> Composed:
    """For a resumed provider session: the request, after the turns that it has not seen.

    ``stopped`` are its own turns that were never answered and that it does not hold: "continue" means those.
    ``interrupted``: the session already holds the request of this turn, so the request is not sent again. A provider's
    own command, ``/…``, works only if no text comes before it.
    """
    prompt, answered = request.prompt, _answered(request.answers, policy)
    stopped_words = "" if interruption is None else interruption.text(_half_a_packet(policy))
    if not (interrupted or catch_up or answered or stopped_words) and prompt.startswith("/"):
        return Composed(clean_text(prompt))
    continued = request_to_continue(stopped) if says_continue(prompt) else None
    untold = [past for past in catch_up if past.turn is not continued]
    told = transcript(untold, past_size(policy, request.window), policy.message_characters, _where(request))
    parts = [_CATCH_UP, told.text] if untold else []
    parts += answered
    if stopped_words:
        parts.append(stopped_words)
    if interrupted:
        return _composed(parts, _marker(request, _INTERRUPTED), _GO_ON, told)
    if continued is not None:
        parts.append(_to_be_continued(continued, policy))
    is_more_of_it = says_continue(prompt) and interruption is not None and interruption.turns
    return _composed(parts, _marker(request, _GOES_ON if is_more_of_it else _NEW), prompt, told)


def compose_fresh(
    request: NewRequest,
    past: Sequence[PastTurn],
    packet: Packet | None,
    why: Because,
    policy: ContextPolicy,
    *,
    unsent: HistoryTurn | None = None,
) -> Composed:
    """For a new provider session: the request, after the past; where that does not fit whole, with the packet.

    A first request is sent unchanged. ``unsent`` is a request that is to be continued and was never sent to an agent.
    """
    prompt, answered = request.prompt, _answered(request.answers, policy)
    asked = [each.turn for each in past if not each.begun_before]
    continued = unsent or (request_to_continue(asked) if says_continue(prompt) else None)
    meant = [] if continued is None else [_to_be_continued(continued, policy)]
    is_stopped = continued is not None and unsent is None and continued.status is not TurnStatus.DONE
    if continued is not None and is_stopped:
        meant.insert(0, _STOPPED.format(_listed((continued.seq,))))
    size = past_size(policy, request.window) - sum(map(utf8_size, (*answered, *meant)))
    parts, told = _past(past, packet, policy, size, _where(request))
    if parts:
        lead = f"{_OURS}fresh session: {why.reason}, {why.sentence}.\n{_UNKNOWN}"
        marker = _marker(request, _GOES_ON if is_stopped else _NEW)
        return _composed([lead, *parts, *answered, *meant], marker, prompt, told)
    if answered or meant or prompt.startswith(_OURS):
        return _composed([*answered, *meant], _marker(request, _NEW), prompt, told)
    return Composed(clean_text(prompt))


def current_request(text: str) -> str:
    """The request in a text that was sent: the exact inverse of composing, for any request and any history."""
    found = _found_marker(text)
    return text if found is None else text[found.end() :]


def read_marker(text: str) -> Marker | None:
    """The marker line of a text that was sent; None if it was not composed by Holdfast, or is the request alone."""
    found = _found_marker(text)
    if found is None:
        return None
    attempt = found["attempt"]
    return Marker(
        int(found["seq"]), None if attempt is None else AttemptId(attempt), found["interrupted"] is not None
    )


def read_past(text: str) -> SeenTurns:
    """The earlier turns that a text that was sent tells of."""
    found = _found_marker(text)
    if found is None:
        return SeenTurns()
    told = read_transcript(text[: found.start()])
    for seq in _CONTINUED_TURN.findall(text[: found.start()]):
        told = told.with_turn(int(seq))
    return told


def says_continue(prompt: str) -> bool:
    """Whether the request only says to continue, without saying with what."""
    if len(prompt) > _LONGEST_PHRASE:
        return False
    words = _WORD.findall(prompt.casefold())
    return " ".join(word for word in words if word not in _FILLERS) in _CONTINUE_PHRASES


def request_to_continue(history: Sequence[HistoryTurn]) -> HistoryTurn | None:
    """The newest turn that asked for something; ``history`` is oldest first."""
    asked = (turn for turn in reversed(history) if turn.prompt.strip() and not says_continue(turn.prompt))
    return next(asked, None)


def _found_marker(text: str) -> re.Match[str] | None:
    return _MARKER.search(text) if text.startswith(_OURS) else None


def past_size(policy: ContextPolicy, window: int | None = None) -> int:
    """How many bytes of the past a model with this context window is sent; ``window`` None: not known."""
    return policy.past_tokens(window) * BYTES_PER_TOKEN


def most_turns(policy: ContextPolicy, window: int | None = None) -> int:
    """More turns than this never fit, so no more need to be read."""
    return past_size(policy, window) // LEAST_TURN_BYTES + 1


def _past(
    past: Sequence[PastTurn], packet: Packet | None, policy: ContextPolicy, size: int, where: str
) -> tuple[list[str], Told]:
    """The parts that tell it, in ``size`` bytes together."""
    told = transcript(past, size, policy.message_characters, where)
    # the turns say neither what an unfinished turn left behind nor what was cut: the packet does
    if packet is None or not (packet.is_unfinished or told.past.cuts):
        return [told.text] if told.text else [], told
    frame = frame_markdown(packet, policy, size // 2)
    told = transcript(past, size - utf8_size(frame), policy.message_characters, where)
    return [part for part in (told.text, frame) if part], told


def _where(request: NewRequest) -> str:
    """The commands that print what was cut; "" if there is no session to name."""
    if not request.session_id:
        return ""
    session = request.session_id
    return f"`holdfast log {session} --json` has the calls, `holdfast show {session} --turns {request.seq} --json` the texts"


def _answered(answers: Sequence[ToldAnswer], policy: ContextPolicy) -> list[str]:
    """The answers of people: at most a quarter of a packet."""
    text = answers_text(answers, policy.packet_tokens * BYTES_PER_TOKEN // 4)
    return [f"{_ANSWERS}\n{text}"] if text else []


def _to_be_continued(turn: HistoryTurn, policy: ContextPolicy) -> str:
    """The request that a bare "continue" means: at most half of a packet."""
    size = _half_a_packet(policy)
    request = fitted(lambda limit: quoted(turn.prompt, limit), policy.message_characters, size)
    return f"{_OURS}{_CONTINUED}{turn.seq}, whose request was\n{request}"


def _half_a_packet(policy: ContextPolicy) -> int:
    return policy.packet_tokens * BYTES_PER_TOKEN // 2


def _listed(turns: Sequence[int]) -> str:
    numbers = ", ".join(map(str, turns))
    return f"turn {numbers} was" if len(turns) == 1 else f"turns {numbers} were"


def _marker(request: NewRequest, words: str) -> str:
    attempt = "" if request.attempt_id is None else f", attempt {request.attempt_id}"
    return f"{_OURS}turn {request.seq}{attempt}: {words}"


def _composed(parts: Sequence[str], marker: str, request: str, told: Told) -> Composed:
    return Composed(clean_text("\n\n".join([*parts, f"{marker}\n{request}"])), told.past)
