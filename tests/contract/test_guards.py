"""Owns the clause that a turn is sent with a resume or with its context: a guard that fails leaves no id behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.domain.decisions import Reason
from holdfast.domain.policy import Policy, ResumePolicy
from holdfast.domain.runtimes import Capabilities
from holdfast.domain.sessions import Session
from holdfast.domain.turns import Claim, TurnRequest
from holdfast.domain.usage import ContextUse, UsageReport
from holdfast.store.contract import Store
from tests.builders import a_runtime, done, failed
from tests.contract.conftest import MakeStore
from tests.contract.test_epochs import ask, assert_fresh
from tests.steps import begin, claim, enqueue, run

HERE = "/srv/infra"


@dataclass(frozen=True)
class Scene:
    """A session that has run one turn and could go on."""

    store: Store
    make_store: MakeStore
    session: Session

    def under(self, **rules: Any) -> Store:
        """The same data under other rules."""
        return self.make_store(policy=Policy(resume=ResumePolicy(**rules)))


def requested(store: Store, session: Session, request: TurnRequest) -> Claim:
    enqueue(store, session, "next", request=request)
    return claim(store, session)


def force_fresh(scene: Scene) -> Claim:
    return requested(scene.store, scene.session, TurnRequest(HERE, force_fresh=True))


def resume_disabled(scene: Scene) -> Claim:
    return ask(scene.under(native_resume=False), scene.session)


def resume_disabled_for_the_agent(scene: Scene) -> Claim:
    return ask(scene.under(agents={scene.session.agent: False}), scene.session)


def resume_disabled_for_the_provider(scene: Scene) -> Claim:
    return ask(scene.under(providers={"claude": False}), scene.session)


def no_pointer(scene: Scene) -> Claim:
    return ask(scene.store, begin(scene.store))


def no_pointer_for_this_provider(scene: Scene) -> Claim:
    return ask(scene.store, scene.session, a_runtime(provider="gemini"))


def capability_missing(scene: Scene) -> Claim:
    return ask(scene.store, scene.session, a_runtime(capabilities=Capabilities(can_resume=False)))


def generation_changed(scene: Scene) -> Claim:
    scene.store.new_generation(scene.session.id)
    return ask(scene.store, scene.session)


def runtime_changed(scene: Scene) -> Claim:
    return ask(scene.store, scene.session, a_runtime(distribution="openclaude"))


def another_machine(scene: Scene) -> Claim:
    return ask(scene.store, scene.session, a_runtime(machine="build-8"))


def history_changed(scene: Scene) -> Claim:
    scene.store.edit_turn(scene.session.id, 1, prompt="edited")
    return ask(scene.store, scene.session)


def model_changed(scene: Scene) -> Claim:
    strict = scene.under(same_model=True)
    scene.store.finish_turn(
        requested(scene.store, scene.session, TurnRequest(HERE, model="opus")).lease, failed()
    )
    return requested(strict, scene.session, TurnRequest(HERE, model="sonnet"))


def retired(scene: Scene) -> Claim:
    scene.store.retire(
        scene.session.id, "claude", scene.store.provider_sessions(scene.session.id)[0].id, "poisoned"
    )
    return ask(scene.store, scene.session)


def errors(scene: Scene) -> Claim:
    scene.store.finish_turn(ask(scene.store, scene.session).lease, failed())
    return ask(scene.under(max_provider_session_errors=1), scene.session)


def context_full(scene: Scene) -> Claim:
    run(scene.store, scene.session, "two", usage=UsageReport(context=ContextUse(90, 100)))
    return ask(scene.store, scene.session)


FAILING: list[tuple[Reason, Callable[[Scene], Claim]]] = [
    (Reason.FORCE_FRESH, force_fresh),
    (Reason.RESUME_DISABLED, resume_disabled),
    (Reason.RESUME_DISABLED, resume_disabled_for_the_agent),
    (Reason.RESUME_DISABLED, resume_disabled_for_the_provider),
    (Reason.NO_POINTER, no_pointer),
    (Reason.NO_POINTER, no_pointer_for_this_provider),
    (Reason.CAPABILITY_MISSING, capability_missing),
    (Reason.GENERATION_CHANGED, generation_changed),
    (Reason.RUNTIME_CHANGED, runtime_changed),
    (Reason.RUNTIME_CHANGED, another_machine),
    (Reason.HISTORY_CHANGED, history_changed),
    (Reason.MODEL_CHANGED, model_changed),
    (Reason.RETIRED, retired),
    (Reason.ERRORS, errors),
    (Reason.CONTEXT_FULL, context_full),
]


class TestGuards:
    """What the store itself knows against a resume."""

    @pytest.mark.parametrize(("reason", "story"), FAILING, ids=[story.__name__ for _, story in FAILING])
    def test_a_guard_that_fails_starts_fresh_and_carries_no_resume_id(
        self, store: Store, make_store: MakeStore, reason: Reason, story: Callable[[Scene], Claim]
    ) -> None:
        scene = Scene(store, make_store, begin(store))
        run(store, scene.session, "one")
        assert_fresh(store, story(scene), reason)

    def test_a_swap_of_the_runtime_in_mid_conversation_starts_fresh_and_then_goes_on_there(
        self, store: Store
    ) -> None:
        session, fork_of_claude = begin(store), a_runtime(distribution="openclaude")
        run(store, session, "one")
        claimed = ask(store, session, fork_of_claude)
        assert_fresh(store, claimed, Reason.RUNTIME_CHANGED)
        store.finish_turn(claimed.lease, done())
        assert run(store, session, "three", fork_of_claude).decision.reason is Reason.RESUMABLE
