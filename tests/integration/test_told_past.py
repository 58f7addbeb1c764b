"""What an agent is sent of the past, from real runs: whole if it fits, cut visibly if not, and nothing false."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import pytest

from holdfast import Holdfast
from holdfast.domain.decisions import Fork, Reason, Resume
from holdfast.domain.ids import ConversationId
from holdfast.domain.pointers import Rights
from holdfast.domain.policy import ContextPolicy, Policy, QueuePolicy, ResumePolicy
from holdfast.domain.sessions import NewSession
from holdfast.domain.turns import NewTurn, TurnRequest
from holdfast.domain.usage import NO_USAGE
from holdfast.engine import past
from holdfast.engine.documents import result_document
from holdfast.engine.result import RunResult
from holdfast.errors import Refused
from holdfast.store.contract import Store
from holdfast.store.sql import past as sql_past
from tests.integration.workshop import Workshop, ended, eventually, kill

GATED = Rights(approve_tools=frozenset({"shell(echo applied*)"}))
RAN = 'TOOL shell {"command": "echo this ran"}'
APPLY = 'TOOL shell {"command": "echo applied >> applied"}'
CALLS = "\n".join(f'TOOL write {{"path": "f", "text": "number {n} of them"}}' for n in range(30))
TOO_LONG = "prompt is too long: 1 tokens > 2 maximum"
IN_20_000 = 0.4 * 20_000 * 3 + 1000  #: characters of the past, for a context window of so many tokens
SMALL = Policy(context=ContextPolicy(transcript_tokens=4_000))


def talk(hf: Holdfast, session_id: str, count: int, length: int = 940) -> None:
    """Turns that were answered, as fast as they can be written down."""
    for n in range(1, count + 1):
        new = NewTurn(f"request {n} " + "p" * length, "scripted")
        hf.store.record_turn(session_id, new, f"answer {n} " + "r" * length, NO_USAGE)


class EditingStore:
    """A store on which somebody edits the history just before the past is read for the first time."""

    def __init__(self, store: Store, edit: Callable[[], object]) -> None:
        self._store = store
        self._edit = edit
        self.pages = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read_past(self, *given: Any) -> Any:
        self.pages += 1
        if self.pages == 1:
            self._edit()
        return self._store.read_past(*given)


def sent(shop: Workshop, result: RunResult) -> str:
    """The last prompt that the agent got."""
    return shop.prompts(result.provider_session_id)[-1]


def told_calls(prompt: str) -> list[int]:
    """The numbers of ``CALLS`` that are told with their outcome."""
    return [n for n in range(30) if f'- ok: write {{"path": "f", "text": "number {n} of them"}}' in prompt]


# --- a long history ---


def test_sixty_turns_are_sent_whole(shop: Workshop) -> None:
    hf, first = shop.open(), shop.begin("SAY hello")
    talk(hf, first.session_id, 60)
    fresh = hf.resume(first.session_id, "SAY on", fresh=True)
    prompt = sent(shop, fresh)
    assert len(prompt) > 115_000
    assert all(f"request {n} {'p' * 940}" in prompt for n in range(1, 61))
    assert all(f"answer {n} {'r' * 940}" in prompt for n in range(1, 61))
    assert fresh.notices == ()
    assert fresh.past.turns == tuple(range(1, 62))
    assert not fresh.past.cuts


def test_ten_turns_after_a_long_fresh_start_are_resumed(shop: Workshop) -> None:
    hf, first = shop.open(), shop.begin("SAY hello\nCONTEXT 1000 200000")
    talk(hf, first.session_id, 110)
    fresh = hf.resume(first.session_id, "SAY on\nCONTEXT 60000 200000", fresh=True)
    assert len(sent(shop, fresh)) > 200_000
    for n in range(10):
        on = hf.resume(first.session_id, f"SAY {n}\nCONTEXT {60_000 + 500 * n} 200000")
        assert isinstance(on.decision, Resume)
        assert on.provider_session_id == fresh.provider_session_id


def test_what_does_not_fit_is_cut_and_said_to_the_agent_and_to_the_person(shop: Workshop) -> None:
    hf, first = shop.open(SMALL), shop.begin("SAY hello")
    talk(hf, first.session_id, 30)
    fresh = hf.resume(first.session_id, "SAY on", fresh=True)
    prompt, cuts = sent(shop, fresh), fresh.past.cuts
    assert f"answer 30 {'r' * 940}" in prompt
    assert cuts.first_lines[0] == 1
    assert not cuts.left_out
    said = f"turns 1-{cuts.first_lines[-1]} are summarised to their first lines"
    assert f"[... {said}; `holdfast log {first.session_id} --json` has the calls" in prompt
    assert fresh.notices == (f"the past was too long to be told whole: {said}",)


def test_the_command_says_it_on_standard_error_and_in_json(shop: Workshop) -> None:
    hf, first = shop.open(), shop.begin("SAY hello")
    talk(hf, first.session_id, 30)
    small = {"HOLDFAST_CONTEXT__TRANSCRIPT_TOKENS": "4000"}
    arguments = ("resume", first.session_id, "SAY on", "--fresh")
    _, _, err = ended(shop.start(*arguments, environ=small))
    assert "holdfast: the past was too long to be told whole: turns 1-" in err
    code, out, _ = ended(shop.start("--json", *arguments, environ=small))
    document = json.loads(out)
    assert (code, document["past"]["turns"]) == (0, "1-32")
    assert document["past"]["first_lines"].startswith("1-")
    assert document["past"]["left_out"] == ""
    assert any("summarised to their first lines" in notice for notice in document["notices"])


def test_the_commands_that_the_cut_names_have_it_whole(shop: Workshop) -> None:
    hf, first = shop.open(SMALL), shop.begin(f"{RAN}\nSAY hello")
    talk(hf, first.session_id, 30)
    prompt = sent(shop, hf.resume(first.session_id, "SAY on", fresh=True))
    note = next(line for line in prompt.splitlines() if line.startswith("[... "))
    log, show = (part.removeprefix("holdfast ").split() for part in note.split("`")[1::2])
    assert "echo this ran" in ended(shop.start(*log))[1]
    assert f"request 1 {'p' * 940}" in ended(shop.start(*show))[1]


def test_turns_that_nobody_read_are_said_to_be_left_out(shop: Workshop) -> None:
    hf, first = shop.open(Policy(context=ContextPolicy(transcript_tokens=1_000))), shop.begin("SAY hello")
    talk(hf, first.session_id, 120, length=0)
    fresh = hf.resume(first.session_id, "SAY on", fresh=True)
    assert len(sent(shop, fresh)) < 4_000
    told, left_out = fresh.past.turns, fresh.past.cuts.left_out
    assert (*left_out, *told) == tuple(range(1, 122))
    assert f"[... turns 1-{left_out[-1]} are left out; " in sent(shop, fresh)
    assert fresh.notices == (f"the past was too long to be told whole: turns 1-{left_out[-1]} are left out",)


def test_a_catch_up_says_which_turns_nobody_read(shop: Workshop) -> None:
    hf, first = shop.open(Policy(context=ContextPolicy(transcript_tokens=1_000))), shop.begin("SAY hello")
    talk(hf, first.session_id, 120, length=0)
    on = hf.resume(first.session_id, "SAY on")
    assert isinstance(on.decision, Resume)
    assert (*on.past.cuts.left_out, *on.past.turns) == tuple(range(2, 122))


def test_all_calls_of_a_long_turn_are_told(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_past, "MOST_CALLS", 20)
    hf, first = shop.open(), shop.begin(f"{CALLS}\nSAY hello")
    fresh = hf.resume(first.session_id, "SAY on", fresh=True)
    assert told_calls(sent(shop, fresh)) == list(range(30))
    assert not fresh.past.cuts


def test_calls_that_nobody_read_are_counted(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_past, "MOST_CALLS", 20)
    monkeypatch.setattr(past, "_CALL_EVENTS", 24)
    hf, first = shop.open(), shop.begin(f"{CALLS}\nSAY hello")
    fresh = hf.resume(first.session_id, "SAY on", fresh=True)
    prompt = sent(shop, fresh)
    assert told_calls(prompt) == list(range(18, 30))
    assert "Tool calls (18 earlier ones left out):" in prompt
    assert "[... 18 tool calls left out; " in prompt
    assert fresh.notices == ("the past was too long to be told whole: 18 tool calls left out",)
    document = result_document(fresh)["past"]
    assert isinstance(document, dict)
    assert document["tool_calls_left_out"] == 18


def test_a_history_that_changes_while_it_is_read_is_read_again(shop: Workshop) -> None:
    hf, first = shop.open(SMALL), shop.begin("SAY hello")
    talk(hf, first.session_id, 30)
    editing = EditingStore(hf.store, lambda: hf.edit(first.session_id, 2, prompt="edited meanwhile"))
    library = Holdfast(cast(Store, editing), SMALL, environ=shop.environ)

    fresh = library.resume(first.session_id, "SAY on", fresh=True)

    prompt = sent(shop, fresh)
    assert editing.pages > 1
    assert "Request: edited meanwhile" in prompt
    assert "request 1 " not in prompt
    assert fresh.past.turns == tuple(range(1, 32))


def test_a_packet_of_a_history_that_changes_while_it_is_read_is_of_the_new_one(shop: Workshop) -> None:
    hf, first = shop.open(), shop.begin("SAY hello")
    editing = EditingStore(hf.store, lambda: hf.edit(first.session_id, 1, prompt="edited meanwhile"))
    packet = Holdfast(cast(Store, editing), environ=shop.environ).packet(first.session_id)
    assert [turn.prompt for turn in packet.turns] == ["edited meanwhile"]


def test_a_result_that_was_not_recorded_whole_is_counted(shop: Workshop) -> None:
    hf, first = shop.open(), shop.begin('TOOL shell {"command": "seq 1 20000; echo the end"}\nSAY hello')
    fresh = hf.resume(first.session_id, "SAY on", fresh=True)
    prompt = sent(shop, fresh)
    assert "> 1\n> 2\n" in prompt
    assert "[cut]" in prompt
    said = "1 tool result shortened; the rest of 1 tool result was not recorded"
    assert f"[... {said}; `holdfast log " in prompt
    assert fresh.notices == (f"the past was too long to be told whole: {said}",)
    document = result_document(fresh)["past"]
    assert isinstance(document, dict)
    assert (document["tool_results_shortened"], document["tool_results_unrecorded"]) == (1, 1)


def test_a_known_window_sets_the_budget(shop: Workshop) -> None:
    hf, first = shop.open(), shop.begin("SAY hello\nCONTEXT 100 20000")
    talk(hf, first.session_id, 30)
    prompt = sent(shop, hf.resume(first.session_id, "SAY on", fresh=True))
    assert 15_000 < len(prompt) < IN_20_000
    assert "are summarised to their first lines" in prompt


@pytest.mark.parametrize(
    "failing",
    [
        "FAIL_ONCE once 400 strange\nSAY on",
        "FAIL_ONCE once session_not_found gone\nSAY on",
        f"FAIL_ONCE once 413 {TOO_LONG}\nSAY on",
    ],
)
def test_a_fallback_knows_the_window(shop: Workshop, failing: str) -> None:
    hf, first = shop.open(), shop.begin("SAY hello\nCONTEXT 100 20000")
    talk(hf, first.session_id, 30)
    fallen = hf.resume(first.session_id, failing)
    assert fallen.ok
    assert fallen.provider_session_id != first.provider_session_id
    assert 15_000 < len(sent(shop, fallen)) < IN_20_000


def test_a_forks_fallback_knows_the_window(shop: Workshop) -> None:
    hf, first = shop.open(), shop.begin("SAY hello\nCONTEXT 100 20000")
    talk(hf, first.session_id, 30)
    fork = hf.fork(first.session_id, "FAIL_ONCE once 400 strange\nSAY on")
    assert fork.decision.reason is Reason.RESUME_FAILED
    assert 15_000 < len(sent(shop, fork)) < IN_20_000


def test_the_window_of_another_model_says_nothing(shop: Workshop) -> None:
    hf, first = shop.open(), shop.begin("SAY hello\nCONTEXT 100 20000", model="small")
    talk(hf, first.session_id, 30)
    hf.resume(first.session_id, f"FAIL_ONCE once 413 {TOO_LONG}\nSAY on")
    assert len(sent(shop, hf.resume(first.session_id, "SAY on", model="large", fresh=True))) > IN_20_000


def test_after_a_session_that_was_too_long_for_a_window_that_nobody_knows_less_is_told(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past.PastReader, "reported_window", lambda *_: None)
    hf, first = shop.open(), shop.begin("SAY hello")
    talk(hf, first.session_id, 100)
    prompt = sent(shop, hf.resume(first.session_id, f"FAIL_ONCE once 413 {TOO_LONG}\nSAY on"))
    assert 40_000 < len(prompt) < 80_000 * 3 // 4 + 1000


def test_after_a_fresh_start_that_was_too_long_the_next_is_shorter(shop: Workshop) -> None:
    hf, first = shop.open(), shop.begin("SAY hello")
    talk(hf, first.session_id, 100)
    long = hf.resume(first.session_id, f"FAIL 400 {TOO_LONG}", fresh=True)
    assert long.failure is not None
    assert long.failure.failure_class == "overflow"
    prompt = sent(shop, hf.resume(first.session_id, "SAY on"))
    assert 40_000 < len(prompt) < 80_000 * 3 // 4 + 1000


def test_calls_and_results_of_earlier_turns_are_told(shop: Workshop) -> None:
    hf, first = shop.open(), shop.begin(f"{RAN}\nSAY hello")
    prompt = sent(shop, hf.resume(first.session_id, "SAY on", fresh=True))
    assert '- ok: shell {"command": "echo this ran"}\n> this ran' in prompt


def test_a_resumed_session_is_told_what_others_called(shop: Workshop) -> None:
    hf, first = shop.open(), shop.begin("SAY hello")
    conversation = ConversationId(hf.session(first.session_id).conversation_id)
    other = hf.store.create_session(NewSession(hf.new_id(), "reviewer", conversation_id=conversation))
    hf.resume(other.id, RAN, provider="scripted", cwd=str(shop.work_dir))
    on = hf.resume(first.session_id, "SAY on")
    assert isinstance(on.decision, Resume)
    assert '- ok: shell {"command": "echo this ran"}\n> this ran' in sent(shop, on)


# --- what was never sent ---


def test_a_refused_prompt_is_no_part_of_the_past(shop: Workshop) -> None:
    hf, first = shop.open(), shop.begin("SAY hello")
    wide = Rights(extra_dirs=frozenset({str(shop.folder("more"))}))
    refused = hf.resume(first.session_id, "delete everything", rights=wide)
    assert refused.decision.reason is Reason.RIGHTS_WIDER
    cancelled = hf.enqueue(first.session_id, "a slip of the pen")
    hf.cancel(first.session_id, cancelled.seq)

    _, _, err = ended(shop.start("resume", first.session_id, "SAY on"))
    assert "that it has not seen" not in err
    assert "Continuing your scripted session" in err
    packet = hf.packet(first.session_id)
    assert [turn.prompt for turn in packet.turns] == ["SAY hello", "SAY on"]
    prompt = sent(shop, hf.resume(first.session_id, "SAY more", fresh=True))
    assert "delete everything" not in prompt
    assert "slip of the pen" not in prompt


# --- an approval that became void ---


def _edit(shop: Workshop, waiting: RunResult) -> None:
    shop.open().edit(waiting.session_id, 1, prompt="SAY deploy the new release, edited")


def _delete_session(shop: Workshop, waiting: RunResult) -> None:
    shop.transcript(waiting.provider_session_id).unlink()


def _relocate(shop: Workshop, waiting: RunResult) -> None:
    shop.open().relocate(waiting.session_id, str(shop.folder("elsewhere")))


CHANGES = {"history": _edit, "session file": _delete_session, "directory": _relocate}


@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_after_a_void_approval_the_next_turn_knows_what_ran_and_what_did_not(
    shop: Workshop, turn: int, change: Callable[[Workshop, RunResult], None]
) -> None:
    shop.policy = Policy(resume=ResumePolicy(restore="off"))
    request = f"SAY deploy the new release\n{RAN}\n{APPLY}"
    if turn == 1:
        waiting = shop.begin(request, rights=GATED)
    else:
        first = shop.begin("SAY hello", rights=GATED)
        waiting = shop.open().resume(first.session_id, request)
    assert waiting.approval is not None
    hf = shop.open()
    hf.approve(waiting.approval.id)
    change(shop, waiting)
    with suppress(Refused):  # which step finds out depends on what has changed
        assert not hf.resume(waiting.session_id).ok
    void = hf.store.get_approval(waiting.approval.id)
    assert void.void_reason is not None

    after = hf.resume(waiting.session_id, "SAY what now")
    prompt = sent(shop, after)

    if not isinstance(after.decision, Resume):  # else the session itself holds it
        assert "> SAY deploy the new release" in prompt
        assert '- ok: shell {"command": "echo this ran"}\n> this ran' in prompt
        assert '- did NOT run: shell {"command": "echo applied >> applied"}' in prompt
    assert f"Approval {void.id} is void ({void.void_reason}). This call did NOT run:" in prompt
    assert "> shell: echo applied >> applied" in prompt
    assert "in flight" not in prompt.casefold()
    assert not list(shop.root.glob("**/applied"))


def test_a_void_approval_is_told_once(shop: Workshop) -> None:
    waiting = shop.begin(f"{RAN}\n{APPLY}", rights=GATED)
    assert waiting.approval is not None
    hf = shop.open()
    hf.cancel(waiting.session_id, waiting.turn)
    told = sent(shop, hf.resume(waiting.session_id, "SAY what now"))
    assert f"Approval {waiting.approval.id} is void (turn_cancelled). This call did NOT run:" in told
    assert "is void" not in sent(shop, hf.resume(waiting.session_id, "SAY more"))


def test_a_fork_after_a_void_approval_knows_that_the_call_did_not_run(shop: Workshop) -> None:
    waiting = shop.begin(f"SAY deploy it\n{RAN}\n{APPLY}", rights=GATED)
    assert waiting.approval is not None
    hf = shop.open()
    hf.approve(waiting.approval.id)
    _relocate(shop, waiting)
    with suppress(Refused):
        assert not hf.resume(waiting.session_id).ok
    assert hf.store.get_approval(waiting.approval.id).void_reason is not None

    forked = hf.fork(waiting.session_id, "SAY what now")
    prompt = sent(shop, forked)

    assert isinstance(forked.decision, Fork)
    assert 'did NOT run: shell {"command": "echo applied >> applied"}' in prompt
    assert f"approval {waiting.approval.id}, which became void (workdir_changed)" in prompt
    assert forked.notices == ()
    assert "did NOT run" not in sent(shop, hf.resume(forked.session_id, "SAY on")), "it has been told"


def test_a_fork_beside_a_turn_that_waits_says_that_it_left_the_turn_out(shop: Workshop) -> None:
    first = shop.begin("SAY hello", rights=GATED)
    hf = shop.open()
    assert hf.resume(first.session_id, APPLY).approval is not None

    forked = hf.fork(first.session_id, "SAY another way")

    assert forked.notices == (
        "the fork has the turns up to 1: later turns have not ended, so the fork does not have them",
    )
    assert hf.fork(first.session_id, "SAY another way", at=1).notices == ()


def test_the_calls_around_a_void_approval_are_told_apart_in_a_packet(shop: Workshop) -> None:
    waiting = shop.begin(f"{RAN}\n{APPLY}", rights=GATED)
    hf = shop.open()
    hf.cancel(waiting.session_id, waiting.turn)
    packet = hf.packet(waiting.session_id)
    assert [call.outcome.value for call in packet.tool_calls] == ["ok", "not_run"]
    assert packet.in_flight == ()


def test_an_approved_call_has_the_result_of_the_attempt_that_made_it(shop: Workshop) -> None:
    waiting = shop.begin(f"{APPLY}\nSAY done", rights=GATED)
    assert waiting.approval is not None
    hf = shop.open()
    hf.approve(waiting.approval.id)
    assert hf.resume(waiting.session_id).ok
    assert [call.outcome.value for call in hf.packet(waiting.session_id).tool_calls] == ["ok"]


# --- calls in flight, with others in the same conversation ---


def test_anothers_answer_does_not_settle_a_call_in_flight(shop: Workshop) -> None:
    hf = shop.open()
    first = shop.begin('SAY begun\nTOOL shell {"command": "kill -9 $PPID"}')
    assert first.failure is not None
    conversation = ConversationId(hf.session(first.session_id).conversation_id)
    other = hf.store.create_session(NewSession(hf.new_id(), "reviewer", conversation_id=conversation))
    hf.store.record_turn(other.id, NewTurn("review", "scripted"), "fine", NO_USAGE)
    assert [call.outcome.value for call in hf.packet(first.session_id).in_flight] == ["in_flight"]
    prompt = sent(shop, hf.resume(first.session_id, "SAY on", fresh=True))
    assert "- in_flight: shell " in prompt
    prompt = sent(shop, hf.resume(first.session_id, "SAY on", fresh=True))
    assert "- not_reported: shell " in prompt


def test_a_long_absence_is_caught_up_on_within_the_budget(shop: Workshop) -> None:
    hf, first = shop.open(SMALL), shop.begin("SAY hello")
    conversation = ConversationId(hf.session(first.session_id).conversation_id)
    other = hf.store.create_session(NewSession(hf.new_id(), "reviewer", conversation_id=conversation))
    talk(hf, other.id, 30)
    on = hf.resume(first.session_id, "SAY on")
    assert isinstance(on.decision, Resume)
    assert "are summarised to their first lines; `holdfast log" in sent(shop, on)
    assert on.past.turns == tuple(range(2, 32))
    assert any("too long to be told whole" in notice for notice in on.notices)


# --- why it is fresh ---


def test_a_window_that_is_not_recorded_is_not_called_full(shop: Workshop) -> None:
    hf, first = shop.open(), shop.begin("SAY hello")
    pointer = hf.store.pointer(first.session_id, "scripted")
    assert pointer is not None
    hf.store.set_pointer(replace(pointer, context=None))

    fresh = hf.resume(first.session_id, "SAY on")

    assert fresh.decision.reason is Reason.CONTEXT_FULL
    told = sent(shop, fresh).splitlines()[0]
    assert told == (
        "[holdfast] fresh session: context_full, it is not known how full the earlier session's context window is "
        "(the context window is not recorded)."
    )


def test_a_session_that_is_gone_is_named_as_gone_and_one_that_was_altered_as_altered(shop: Workshop) -> None:
    shop.policy = Policy(resume=ResumePolicy(restore="off"))
    hf, first = shop.open(), shop.begin("SAY hello")
    shop.transcript(first.provider_session_id).unlink()
    fresh = hf.resume(first.session_id, "SAY on")
    assert f"does not hold session {first.provider_session_id}" in sent(shop, fresh).splitlines()[0]
    path = shop.transcript(fresh.provider_session_id)
    path.write_bytes(path.read_bytes().replace(b"hello", b"HELLO"))
    fresh = hf.resume(first.session_id, "SAY on")
    assert "transcript_altered, the earlier session's record was changed" in sent(shop, fresh)


# --- after an interruption, whatever comes next ---

STOPPED = f"SAY begun\n{RAN}\nCRASH"
CHECK = "stopped before the end. Check what was already done"


def test_a_fork_of_an_interrupted_session_is_told_of_the_interruption(shop: Workshop) -> None:
    first = shop.begin("SAY hello")
    hf = shop.open()
    assert not hf.resume(first.session_id, STOPPED).ok

    forked = hf.fork(first.session_id, "SAY another way")

    assert isinstance(forked.decision, Fork)
    assert f"turn 2 was {CHECK}" in sent(shop, forked)
    assert CHECK not in sent(shop, hf.resume(forked.session_id, "SAY on")), "it has been told"


def test_a_fork_before_the_interruption_is_not_told_of_it(shop: Workshop) -> None:
    first = shop.begin("SAY hello")
    hf = shop.open()
    assert not hf.resume(first.session_id, STOPPED).ok
    assert CHECK not in sent(shop, hf.fork(first.session_id, "SAY another way", at=1))


def test_to_continue_in_a_fork_is_to_go_on_with_what_was_interrupted(shop: Workshop) -> None:
    first = shop.begin("SAY hello")
    hf = shop.open()
    assert not hf.resume(first.session_id, STOPPED).ok

    prompt = sent(shop, hf.fork(first.session_id, "continue"))

    assert "go on with the turn that was interrupted" in prompt
    assert "new request" not in prompt


def test_a_command_after_an_interruption_is_sent_behind_the_word_about_it(shop: Workshop) -> None:
    first = shop.begin("SAY hello")
    hf = shop.open()
    assert not hf.resume(first.session_id, STOPPED).ok

    after = hf.resume(first.session_id, "/again")

    prompt = sent(shop, after)
    assert f"turn 2 was {CHECK}" in prompt
    assert prompt.endswith("\n/again")
    assert any("/again" in notice and "as text" in notice for notice in after.notices), after.notices
    again = hf.resume(first.session_id, "/again")
    assert (sent(shop, again), again.notices) == ("/again", ())


def _never_sent(shop: Workshop, session: RunResult, prompt: str) -> None:
    hf = shop.open(Policy(queue=QueuePolicy(lock_tries=1)))
    assert session.provider_session_id is not None
    with hf.agents.get("scripted").lock(session.provider_session_id) as lock:
        assert lock.try_acquire()
        assert not hf.resume(session.session_id, prompt).ok


def test_to_enqueue_continue_is_to_send_a_request_that_was_never_sent(shop: Workshop) -> None:
    first = shop.begin("SAY hello")
    _never_sent(shop, first, "SAY the lights are on")
    code, out, err = ended(shop.start("--json", "enqueue", first.session_id, "continue"))
    assert code == 0, err
    assert json.loads(out)["prompt"] == "SAY the lights are on"

    assert ended(shop.start("worker", "--once"))[0] == 0

    assert shop.prompts(first.provider_session_id)[-1].endswith("\nSAY the lights are on")


def test_to_continue_in_a_fork_is_to_send_a_request_that_was_never_sent(shop: Workshop) -> None:
    first = shop.begin("SAY hello")
    _never_sent(shop, first, "SAY the lights are on")
    assert shop.open().fork(first.session_id, "continue").text == "the lights are on"
    assert shop.open().fork(first.session_id, "continue", at=1).text != "the lights are on"


def test_continue_that_waits_behind_a_request_that_fails_unsent_names_it(shop: Workshop) -> None:
    """Nobody could know when it was put in that the turn before it would not reach its agent."""
    first = shop.begin("SAY hello")
    hf = shop.open()
    refused = TurnRequest(rights=Rights(extra_args=("--resume=x",)), allow_wider_rights=True)
    hf.store.enqueue_turn(first.session_id, NewTurn("SAY the lights are on", "scripted", refused))
    hf.enqueue(first.session_id, "continue")

    assert ended(shop.start("worker", "--once"))[0] == 0

    prompt = shop.prompts(first.provider_session_id)[-1]
    assert "to be continued: turn 2, whose request was\n> SAY the lights are on" in prompt


@pytest.mark.parametrize("way", ["cancelled", "killed"])
def test_a_turn_that_only_waited_for_the_session_was_not_interrupted(shop: Workshop, way: str) -> None:
    hf, first = shop.open(), shop.begin("SAY one")
    patient = {"HOLDFAST_QUEUE__LOCK_TRIES": "40"}
    assert first.provider_session_id is not None
    with hf.agents.get("scripted").lock(first.provider_session_id) as lock:
        assert lock.try_acquire()
        if way == "cancelled":
            hf.enqueue(first.session_id, "SAY deploy", NewTurn("SAY deploy", "scripted"))
            process = shop.start("worker", "--once", environ=patient)
        else:
            process = shop.start("resume", first.session_id, "SAY deploy", environ=patient)
        eventually(lambda: hf.store.holder(first.session_id))
        if way == "cancelled":
            hf.cancel(first.session_id, 2)
            ended(process)
        else:
            kill(process)

    after = hf.resume(first.session_id, "SAY hello")

    told = shop.prompts(after.provider_session_id)[-1]
    assert isinstance(after.decision, Resume)
    assert "interrupted" not in told
    assert "deploy" not in told
    fresh = hf.resume(first.session_id, "SAY hello", fresh=True)
    assert "deploy" not in shop.prompts(fresh.provider_session_id)[-1]
