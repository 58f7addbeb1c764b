"""Owns gathering a packet: from the store, and from git in the work directory; bounded, and without secrets.

Git runs no program that the work directory names. A repository's own settings can name programs: monitors, hooks,
filters, diff drivers, signature checkers, transports. All of them are switched off, so that a packet can be made in a
directory that is not trusted.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Timer

from holdfast.domain.conversations import HistoryTurn
from holdfast.domain.decisions import Because
from holdfast.domain.policy import ContextPolicy
from holdfast.domain.records import replace
from holdfast.domain.redaction import redact_text
from holdfast.domain.telling.context import request_to_continue
from holdfast.domain.telling.packet import GroundTruth, Packet, Start, TurnFailure
from holdfast.domain.telling.quoting import on_one_line, shortened
from holdfast.domain.telling.tool_calls import CallOutcome, ToolCall
from holdfast.domain.telling.transcript import PastTurn
from holdfast.domain.turns import AttemptStatus, AttemptSummary
from holdfast.engine.past import PastReader, told_answers
from holdfast.processes.process import find_program

_LONGEST_MESSAGE = 2000

_Attempt = tuple[int, AttemptSummary]  #: and its turn


def gather_packet(
    reader: PastReader,
    policy: ContextPolicy,
    why: Because,
    *,
    seq: int | None = None,
    work_dir: str | None = None,
    past: Sequence[PastTurn] = (),
) -> Packet:
    """What a fresh start of turn ``seq`` must know; without ``seq``, that of the next turn.

    Raises Conflict, as the ``reader`` does. Without ``work_dir``, the directory of the session's newest attempt counts.
    ``past`` are the turns before that turn, if they were read already: those that are whole are not read again.
    """
    store, session = reader.store, reader.session
    next_turn = _next_turn(reader) if seq is None else seq
    newest = tuple(past[-policy.packet_turns :]) if policy.packet_turns else ()
    if not newest or not all(each.is_whole for each in newest):
        newest = reader.newest(next_turn, policy.packet_turns)
    turns = [each.turn for each in newest]
    ran = [*newest, *reader.unsettled([next_turn])]
    calls = [call for each in ran for call in each.calls]
    attempts = [(each.turn.seq, attempt) for each in ran for attempt in each.attempts]
    if not work_dir:
        last = store.newest_attempt(session.id)
        work_dir = None if last is None else last.work_dir
    request = request_to_continue(turns)
    goal = session.purpose or ("" if request is None else request.prompt)
    asked = store.approvals(session_id=session.id, limit=1)
    return Packet(
        session_id=session.id,
        agent=session.agent,
        goal=_told(goal, policy.message_characters),
        phase=session.phase.value,
        next_turn=next_turn,
        interrupted=_interrupted(next_turn, attempts, calls),
        why_fresh=why,
        ground_truth=ground_truth(work_dir),
        turns=tuple(_shown(turn, policy.message_characters) for turn in turns),
        tool_calls=_newest(calls, policy, in_flight=False),
        in_flight=_newest(calls, policy, in_flight=True),
        artifacts=tuple(dict.fromkeys(path for call in calls for path in call.written)),
        starts=tuple(
            _start(turn, attempt) for turn, attempt in attempts if attempt.status is not AttemptStatus.OPEN
        ),
        failures=tuple(_failures(attempts)),
        open_approval=f"{asked[0].what} ({asked[0].id})" if asked else None,
        answers=told_answers(store.situation(session.id)),
    )


def _next_turn(reader: PastReader) -> int:
    """The number of the open turn, else of a new one."""
    head = reader.store.head_turn(reader.session.id)
    return reader.conversation.next_seq if head is None else head.seq


def _interrupted(next_turn: int, attempts: Iterable[_Attempt], calls: Iterable[ToolCall]) -> bool:
    cut_off = any(
        turn == next_turn and attempt.status is AttemptStatus.INTERRUPTED for turn, attempt in attempts
    )
    return cut_off or any(call.turn == next_turn for call in calls)


def _told(text: str, limit: int) -> str:
    return shortened(redact_text(text), limit)


def _shown(turn: HistoryTurn, limit: int) -> HistoryTurn:
    response = None if turn.response is None else _told(turn.response, limit)
    return replace(turn, prompt=_told(turn.prompt, limit), response=response)


def _newest(calls: Iterable[ToolCall], policy: ContextPolicy, *, in_flight: bool) -> tuple[ToolCall, ...]:
    wanted = [call for call in calls if (call.outcome is CallOutcome.IN_FLIGHT) is in_flight]
    return tuple(call.within(_LONGEST_MESSAGE) for call in wanted[-policy.packet_tool_calls :])


def _start(turn: int, attempt: AttemptSummary) -> Start:
    return Start(turn, attempt.number, attempt.kind.value, attempt.reason.value, attempt.status.value)


def _failures(attempts: Iterable[_Attempt]) -> Iterable[TurnFailure]:
    for turn, attempt in attempts:
        if attempt.failure is not None:
            message = _told(attempt.failure.message, _LONGEST_MESSAGE)
            yield TurnFailure(turn, attempt.failure.failure_class.value, message)


# --- the state of the work directory, by git ---

_SECONDS = 5.0  #: for each command
_MOST_BYTES = 1_000_000
_MOST_CHARACTERS = 4_000
_ON_A_LINE = 200

_OFF = {
    "core.fsmonitor": "",
    "core.hooksPath": os.devnull,
    "core.attributesFile": os.devnull,
    "log.showSignature": "false",
}
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ALLOW_PROTOCOL": "none",  # otherwise a partial clone would fetch missing objects
    "LC_ALL": "C",
}
_FILTERS = ("config", "--null", "--name-only", "--get-regexp", r"^filter\.")
# Without submodules: in a submodule its own settings would count.
_STATUS = ("status", "--porcelain", "--branch", "--no-ahead-behind", "--ignore-submodules=all")
_HEAD = ("log", "-1", "--no-color", "--format=%h %s")
_DIFF = (
    "diff", "HEAD", "--stat", "--no-color", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "--",
)  # fmt: skip


class _Unanswered(Exception):
    """Git has no answer; the text says why."""


def ground_truth(work_dir: str | None) -> GroundTruth:
    """Never raises: if git has no answer, ``problem`` says why."""
    if work_dir is None:
        return GroundTruth(None, problem="The directory of the work is not known.")
    git = find_program("git", os.environ)
    if not Path(work_dir).is_dir():
        return GroundTruth(work_dir, problem="There is no such directory on this machine.")
    if git is None:
        return GroundTruth(work_dir, problem="Git is not installed here.")
    try:
        return _Repository(git, work_dir).truth()
    except _Unanswered as exc:
        return GroundTruth(work_dir, problem=on_one_line(redact_text(str(exc)), _ON_A_LINE))


class _Repository:
    def __init__(self, git: str, work_dir: str) -> None:
        self._git = git
        self._work_dir = work_dir
        self._off = dict(_OFF)

    def truth(self) -> GroundTruth:
        self._off |= dict.fromkeys(self._filters(), "")
        lines = self._ask(*_STATUS).splitlines()
        branch = next((line.removeprefix("## ") for line in lines if line.startswith("## ")), "")
        status = "\n".join(line for line in lines if not line.startswith("## "))
        try:
            head = self._ask(*_HEAD).strip()
        except _Unanswered:
            return _redacted_truth(self._work_dir, branch, "no commit yet", status, "")
        return _redacted_truth(self._work_dir, branch, head, status, self._ask(*_DIFF))

    def _filters(self) -> Iterator[str]:
        """The settings of every configured filter; an empty value switches the filter off."""
        answer = self._ask(*_FILTERS, fine=(0, 1))  # 1: there is no filter
        if len(answer) > _MOST_BYTES:
            raise _Unanswered("Too many filters are configured there to switch them all off.")
        for key in answer.split("\0"):
            driver, _, name = key.rpartition(".")
            if name in ("clean", "smudge", "process", "required"):
                yield key
                yield f"{driver}.process"

    def _ask(self, *question: str, fine: tuple[int, ...] = (0,)) -> str:
        try:
            process = subprocess.Popen(
                [self._git, "--no-pager", *question],
                cwd=self._work_dir,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as exc:
            raise _Unanswered(f"Git cannot be run there: {exc.strerror}.") from exc
        output = _output(process)
        text = output.decode("utf-8", "replace")
        if len(output) <= _MOST_BYTES and process.returncode not in fine:
            raise _Unanswered(text or f"Git failed (git {question[0]}).")
        return text

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        settings = {"GIT_CONFIG_COUNT": str(len(self._off))}
        for number, (key, value) in enumerate(self._off.items()):
            settings |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        return inherited | _ENVIRONMENT | settings


def _output(process: subprocess.Popen[bytes]) -> bytes:
    """What git prints, up to ``_MOST_BYTES`` and one byte more. If it runs longer or prints more, it is ended."""
    late: list[bool] = []

    def give_up() -> None:
        late.append(True)
        _end(process)

    timer = Timer(_SECONDS, give_up)
    timer.start()
    try:
        with process:
            assert process.stdout is not None
            output = process.stdout.read(_MOST_BYTES + 1)
            if len(output) > _MOST_BYTES:
                _end(process)
    finally:
        timer.cancel()
    if late:
        raise _Unanswered(f"Git did not answer within {_SECONDS:g} seconds.")
    return output


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _redacted_truth(work_dir: str, branch: str, head: str, status: str, diff_stat: str) -> GroundTruth:
    return GroundTruth(
        work_dir,
        on_one_line(redact_text(branch), _ON_A_LINE),
        on_one_line(redact_text(head), _ON_A_LINE),
        shortened(redact_text(status), _MOST_CHARACTERS),
        shortened(redact_text(diff_stat.rstrip()), _MOST_CHARACTERS),
    )
