"""A provider session that the caller names: it beats configuration and is never replaced by another."""

from typing import Any

import pytest

from holdfast.domain.decisions import Fresh, Reason, Refuse, Resume
from holdfast.domain.pointers import NOTHING_YET, ProviderSession
from holdfast.domain.policy import ResumePolicy
from holdfast.domain.usage import ContextUse
from tests.unit.builders import (
    OTHER_ID,
    RECORDED_ID,
    WIDER,
    Situation,
    a_pointer,
    a_request,
    an_edit,
    capabilities,
    said,
    some_facts,
)

OWN = a_request(provider_session_id=RECORDED_ID)
OTHER = a_request(provider_session_id=OTHER_ID)


@pytest.mark.parametrize(
    ("facts", "policy"),
    [
        (some_facts(native_resume=False), ResumePolicy()),
        (some_facts(), ResumePolicy(session_persistence=False)),
        (some_facts(native_resume=None), ResumePolicy()),
    ],
    ids=["native-resume-off", "session-persistence-off", "policy-unknown"],
)
def test_naming_the_recorded_id_beats_configuration(facts: Any, policy: ResumePolicy) -> None:
    decision = Situation(request=OWN, facts=facts, policy=policy).decide()

    assert isinstance(decision, Resume)
    assert decision.provider_session_id == RECORDED_ID


def test_without_a_name_session_persistence_off_starts_each_call_on_a_new_one() -> None:
    decision = Situation(policy=ResumePolicy(session_persistence=False)).decide()

    assert said(decision) == ("fresh", Reason.RESUME_DISABLED)


@pytest.mark.parametrize("pointer", [a_pointer(), None], ids=["another-is-recorded", "none-is-recorded"])
def test_a_new_name_starts_fresh_under_that_name(pointer: Any) -> None:
    decision = Situation(pointer, OTHER).decide()

    assert isinstance(decision, Fresh)
    assert decision.provider_session_id == OTHER_ID


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (some_facts(capabilities=capabilities(chooses_id=False)), Reason.EXPLICIT_ID),
        (some_facts(provider_session=ProviderSession(retired="gone")), Reason.RETIRED),
        (some_facts(provider_session=ProviderSession(held_by="agent-else")), Reason.BUSY),
        (some_facts(lock_free=False), Reason.BUSY),
    ],
    ids=["unsupported", "retired", "held-by-a-lease", "locked-on-this-machine"],
)
def test_a_name_that_cannot_be_honoured_is_refused_and_never_replaced(facts: Any, reason: Reason) -> None:
    assert said(Situation(request=OTHER, facts=facts).decide()) == ("refuse", reason)


def test_a_name_whose_state_is_not_known_is_refused() -> None:
    decision = Situation(request=OTHER, facts=some_facts(provider_session=None)).decide()

    assert isinstance(decision, Refuse)


@pytest.mark.parametrize(
    ("pointer", "facts", "reason"),
    [
        (a_pointer(), {"capabilities": capabilities(can_resume=False)}, Reason.CAPABILITY_MISSING),
        (a_pointer(), {"generation": 2}, Reason.GENERATION_CHANGED),
        (a_pointer(), {"runtime_id": "rt-elsewhere"}, Reason.RUNTIME_CHANGED),
        (a_pointer(work_dir=None), {}, Reason.WORKDIR_CHANGED),
        (a_pointer(), {"changes": (an_edit(1, revision=9),)}, Reason.HISTORY_CHANGED),
        (a_pointer(), {"provider_session": ProviderSession(retired="gone")}, Reason.RETIRED),
        (a_pointer(), {"provider_session": ProviderSession(errors=3)}, Reason.ERRORS),
        (a_pointer(context=ContextUse(9, 10)), {}, Reason.CONTEXT_FULL),
        (a_pointer(), {"transcript": None}, Reason.TRANSCRIPT_MISSING),
        (a_pointer(), {"provider_session": ProviderSession(held_by="agent-else")}, Reason.BUSY),
    ],
    ids=[
        "cannot-resume",
        "reset",
        "another-runtime",
        "no-work-dir",
        "edited",
        "retired",
        "errors",
        "context-full",
        "transcript-gone",
        "held",
    ],
)
def test_what_would_start_fresh_is_refused_when_the_recorded_id_was_named(
    pointer: Any, facts: dict[str, Any], reason: Reason
) -> None:
    assert said(Situation(pointer, OWN, some_facts(**facts)).decide()) == ("refuse", reason)


def test_a_recorded_id_under_which_nothing_was_ever_saved_begins_with_this_turn() -> None:
    decision = Situation(a_pointer(transcript=NOTHING_YET), OWN, some_facts(transcript=None)).decide()

    assert isinstance(decision, Fresh)
    assert decision.provider_session_id == RECORDED_ID


def test_such_an_id_is_refused_where_ids_cannot_be_chosen() -> None:
    facts = some_facts(transcript=None, capabilities=capabilities(chooses_id=False))

    decision = Situation(a_pointer(transcript=NOTHING_YET), OWN, facts).decide()

    assert said(decision) == ("refuse", Reason.EXPLICIT_ID)


def test_the_recorded_id_may_be_named_where_new_ids_cannot_be_chosen() -> None:
    facts = some_facts(capabilities=capabilities(chooses_id=False))

    assert isinstance(Situation(request=OWN, facts=facts).decide(), Resume)


def test_asking_for_a_fresh_start_on_the_recorded_id_is_refused() -> None:
    request = a_request(provider_session_id=RECORDED_ID, force_fresh=True)

    assert said(Situation(request=request).decide()) == ("refuse", Reason.FORCE_FRESH)


def test_a_name_without_a_pointer_has_no_rights_to_widen() -> None:
    request = a_request(provider_session_id=OTHER_ID, rights=WIDER)

    assert isinstance(Situation(request=request).decide(), Fresh)
