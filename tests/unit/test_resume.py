"""The decision as a whole: ranks, launch, history, and what a policy changes."""

from collections import defaultdict
from typing import Any

import pytest

from holdfast.domain.conversations import SeenTurns
from holdfast.domain.decisions import (
    NOT_OBSERVABLE,
    Decision,
    Fresh,
    Outcome,
    Reason,
    Resume,
    Standing,
    Wait,
    decision_kind,
    outcome_of,
)
from holdfast.domain.guards import decide_at_launch
from holdfast.domain.pointers import ProviderSession
from holdfast.domain.policy import ResumePolicy
from holdfast.domain.usage import ContextUse
from tests.unit.builders import (
    RECORDED_ID,
    WIDER,
    Situation,
    a_fork_source,
    a_pointer,
    a_request,
    a_transcript,
    a_truncation,
    an_edit,
    capabilities,
    said,
    some_facts,
)


class TestRanking:
    #: what starts a fork source afresh, in the order of the guards: the reason, and what to break where
    FRESH_STARTS: tuple[tuple[Reason, str, dict[str, Any]], ...] = (
        (Reason.FORCE_FRESH, "request", {"force_fresh": True}),
        (Reason.RESUME_DISABLED, "facts", {"native_resume": False}),
        (Reason.CAPABILITY_MISSING, "capabilities", {"can_fork": False}),
        (Reason.GENERATION_CHANGED, "facts", {"generation": 7}),
        (Reason.RUNTIME_CHANGED, "facts", {"runtime_id": "rt-elsewhere"}),
        (Reason.WORKDIR_CHANGED, "facts", {"same_directory": False}),
        (Reason.HISTORY_CHANGED, "facts", {"changes": (an_edit(1, revision=9),)}),
        (Reason.FORK_POINT_MOVED, "transcript", {"grown": True}),
        (Reason.MODEL_CHANGED, "request", {"model": "haiku"}),
        (Reason.RETIRED, "provider_session", {"retired": "gone"}),
        (Reason.ERRORS, "provider_session", {"errors": 9}),
        (Reason.CONTEXT_FULL, "pointer", {"context": ContextUse(200_000, 200_000)}),
        (Reason.TRANSCRIPT_MISSING, "transcript", {"requests": 0}),
        (Reason.TRANSCRIPT_ALTERED, "transcript", {"prefix_intact": False}),
        (Reason.TRANSCRIPT_AHEAD, "transcript", {"foreign_turns": 1}),
    )

    @pytest.mark.parametrize("first", range(len(FRESH_STARTS)), ids=[start[0] for start in FRESH_STARTS])
    def test_within_a_rank_the_order_of_the_guards_picks_the_reason(self, first: int) -> None:
        broken: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        for _, where, change in self.FRESH_STARTS[first:]:
            broken[where].update(change)
        situation = Situation(
            a_fork_source(**broken["pointer"]),
            a_request(**broken["request"]),
            some_facts(
                capabilities=capabilities(**broken["capabilities"]),
                provider_session=ProviderSession(**broken["provider_session"]),
                transcript=a_transcript(**broken["transcript"]),
                **broken["facts"],
            ),
            ResumePolicy(same_model=True, transcript_ahead="fresh"),
        )

        assert said(situation.decide()) == ("fresh", self.FRESH_STARTS[first][0])

    def test_refusing_comes_before_waiting_and_starting_fresh(self) -> None:
        situation = Situation(
            request=a_request(rights=WIDER), facts=some_facts(lock_free=False, same_directory=False)
        )

        assert said(situation.decide()) == ("refuse", Reason.RIGHTS_WIDER)

    def test_waiting_comes_before_starting_fresh(self) -> None:
        situation = Situation(facts=some_facts(lock_free=False, same_directory=False))

        assert said(situation.decide()) == ("wait", Reason.BUSY)

    def test_a_session_is_resumed_when_nothing_speaks_against_it(self) -> None:
        assert Situation().decide() == Resume(
            RECORDED_ID, catch_up=(), verdicts=Situation().decide().verdicts, reason=Reason.RESUMABLE
        )


class TestLaunch:
    CLAIM = some_facts(same_directory=NOT_OBSERVABLE, transcript=NOT_OBSERVABLE, lock_free=NOT_OBSERVABLE)

    def launch(self, claim: Situation, launch: Situation) -> Decision:
        return decide_at_launch(claim.decide(), launch.pointer, launch.request, launch.facts, launch.policy)

    def test_a_claim_that_stands_carries_what_the_launch_has_seen(self) -> None:
        decision = self.launch(Situation(facts=self.CLAIM), Situation())

        assert isinstance(decision, Resume)
        assert {verdict.standing for verdict in decision.verdicts} <= {
            Standing.PASSED,
            Standing.NOT_APPLICABLE,
        }

    @pytest.mark.parametrize(
        ("seen", "expected"),
        [
            ({"transcript": None}, ("fresh", Reason.TRANSCRIPT_MISSING)),
            ({"same_directory": False}, ("fresh", Reason.WORKDIR_CHANGED)),
            ({"lock_free": False}, ("wait", Reason.BUSY)),
        ],
        ids=["transcript-gone", "other-directory", "locked-here"],
    )
    def test_what_the_machine_shows_weakens_the_claim(
        self, seen: dict[str, Any], expected: tuple[str, Reason]
    ) -> None:
        decision = self.launch(Situation(facts=self.CLAIM), Situation(facts=some_facts(**seen)))

        assert said(decision) == expected

    def test_a_fresh_claim_stays_fresh_for_its_own_reason_whatever_the_launch_sees(self) -> None:
        claim = Situation(facts=some_facts(generation=2))

        assert self.launch(claim, Situation()) == claim.decide()
        assert self.launch(claim, Situation(request=a_request(force_fresh=True))) == claim.decide()

    def test_a_refused_claim_stays_refused(self) -> None:
        claim = Situation(request=a_request(rights=WIDER))

        assert said(self.launch(claim, Situation())) == ("refuse", Reason.RIGHTS_WIDER)


class TestHistory:
    SEEN = SeenTurns.parse("1-2,5")

    @pytest.mark.parametrize(
        ("change", "resumes"),
        [
            (an_edit(2, revision=3), False),
            (an_edit(3, revision=3), True),
            (an_edit(2, revision=2), True),
            (a_truncation(3, 4, revision=3), True),
            (a_truncation(4, 6, revision=3), False),
            (a_truncation(6, 9, revision=3), True),
        ],
        ids=[
            "edit-of-a-seen-turn",
            "edit-of-a-foreign-turn",
            "edit-before-the-pointer",
            "truncation-between",
            "truncation-with-a-seen-turn-in-it",
            "truncation-behind",
        ],
    )
    def test_only_a_change_of_what_the_provider_has_seen_starts_fresh(
        self, change: Any, resumes: bool
    ) -> None:
        situation = Situation(a_pointer(seen=self.SEEN, epoch=2), facts=some_facts(changes=(change,)))

        assert isinstance(situation.decide(), Resume) is resumes

    def test_the_change_that_matters_is_found_among_others(self) -> None:
        changes = (an_edit(3, revision=3), an_edit(1, revision=4), an_edit(4, revision=5))

        verdict = Situation(a_pointer(seen=self.SEEN, epoch=2), facts=some_facts(changes=changes)).verdict(
            Reason.HISTORY_CHANGED
        )

        assert verdict.standing is Standing.FAILED
        assert "turn 1" in verdict.evidence
        assert "4" in verdict.evidence


class TestPolicies:
    def test_turns_made_by_hand_are_resumed_and_named(self) -> None:
        situation = Situation(facts=some_facts(transcript=a_transcript(foreign_turns=2)))

        assert isinstance(situation.decide(), Resume)
        assert "2" in situation.verdict(Reason.TRANSCRIPT_AHEAD).evidence

    def test_turns_made_by_hand_start_fresh_for_those_who_want_it(self) -> None:
        situation = Situation(
            facts=some_facts(transcript=a_transcript(foreign_turns=1)),
            policy=ResumePolicy(transcript_ahead="fresh"),
        )

        assert said(situation.decide()) == ("fresh", Reason.TRANSCRIPT_AHEAD)

    @pytest.mark.parametrize("model", ["haiku", None], ids=["another", "missing"])
    def test_another_model_is_of_no_interest_unless_the_policy_says_so(self, model: str | None) -> None:
        situation = Situation(request=a_request(model=model))

        assert isinstance(situation.decide(), Resume)
        assert situation.verdict(Reason.MODEL_CHANGED).standing is Standing.NOT_APPLICABLE

    def test_another_version_is_of_no_interest_unless_the_policy_says_so(self) -> None:
        assert isinstance(Situation(facts=some_facts(version="3.0.0")).decide(), Resume)

    @pytest.mark.parametrize(
        ("version", "standing"),
        [
            ("2.1.0", Standing.PASSED),
            ("3.0.0", Standing.FAILED),
            (None, Standing.MISSING),
            (NOT_OBSERVABLE, Standing.NOT_OBSERVABLE),
        ],
        ids=["same", "another", "missing", "unseen"],
    )
    def test_with_same_version_another_version_is_another_runtime(
        self, version: Any, standing: Standing
    ) -> None:
        situation = Situation(facts=some_facts(version=version), policy=ResumePolicy(same_version=True))

        assert situation.verdict(Reason.RUNTIME_CHANGED).standing is standing

    @pytest.mark.parametrize("known", [True, None, NOT_OBSERVABLE], ids=["on", "missing", "unseen"])
    def test_session_persistence_off_counts_whatever_is_known_of_native_resume(self, known: Any) -> None:
        situation = Situation(
            facts=some_facts(native_resume=known), policy=ResumePolicy(session_persistence=False)
        )

        assert situation.verdict(Reason.RESUME_DISABLED).standing is Standing.FAILED

    def test_another_version_counts_even_when_the_runtime_cannot_be_seen_yet(self) -> None:
        facts = some_facts(runtime_id=NOT_OBSERVABLE, version="3.0.0")

        verdict = Situation(facts=facts, policy=ResumePolicy(same_version=True)).verdict(
            Reason.RUNTIME_CHANGED
        )

        assert verdict.standing is Standing.FAILED

    def test_the_number_of_errors_is_a_policy(self) -> None:
        facts = some_facts(provider_session=ProviderSession(errors=3))

        assert isinstance(Situation(facts=facts).decide(), Fresh)
        patient = ResumePolicy(max_provider_session_errors=4)
        assert isinstance(Situation(facts=facts, policy=patient).decide(), Resume)

    def test_a_transcript_that_may_be_rewritten_proves_nothing(self) -> None:
        facts = some_facts(
            capabilities=capabilities(append_only_transcript=False),
            transcript=a_transcript(prefix_intact=False),
        )

        assert isinstance(Situation(facts=facts).decide(), Resume)


class TestContextWindow:
    @pytest.mark.parametrize(
        ("tokens", "prompt", "kind", "mentioned"),
        [
            (139_999, 0, "resume", False),
            (140_000, 0, "resume", True),
            (139_900, 100, "resume", True),
            (159_999, 0, "resume", True),
            (160_000, 0, "fresh", True),
            (100_000, 60_000, "fresh", True),
            (190_000, 0, "fresh", True),
            (500_000, 0, "fresh", True),
        ],
    )
    def test_a_window_that_fills_up_is_mentioned_at_70_percent_and_left_at_80(
        self, tokens: int, prompt: int, kind: str, mentioned: bool
    ) -> None:
        situation = Situation(a_pointer(context=ContextUse(tokens, 200_000)), a_request(prompt_tokens=prompt))

        assert decision_kind(situation.decide()) == kind
        assert bool(situation.verdict(Reason.CONTEXT_FULL).evidence) is mentioned

    @pytest.mark.parametrize("window", [0, -1], ids=["zero", "negative"])
    def test_a_window_without_a_size_was_not_recorded(self, window: int) -> None:
        situation = Situation(a_pointer(context=ContextUse(10, window)))

        assert situation.verdict(Reason.CONTEXT_FULL).standing is Standing.MISSING


class TestBusy:
    @pytest.mark.parametrize(
        ("facts", "witness"),
        [
            (some_facts(provider_session=ProviderSession(held_by="agent-else")), "agent-else"),
            (some_facts(lock_free=False), "process on this machine"),
        ],
        ids=["another-lease", "a-lock-on-this-machine"],
    )
    def test_a_session_that_someone_writes_to_is_waited_for_and_never_left_behind(
        self, facts: Any, witness: str
    ) -> None:
        situation = Situation(facts=facts)

        assert isinstance(situation.decide(), Wait)
        assert witness in situation.verdict(Reason.BUSY).evidence

    def test_a_first_turn_has_nothing_to_wait_for(self) -> None:
        decision = Situation(None, facts=some_facts(lock_free=False)).decide()

        assert said(decision) == ("fresh", Reason.NO_POINTER)


@pytest.mark.parametrize(
    ("situation", "outcome"),
    [
        (Situation(), Outcome.RESUME),
        (Situation(a_fork_source()), Outcome.RESUME),
        (Situation(None), Outcome.FRESH),
        (Situation(facts=some_facts(lock_free=False)), Outcome.WAIT),
        (Situation(request=a_request(rights=WIDER)), Outcome.REFUSE),
    ],
    ids=["resume", "fork", "fresh", "wait", "refuse"],
)
def test_each_kind_of_decision_has_its_rank(situation: Situation, outcome: Outcome) -> None:
    assert outcome_of(situation.decide()) is outcome
