"""A session that its provider refuses: once, afresh, with the context, and only if nothing was done yet."""

import pytest

from holdfast.domain.decisions import Fresh, Reason, Resume
from holdfast.domain.failures import FailureClass
from holdfast.domain.pointers import Rights
from holdfast.domain.turns import AttemptStatus, TurnStatus
from holdfast.engine.result import RunResult
from tests.integration.workshop import FROM_PROMPT, FROM_SESSION, OPENING, RECALL, Workshop

READ_ONLY = Rights(permission_mode="plan")
WRITES = 'TOOL shell {"command": "touch written"}'
#: deletes the session that it is asked to resume, as the provider's own clean-up may at any moment
VANISHES = """
if '--resume' in argv:
    home = os.environ['SCRIPTED_HOME']
    path = f"{home}/sessions/{argv[argv.index('--resume') + 1]}.jsonl"
    os.path.exists(path) and os.remove(path)
"""
#: answers whatever it is asked to resume with an error that nobody knows
NOT_ACCEPTED = """
if '--resume' in argv:
    import json
    print(json.dumps({"type": "end", "ok": False, "error": "nobody knows these words", "status": 400, "code": ""}))
    raise SystemExit(1)
"""
#: the words of other failures, as a quotation of the history
QUOTES = [
    "connection reset",
    "internal error",
    "rate limit",
    "error 503",
    "unauthorized",
    "quota exceeded",
    "context_length",
]
ALWAYS = NOT_ACCEPTED.replace("'--resume' in argv", "'--version' not in argv and '--help' not in argv")


def _attempts(shop: Workshop, result: RunResult) -> list[AttemptStatus]:
    hf = shop.open()
    conversation = hf.session(result.session_id).conversation_id
    return [attempt.status for attempt in hf.store.attempts(conversation, result.turn)]


def _retired(shop: Workshop, result: RunResult) -> list[str | None]:
    return [known.id for known in shop.open().store.provider_sessions(result.session_id)
            if known.retired is not None]  # fmt: skip


@pytest.fixture
def first(shop: Workshop) -> RunResult:
    return shop.begin(rights=READ_ONLY)


def test_a_session_that_vanished_after_the_look_is_replaced_once(shop: Workshop, first: RunResult) -> None:
    shop.changes["HOLDFAST_SCRIPTED_BINARY"] = shop.stand_in("vanishing-agent", VANISHES)
    again = shop.open().resume(first.session_id, f"{RECALL}\n{WRITES}")
    assert (again.ok, again.text) == (True, FROM_PROMPT)
    assert isinstance(again.decision, Fresh)
    assert again.work_dir == first.work_dir
    assert not (shop.work_dir / "written").exists(), "the rights of the first launch are replayed"
    assert _attempts(shop, again) == [AttemptStatus.FELL_BACK, AttemptStatus.DONE]
    assert first.provider_session_id in _retired(shop, first)
    assert [turn.prompt for turn in shop.open().history(first.session_id)] == [OPENING, f"{RECALL}\n{WRITES}"]


def test_a_fork_of_a_session_that_vanished_is_told_the_context(shop: Workshop, first: RunResult) -> None:
    shop.changes["HOLDFAST_SCRIPTED_BINARY"] = shop.stand_in("vanishing-agent", VANISHES)
    child = shop.open().fork(first.session_id, RECALL)
    assert (child.ok, child.text, child.work_dir) == (True, FROM_PROMPT, first.work_dir)
    assert _attempts(shop, child) == [AttemptStatus.FELL_BACK, AttemptStatus.DONE]


def test_another_session_than_the_one_asked_for_is_a_refusal(shop: Workshop, first: RunResult) -> None:
    again = shop.open().resume(first.session_id, f"{RECALL}\nOTHER_ID")
    assert (again.ok, again.text) == (True, FROM_PROMPT)
    assert first.provider_session_id in _retired(shop, first)


def test_no_turn_starts_again_once_a_tool_has_run(shop: Workshop, first: RunResult) -> None:
    again = shop.open().resume(first.session_id, f"{WRITES}\nOTHER_ID")
    assert again.failure is not None
    assert again.failure.failure_class is FailureClass.GONE
    assert _attempts(shop, again) == [AttemptStatus.FAILED]


def test_a_session_that_was_asked_for_by_name_is_never_replaced(shop: Workshop, first: RunResult) -> None:
    shop.changes["HOLDFAST_SCRIPTED_BINARY"] = shop.stand_in("vanishing-agent", VANISHES)
    again = shop.open().resume(first.session_id, RECALL, provider_session_id=first.provider_session_id)
    assert again.failure is not None
    assert again.failure.failure_class is FailureClass.GONE
    assert _attempts(shop, again) == [AttemptStatus.FAILED]


def test_a_history_that_is_not_accepted_costs_no_turn_and_is_retired_by_the_answer(
    shop: Workshop, first: RunResult
) -> None:
    shop.changes["HOLDFAST_SCRIPTED_BINARY"] = shop.stand_in("strict-agent", NOT_ACCEPTED)

    again = shop.open().resume(first.session_id, RECALL)

    assert (again.ok, again.text) == (True, FROM_PROMPT)
    assert again.decision.reason is Reason.RESUME_FAILED
    assert _attempts(shop, again) == [AttemptStatus.FELL_BACK, AttemptStatus.DONE]
    assert _retired(shop, first) == [first.provider_session_id]
    assert any("is not used again" in notice for notice in again.notices)
    pointer = shop.open().store.pointer(first.session_id, "scripted")
    assert pointer is not None
    assert pointer.provider_session_id == again.provider_session_id


@pytest.mark.parametrize("quoted", QUOTES)
def test_a_history_that_is_not_accepted_is_not_kept_for_the_words_in_it(
    shop: Workshop, first: RunResult, quoted: str
) -> None:
    words = f"messages.3.content.0: tool_result holds {quoted!r}"
    strict = NOT_ACCEPTED.replace("nobody knows these words", words)
    shop.changes["HOLDFAST_SCRIPTED_BINARY"] = shop.stand_in("strict-agent", strict)

    again = shop.open().resume(first.session_id, RECALL)

    assert (again.ok, again.text, again.decision.reason) == (True, FROM_PROMPT, Reason.RESUME_FAILED)
    assert _retired(shop, first) == [first.provider_session_id]


def test_a_history_that_is_too_long_costs_no_turn(shop: Workshop, first: RunResult) -> None:
    full = NOT_ACCEPTED.replace("nobody knows these words", "prompt is too long: 3 tokens > 2 maximum")
    shop.changes["HOLDFAST_SCRIPTED_BINARY"] = shop.stand_in("full-agent", full)

    again = shop.open().resume(first.session_id, RECALL)

    assert (again.ok, again.text, again.decision.reason) == (True, FROM_PROMPT, Reason.RESUME_FAILED)
    known = shop.open().store.provider_sessions(first.session_id)
    assert [one.retired for one in known if one.id == first.provider_session_id] == ["overflow"]


def test_a_request_that_is_too_long_by_itself_takes_no_session_away(shop: Workshop, first: RunResult) -> None:
    failed = shop.open().resume(first.session_id, "FAIL 400 prompt is too long")

    assert _attempts(shop, failed) == [AttemptStatus.FELL_BACK, AttemptStatus.FAILED]
    again = shop.open().resume(first.session_id, RECALL)
    assert (again.text, again.provider_session_id) == (FROM_SESSION, first.provider_session_id)


def test_a_session_is_kept_if_a_fresh_one_gets_the_same_error(shop: Workshop, first: RunResult) -> None:
    shop.changes["HOLDFAST_SCRIPTED_BINARY"] = shop.stand_in("broken-agent", ALWAYS)
    for _ in range(3):
        failed = shop.open().resume(first.session_id, RECALL)
        assert not failed.ok
        assert _attempts(shop, failed) == [AttemptStatus.FELL_BACK, AttemptStatus.FAILED]
        assert any("is kept" in notice for notice in failed.notices)
    assert not _retired(shop, first)

    del shop.changes["HOLDFAST_SCRIPTED_BINARY"]
    again = shop.open().resume(first.session_id, RECALL)

    assert isinstance(again.decision, Resume)
    assert (again.text, again.provider_session_id) == (FROM_SESSION, first.provider_session_id)


@pytest.mark.parametrize(
    ("before", "by_name"),
    [("SAY hm\n", False), ('TOOL shell {"command": "echo hi"}\n', False), ("", True)],
    ids=["after a text", "after a tool", "asked for by name"],
)
def test_an_error_that_may_have_another_cause_takes_no_session_away(
    shop: Workshop, first: RunResult, before: str, by_name: bool
) -> None:
    error = '{"type":"error","error":{"type":"invalid_request_error","message":"unsupported beta"}}'
    named = first.provider_session_id if by_name else None
    for _ in range(4):
        failed = shop.open().resume(first.session_id, f"{before}FAIL 400 {error}", provider_session_id=named)
        assert failed.failure is not None
        assert failed.failure.failure_class is FailureClass.NOT_ACCEPTED
        assert _attempts(shop, failed) == [AttemptStatus.FAILED]

    again = shop.open().resume(first.session_id, RECALL)

    assert isinstance(again.decision, Resume)
    assert (again.text, again.provider_session_id) == (FROM_SESSION, first.provider_session_id)


def test_a_history_that_a_tool_has_spoilt_costs_one_turn(shop: Workshop, first: RunResult) -> None:
    spoilt = shop.open().resume(first.session_id, 'TOOL shell {"command": "echo hi"}\nFAIL 400 strange')
    assert not spoilt.ok
    shop.changes["HOLDFAST_SCRIPTED_BINARY"] = shop.stand_in("strict-agent", NOT_ACCEPTED)

    again = shop.open().resume(first.session_id, RECALL)

    assert (again.ok, again.text, again.decision.reason) == (True, FROM_PROMPT, Reason.RESUME_FAILED)
    assert first.provider_session_id in _retired(shop, first)


def test_a_fresh_start_that_ran_out_of_time_is_not_said_to_have_failed(
    shop: Workshop, first: RunResult
) -> None:
    shop.changes["HOLDFAST_SCRIPTED_BINARY"] = shop.stand_in("strict-agent", NOT_ACCEPTED)

    stopped = shop.open().resume(first.session_id, "HANG", timeout=8.0)  # for the refusal and the fresh start

    assert _attempts(shop, stopped) == [AttemptStatus.FELL_BACK, AttemptStatus.FAILED]
    (notice,) = [notice for notice in stopped.notices if "earlier session" in notice]
    assert notice.endswith("and a fresh one gave no answer either: the earlier one is kept")


def test_a_fork_that_is_not_accepted_leaves_its_source_to_others(shop: Workshop, first: RunResult) -> None:
    refuses = shop.stand_in("strict-agent", NOT_ACCEPTED)

    fork = shop.open(HOLDFAST_SCRIPTED_BINARY=refuses).fork(first.session_id, RECALL)

    assert (fork.ok, fork.decision.reason) == (True, Reason.RESUME_FAILED)
    (notice,) = [notice for notice in fork.notices if "answered with an error" in notice]
    assert notice.endswith("this branch continues there, its source is kept")
    del shop.changes["HOLDFAST_SCRIPTED_BINARY"]
    parent = shop.open().resume(first.session_id, RECALL)
    assert (parent.text, parent.provider_session_id) == (FROM_SESSION, first.provider_session_id)


@pytest.mark.parametrize("says", ["SAY", "STDERR", "TOOL shell"])
def test_an_agent_that_speaks_of_lost_sessions_has_not_lost_one(
    shop: Workshop, first: RunResult, says: str
) -> None:
    words = f"No conversation found with session ID: {first.provider_session_id}"
    order = f'TOOL shell {{"command": "echo {words}"}}' if says.startswith("TOOL") else f"{says} {words}"
    again = shop.open().resume(first.session_id, order)
    assert (again.turn_status, again.failure) == (TurnStatus.DONE, None)
    assert isinstance(again.decision, Resume)
    assert not _retired(shop, first)
