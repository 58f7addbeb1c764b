from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from holdfast.domain.notices import Occasion
from holdfast.domain.phases import Phase
from holdfast.domain.policy import (
    OPEN_PHASES,
    ContinuePolicy,
    InvalidRule,
    NotifyPolicy,
    Policy,
    QueuePolicy,
    ResumePolicy,
    RetentionPolicy,
)


def test_the_defaults_are_the_documented_ones() -> None:
    assert Policy() == Policy(
        continue_=ContinuePolicy(
            resumable_phases=frozenset({"approval", "investigating", "planning"}),
            max_idle_seconds=1800,
            max_errors=3,
        ),
        resume=ResumePolicy(
            native_resume=True,
            agents={},
            providers={},
            same_model=False,
            same_version=False,
            transcript_ahead="resume",
            max_provider_session_errors=3,
            max_failed_resumes=2,
            context_warn=0.70,
            context_refresh=0.80,
            context_critical=0.95,
            session_persistence=True,
        ),
        queue=QueuePolicy(
            lease_seconds=60,
            heartbeat_seconds=15,
            grace_seconds=120,
            max_attempts=3,
            retry_delay_seconds=5,
            lock_tries=5,
            lock_delay_seconds=2.0,
            lock_backoff=1.5,
            same_error_limit=3,
        ),
        retention=RetentionPolicy(max_age_hours=24),
    )


def test_a_policy_cannot_be_changed() -> None:
    policy = Policy()
    for part in (policy, *(getattr(policy, f.name) for f in fields(policy))):
        with pytest.raises(FrozenInstanceError):
            setattr(part, fields(part)[0].name, None)


def test_a_policy_keeps_its_own_copy_of_the_overrides() -> None:
    agents = {"reviewer": False}
    rules = ResumePolicy(agents=agents)
    agents["reviewer"] = True
    assert not rules.native_resume_for("reviewer", "claude")


def test_equal_policies_are_one_key_of_a_dictionary() -> None:
    assert len({Policy(), Policy()}) == 1


def test_a_rule_may_name_every_phase_that_is_not_final() -> None:
    assert set(OPEN_PHASES) == {phase for phase in Phase if not phase.is_final}
    assert ContinuePolicy(resumable_phases=frozenset(OPEN_PHASES)).resumable_phases == set(OPEN_PHASES)


def test_a_limit_that_is_none_is_off() -> None:
    assert ContinuePolicy(max_idle_seconds=None).max_idle_seconds is None


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (ResumePolicy(), True),
        (ResumePolicy(native_resume=False), False),
        (ResumePolicy(native_resume=False, providers={"claude": True}), True),
        (ResumePolicy(providers={"claude": False}, agents={"reviewer": True}), True),
        (ResumePolicy(providers={"claude": True}, agents={"reviewer": False}), False),
        (ResumePolicy(providers={"codex": False}, agents={"planner": False}), True),
    ],
)
def test_the_most_specific_rule_about_native_resume_wins(rules: ResumePolicy, expected: bool) -> None:
    assert rules.native_resume_for("reviewer", "claude") is expected


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (NotifyPolicy(), False),
        (NotifyPolicy(command="true"), True),
        (NotifyPolicy(webhook="https://chat.example"), True),
        (NotifyPolicy(command="true", events=frozenset({"session_done"})), False),
    ],
)
def test_a_notice_needs_someone_to_tell_and_an_occasion_that_is_wanted(
    rules: NotifyPolicy, expected: bool
) -> None:
    assert rules.wants(Occasion.TURN_FAILED) is expected


@pytest.mark.parametrize(
    ("kind", "values", "keys"),
    [
        (ContinuePolicy, {"resumable_phases": frozenset({"completed"})}, ("resumable_phases",)),
        (ContinuePolicy, {"resumable_phases": "approval"}, ("resumable_phases",)),
        (ContinuePolicy, {"max_idle_seconds": 0.0}, ("max_idle_seconds",)),
        (ContinuePolicy, {"max_idle_seconds": math.nan}, ("max_idle_seconds",)),
        (ContinuePolicy, {"max_errors": 0}, ("max_errors",)),
        (ResumePolicy, {"max_provider_session_errors": 0}, ("max_provider_session_errors",)),
        (ResumePolicy, {"max_failed_resumes": -1}, ("max_failed_resumes",)),
        (ResumePolicy, {"context_warn": 0.0}, ("context_warn",)),
        (ResumePolicy, {"context_critical": 1.01}, ("context_critical",)),
        (ResumePolicy, {"context_warn": 0.8}, ("context_warn", "context_refresh")),
        (ResumePolicy, {"context_refresh": 0.96}, ("context_refresh", "context_critical")),
        (NotifyPolicy, {"events": frozenset({"turn_done"})}, ("events",)),
        (NotifyPolicy, {"command": " "}, ("command",)),
        (NotifyPolicy, {"command": "say 'half"}, ("command",)),
        (NotifyPolicy, {"command": "https://chat.example"}, ("command",)),
        (NotifyPolicy, {"webhook": "ftp://chat.example"}, ("webhook",)),
        (NotifyPolicy, {"webhook": "http://[chat.example"}, ("webhook",)),
        (NotifyPolicy, {"page": "fleet.example"}, ("page",)),
        (NotifyPolicy, {"page": "https://fleet.example/?x=1"}, ("page",)),
        (QueuePolicy, {"lease_seconds": 0.0}, ("lease_seconds",)),
        (QueuePolicy, {"heartbeat_seconds": 60.0}, ("heartbeat_seconds", "lease_seconds")),
        (QueuePolicy, {"grace_seconds": -1.0}, ("grace_seconds",)),
        (QueuePolicy, {"retry_delay_seconds": math.inf}, ("retry_delay_seconds",)),
        (QueuePolicy, {"max_attempts": 0}, ("max_attempts",)),
        (QueuePolicy, {"lock_tries": 0}, ("lock_tries",)),
        (QueuePolicy, {"lock_delay_seconds": -0.1}, ("lock_delay_seconds",)),
        (QueuePolicy, {"lock_backoff": 0.9}, ("lock_backoff",)),
        (
            QueuePolicy,
            {"lock_tries": 100, "lock_backoff": 10.0},
            ("lock_delay_seconds", "lock_backoff", "lock_tries"),
        ),
        (QueuePolicy, {"same_error_limit": 0}, ("same_error_limit",)),
        (RetentionPolicy, {"max_age_hours": -1.0}, ("max_age_hours",)),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(
    kind: type[Any], values: dict[str, object], keys: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidRule) as caught:
        kind(**values)
    assert caught.value.keys == keys
    assert all(key in str(caught.value) for key in keys)


@pytest.mark.parametrize(
    "rules",
    [
        ContinuePolicy(resumable_phases=frozenset()),
        ResumePolicy(context_warn=0.01, context_refresh=0.5, context_critical=1.0),
        QueuePolicy(
            grace_seconds=0, retry_delay_seconds=0, lock_tries=1, lock_delay_seconds=0, lock_backoff=1
        ),
        QueuePolicy(heartbeat_seconds=0.01, lease_seconds=0.02),
        RetentionPolicy(max_age_hours=0),
    ],
)
def test_the_ends_of_a_range_are_accepted(rules: object) -> None:
    assert rules
