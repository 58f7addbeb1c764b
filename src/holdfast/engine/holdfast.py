"""Owns the library's face: every verb of Holdfast on one store."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack, overload

from holdfast.clock import Clock, system_clock, to_iso
from holdfast.domain.approvals import why_it_waits
from holdfast.domain.conversations import Conversation
from holdfast.domain.ids import check_id, check_provider, check_session_name, check_workspace
from holdfast.domain.inputs import check_text, check_whole
from holdfast.domain.policy import Policy
from holdfast.domain.redaction import Json
from holdfast.domain.sessions import Session, SessionKind
from holdfast.domain.turns import NewTurn, Turn, TurnRequest, TurnStatus
from holdfast.engine.conversations import Conversations, check_turn
from holdfast.engine.explain import Explanation
from holdfast.engine.keywords import RunKeywords
from holdfast.errors import (
    Busy,
    Conflict,
    HoldfastError,
    InvalidInput,
    MissingBinary,
    NotFound,
    Refused,
    StoreError,
)
from holdfast.store.contract import Store

if TYPE_CHECKING:
    from holdfast.domain.telling.packet import Packet
    from holdfast.engine.following import Waited
    from holdfast.engine.result import RunResult
    from holdfast.engine.running.agents import Agents
    from holdfast.engine.work import Work
    from holdfast.engine.worker import Worker, WorkerOptions

#: what a turn asks for that goes on with one that was stopped
CONTINUE = "continue"
#: a session's purpose is the beginning of its first prompt
_PURPOSE = 200
#: what a turn that waits was given when it was put in
_OF_THE_TURN = ("cwd", "model", "rights", "fresh", "provider_session_id", "allow_wider_rights")


class Holdfast(Conversations):
    """Sessions, conversations, turns, decisions and agents; the verbs raise the typed errors of ``holdfast.errors``."""

    def __init__(
        self,
        store: Store,
        policy: Policy | None = None,
        clock: Clock = system_clock,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """``environ`` is the one that agents are run with; None: this process's."""
        super().__init__(store, policy, clock)
        self._environ = environ

    def within(self, workspace: str) -> Holdfast:
        """The same store for another workspace; it is closed with this one."""
        store = self.store.within(check_workspace(workspace))
        return Holdfast(store, self.policy, self._clock, self._environ)

    @cached_property
    def _work(self) -> Work:
        from holdfast.engine.work import Work  # brings everything that runs processes

        return Work(self.store, self.policy, self._environ)

    @property
    def agents(self) -> Agents:
        """The agents of this machine."""
        return self._work.agents

    # --- running agents ---

    def run(
        self,
        prompt: str,
        *,
        agent: str | None = None,
        provider: str | None = None,
        name: str | None = None,
        **keywords: Unpack[RunKeywords],
    ) -> RunResult:
        """Begin a session with its first turn, and see that through. The session stays open."""
        _check_prompt(prompt)
        chosen = check_provider(provider or self.policy.run.provider)
        # where it is begun is checked before anything is recorded
        placed: RunKeywords = {**self._with_task_id(keywords), "cwd": keywords.get("cwd") or "."}
        options = self._work.prepare(chosen, placed)
        session = self.begin(prompt, agent=agent, provider=chosen, name=name)
        return self._first_turn(
            session,
            lambda: self._work.run(self.store.situation(session.id, chosen), chosen, prompt, options),
        )

    def _first_turn(self, session: Session, run: Callable[[], RunResult]) -> RunResult:
        """A session whose first turn could not be put in is not kept; of one that is, the error has the id."""
        try:
            return run()
        except StoreError:
            raise
        except HoldfastError as exc:
            if self.store.turns(session.id, limit=1):
                exc.details.setdefault("session_id", session.id)
            else:
                self.store.remove_session(session.id)
            raise

    def begin(
        self, prompt: str, *, agent: str | None = None, provider: str | None = None, name: str | None = None
    ) -> Session:
        """A session for what a prompt asks for, with no turn yet: ``enqueue`` gives it one."""
        _check_prompt(prompt)
        chosen = check_provider(provider or self.policy.run.provider)
        purpose = prompt.strip()[:_PURPOSE]
        return self.create(
            agent or chosen, purpose, kind=SessionKind.CONVERSATION, name=name, provider=chosen
        )

    def begin_queued(
        self, prompt: str, new: NewTurn, *, agent: str | None = None, name: str | None = None
    ) -> Turn:
        """A session whose first turn waits for a worker. None is begun for a turn that could not be put in."""
        check_turn(prompt, new)
        if new.runtime_id is not None and new.runtime_id not in {known.id for known in self.store.runtimes()}:
            raise NotFound("runtime", new.runtime_id)
        session = self.begin(prompt, agent=agent, provider=new.provider, name=name)
        try:
            return self.enqueue(session.id, prompt, new)
        except (InvalidInput, Refused):
            self.store.remove_session(session.id)
            raise

    def worker(self, providers: Sequence[str], options: WorkerOptions) -> Worker:
        """For these providers, or for every one that is installed here."""
        from holdfast.engine.worker import Worker

        if providers:
            found = [self.agents.get(check_provider(name)) for name in providers]
        else:
            found = [agent for agent in self.agents.all().values() if not isinstance(agent, HoldfastError)]
        if not found:
            raise MissingBinary("agents", "none is installed here; see: holdfast runtimes")
        return Worker(self.store, self.agents, found, self.policy, options)

    def resume(
        self,
        session_id: str,
        prompt: str | None = None,
        *,
        provider: str | None = None,
        **keywords: Unpack[RunKeywords],
    ) -> RunResult:
        """Go on with a session; without a prompt, with its turn that waits or was stopped.

        To continue a request that never reached an agent is to send it.
        """
        if provider is not None:
            check_provider(provider)
        situation = self.store.situation(check_id("session", session_id), provider)
        session, chosen = situation.session, situation.provider or self.policy.run.provider
        keywords = self._with_task_id(keywords)
        if prompt is not None:
            _check_prompt(prompt)
            prompt = self.meant_by(session.id, prompt)
            return self._work.run(situation, chosen, prompt, self._work.prepare(chosen, keywords, session.id))
        taken = self.take_over(session.id)
        stopped = self.stopped_turn(session.id)
        if stopped is None:
            called = session.id if session.name is None else shlex.quote(session.name)
            why = f"no turn of {session.id} was stopped"
            if taken is not None:
                why = f"turn {taken.seq} of {session.id} was answered meanwhile: holdfast show {called}"
            raise InvalidInput("prompt", f'{why}; say what to do next: holdfast resume {called} "..."')
        if stopped.status not in (TurnStatus.QUEUED, TurnStatus.WAITING):
            chosen = provider or stopped.provider
            prompt = self.meant_by(session.id, CONTINUE)
            situation = self.store.situation(session.id, chosen)
            return self._work.run(situation, chosen, prompt, self._work.prepare(chosen, keywords, session.id))
        self._check_waiting(stopped, provider, keywords)
        options = self._work.prepare(stopped.provider, keywords)
        return self._work.run_waiting(session.id, stopped.provider, options)

    def _check_waiting(self, stopped: Turn, provider: str | None, keywords: RunKeywords) -> None:
        """A turn that waits is run as it was asked for, and when it can be."""
        if stopped.status is TurnStatus.WAITING:
            for approval in self.store.approvals(session_id=stopped.session_id):
                if approval.seq == stopped.seq:
                    raise why_it_waits(approval, self.store.now())
        if provider not in (None, stopped.provider):
            raise InvalidInput("provider", f"turn {stopped.seq}, which waits, is for {stopped.provider}")
        for name in _OF_THE_TURN:
            if keywords.get(name):
                raise InvalidInput(
                    name,
                    f"turn {stopped.seq}, which waits, has its own; holdfast cancel {stopped.session_id} gives it up",
                )
        if stopped.not_before is not None and stopped.not_before > self.store.now():
            raise Busy(f"turn {stopped.seq} of {stopped.session_id}", "its retry", to_iso(stopped.not_before))

    @overload
    def fork(
        self, session_id: str, prompt: None = None, *, at: int | None = None, name: str | None = None
    ) -> Session: ...
    @overload
    def fork(
        self,
        session_id: str,
        prompt: str,
        *,
        at: int | None = None,
        name: str | None = None,
        provider: str | None = None,
        **keywords: Unpack[RunKeywords],
    ) -> RunResult: ...
    def fork(
        self,
        session_id: str,
        prompt: str | None = None,
        *,
        at: int | None = None,
        name: str | None = None,
        provider: str | None = None,
        **keywords: Unpack[RunKeywords],
    ) -> Session | RunResult:
        """Fork a session; with a prompt, also run the fork's first turn. See ``branch``."""
        if prompt is None:
            return self.branch(session_id, at=at, name=name)[0]
        _check_prompt(prompt)
        self._work.prepare(self.provider_of(self.session(session_id), provider), keywords)
        child, notices = self.branch(session_id, at=at, name=name)
        prompt = self.meant_by(session_id, prompt, at=at)
        left_out = () if at is not None else self._left_out(session_id, child)
        result = self._first_turn(child, lambda: self.resume(child.id, prompt, provider=provider, **keywords))
        return replace(result, notices=(*notices, *left_out, *result.notices))

    def branch(
        self, session_id: str, *, at: int | None = None, name: str | None = None
    ) -> tuple[Session, tuple[str, ...]]:
        """Fork a session up to turn ``at``; returns the fork and notices for the person.

        The fork has the turns that a dead worker finished, and those that a person made in the agent's own program:
        both are added to the parent's history first. Otherwise the parent is not changed.
        """
        if name is not None:
            check_session_name(name)
        if at is not None:
            check_whole("turn", at)
        self.take_over(session_id)
        notices = self.adopt(session_id)
        return self.store.fork(check_id("session", session_id), self.new_id(), at=at, name=name), notices

    def _left_out(self, session_id: str, child: Session) -> tuple[str, ...]:
        """A notice if the newest turns had not ended, so that the fork could not take them along."""
        last = self.store.get_conversation(child.conversation_id).next_seq - 1
        newest = self.history(session_id, 1)
        if not newest or newest[-1].seq <= last:
            return ()
        return (f"the fork goes to turn {last}: what comes after it has not ended, and was not taken along",)

    def adopt(self, session_id: str) -> tuple[str, ...]:
        """Take what a person made in the agent's own program, on this machine, into the history.

        Returns notices for the person; none if nothing was found.
        """
        session = self.session(session_id)
        if not self.store.pointers(session.id):
            return ()
        return self._work.adopt(session.id, self.provider_of(session, None))

    def open_native(self, session_id: str) -> int:
        """The provider's own program on this session, for a person; its exit code.

        Nobody else writes to the session meanwhile, and what was said there is in the history afterwards.
        """
        session = self.session(session_id)
        return self._work.open(session.id, self.provider_of(session, None))

    def relocate(self, session_id: str, directory: str) -> str:
        """The project was moved: go on in its new place, which is returned as it is recorded."""
        return self._work.relocate(self.session(session_id).id, directory)

    def recover(self) -> tuple[Turn, ...]:
        """Take over from workers that went away; see ``Store.recover``."""
        return self._work.recover()

    # --- delegating ---

    def pre_delegate_hook(self, context: Mapping[str, Json]) -> dict[str, Any]:
        """Is there a session that a delegation would go on with? Never raises for what it is given.

        ``context``: ``agent_name``, and, if known, ``agent_id``, ``task_id``, ``task_description``, ``metadata``.
        """
        from holdfast.hooks.serving import answer_pre_delegate

        return answer_pre_delegate(self.store, context)

    # --- what others left running is ended before a session is changed ---

    def truncate(self, session_id: str, keep: int) -> Conversation:
        self.take_over(session_id)
        return super().truncate(session_id, keep)

    def retry(self, session_id: str, seq: int, prompt: str | None = None) -> Turn:
        self.take_over(session_id)
        return super().retry(session_id, seq, prompt)

    def new(self, session_id: str) -> Conversation:
        self.take_over(session_id)
        return super().new(session_id)

    def remove(self, session_id: str) -> None:
        self.take_over(session_id)
        super().remove(session_id)

    def finalize(self, session_id: str, outcome: str, summary: str | None = None) -> Session:
        self.take_over(session_id)
        return super().finalize(session_id, outcome, summary)

    def cancel(self, session_id: str, seq: int | None = None, *, by_force: bool = False) -> Turn:
        """Cancel a turn; without ``seq``, the session's newest open one. Raises Conflict if none is open.

        A running turn is cancelled when its worker next checks. ``by_force`` takes the turn from its worker at once:
        only for a worker that does not come back.
        """
        if seq is not None:
            check_whole("turn", seq, lowest=1)
        chosen = self._open_turn(session_id) if seq is None and by_force else seq
        taken = self.take_over(session_id, by_force=by_force)
        if taken is not None and taken.seq == chosen and not taken.status.is_open:
            return taken
        return super().cancel(session_id, self._open_turn(session_id) if chosen is None else chosen)

    def _open_turn(self, session_id: str) -> int:
        stopped = self.stopped_turn(session_id)
        if stopped is None or not stopped.status.is_open:
            raise Conflict(f"no turn of {session_id} is open")
        return stopped.seq

    def take_over(self, session_id: str, *, by_force: bool = False) -> Turn | None:
        """End what an owner that is gone left running of this session, and free its turn, which is returned.

        ``by_force``: take it from whoever has it. Only for an owner that does not come back.
        """
        if self.store.holder(check_id("session", session_id)) is None:
            return None
        return self._work.take_over(session_id, by_force=by_force)

    def wait(self, session_id: str, timeout: float | None = None) -> Waited:
        """Until its work is done, has failed, or needs a person; at most ``timeout`` seconds."""
        from holdfast.engine.following import wait_for

        return wait_for(self.store, self.session(session_id).id, timeout)

    # --- telling ---

    def why(self, session_id: str, provider: str | None = None) -> Explanation:
        """As ``Conversations.why``; on the machine where it ran, with everything that can be seen there."""
        told = super().why(session_id, provider)
        pointer = self.store.pointer(told.session.id, told.provider)
        if pointer is None:
            return told
        seq = self.store.get_conversation(told.session.conversation_id).next_seq
        return replace(told, decision=self._work.judge_here(told.decision, pointer, seq))

    def packet(self, session_id: str, provider: str | None = None, work_dir: str | None = None) -> Packet:
        """Where the work stands now, to hand it over. Changes nothing."""
        from holdfast.domain.decisions import because
        from holdfast.engine.packets import gather_packet  # it brings the modules that run processes

        told = self.why(session_id, provider)
        why, policy = because(told.decision), self.policy.context
        return gather_packet(self.store, told.session, policy, why, work_dir=work_dir)

    def _with_task_id(self, keywords: RunKeywords) -> RunKeywords:
        """A ``provider_session`` block speaks for every turn in it that names no session itself."""
        if keywords.get("provider_session_id") is not None:
            return keywords
        return {**keywords, "provider_session_id": self.asked(TurnRequest()).provider_session_id}


def _check_prompt(prompt: str) -> None:
    if not check_text("prompt", prompt).strip():
        raise InvalidInput("prompt", "must not be empty")
