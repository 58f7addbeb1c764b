"""Owns a person's own time with the agent: the provider's program on a session, under our lock."""

from __future__ import annotations

import logging
import os
import signal
import subprocess

from holdfast.domain.decisions import Decision, Fork, Refuse, Resume, Wait, because
from holdfast.domain.ids import SessionId
from holdfast.domain.pointers import NO_RIGHTS
from holdfast.domain.policy import ResumePolicy
from holdfast.domain.turns import Situation
from holdfast.engine.asked import check_rights
from holdfast.engine.running.agents import Agent
from holdfast.engine.running.launching import SESSION_VARIABLE
from holdfast.engine.running.look import PlannedLaunch, decide_here
from holdfast.engine.running.outside import adopt_locked, adopt_outside_turns
from holdfast.engine.running.recovery import recover_session
from holdfast.engine.running.tool_gate import opened_gate
from holdfast.errors import Busy, MissingBinary, Refused, SessionClosed
from holdfast.processes.locks import SessionLock
from holdfast.processes.owners import process_start
from holdfast.processes.process import Command, environment
from holdfast.processes.table import MARKER, QUICKLY, Traces, end_all
from holdfast.providers.contract import LaunchSpec
from holdfast.store.contract import Store

log = logging.getLogger("holdfast")


def open_native(store: Store, agent: Agent, policy: ResumePolicy, session_id: SessionId) -> int:
    """Refused, with the reason, unless the provider's session can be resumed right here."""
    situation = store.situation(session_id, agent.provider.name)
    if situation.session.phase.is_final:
        raise SessionClosed(session_id, situation.session.phase.value)
    if recover_session(store, agent.agents, situation.holder) is not None:
        situation = store.situation(session_id, agent.provider.name)
    situation = adopt_outside_turns(store, agent, policy, situation).situation
    pointer = situation.pointer
    decision = _decide(store, agent, policy, situation)
    if isinstance(decision, Fork):
        raise Refused(
            "fork_not_run",
            f"it is a fork that has not run yet: holdfast resume {session_id} PROMPT comes first",
        )
    if not isinstance(decision, Resume) or pointer is None or pointer.work_dir is None:
        told = f"it cannot be opened: {because(decision).note}; {_instead(decision, session_id)}"
        raise Refused(decision.reason.value, told)
    rights = pointer.rights or NO_RIGHTS
    check_rights(rights, agent.provider, allow_wider=True)
    waited = situation.withheld if agent.runtime.capabilities.can_defer else frozenset()
    with agent.lock(decision.provider_session_id) as lock, opened_gate(rights, waited, attended=True) as gate:
        if not lock.try_acquire():
            raise Busy(f"the {agent.provider.name} session of {session_id}")
        spec = LaunchSpec(
            agent.binary, agent.runtime.home, pointer.work_dir, "", decision, None, pointer.model, rights,
            gate,
        )  # fmt: skip
        command = agent.provider.interactive(spec)
        exit_code = _run(agent, session_id, command, spec.work_dir, lock)
        adopt_locked(store, agent, policy, store.situation(session_id, agent.provider.name))
    return exit_code


def _instead(decision: Decision, session_id: SessionId) -> str:
    match decision:
        case Wait():
            return "holdfast resume is busy as well, until that has ended"
        case Refuse():
            return f"holdfast resume is refused as well: holdfast why {session_id}"
        case _:
            return f"holdfast resume {session_id} PROMPT starts fresh, with the context"


def _run(agent: Agent, session_id: SessionId, command: Command, work_dir: str, lock: SessionLock) -> int:
    """Nothing of the program is left when it has ended: whatever it started has inherited the lock."""
    marker = f"open.{os.urandom(16).hex()}"
    variables = {**environment(command, agent.environ), SESSION_VARIABLE: session_id, MARKER: marker}
    try:
        child = subprocess.Popen(command.argv, cwd=work_dir, env=variables, pass_fds=(lock.fileno(),))
    except FileNotFoundError as exc:
        raise MissingBinary(agent.provider.name, agent.binary) from exc
    started_at = process_start(child.pid) or 0  # 0: it has ended already
    try:
        return _attend(child)
    finally:
        # also when we are told to terminate: nobody else would know of it
        if not end_all(Traces(child.pid, started_at, marker, is_own=True), QUICKLY):
            log.warning(
                "a process that %s has left behind cannot be ended, and keeps the session", command.argv[0]
            )
        child.poll()


def _decide(store: Store, agent: Agent, policy: ResumePolicy, situation: Situation) -> Decision:
    pointer = situation.pointer
    decision = store.explain(situation.session.id, agent.provider.name, runtime=agent.runtime)
    if pointer is None or pointer.work_dir is None:
        return decision
    planned = PlannedLaunch(situation.conversation.next_seq, 0, pointer.work_dir)
    # whether the lock is free shows when it is taken
    return decide_here(store, decision, pointer, planned, agent, policy)


def _attend(child: subprocess.Popen[bytes]) -> int:
    """Ctrl-C is meant for the program in front. Its exit code, as a shell tells it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = child.wait()
        return code if code >= 0 else 128 - code
    finally:
        signal.signal(signal.SIGINT, before)
