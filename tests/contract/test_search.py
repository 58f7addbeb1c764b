"""Owns the clauses on ``search``: which words find which turns, in which order, with which snippet."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import pytest

from holdfast.clock import Instant, after
from holdfast.domain.events import EventKind
from holdfast.domain.phases import Phase
from holdfast.domain.search import MOST_HITS, FoundIn, SearchHit, SearchPage, SearchRequest
from holdfast.domain.sessions import Session
from holdfast.domain.turns import OutsideTurn
from holdfast.errors import InvalidInput
from holdfast.store.contract import Store
from holdfast.store.sql import search
from tests.builders import (
    a_codex_runtime,
    a_pointer,
    a_runtime,
    a_session_id,
    a_source,
    an_adoption,
    an_event,
    an_import,
    done,
)
from tests.clock import ManualClock
from tests.contract.conftest import MakeStore
from tests.steps import begin, claim, defer, enqueue, run


def find(store: Store, words: str, **wanted: Any) -> SearchPage:
    return store.search(SearchRequest(words, **wanted))


def found(store: Store, words: str, **wanted: Any) -> list[str]:
    return [hit.session_id for hit in find(store, words, **wanted).hits]


def only(store: Store, words: str) -> SearchHit:
    (hit,) = find(store, words).hits
    return hit


def asked(store: Store, prompt: str, response: str = "done", **changes: Any) -> Session:
    """A session with one finished turn."""
    session = begin(store, **changes)
    run(store, session, prompt, response=response)
    return session


def worked(store: Store, *events: tuple[EventKind, dict[str, Any]]) -> Session:
    """A session with one finished turn, in which these things happened."""
    session = begin(store)
    enqueue(store, session, "go on")
    lease = claim(store, session).lease
    store.record_events(
        lease, [an_event(n, kind=kind, data=data) for n, (kind, data) in enumerate(events, 1)]
    )
    store.finish_turn(lease, done("all done"))
    return session


def result(output: str) -> tuple[EventKind, dict[str, Any]]:
    return EventKind.TOOL_RESULT, {"call_id": "c1", "output": output, "is_error": False}


def marked(hit: SearchHit) -> list[str]:
    return [text for text, is_match in hit.snippet.pieces() if is_match]


class TestWords:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("change src/app/parser.py now", "src/app/parser.py"),
            ("change src/app/parser.py now", "parser"),
            ("change src/app/parser.py now", "app/parser.py"),
            ("change src\\app\\parser.py now", "src/app/parser.py"),
            ("call read_past_page() twice", "read_past_page"),
            ("call read_past_page() twice", "past"),
            ("the Deploy KEY", "deploy key"),
            ("the deploy key", "key the"),
            ("Grüße aus Zürich", "gruse zurich grusse"),
            ("e\u0301te\u0301 au cafe\u0301", "été café"),
            ("今日は世界を直す", "世界"),
            ("Привет, мир", "ПРИВЕТ"),
            ("error E1234: x86_64 is 3.14", "e1234 x86_64 3.14"),
            ("mail ada@example.org -- <b>bold</b> & more", "ada@example.org bold more"),
            ("http://localhost:8080/a/b?c=d", "localhost:8080/a/b?c=d"),
            ("flag --dry-run=yes", "--dry-run"),
        ],
    )
    def test_a_turn_is_found_by_its_words_and_their_parts(self, store: Store, text: str, words: str) -> None:
        session = asked(store, text)
        asked(store, "something else")
        if "gruse" in words:  # a word that is not there does not keep the others from being found
            assert not find(store, words).all_words
        assert found(store, words) == [session.id]

    @pytest.mark.parametrize("words", ["pars", "arser", "par*", "src app", "parser/app", "parser.pyc"])
    def test_parts_of_words_and_other_orders_of_a_path_are_not_found(self, store: Store, words: str) -> None:
        asked(store, "change lib/app/parser.py")
        assert not [hit for hit in find(store, words).hits if find(store, words).all_words]

    @pytest.mark.parametrize(
        "words",
        ['"', "'", "* ", "AND", "OR NOT", "NEAR(a b)", "-word", "prompt:word", "{prompt}: x", "a & b | !c", "(",
         "^word", "a:*", "<->", "\\", "%", "x' OR '1'='1", '"word" * "', "word'"],
    )  # fmt: skip
    def test_nothing_that_a_person_types_is_syntax(self, store: Store, words: str) -> None:
        session = asked(store, f"before {words} after")
        if not any(c.isalnum() for c in words):
            with pytest.raises(InvalidInput):
                find(store, words)
        else:
            assert found(store, words) == [session.id]

    def test_operators_are_words(self, store: Store) -> None:
        asked(store, "cats dogs")
        both = asked(store, "cats AND dogs")
        assert found(store, "cats AND dogs") == [both.id]

    @pytest.mark.parametrize("words", ["", "  ", "!?", "x " * 1000, " ".join(map(str, range(33)))])
    def test_a_search_for_nothing_or_for_too_much_is_refused(self, store: Store, words: str) -> None:
        with pytest.raises(InvalidInput):
            find(store, words)

    @pytest.mark.parametrize("limit", [0, -1, MOST_HITS + 1])
    def test_the_limit_is_checked(self, store: Store, limit: int) -> None:
        with pytest.raises(InvalidInput):
            find(store, "word", limit=limit)

    def test_an_empty_store_has_nothing(self, store: Store) -> None:
        assert find(store, "word") == SearchPage((), more=False, all_words=True, pending=0)


class TestParts:
    def test_prompts_answers_calls_and_results_are_searched(self, store: Store) -> None:
        session = worked(
            store,
            (EventKind.TEXT, {"text": "let me look"}),
            (EventKind.TOOL_CALL, {"call_id": "c1", "tool": "Bash", "arguments": {"command": "rg needle", "n": [7]}}),
            result("haystack/straw.txt"),
        )  # fmt: skip
        where = {
            "go on": FoundIn.PROMPT,
            "done": FoundIn.ANSWER,
            "let me look": FoundIn.ANSWER,
            "needle": FoundIn.TOOL_CALL,
            "bash 7": FoundIn.TOOL_CALL,
            "straw.txt": FoundIn.TOOL_RESULT,
        }
        for words, part in where.items():
            hit = only(store, words)
            assert (hit.session_id, hit.found_in) == (session.id, part), words

    def test_the_names_of_arguments_are_in_every_call_and_are_not_searched(self, store: Store) -> None:
        worked(
            store, (EventKind.TOOL_CALL, {"call_id": "c1", "tool": "Bash", "arguments": {"command": "ls"}})
        )
        assert found(store, "command") == []

    def test_16_kib_of_each_result_are_searched(self, store: Store) -> None:
        filling = "x " * (8 * 1024 - 10)
        session = worked(store, result(f"{filling} early {filling} late"), result(f"{filling} second"))
        assert found(store, "early") == found(store, "second") == [session.id]
        assert found(store, "late") == []

    def test_words_far_apart_in_a_long_turn_are_found_together(self, store: Store) -> None:
        filling = " ".join(f"w{n}" for n in range(2500))
        session = worked(store, *(result(f"{filling} mark{n}") for n in range(30)))
        assert found(store, "mark0 mark29 done") == [session.id]
        assert find(store, "mark0 mark29").all_words

    def test_a_turn_that_was_made_outside_is_searched_with_its_calls(self, store: Store) -> None:
        session = begin(store)
        store.register_runtime(a_runtime())
        pointer = a_pointer(session.id)
        store.set_pointer(pointer)
        pointer = store.pointer(session.id, "claude") or pointer
        outside = OutsideTurn(
            "k1",
            "by hand",
            "answered",
            events=(an_event(1, kind=EventKind.TOOL_RESULT, data=result("outlandish")[1]),),
        )
        assert store.adopt_turns(replace(an_adoption(pointer), turns=(outside,))) is not None
        assert only(store, "outlandish").turn == 1
        assert only(store, "by hand").session_id == session.id


class TestRanking:
    def test_turns_with_all_words_are_found_and_no_others(self, store: Store) -> None:
        both = asked(store, "red green")
        asked(store, "red")
        page = find(store, "green red")
        assert [hit.session_id for hit in page.hits] == [both.id]
        assert page.all_words

    def test_if_no_turn_has_all_words_those_with_the_rarest_come_first(self, store: Store) -> None:
        common = [asked(store, f"common {n}") for n in range(5)]
        rare = asked(store, "unicorn 5")
        later = asked(store, "common 6")
        page = find(store, "common unicorn")
        assert not page.all_words
        assert page.hits[0].session_id == rare.id
        assert {hit.session_id for hit in page.hits} == {rare.id, later.id, *(one.id for one in common)}

    def test_the_newest_comes_first_among_equals(self, store: Store, clock: ManualClock) -> None:
        sessions = []
        for _ in range(4):
            sessions.append(asked(store, "the same words").id)
            clock.advance(60)
        assert found(store, "words") == sessions[::-1]

    def test_a_prompt_counts_more_than_a_result(self, store: Store, clock: ManualClock) -> None:
        prompt = asked(store, "kafka")
        clock.advance(60)
        worked(store, result("kafka"))
        assert found(store, "kafka")[0] == prompt.id

    def test_a_session_is_found_once_with_its_best_turn(self, store: Store) -> None:
        session = asked(store, "a long story that mentions the topic once, somewhere in the middle")
        run(store, session, "topic", response="topic")
        hit = only(store, "topic")
        assert (hit.turn, hit.turns) == (2, 2)

    def test_the_limit_counts_sessions_and_says_that_there_are_more(self, store: Store) -> None:
        for n in range(5):
            asked(store, f"topic {n}")
        assert len(find(store, "topic", limit=3).hits) == 3
        assert find(store, "topic", limit=3).more
        assert not find(store, "topic", limit=5).more


class TestFilters:
    def test_agent_provider_project_and_time(self, store: Store, clock: ManualClock) -> None:
        old = asked(store, "topic", agent="planner", project="/srv/infra")
        since = clock.advance(3600)
        new = begin(store, agent="coder", provider="codex", project="/srv/infra/modules")
        run(store, new, "topic", a_codex_runtime())
        other = asked(store, "topic", agent="coder", project="/srv/infrastructure")
        assert found(store, "topic", agent="planner") == [old.id]
        assert found(store, "topic", provider="codex") == [new.id]
        assert set(found(store, "topic", project="/srv/infra")) == {old.id, new.id}
        assert set(found(store, "topic", project="/srv/infra/")) == {old.id, new.id}
        assert set(found(store, "topic", project="/")) == {old.id, new.id, other.id}
        assert set(found(store, "topic", since=since)) == {new.id, other.id}
        assert found(store, "topic", since=after(since, 1)) == []
        assert found(store, "topic", agent="coder", project="/srv/infra", since=since) == [new.id]

    def test_without_a_project_the_directory_of_the_work_counts(self, store: Store) -> None:
        session = asked(store, "topic")
        assert found(store, "topic", project="/srv") == [session.id]
        assert found(store, "topic", project="/srv/other") == []

    def test_a_hit_says_what_a_person_needs(self, store: Store, clock: ManualClock) -> None:
        session = asked(store, "topic", name="lead", purpose="p" * 500)
        hit = only(store, "topic")
        assert (hit.agent, hit.name, hit.purpose, hit.provider) == (
            session.agent,
            "lead",
            "p" * 200,
            "claude",
        )
        assert (hit.turn, hit.at, hit.directory, hit.is_closed) == (1, clock(), "/srv/infra", False)
        assert hit.continue_with("/srv/infra") == 'holdfast resume lead "..."'
        assert hit.continue_with("/home") == 'cd /srv/infra && holdfast resume lead "..."'
        store.finalize_session(session.id, Phase.COMPLETED, None)
        assert only(store, "topic").continue_with("/srv/infra") == 'holdfast fork lead "..."'


class TestChanges:
    def test_an_edited_turn_is_found_by_its_new_text_alone(self, store: Store) -> None:
        session = asked(store, "before", "first answer")
        assert found(store, "before") == [session.id]
        store.edit_turn(session.id, 1, prompt="afterwards")
        assert found(store, "before") == []
        assert found(store, "afterwards") == found(store, "first") == [session.id]
        store.edit_turn(session.id, 1, response="second answer")
        assert found(store, "first") == []
        assert found(store, "second afterwards") == [session.id]

    def test_turns_that_left_the_history_are_not_found(self, store: Store) -> None:
        session = asked(store, "one")
        run(store, session, "two")
        run(store, session, "three")
        assert found(store, "three") == [session.id]
        store.truncate(session.id, 2)
        assert found(store, "three") == []
        store.retry_turn(session.id, 2, prompt="again")
        assert found(store, "two") == []
        assert found(store, "again") == [session.id]
        store.new_generation(session.id)
        assert found(store, "one") == found(store, "again") == []

    def test_a_removed_session_is_not_found(self, store: Store) -> None:
        gone, stays = asked(store, "topic"), asked(store, "topic")
        assert set(found(store, "topic")) == {gone.id, stays.id}
        store.remove_session(gone.id)
        assert found(store, "topic") == [stays.id]
        fresh = asked(store, "unrelated")
        assert found(store, "topic") == [stays.id]
        assert found(store, "unrelated") == [fresh.id]

    def test_an_open_turn_is_found_by_its_prompt_and_later_by_the_rest(self, store: Store) -> None:
        session = begin(store)
        enqueue(store, session, "topic")
        assert found(store, "topic") == [session.id]
        claimed = claim(store, session)
        store.record_events(claimed.lease, [an_event(1, data={"text": "midway"})])
        assert found(store, "midway") == []
        store.finish_turn(claimed.lease, done("outcome"))
        for word in ("topic", "midway", "outcome"):
            assert only(store, word).session_id == session.id
        assert only(store, "topic").turns == 1

    def test_a_turn_that_waits_or_was_never_sent_is_found(self, store: Store) -> None:
        waiting = begin(store)
        defer(store, waiting, "apply it")
        assert found(store, "apply") == [waiting.id]
        session = begin(store)
        turn = enqueue(store, session, "cancelled before it ran")
        store.cancel_turn(session.id, turn.seq)
        assert found(store, "before it ran") == [session.id]

    def test_an_inherited_turn_is_found_once_under_its_own_session(self, store: Store) -> None:
        parent = asked(store, "common ground")
        child = store.fork(parent.id, a_session_id())
        run(store, child, "own branch")
        assert found(store, "ground") == [parent.id]
        assert found(store, "branch") == [child.id]

    def test_workspaces_do_not_see_each_other(self, make_store: MakeStore) -> None:
        ours, theirs = make_store(), make_store("other")
        mine = asked(ours, "secret topic")
        assert find(theirs, "topic") == SearchPage((), more=False, all_words=True, pending=0)
        yours = asked(theirs, "topic of ours")
        assert (found(ours, "topic"), found(theirs, "topic")) == ([mine.id], [yours.id])


class TestIndexing:
    def test_what_is_not_indexed_in_time_is_counted(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sessions = [asked(store, f"topic {n}") for n in range(3)]
        monkeypatch.setattr(search, "SECONDS", 0.0)
        page = find(store, "topic")
        assert (page.hits, page.pending) == ((), 3)
        monkeypatch.undo()
        page = find(store, "topic")
        assert ({hit.session_id for hit in page.hits}, page.pending) == ({one.id for one in sessions}, 0)

    def test_an_import_indexes_what_it_takes_in(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        key = "AKIA" + "IOSFODNN7EXAMPLE"
        events = (
            an_event(1, kind=EventKind.TOOL_CALL, data={"tool": "Bash", "arguments": {"command": "ls src"}}),
            an_event(2, kind=EventKind.TOOL_RESULT, data={"output": f"parser.py {key}", "is_error": False}),
        )
        turn = OutsideTurn("a", "first topic", "an answer", Instant(1000), Instant(2000), events)
        left = OutsideTurn("b", "a branch", None, Instant(3000), Instant(4000))
        one = an_import(turns=(turn, left), dead=frozenset({"b"}))
        store.import_sessions([one], [a_source(session_id=one.new.id)])
        monkeypatch.setattr(search, "SECONDS", 0.0)
        for words in ("topic", "answer", "bash", "src", "parser.py"):
            assert found(store, words) == [one.new.id], words
        assert found(store, key) == []
        assert found(store, "branch") == []
        assert find(store, "topic").pending == 0

    def test_a_session_that_comes_in_several_calls_is_indexed_with_the_last_one(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = an_import(turns=(OutsideTurn("a", "topic", None, Instant(1000), Instant(2000)),))
        store.import_sessions([one])
        rest = (
            OutsideTurn("a", "", "its answer", Instant(1000), Instant(2000)),
            OutsideTurn("b", "another", None, Instant(3000), Instant(4000)),
        )
        store.import_sessions([replace(one, turns=rest)], [a_source(session_id=one.new.id)])
        monkeypatch.setattr(search, "SECONDS", 0.0)
        for words in ("topic", "answer", "another"):
            assert found(store, words) == [one.new.id], words
        assert find(store, "topic").pending == 0

    def test_searches_at_once_index_every_turn_once(self, store: Store) -> None:
        session = begin(store)
        for n in range(60):
            run(store, session, f"topic number{n}")
        pages: list[SearchPage] = []
        threads = [threading.Thread(target=lambda: pages.append(find(store, "topic"))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(pages) == 4
        assert find(store, "topic").pending == 0
        assert only(store, "topic").turns == 60
        for n in (0, 30, 59):
            assert only(store, f"number{n}").turn == n + 1


class TestSnippets:
    def test_the_match_is_marked_in_its_surroundings(self, store: Store) -> None:
        asked(store, f"{'before ' * 50}look at src/app/Parser.py line 7 {'after ' * 50}")
        hit = only(store, "app/parser.py line")
        assert marked(hit) == ["app/Parser.py", "line"]
        text = hit.snippet.text
        assert text.startswith("…")
        assert text.endswith("…")
        assert "look at src/app/Parser.py line 7" in text
        assert len(text) < 200

    def test_the_place_with_the_most_of_the_words_is_shown(self, store: Store) -> None:
        asked(store, f"red is here. {'filling ' * 60} red and green are here")
        assert marked(only(store, "green red")) == ["red", "green"]

    def test_a_snippet_is_one_line(self, store: Store) -> None:
        asked(store, "one\n\n\ttopic\r\n  three\u2028four")
        assert only(store, "topic").snippet.text == "one topic three four"

    @pytest.mark.parametrize(
        "text",
        [
            "\x1b[31mtopic\x1b[0m \x07\x9b",
            "\u202etopic\u202c \u2066x\u2069",
            "topic \ufffd \U000e0041",
            "a" * 300 + " topic " + "b" * 300,
        ],
    )
    def test_hostile_text_is_kept_as_it_is_and_can_be_sent(self, store: Store, text: str) -> None:
        asked(store, text)
        hit = only(store, "topic")
        assert marked(hit) == ["topic"]
        json.dumps(hit.snippet.text)

    def test_a_line_of_5_mb_is_searched(self, store: Store) -> None:
        asked(store, "short", response="x" * 1_000_000 + " topic " + "y, " * 1_300_000)
        hit = only(store, "topic")
        assert marked(hit) == ["topic"]
        assert len(hit.snippet.text) < 250
        asked(store, "long", response=" ".join(f"w{n:x}é" for n in range(400_000)))
        assert len(find(store, "w5e").hits) == 1
