"""Owns the clauses on imports: sessions of providers become ours, many at a time, and their sources are remembered."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.clock import Instant
from holdfast.domain.conversations import SeenTurns
from holdfast.domain.events import Event, EventKind
from holdfast.domain.failures import FailureClass
from holdfast.domain.imports import Imported, NotTaken, SessionImport
from holdfast.domain.phases import Phase
from holdfast.domain.pointers import NOTHING_YET, TranscriptMark
from holdfast.domain.records import replace
from holdfast.domain.sessions import Old, Session, SessionFilter, SessionKind
from holdfast.domain.turns import Launch, OutsideTurn
from holdfast.domain.usage import Usage
from holdfast.errors import InvalidInput, NotFound
from holdfast.store.contract import Store
from tests.builders import (
    a_pointer,
    a_provider_session_id,
    a_runtime,
    a_session_id,
    a_source,
    an_import,
    failed,
)
from tests.clock import ManualClock
from tests.steps import begin, claim, enqueue, run

pytestmark = pytest.mark.usefixtures("watched")

FAR = Instant(10**15 * 4)
MARK = TranscriptMark("projects/s.jsonl", 4096, "d1935t", 1)


def turns(*keys: str, **changes: Any) -> tuple[OutsideTurn, ...]:
    return tuple(
        replace(OutsideTurn(key, f"ask {key}", f"answer {key}", Instant(n * 1000), Instant(n * 1000 + 500)), **changes)
        for n, key in enumerate(keys, 1)
    )  # fmt: skip


def imported(store: Store, **changes: Any) -> tuple[Session, SessionImport]:
    one = an_import(**changes)
    (answer,) = store.import_sessions([one])
    assert answer.reason is None
    return store.get_session(one.new.id), one


def another_of(one: SessionImport, **changes: Any) -> SessionImport:
    """The same provider session, under another id."""
    return an_import(provider_session_id=one.provider_session_id, **changes)


class TestSessions:
    def test_a_session_of_a_provider_becomes_one_of_ours(self, store: Store, clock: ManualClock) -> None:
        store.register_runtime(a_runtime())
        one = an_import(turns=turns("a", "b"), usage=Usage(100, 20, 7), counted=Usage(500, 0, 9))
        assert one.pointer is not None
        whole = replace(one.pointer, runtime_id=a_runtime().id, transcript=MARK)
        assert store.import_sessions([replace(one, pointer=whole)]) == (Imported(one.new.id, 2),)

        session = store.get_session(one.new.id)
        assert (session.created_at, session.updated_at, session.imported_at) == (1_000, 2_500, clock.now)
        assert session.usage == Usage(100, 20, 7)
        (totals,) = store.provider_sessions(session.id)
        assert (totals.id, totals.usage) == (one.provider_session_id, Usage(100, 20, 7))
        assert session.phase is Phase.INVESTIGATING, "as after a turn that was run here"
        assert [(t.prompt, t.response, t.at) for t in store.history(session.conversation_id)] == [
            ("ask a", "answer a", 1_000),
            ("ask b", "answer b", 2_000),
        ]
        seen = replace(whole, seen=SeenTurns.up_to(2), epoch=0, generation=0)
        assert store.pointer(session.id, "claude") == seen
        assert store.owner_of("claude", one.provider_session_id) == session.id

    def test_the_calls_of_its_turns_are_on_record(self, store: Store) -> None:
        session, _ = imported(store)
        (((attempt, event)),) = store.events(session.conversation_id, 1)
        assert (attempt, event.kind, event.data["tool"], event.at) == (0, EventKind.TOOL_CALL, "Bash", 2_000)

    def test_many_are_taken_in_at_once_or_none(self, store: Store) -> None:
        batch = [an_import() for _ in range(20)]
        assert [answer.session_id for answer in store.import_sessions(batch)] == [one.new.id for one in batch]
        wrong = an_import(turns=(OutsideTurn("k", "p", None, Instant(-1)),))
        with pytest.raises(InvalidInput):
            store.import_sessions([an_import(), wrong])
        assert len(store.list_sessions(SessionFilter(), 100).sessions) == 20

    def test_parts_of_one_session_may_come_in_one_call(self, store: Store) -> None:
        one = an_import(turns=turns("a"))
        again = [replace(one, turns=turns("b")), another_of(one), an_import()]
        first, second, other, last = store.import_sessions([one, *again])
        assert (first, second) == (Imported(one.new.id, 1), Imported(one.new.id, 1))
        assert other == Imported(one.new.id, reason=NotTaken.OWNED)
        assert last.reason is None
        assert len(store.history(store.get_session(one.new.id).conversation_id)) == 2

    @pytest.mark.parametrize("order", [1, -1])
    def test_a_parent_may_come_with_its_children(self, store: Store, order: int) -> None:
        parent = an_import()
        children = [an_import(comes_from=parent.provider_session_id) for _ in range(2)]
        store.import_sessions([parent, *children][::order])
        assert {child.id for child in store.children(parent.new.id)} == {child.new.id for child in children}

    def test_a_repeated_call_changes_nothing(self, store: Store) -> None:
        session, one = imported(store, turns=turns("a", "b"))
        before = store.pointer(session.id, "claude")
        assert store.import_sessions([one]) == (Imported(one.new.id, 0),)
        assert len(store.history(session.conversation_id)) == 2
        assert store.pointer(session.id, "claude") == before

    def test_a_long_session_comes_in_several_calls(self, store: Store) -> None:
        session, one = imported(store, turns=turns("a", response=None))
        assert one.pointer is not None
        assert store.pointer(session.id, "claude") is not None
        more = Event(2, EventKind.NOTICE, {"text": "more"}, Instant(3_000))
        rest = (
            OutsideTurn("a", "", "answer a", Instant(1_000), Instant(9_000), (more,)),
            *turns("b"),
        )
        last = replace(one, turns=rest, pointer=replace(one.pointer, transcript=MARK))
        assert store.import_sessions([last]) == (Imported(session.id, 1),)

        first, second = store.history(session.conversation_id)
        assert (first.prompt, first.response) == ("ask a", "answer a")
        assert [event.number for _, event in store.events(session.conversation_id, first.seq)] == [2]
        assert store.get_turn(session.conversation_id, 1).ended_at == 9_000
        assert second.prompt == "ask b"
        pointer = store.pointer(session.id, "claude")
        assert pointer is not None
        assert (pointer.seen, pointer.transcript) == (SeenTurns.up_to(2), MARK)

    def test_turns_that_the_session_has_left_are_kept_out_of_its_history(self, store: Store) -> None:
        session, _ = imported(store, turns=turns("a", "b", "c"), dead=frozenset({"b"}))
        assert [turn.prompt for turn in store.history(session.conversation_id)] == ["ask a", "ask c"]
        assert [turn.prompt for turn in store.turns(session.id)] == ["ask a", "ask b", "ask c"]
        pointer = store.pointer(session.id, "claude")
        assert pointer is not None
        assert pointer.seen == SeenTurns(((1, 1), (3, 3)))

    def test_a_runtime_must_be_registered(self, store: Store) -> None:
        session_id = a_session_id()
        with pytest.raises(NotFound):
            store.import_sessions([an_import(pointer=a_pointer(session_id, runtime_id=a_runtime().id))])

    def test_it_has_begun_at_some_time(self, store: Store) -> None:
        one = an_import()
        with pytest.raises(InvalidInput):
            store.import_sessions([replace(one, new=replace(one.new, began_at=None))])

    def test_a_secret_in_a_call_is_redacted(self, store: Store) -> None:
        key = "AKIA" + "IOSFODNN7EXAMPLE"
        call = Event(1, EventKind.TOOL_RESULT, {"call_id": "c", "output": f"aws {key}"}, Instant(1))
        session, _ = imported(store, turns=turns("a", events=(call,)))
        ((_, event),) = store.events(session.conversation_id, 1)
        assert key not in str(event.data)


class TestOwners:
    def test_a_provider_session_is_imported_once(self, store: Store) -> None:
        session, one = imported(store)
        assert store.import_sessions([another_of(one)]) == (Imported(session.id, 0, NotTaken.OWNED),)
        assert len(store.list_sessions(SessionFilter(), 10).sessions) == 1

    def test_one_that_we_have_run_in_is_not_imported(self, store: Store) -> None:
        session = begin(store)
        run(store, session, "one")
        pointer = store.pointer(session.id, "claude")
        assert pointer is not None
        (answer,) = store.import_sessions([an_import(provider_session_id=pointer.provider_session_id)])
        assert answer == Imported(session.id, 0, NotTaken.OWNED)

    def test_the_session_that_a_running_turn_has_begun_belongs_to_its_session(self, store: Store) -> None:
        session, one = begin(store), an_import()
        enqueue(store, session, "go on")
        claimed = claim(store, session)
        store.launch(claimed.lease, Launch(claimed.decision, provider_session_id=one.provider_session_id))
        assert store.owner_of("claude", one.provider_session_id) is None, "nothing of it is saved yet"
        assert store.import_sessions([one]) == (Imported(session.id, 0, NotTaken.OWNED),)
        store.finish_turn(claimed.lease, failed(FailureClass.AUTH))
        assert store.import_sessions([one]) == (Imported(one.new.id, 1),), "it has saved nothing"

    def test_one_that_is_retired_is_not_imported(self, store: Store) -> None:
        session, native = begin(store), a_provider_session_id()
        store.retire(session.id, "claude", native, "poisoned")
        (answer,) = store.import_sessions([an_import(provider_session_id=native)])
        assert (answer.session_id, answer.reason) == (None, NotTaken.RETIRED)

    def test_it_stays_its_own_after_a_fresh_start(self, store: Store) -> None:
        session, one = imported(store)
        assert one.pointer is not None
        store.set_pointer(replace(one.pointer, provider_session_id=a_provider_session_id()))
        assert store.owner_of("claude", one.provider_session_id) == session.id

    def test_a_session_that_began_here_is_not_imported(self, store: Store) -> None:
        assert begin(store).imported_at is None


class TestLineage:
    def test_a_fork_stands_below_its_source_whichever_comes_first(self, store: Store) -> None:
        source = an_import()
        before, after = (an_import(comes_from=source.provider_session_id) for _ in range(2))
        for one in (before, source, after):
            store.import_sessions([one])
        assert {child.id for child in store.children(source.new.id)} == {before.new.id, after.new.id}
        assert store.get_session(before.new.id).parent_session_id == source.new.id

    def test_a_subagent_is_listed_only_below_its_parent(self, store: Store) -> None:
        parent = an_import()
        below = an_import(comes_from=parent.provider_session_id, pointer=None)
        below = replace(below, new=replace(below.new, kind=SessionKind.SUBAGENT))
        lost = replace(an_import(pointer=None), comes_from=a_provider_session_id())
        lost = replace(lost, new=replace(lost.new, kind=SessionKind.SUBAGENT))
        store.import_sessions([parent, below, lost])

        listed = {session.id for session in store.list_sessions(SessionFilter(), 10).sessions}
        assert listed == {parent.new.id, lost.new.id}
        everything = store.list_sessions(SessionFilter(subagents=True), 10).sessions
        assert below.new.id in {session.id for session in everything}
        assert [child.id for child in store.children(parent.new.id)] == [below.new.id]

    def test_a_subagent_is_removed_with_its_parent(self, store: Store) -> None:
        parent = an_import()
        below = an_import(comes_from=parent.provider_session_id, pointer=None)
        below = replace(below, new=replace(below.new, kind=SessionKind.SUBAGENT))
        store.import_sessions([parent, below])
        store.remove_session(parent.new.id)
        with pytest.raises(NotFound):
            store.get_session(below.new.id)


class TestRemoval:
    def test_what_was_removed_stays_out_until_it_is_taken_back(self, store: Store) -> None:
        session, one = imported(store)
        store.remove_session(session.id)
        again = another_of(one)
        assert store.import_sessions([again]) == (Imported(None, 0, NotTaken.REMOVED),)

        assert store.import_sessions([replace(again, takes_back=True)]) == (Imported(again.new.id, 1),)
        store.remove_session(again.new.id)
        assert store.import_sessions([another_of(one)])[0].reason is NotTaken.REMOVED

    def test_a_session_that_we_ran_and_removed_stays_out_too(self, store: Store) -> None:
        session = begin(store)
        run(store, session, "one")
        pointer = store.pointer(session.id, "claude")
        assert pointer is not None
        store.remove_session(session.id)
        (answer,) = store.import_sessions([an_import(provider_session_id=pointer.provider_session_id)])
        assert answer.reason is NotTaken.REMOVED

    def test_its_source_says_so(self, store: Store) -> None:
        one = an_import()
        source = a_source(session_id=one.new.id, provider_session_id=one.provider_session_id)
        store.import_sessions([one], [source])
        store.remove_session(one.new.id)
        (known,) = store.sources("build-7", "claude", source.home)
        assert (known.session_id, known.reason) == (None, "removed")

    def test_cleaning_up_leaves_imported_sessions_alone(self, store: Store) -> None:
        session, _ = imported(store)
        store.clean_up(Old(FAR, conversations=FAR))
        store.finalize_session(session.id, Phase.COMPLETED, None)
        store.clean_up(Old(FAR, conversations=FAR))
        assert store.get_session(session.id).phase is Phase.COMPLETED

    def test_imported_sessions_and_turns_are_not_counted(self, store: Store) -> None:
        before = store.totals()
        imported(store)
        assert store.totals().rows == before.rows


class TestSources:
    def test_sources_are_remembered_with_their_state(self, store: Store) -> None:
        one = an_import()
        source = a_source(session_id=one.new.id, mtime_ns=1_794_949_649_995_440_034)
        empty = a_source(reason="empty")
        store.import_sessions([one], [source, empty])
        assert store.sources("build-7", "claude", source.home) == (source, empty)

        grown = replace(source, size=99)
        store.import_sessions([], [grown])
        assert store.sources("build-7", "claude", source.home) == (grown, empty)

    def test_the_source_of_a_session_that_is_not_taken_in_is_not_remembered(self, store: Store) -> None:
        _, one = imported(store)
        again = another_of(one)
        store.import_sessions([again], [source := a_source(session_id=again.new.id)])
        assert store.sources("build-7", "claude", source.home) == ()

    def test_they_are_those_of_one_home_on_one_machine(self, store: Store) -> None:
        mine = a_source()
        others = [a_source(machine="laptop"), a_source(home="/other"), a_source(provider="codex")]
        store.import_sessions([], [mine, *others])
        assert store.sources("build-7", "claude", mine.home) == (mine,)

    def test_they_are_read_in_pages(self, store: Store) -> None:
        known = tuple(a_source() for _ in range(5))
        store.import_sessions([], known)
        home = known[0].home
        first = store.sources("build-7", "claude", home, limit=3)
        assert first + store.sources("build-7", "claude", home, after=first[-1].place, limit=3) == known

    def test_without_a_pointer_a_session_cannot_be_resumed_but_is_readable(self, store: Store) -> None:
        session, _ = imported(store, pointer=None)
        assert store.pointers(session.id) == ()
        assert len(store.history(session.conversation_id)) == 1

    def test_a_pointer_that_was_not_read_to_the_end_says_so(self, store: Store) -> None:
        one = an_import()
        assert one.pointer is not None
        store.import_sessions([replace(one, pointer=replace(one.pointer, transcript=NOTHING_YET))])
        pointer = store.pointer(one.new.id, "claude")
        assert pointer is not None
        assert pointer.transcript == NOTHING_YET
