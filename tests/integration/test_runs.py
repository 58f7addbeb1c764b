"""Turns that real processes run: the first, the next, and every reason to start afresh."""

import json
from collections.abc import Callable

import pytest

from holdfast.domain.decisions import Fork, Fresh, Reason, Resume
from holdfast.domain.pointers import Rights
from holdfast.domain.policy import Policy, ResumePolicy
from holdfast.domain.sessions import SessionFilter
from holdfast.engine.result import RunResult
from holdfast.providers.scripted import ScriptedArchive
from tests.integration.workshop import FROM_PROMPT, FROM_SESSION, OPENING, RECALL, Workshop

READ_ONLY = Rights(permission_mode="plan")
WRITES = 'TOOL shell {"command": "touch written"}'

Change = Callable[[Workshop, RunResult], None]


def test_the_first_turn_is_sent_as_it_is(shop: Workshop) -> None:
    first = shop.begin()
    assert isinstance(first.decision, Fresh)
    assert first.decision.reason is Reason.NO_POINTER
    assert (first.ok, first.turn, first.work_dir) == (True, 1, str(shop.work_dir))
    assert shop.prompts(first.provider_session_id) == [OPENING]


def test_the_next_turn_goes_on_in_the_providers_own_session(shop: Workshop) -> None:
    first = shop.begin()
    second = shop.open().resume(first.session_id, RECALL)
    assert isinstance(second.decision, Resume)
    assert (second.text, second.provider_session_id) == (FROM_SESSION, first.provider_session_id)
    assert OPENING not in shop.prompts(first.provider_session_id)[1]
    assert second.usage.cached_input_tokens > 0


def _edited(shop: Workshop, first: RunResult) -> None:
    shop.open().edit(first.session_id, 1, response="another answer")


def _retired(shop: Workshop, first: RunResult) -> None:
    assert first.provider_session_id is not None
    shop.open().store.retire(first.session_id, "scripted", first.provider_session_id, "told so")


def _deleted(shop: Workshop, first: RunResult) -> None:
    shop.transcript(first.provider_session_id).unlink()


def _altered(shop: Workshop, first: RunResult) -> None:
    path = shop.transcript(first.provider_session_id)
    path.write_bytes(path.read_bytes().replace(b"I was told", b"I was TOLD"))


def _failed_once(shop: Workshop, first: RunResult) -> None:
    assert not shop.open().resume(first.session_id, "FAIL 418 strange").ok


def _full(shop: Workshop, first: RunResult) -> None:
    assert shop.open().resume(first.session_id, "CONTEXT 190000 200000").notices


def _went_on_by_hand(shop: Workshop, first: RunResult) -> None:
    shop.by_hand("SAY by hand", "--resume", str(first.provider_session_id))


def _other_home(shop: Workshop, _: RunResult) -> None:
    shop.changes["SCRIPTED_HOME"] = str(shop.root / "another-agent")


def _cannot_resume(shop: Workshop, _: RunResult) -> None:
    says = "if argv == ['--help']: print('--session-id'); sys.exit()"
    shop.changes["HOLDFAST_SCRIPTED_BINARY"] = shop.stand_in("agent-that-only-starts", says)


def _nothing(_shop: Workshop, _first: RunResult) -> None:
    pass


@pytest.mark.parametrize(
    ("reason", "change", "asked", "policy"),
    [
        (Reason.FORCE_FRESH, _nothing, {"fresh": True}, {}),
        (Reason.RESUME_DISABLED, _nothing, {}, {"native_resume": False}),
        (Reason.RESUME_DISABLED, _nothing, {}, {"session_persistence": False}),
        (Reason.CAPABILITY_MISSING, _cannot_resume, {}, {}),
        (Reason.RUNTIME_CHANGED, _other_home, {}, {}),
        (Reason.WORKDIR_CHANGED, _nothing, {"cwd": "elsewhere"}, {}),
        (Reason.HISTORY_CHANGED, _edited, {}, {}),
        (Reason.MODEL_CHANGED, _nothing, {"model": "large"}, {"same_model": True}),
        (Reason.RETIRED, _retired, {}, {}),
        (Reason.ERRORS, _failed_once, {}, {"max_provider_session_errors": 1}),
        (Reason.CONTEXT_FULL, _full, {}, {}),
        (Reason.TRANSCRIPT_MISSING, _deleted, {}, {"restore": "off"}),
        (Reason.TRANSCRIPT_ALTERED, _altered, {}, {}),
        (Reason.TRANSCRIPT_AHEAD, _went_on_by_hand, {}, {"transcript_ahead": "fresh"}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)).strip("_"),
)  # fmt: skip
def test_a_guard_that_fails_starts_fresh_with_the_whole_context(
    shop: Workshop, reason: Reason, change: Change, asked: dict[str, object], policy: dict[str, object]
) -> None:
    shop.policy = Policy(resume=ResumePolicy(**policy))  # type: ignore[arg-type]
    first = shop.begin(model="small", rights=READ_ONLY)
    change(shop, first)
    if "cwd" in asked:
        asked = {"cwd": str(shop.folder("elsewhere"))}
    again = shop.open().resume(first.session_id, f"{RECALL}\n{WRITES}", **asked)  # type: ignore[arg-type]
    assert isinstance(again.decision, Fresh), again.decision
    assert again.work_dir == asked.get("cwd", first.work_dir)
    assert not (shop.work_dir / "written").exists(), "the rights of the first launch are replayed"
    newest = shop.open().store.newest_attempt(first.session_id)
    assert newest is not None
    assert newest.model == asked.get("model", "small")
    assert again.decision.reason is reason
    assert again.text == FROM_PROMPT
    assert again.provider_session_id != first.provider_session_id
    (sent,) = shop.prompts(again.provider_session_id)
    assert sent.startswith(f"[holdfast] fresh session: {reason}")


def test_a_new_beginning_knows_nothing(shop: Workshop) -> None:
    first = shop.begin()
    shop.open().new(first.session_id)
    again = shop.open().resume(first.session_id, RECALL)
    assert again.decision.reason is Reason.GENERATION_CHANGED
    assert again.text == f"{RECALL}: unknown"


def test_wider_rights_are_refused_unless_they_are_allowed(shop: Workshop) -> None:
    narrow, wide = (
        Rights(allowed_tools=frozenset({"write"})),
        Rights(allowed_tools=frozenset({"write", "shell"})),
    )
    first = shop.begin(rights=narrow)
    order = 'TOOL shell {"command": "echo ran"}'
    refused = shop.open().resume(first.session_id, order, rights=wide)
    assert (refused.decision.reason, refused.exit_code) == (Reason.RIGHTS_WIDER, 4)
    replayed = shop.open().resume(first.session_id, order)
    allowed = shop.open().resume(first.session_id, order, rights=wide, allow_wider_rights=True)
    assert _tool_results(shop, replayed) == [("permission denied: shell", True)]
    assert _tool_results(shop, allowed) == [("ran\n", False)]


def _tool_results(shop: Workshop, result: RunResult) -> list[tuple[object, object]]:
    hf = shop.open()
    conversation = hf.session(result.session_id).conversation_id
    events = [event.data for _, event in hf.store.events(conversation, result.turn)]
    return [(data["output"], data["is_error"]) for data in events if "output" in data]


def test_an_explicit_session_is_used_or_refused_and_never_replaced(shop: Workshop) -> None:
    first = shop.begin(provider_session_id="chosen-1")
    assert (first.provider_session_id, shop.prompts("chosen-1")) == ("chosen-1", [OPENING])
    again = shop.open().resume(first.session_id, RECALL, provider_session_id="chosen-1")
    assert again.text == FROM_SESSION
    other = shop.open().resume(first.session_id, RECALL, provider_session_id="chosen-2")
    assert (other.provider_session_id, other.text) == ("chosen-2", FROM_PROMPT)
    shop.transcript("chosen-2").unlink()
    unrestored = Policy(resume=ResumePolicy(restore="off"))
    gone = shop.open(unrestored).resume(first.session_id, RECALL, provider_session_id="chosen-2")
    assert (gone.decision.reason, gone.exit_code) == (Reason.TRANSCRIPT_MISSING, 4)
    assert not shop.transcript("chosen-2").exists()


def test_a_block_names_the_session_of_the_turns_in_it(shop: Workshop) -> None:
    hf = shop.open()
    with hf.provider_session("chosen"):
        inside = hf.run(OPENING, provider="scripted", cwd=str(shop.work_dir))
    assert inside.provider_session_id == "chosen"
    assert hf.run(OPENING, provider="scripted", cwd=str(shop.work_dir)).provider_session_id != "chosen"


def test_what_a_person_did_by_hand_joins_the_history_once(shop: Workshop) -> None:
    first = shop.begin()
    native = str(first.provider_session_id)
    hf = shop.open()
    for by_hand in (["SAY one by hand", "SAY two by hand"], ["SAY one by hand"], []):
        for prompt in by_hand:
            shop.by_hand(prompt, "--resume", native)
        turn = hf.resume(first.session_id, RECALL)
        assert isinstance(turn.decision, Resume)
        assert turn.text == FROM_SESSION
        assert "by hand" not in shop.prompts(native)[-1]
    told = [turn.prompt for turn in hf.history(first.session_id)]
    assert told == [OPENING, "SAY one by hand", "SAY two by hand", RECALL, "SAY one by hand", RECALL, RECALL]


def test_what_was_done_by_hand_is_not_told_again_although_more_was_begun_there(shop: Workshop) -> None:
    first = shop.begin()
    native = str(first.provider_session_id)
    shop.by_hand("SAY done by hand", "--resume", native)
    with shop.transcript(native).open("a") as file:
        file.write(json.dumps({"type": "user", "id": "cut-off", "text": "begun by hand"}) + "\n")
    again = shop.open().resume(first.session_id, RECALL)
    assert isinstance(again.decision, Resume)
    assert "done by hand" not in shop.prompts(native)[-1]


def test_a_fork_leaves_the_parent_as_it_is(shop: Workshop) -> None:
    first = shop.begin()
    parent = shop.transcript(first.provider_session_id)
    before = parent.read_bytes()
    hf = shop.open()
    child = hf.fork(first.session_id, RECALL)
    assert isinstance(child.decision, Fork)
    assert (child.text, child.work_dir) == (FROM_SESSION, str(shop.work_dir))
    assert parent.read_bytes() == before
    assert len({child.provider_session_id, first.provider_session_id}) == 2
    grandchild = hf.fork(child.session_id, "HISTORY")
    assert isinstance(grandchild.decision, Fork)
    assert grandchild.text == f"1. {OPENING}\n2. {RECALL}"
    family = [one.provider_session_id for one in (first, child, grandchild)]
    lineage = [
        hf.store.provider_sessions(one.session_id)[0].forked_from for one in (first, child, grandchild)
    ]
    assert lineage == [None, *family[:2]]
    assert hf.session(grandchild.session_id).parent_session_id == child.session_id


@pytest.mark.parametrize("moved", ["fork at an earlier turn", "by hand", "by another turn"])
def test_a_fork_of_what_the_session_has_passed_is_told_the_context(shop: Workshop, moved: str) -> None:
    first = shop.begin()
    hf = shop.open()
    if moved == "fork at an earlier turn":
        hf.resume(first.session_id, "SAY later")
        child = hf.fork(first.session_id, at=1)
    else:
        child = hf.fork(first.session_id)
        if moved == "by hand":
            shop.by_hand("SAY later", "--resume", str(first.provider_session_id))
        else:
            hf.resume(first.session_id, "SAY later")
    told = hf.resume(child.id, RECALL)
    assert isinstance(told.decision, Fresh)
    assert told.decision.reason is Reason.FORK_POINT_MOVED
    assert told.text == FROM_PROMPT
    assert "SAY later" not in shop.prompts(told.provider_session_id)[0]


def test_each_of_two_agents_is_told_once_what_the_other_did(shop: Workshop) -> None:
    hf = shop.open()
    first = shop.begin()
    joined = hf.create("reviewer", joins=hf.session(first.session_id).conversation_id, provider="scripted")
    review = hf.resume(joined.id, "SAY looks good", cwd=str(shop.work_dir))
    assert OPENING in shop.prompts(review.provider_session_id)[0]
    back = hf.resume(first.session_id, "RECALL looks")
    assert isinstance(back.decision, Resume)
    assert "from the prompt" in (back.text or "")
    (*_, caught_up) = shop.prompts(first.provider_session_id)
    assert OPENING not in caught_up
    again = hf.resume(first.session_id, "SAY more")
    assert "looks good" not in shop.prompts(again.provider_session_id)[-1]
    hf.resume(joined.id, "SAY enough")
    seen = shop.prompts(review.provider_session_id)[-1]
    assert "RECALL looks" in seen
    assert OPENING not in seen


def test_standalone_runs_are_strangers_to_each_other(shop: Workshop) -> None:
    hf = shop.open()
    results = [hf.run(f"SAY {n}", provider="scripted", cwd=str(shop.work_dir)) for n in range(10)]
    assert [result.text for result in results] == [str(n) for n in range(10)]
    assert len({result.session_id for result in results}) == 10
    assert len({result.provider_session_id for result in results}) == 10
    assert {s.id for s in hf.page(SessionFilter()).sessions} == {result.session_id for result in results}
    assert not hf.store.orphans()


def test_the_agents_own_title_is_taken_after_a_turn_and_a_name_takes_precedence(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles = iter(["The first title", None, "A better title"])
    monkeypatch.setattr(ScriptedArchive, "title", lambda *_: next(titles))
    library = shop.open()
    session_id = shop.begin().session_id
    found = [library.session(session_id).title]
    for _ in range(2):
        library.resume(session_id, "SAY more")
        found.append(library.session(session_id).title)

    assert found == ["The first title", "The first title", "A better title"]
    assert library.rename(session_id, "mine").title == "mine"
