"""Owns the work with agents on this machine: whatever needs a process, a provider's files or a lock."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from holdfast.domain.decisions import Decision
from holdfast.domain.ids import ProviderSessionId, SessionId, check_id
from holdfast.domain.pointers import Pointer
from holdfast.domain.policy import Policy
from holdfast.domain.turns import Situation, Turn
from holdfast.engine.conversations import refuse_of_others
from holdfast.engine.keywords import RunKeywords
from holdfast.engine.result import RunResult
from holdfast.engine.running.agents import Agents
from holdfast.engine.running.launching import ignore
from holdfast.engine.running.look import Asked, decide_here
from holdfast.engine.running.native import open_native
from holdfast.engine.running.outside import adopt_outside_turns
from holdfast.engine.running.recovery import recover_all, recover_session
from holdfast.engine.running.runs import RunOptions, existing_directory, run_turn, run_waiting
from holdfast.errors import Conflict, HoldfastError, InvalidInput
from holdfast.store.contract import Store

_LONGEST_TIMEOUT = 366 * 24 * 3600.0


class Work:
    def __init__(self, store: Store, policy: Policy, environ: Mapping[str, str] | None) -> None:
        self.agents = Agents(os.environ if environ is None else environ)
        self._store = store
        self._policy = policy

    def prepare(
        self, provider: str, keywords: RunKeywords, session_id: SessionId | None = None
    ) -> RunOptions:
        """Everything that can be wrong with what was asked for, before anything is recorded."""
        options = _options(keywords)
        options.check(self.agents.get(provider))
        if options.provider_session_id is not None:
            refuse_of_others(self._store, provider, options.provider_session_id, session_id)
        return options

    def run(self, situation: Situation, provider: str, prompt: str, options: RunOptions) -> RunResult:
        """``situation`` is the session's with this provider."""
        return run_turn(self._store, self.agents.get(provider), self._policy, situation, prompt, options)

    def run_waiting(self, session_id: SessionId, provider: str, options: RunOptions) -> RunResult:
        return run_waiting(self._store, self.agents.get(provider), self._policy, session_id, options)

    def open(self, session_id: SessionId, provider: str) -> int:
        return open_native(self._store, self.agents.get(provider), self._policy.resume, session_id)

    def relocate(self, session_id: SessionId, directory: str) -> str:
        work_dir = existing_directory(directory)
        if self._store.holder(session_id) is not None:
            raise Conflict(f"session {session_id} is running: stop it first")
        pointers = self._store.pointers(session_id)
        if not pointers:
            raise Conflict(
                f"session {session_id} has no session of an agent to be moved: "
                f"holdfast resume {session_id} PROMPT --cwd DIR continues in another directory"
            )
        for pointer in pointers:
            self._store.set_pointer(replace(pointer, work_dir=work_dir, updated_at=self._store.now()))
        return work_dir

    def recover(self) -> tuple[Turn, ...]:
        return recover_all(self._store, self.agents)

    def take_over(self, session_id: str, *, by_force: bool = False) -> Turn | None:
        """From an owner that is gone, so that nothing of its turn runs on behind what comes next."""
        return recover_session(self._store, self.agents, self._store.holder(session_id), by_force=by_force)

    def adopt(self, session_id: SessionId, provider: str) -> tuple[str, ...]:
        """What was made by hand, where the provider is installed at all; the notices of it for the person."""
        try:
            agent = self.agents.get(provider)
        except HoldfastError:
            return ()
        situation = self._store.situation(session_id, provider)
        return adopt_outside_turns(self._store, agent, self._policy.resume, situation).notices

    def judge_here(self, judged: Decision, pointer: Pointer, seq: int) -> Decision:
        """A decision with what this machine can see, if it is the one that the pointer was recorded on."""
        try:
            agent = self.agents.get(pointer.provider)
        except HoldfastError:
            return judged  # the provider is not installed here: there is nothing more to see
        if agent.runtime.id != pointer.runtime_id or pointer.work_dir is None:
            return judged
        is_free = agent.lock(pointer.provider_session_id).is_free()
        asked = Asked(seq, 0, pointer.work_dir, lock_free=is_free)
        return decide_here(self._store, judged, pointer, asked, agent, self._policy.resume)


def _options(keywords: RunKeywords) -> RunOptions:
    for name in keywords:
        if name not in RunKeywords.__annotations__:
            raise InvalidInput(name, f"is not known; {', '.join(sorted(RunKeywords.__annotations__))} are")
    given = keywords.get("provider_session_id")
    timeout = keywords.get("timeout")
    if timeout is not None and not 0 < timeout <= _LONGEST_TIMEOUT:
        raise InvalidInput("timeout", "must be a number of seconds above 0, at most a year")
    return RunOptions(
        work_dir=keywords.get("cwd"),
        model=keywords.get("model"),
        rights=keywords.get("rights"),
        fresh=keywords.get("fresh", False),
        provider_session_id=None
        if given is None
        else ProviderSessionId(check_id("provider_session_id", given)),
        allow_wider_rights=keywords.get("allow_wider_rights", False),
        timeout_seconds=timeout,
        observer=keywords.get("observer", ignore),
    )
