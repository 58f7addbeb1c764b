"""What holds for every decision, whatever it is made from."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from holdfast.domain.conversations import HistoryChange
from holdfast.domain.decisions import (
    NOT_OBSERVABLE,
    Decision,
    Facts,
    Fork,
    Fresh,
    Outcome,
    Reason,
    Refuse,
    Resume,
    ResumeRequest,
    Standing,
    TranscriptFacts,
    Wait,
    decision_kind,
    outcome_of,
)
from holdfast.domain.guards import GUARDS, decide_at_launch
from holdfast.domain.pointers import ProviderSession, Rights
from holdfast.domain.policy import ResumePolicy
from tests.unit.builders import Situation, a_request, a_transcript, capabilities, some_facts
from tests.unit.strategies import FACTS, TABLES, changed, changes, resumable_situations, situations


@pytest.mark.parametrize("made", TABLES, ids=lambda made: made.__name__)
def test_every_field_is_tried(made: Any) -> None:
    assert set(TABLES[made]) == {field.name for field in fields(made)}


@given(situations)
def test_any_input_gives_a_decision_that_explains_itself(situation: Situation) -> None:
    decision = situation.decide()
    event(decision_kind(decision))

    assert isinstance(decision, Resume | Fork | Fresh | Wait | Refuse)
    assert len(decision.verdicts) == len(GUARDS)
    if outcome_of(decision) is Outcome.RESUME:
        assert decision.reason is Reason.RESUMABLE
    else:
        (deciding,) = (verdict for verdict in decision.verdicts if verdict.reason is decision.reason)
        assert deciding.outcome is outcome_of(decision) is max(v.outcome for v in decision.verdicts)
        assert deciding.evidence


@given(situations)
def test_a_guard_that_fails_or_misses_its_fact_never_lets_a_session_go_on(situation: Situation) -> None:
    decision = situation.decide()

    stops = [v for v in decision.verdicts if v.standing in (Standing.FAILED, Standing.MISSING)]
    assert all(verdict.outcome > Outcome.RESUME and verdict.evidence for verdict in stops)
    assert bool(stops) is not isinstance(decision, Resume | Fork)


@given(situations)
def test_a_session_that_goes_on_contradicts_nothing_that_was_seen(situation: Situation) -> None:
    pointer, request, facts, policy = situation.pointer, situation.request, situation.facts, situation.policy
    if not isinstance(situation.decide(), Resume | Fork):
        return
    assert pointer is not None

    def differ(one: object, other: object) -> bool:
        return NOT_OBSERVABLE not in (one, other) and one != other

    named = request.provider_session_id == pointer.provider_session_id
    assert pointer.provider_session_id
    assert request.force_fresh is not True
    assert named or (facts.native_resume is not False and policy.session_persistence)
    assert not differ(pointer.generation, facts.generation)
    assert not differ(pointer.runtime_id, facts.runtime_id)
    assert not (policy.same_version and differ(pointer.version, facts.version))
    assert not (policy.same_model and differ(pointer.model, request.model))
    assert facts.same_directory in (True, NOT_OBSERVABLE)
    if isinstance(facts.provider_session, ProviderSession):
        assert facts.provider_session.retired is None
        assert facts.provider_session.errors < policy.max_provider_session_errors
        assert pointer.is_fork_source or facts.provider_session.held_by is None
    assert pointer.is_fork_source or facts.lock_free in (True, NOT_OBSERVABLE)
    assert facts.transcript is not None
    if isinstance(facts.transcript, TranscriptFacts):
        assert facts.transcript.requests > 0
    if not request.allow_wider_rights and isinstance(request.rights, Rights):
        assert pointer.rights is not None
        assert request.rights.allowed_tools <= pointer.rights.allowed_tools
        assert request.rights.approve_tools >= pointer.rights.approve_tools


@given(situations, changed(some_facts()), changed(a_request()), changed(ResumePolicy()))
def test_a_launch_never_strengthens_the_claim(
    claim: Situation, facts: Facts, request: ResumeRequest, policy: ResumePolicy
) -> None:
    claimed = claim.decide()

    launched = decide_at_launch(claimed, claim.pointer, request, facts, policy)

    assert outcome_of(launched) >= outcome_of(claimed)
    if isinstance(launched, Resume | Fork):
        assert replace(launched, verdicts=claimed.verdicts) == claimed


@given(resumable_situations)
def test_with_a_pointer_and_nothing_against_it_its_session_goes_on(situation: Situation) -> None:
    decision = situation.decide()

    assert situation.pointer is not None
    assert isinstance(decision, Fork if situation.pointer.is_fork_source else Resume)
    assert decision.provider_session_id == situation.pointer.provider_session_id


@given(situations)
def test_an_id_that_was_named_is_the_only_one_that_is_used(situation: Situation) -> None:
    wanted = situation.request.provider_session_id
    decision = situation.decide()

    match decision:
        case Fresh():
            assert decision.provider_session_id == wanted
        case Resume() | Fork():
            assert situation.pointer is not None
            assert decision.provider_session_id == situation.pointer.provider_session_id
            assert wanted in (None, decision.provider_session_id)


# Monotonicity. Each of these adds a failure that was seen to what was seen before, or could not be seen yet;
# a fact that is missing stays missing.


def seen_to(name: str, value: Any) -> Callable[[Situation], Situation]:
    def add(situation: Situation) -> Situation:
        if getattr(situation.facts, name) is None:
            return situation
        return replace(situation, facts=replace(situation.facts, **{name: value}))

    return add


def seen_in(name: str, unseen: Any, **failure: Any) -> Callable[[Situation], Situation]:
    """Within what was seen of ``name``, if anything was; otherwise in ``unseen``, which is in good order."""

    def add(situation: Situation) -> Situation:
        known = getattr(situation.facts, name)
        if known is None:
            return situation
        seen = replace(unseen if known is NOT_OBSERVABLE else known, **failure)
        return replace(situation, facts=replace(situation.facts, **{name: seen}))

    return add


def asked(**failure: Any) -> Callable[[Situation], Situation]:
    def add(situation: Situation) -> Situation:
        (name,) = failure
        if getattr(situation.request, name) is None:
            return situation
        return replace(situation, request=replace(situation.request, **failure))

    return add


OBSERVED_FAILURES: dict[str, Callable[[Situation], Situation]] = {
    "force-fresh": asked(force_fresh=True),
    "another-model": asked(model="a model that nobody recorded"),
    "wider-rights": asked(rights=Rights("a mode that nobody recorded")),
    "native-resume-off": seen_to("native_resume", False),
    "unable": seen_in("capabilities", capabilities(), can_resume=False, can_fork=False, chooses_id=False),
    "reset": seen_to("generation", -77),
    "another-runtime": seen_to("runtime_id", "a runtime that nobody recorded"),
    "another-version": seen_to("version", "a version that nobody recorded"),
    "another-directory": seen_to("same_directory", False),
    "retired": seen_in("provider_session", ProviderSession(), retired="gone"),
    "errors": seen_in("provider_session", ProviderSession(), errors=99),
    "held": seen_in("provider_session", ProviderSession(), held_by="agent-else"),
    "locked": seen_to("lock_free", False),
    "no-request": seen_in("transcript", a_transcript(), requests=0),
    "grown": seen_in("transcript", a_transcript(), grown=True),
}


@pytest.mark.parametrize("add", OBSERVED_FAILURES.values(), ids=OBSERVED_FAILURES.keys())
@given(situation=situations)
def test_one_more_failure_never_makes_the_outcome_weaker(
    add: Callable[[Situation], Situation], situation: Situation
) -> None:
    assert outcome_of(add(situation).decide()) >= outcome_of(situation.decide())


@given(situations, changes, st.data())
def test_one_more_change_of_the_history_never_makes_the_outcome_weaker(
    situation: Situation, change: HistoryChange, data: st.DataObject
) -> None:
    before = situation.facts.changes
    if not isinstance(before, tuple):
        return
    at = data.draw(st.integers(0, len(before)))
    after = replace(situation, facts=replace(situation.facts, changes=(*before[:at], change, *before[at:])))

    assert outcome_of(after.decide()) >= outcome_of(situation.decide())


#: `restorable` says what was found by looking for a rescue: without a look there is none
MAY_BE_MISSING = [("facts", name) for name in FACTS if name not in ("seq", "restorable")] + [
    ("request", "force_fresh"),
    ("request", "model"),
    ("request", "rights"),
]


def with_value(situation: Situation, part: str, name: str, value: Any) -> Decision:
    changed_part = replace(getattr(situation, part), **{name: value})
    return replace(situation, **{part: changed_part}).decide()


@pytest.mark.parametrize(("part", "name"), MAY_BE_MISSING)
@given(situation=situations)
def test_a_fact_that_is_missing_weighs_at_least_as_much_as_one_that_cannot_be_seen_yet(
    part: str, name: str, situation: Situation
) -> None:
    missing = with_value(situation, part, name, None)
    unseen = with_value(situation, part, name, NOT_OBSERVABLE)

    assert outcome_of(missing) >= outcome_of(unseen)


@pytest.mark.parametrize(("part", "name"), MAY_BE_MISSING)
@given(situation=situations)
def test_not_seeing_a_fact_never_makes_the_outcome_stronger(
    part: str, name: str, situation: Situation
) -> None:
    unseen = with_value(situation, part, name, NOT_OBSERVABLE)

    assert outcome_of(unseen) <= outcome_of(situation.decide())
