"""Owns the inputs of a decision as Hypothesis strategies: every field, whatever it may hold."""

from dataclasses import fields, replace
from typing import Any

from hypothesis import strategies as st

from holdfast.domain.conversations import ChangeKind, HistoryChange, SeenTurns
from holdfast.domain.decisions import NOT_OBSERVABLE, Facts, ResumeRequest, TranscriptFacts
from holdfast.domain.pointers import Pointer, ProviderSession, Rights, TranscriptMark
from holdfast.domain.policy import ResumePolicy
from holdfast.domain.runtimes import Capabilities
from holdfast.domain.usage import ContextUse
from tests.unit.builders import (
    HERE,
    OTHER_ID,
    RECORDED_ID,
    Situation,
    a_fork_source,
    a_pointer,
    a_request,
    a_transcript,
    capabilities,
    some_facts,
)

Strategy = st.SearchStrategy[Any]
Table = dict[str, Strategy]


def or_missing(values: Strategy) -> Strategy:
    return st.one_of(values, st.none())


def looked_for(values: Strategy) -> Strategy:
    """As it may have been looked for: seen, missing, or not to be seen yet."""
    return st.one_of(values, st.none(), st.just(NOT_OBSERVABLE))


booleans = st.booleans()
numbers = st.one_of(st.integers(-2, 10), st.sampled_from([2**63, -(2**63), 10**400]))
words = st.one_of(st.sampled_from(["", "opus", "2.1.0", "plan", HERE]), st.text(max_size=3))
provider_session_ids = st.sampled_from([RECORDED_ID, OTHER_ID, ""])
word_sets = st.frozensets(words, max_size=2)
ranges = st.lists(st.tuples(numbers, numbers), max_size=3).map(tuple)
changes = st.builds(HistoryChange, numbers, st.sampled_from(ChangeKind), numbers, numbers)

RIGHTS: Table = {
    "permission_mode": or_missing(words),
    "allowed_tools": word_sets,
    "extra_dirs": word_sets,
    "extra_args": st.lists(words, max_size=2).map(tuple),
    "approve_tools": word_sets,
}
CAPABILITIES: Table = {field.name: booleans for field in fields(Capabilities)}
PROVIDER_SESSION: Table = {
    "errors": numbers,
    "failed_resumes": numbers,
    "retired": or_missing(words),
    "held_by": or_missing(words),
    "owner": or_missing(words),
    "owner_is_closed": booleans,
    "is_elsewhere": booleans,
}
TRANSCRIPT: Table = {
    "requests": numbers,
    "prefix_intact": looked_for(booleans),
    "foreign_turns": looked_for(numbers),
    "grown": looked_for(booleans),
}
POINTER: Table = {
    "session_id": words,
    "provider": words,
    "provider_session_id": provider_session_ids,
    "runtime_id": or_missing(words),
    "work_dir": or_missing(words),
    "model": or_missing(words),
    "epoch": or_missing(numbers),
    "generation": or_missing(numbers),
    "seen": or_missing(st.builds(SeenTurns, ranges)),
    "rights": or_missing(st.builds(Rights, **RIGHTS)),
    "transcript": or_missing(st.builds(TranscriptMark, words, numbers, words)),
    "context": or_missing(st.builds(ContextUse, numbers, numbers)),
    "version": or_missing(words),
    "updated_at": numbers,
    "fork_seq": or_missing(numbers),
}
REQUEST: Table = {
    "force_fresh": looked_for(booleans),
    "model": looked_for(words),
    "rights": looked_for(st.builds(Rights, **RIGHTS)),
    "allow_wider_rights": booleans,
    "prompt_tokens": numbers,
    "provider_session_id": or_missing(provider_session_ids),
}
FACTS: Table = {
    "native_resume": looked_for(booleans),
    "capabilities": looked_for(st.builds(Capabilities, **CAPABILITIES)),
    "generation": looked_for(numbers),
    "runtime_id": looked_for(words),
    "version": looked_for(words),
    "changes": looked_for(st.lists(changes, max_size=2).map(tuple)),
    "provider_session": looked_for(st.builds(ProviderSession, **PROVIDER_SESSION)),
    "seq": numbers,
    "same_directory": looked_for(booleans),
    "transcript": looked_for(st.builds(TranscriptFacts, **TRANSCRIPT)),
    "restorable": booleans,
    "restored": st.sampled_from(["", "restored from the vault"]),
    "lock_free": looked_for(booleans),
    "named_exists": booleans,
    "other_writer": or_missing(words),
}
POLICY: Table = {
    "native_resume": booleans,
    "agents": st.just({}),
    "providers": st.just({}),
    "same_model": booleans,
    "same_version": booleans,
    "transcript_ahead": st.sampled_from(["resume", "fresh"]),
    "restore": st.sampled_from(["auto", "ask", "off"]),
    "max_provider_session_errors": st.integers(1, 4),
    "max_failed_resumes": st.integers(1, 4),
    "context_warn": st.sampled_from([0.01, 0.7]),
    "context_refresh": st.sampled_from([0.75, 0.8]),
    "context_critical": st.sampled_from([0.95, 1.0]),
    "session_persistence": booleans,
}
TABLES = {
    Rights: RIGHTS,
    Capabilities: CAPABILITIES,
    ProviderSession: PROVIDER_SESSION,
    TranscriptFacts: TRANSCRIPT,
    Pointer: POINTER,
    ResumeRequest: REQUEST,
    Facts: FACTS,
    ResumePolicy: POLICY,
}


def changed(good: Any) -> Strategy:
    """Anything at all; or, so that the interesting decisions are met often, a good one with a few changes."""
    table = TABLES[type(good)]
    few = st.sets(st.sampled_from(sorted(table)), max_size=2).flatmap(
        lambda names: st.fixed_dictionaries({name: table[name] for name in sorted(names)})
    )
    return st.one_of(
        st.just(good), few.map(lambda values: replace(good, **values)), st.builds(type(good), **table)
    )


def passing(good: Any, **others: list[Any]) -> Strategy:
    """A good one with other values that are just as good."""
    choices = {
        name: st.sampled_from([getattr(good, name), *values]) for name, values in sorted(others.items())
    }
    return st.fixed_dictionaries(choices).map(lambda values: replace(good, **values))


pointers = st.one_of(st.none(), changed(a_pointer()), changed(a_fork_source()))
situations = st.builds(
    Situation, pointers, changed(a_request()), changed(some_facts()), changed(ResumePolicy())
)
UNSEEN = [NOT_OBSERVABLE]
resumable_situations = st.builds(
    Situation,
    st.builds(
        a_pointer,
        provider_session_id=st.one_of(st.uuids().map(str), st.just(RECORDED_ID)),
        fork_seq=st.sampled_from([None, 3, 6]),
        seen=st.sampled_from([SeenTurns(), SeenTurns.up_to(3), SeenTurns.parse("2-3")]),
    ),
    passing(
        a_request(),
        force_fresh=UNSEEN,
        model=UNSEEN,
        rights=UNSEEN,
        allow_wider_rights=[True],
        prompt_tokens=[0],
    ),
    passing(
        some_facts(),
        native_resume=UNSEEN,
        capabilities=[NOT_OBSERVABLE, capabilities(can_fork_at_turn=True)],
        generation=UNSEEN,
        runtime_id=UNSEEN,
        version=UNSEEN,
        changes=UNSEEN,
        provider_session=[NOT_OBSERVABLE, ProviderSession(errors=1)],
        seq=[1, 9],
        same_directory=UNSEEN,
        transcript=[NOT_OBSERVABLE, a_transcript(prefix_intact=NOT_OBSERVABLE, grown=NOT_OBSERVABLE)],
        lock_free=UNSEEN,
    ),
    passing(ResumePolicy(), same_model=[True], same_version=[True], transcript_ahead=["fresh"]),
)
