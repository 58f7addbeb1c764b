"""A provider session that is asked for by name: who owns it is known before anything runs."""

from typing import Any

import pytest

from holdfast.domain.decisions import Fresh
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import Rights
from holdfast.domain.policy import Policy, ResumePolicy
from holdfast.domain.turns import NewTurn, TurnRequest, TurnStatus
from holdfast.engine.importing import ImportRequest
from holdfast.errors import Refused
from tests.builders import a_pointer
from tests.integration.test_run_crashes import die
from tests.integration.workshop import FROM_PROMPT, FROM_SESSION, OPENING, RECALL, Workshop, ended
from tests.steps import snapshot

NAMED = ProviderSessionId("made-by-hand")


def test_the_session_of_another_one_is_refused_with_its_owner_and_the_command(shop: Workshop) -> None:
    owner = shop.begin()
    native = str(owner.provider_session_id)

    code, _, err = ended(shop.start("run", RECALL, "--provider-session-id", native))

    assert code == 4
    assert f"holdfast resume {owner.session_id}" in err
    assert len(shop.prompts(native)) == 1, "nothing was run in it"
    assert len(shop.open().list_sessions()) == 1, "no session was begun for it"
    assert shop.open().resume(owner.session_id, RECALL).text == FROM_SESSION


def test_a_queued_turn_does_not_get_the_session_of_another_one_either(shop: Workshop) -> None:
    owner, hf = shop.begin(), shop.open()
    request = TurnRequest(str(shop.work_dir), provider_session_id=owner.provider_session_id)
    session = hf.create("other", provider="scripted")
    # as by a program that does not look
    turn = hf.store.enqueue_turn(session.id, NewTurn(RECALL, "scripted", request))
    assert ended(shop.start("worker", "--once"))[0] == 0

    turn = hf.store.get_turn(turn.conversation_id, turn.seq)

    assert turn.status is TurnStatus.FAILED
    assert turn.failure is not None
    assert turn.failure.message.startswith("explicit_id: ")
    assert owner.session_id in turn.failure.message


def test_a_turn_for_the_session_of_another_one_is_not_even_queued(shop: Workshop) -> None:
    owner, hf = shop.begin(), shop.open()
    native = owner.provider_session_id
    new = NewTurn("", "scripted", TurnRequest(str(shop.work_dir), provider_session_id=native))
    session = hf.create("other", provider="scripted")
    told = f"holdfast resume {owner.session_id} PROMPT continues it"
    with pytest.raises(Refused, match=told):
        hf.enqueue(session.id, RECALL, new)
    with pytest.raises(Refused, match=told):
        hf.begin_queued(RECALL, new)
    assert hf.store.turns(session.id) == ()
    assert len(hf.list_sessions()) == 2, "no session was begun for it"
    assert hf.enqueue(owner.session_id, RECALL, new).seq == 2, "its own"


def test_of_a_session_that_is_closed_the_command_is_named_that_works(shop: Workshop) -> None:
    owner, hf = shop.begin(), shop.open()
    hf.finalize(owner.session_id, "completed")
    native = owner.provider_session_id
    named = NewTurn(RECALL, "scripted", TurnRequest(str(shop.work_dir), provider_session_id=native))
    session = hf.create("other", provider="scripted")
    turn = hf.store.enqueue_turn(session.id, named)
    assert ended(shop.start("worker", "--once"))[0] == 0
    failure = hf.store.get_turn(turn.conversation_id, turn.seq).failure
    code, _, err = ended(shop.start("run", RECALL, "--provider-session-id", str(native)))

    assert code == 4
    assert failure is not None
    for told in (err, failure.message):
        assert f"is closed: holdfast fork {owner.session_id} PROMPT continues from it" in told
        assert "resume" not in told
    code, out, err = ended(shop.start("fork", owner.session_id, RECALL))
    assert (code, FROM_SESSION in out) == (0, True), err


def test_a_session_that_was_made_by_hand_is_continued_with_its_history(shop: Workshop) -> None:
    shop.by_hand(OPENING, "--session-id", NAMED)
    hf = shop.open()

    taken = hf.run(RECALL, provider="scripted", cwd=str(shop.work_dir), provider_session_id=NAMED)

    assert (taken.text, taken.provider_session_id) == (FROM_SESSION, NAMED)
    assert [turn.prompt for turn in hf.history(taken.session_id)] == [OPENING, RECALL]
    assert "1 turn was made outside Holdfast" in " ".join(taken.notices)
    assert hf.resume(taken.session_id, RECALL).text == FROM_SESSION


def test_a_session_that_was_made_by_hand_counts_as_imported(shop: Workshop) -> None:
    shop.by_hand(OPENING, "--session-id", NAMED)
    hf, here = shop.open(), str(shop.work_dir)

    taken = hf.run(
        RECALL, provider="scripted", agent="keeper", name="taken", cwd=here, provider_session_id=NAMED
    )

    session = hf.session(taken.session_id)
    assert session.imported_at is not None
    assert (session.agent, session.name) == ("keeper", "taken"), "as the caller says"
    report = hf.import_sessions(ImportRequest(("scripted",)))
    assert (report.found, report.imported) == (1, 0), "no second session is made of it"
    begun = hf.run(OPENING, provider="scripted", cwd=here, provider_session_id="of-ours")
    assert hf.session(begun.session_id).imported_at is None, "nobody had begun it"


def test_a_worker_refuses_a_session_that_nobody_here_has_begun(shop: Workshop) -> None:
    shop.by_hand(OPENING, "--session-id", NAMED)
    hf = shop.open()
    session = hf.create("other", provider="scripted")
    with hf.provider_session(NAMED):
        turn = hf.enqueue(session.id, RECALL, NewTurn("", "scripted", TurnRequest(str(shop.work_dir))))
    assert ended(shop.start("worker", "--once"))[0] == 0

    turn = hf.store.get_turn(turn.conversation_id, turn.seq)

    assert turn.failure is not None
    assert "it exists already" in turn.failure.message
    assert shop.prompts(NAMED) == [OPENING]


def test_a_session_with_nothing_in_it_is_refused(shop: Workshop) -> None:
    shop.transcript(NAMED).parent.mkdir(parents=True)
    shop.transcript(NAMED).write_text("")
    hf = shop.open()
    with pytest.raises(Refused, match="holds no request"):
        hf.run(RECALL, provider="scripted", cwd=str(shop.work_dir), provider_session_id=NAMED)


def test_a_session_that_has_run_continues_one_that_was_made_by_hand(shop: Workshop) -> None:
    own, hf = shop.begin(rights=Rights(permission_mode="plan")), shop.open()
    shop.by_hand("my cat is tom", "--session-id", NAMED)

    taken = hf.resume(own.session_id, "HISTORY", provider_session_id=NAMED)

    assert taken.provider_session_id == NAMED
    assert "my cat is tom" in str(taken.text)
    assert OPENING in shop.prompts(NAMED)[-1], "what the session made by hand has missed"
    assert [turn.prompt for turn in hf.history(own.session_id)] == [OPENING, "my cat is tom", "HISTORY"]
    pointer = hf.store.pointer(own.session_id, "scripted")
    assert pointer is not None
    assert (pointer.work_dir, pointer.rights) == (str(shop.work_dir), Rights(permission_mode="plan"))
    assert hf.resume(own.session_id, "RECALL tom").text == "RECALL tom: from the session: my cat is tom"


@pytest.mark.parametrize(
    ("keywords", "policy", "told"),
    [
        ({"fresh": True}, Policy(), "a fresh start was asked for"),
        ({"rights": Rights(allowed_tools=frozenset({"shell"}))}, Policy(), "rights_wider"),
        ({}, Policy(resume=ResumePolicy(transcript_ahead="fresh")), "transcript_ahead"),
    ],
    ids=["fresh", "wider-rights", "policy"],
)
def test_a_session_made_by_hand_that_is_refused_changes_nothing(
    shop: Workshop, keywords: dict[str, Any], policy: Policy, told: str
) -> None:
    own = shop.begin()
    shop.by_hand("my cat is tom", "--session-id", NAMED)
    hf = shop.open(policy)
    before = snapshot(hf.store)

    with pytest.raises(Refused, match=told):
        hf.resume(own.session_id, RECALL, provider_session_id=NAMED, **keywords)

    assert snapshot(hf.store) == before
    assert hf.resume(own.session_id, RECALL).text == FROM_SESSION


def test_a_session_made_by_hand_that_somebody_writes_to_is_not_taken_over(shop: Workshop) -> None:
    own, hf = shop.begin(), shop.open()
    shop.by_hand("my cat is tom", "--session-id", NAMED)
    before = snapshot(hf.store)
    with hf.agents.get("scripted").lock(NAMED) as lock:
        assert lock.try_acquire()
        with pytest.raises(Refused, match="busy"):
            hf.resume(own.session_id, RECALL, provider_session_id=NAMED)
    assert snapshot(hf.store) == before


def test_no_session_is_begun_for_one_that_cannot_be_continued(shop: Workshop) -> None:
    shop.by_hand(OPENING, "--session-id", NAMED)
    hf = shop.open()
    with pytest.raises(Refused, match="a fresh start was asked for"):
        hf.run(RECALL, provider="scripted", cwd=str(shop.work_dir), provider_session_id=NAMED, fresh=True)
    assert hf.list_sessions() == []


def test_the_session_of_one_that_never_ran_in_it_is_refused_too(shop: Workshop) -> None:
    shop.by_hand(OPENING, "--session-id", NAMED)
    hf = shop.open()
    agent = hf.agents.get("scripted")
    owner, other = (hf.create(name, provider="scripted") for name in ("owner", "other"))
    hf.store.register_runtime(agent.runtime)
    # as by a run that was killed when it had taken the session over
    taken = a_pointer(
        owner.id, provider="scripted", provider_session_id=NAMED, runtime_id=agent.runtime.id,
        work_dir=str(shop.work_dir),
    )  # fmt: skip
    hf.store.set_pointer(taken)
    told = f"holdfast resume {owner.id} PROMPT continues it"
    with pytest.raises(Refused, match=told):
        hf.run(RECALL, provider="scripted", cwd=str(shop.work_dir), provider_session_id=NAMED)
    with pytest.raises(Refused, match=told):
        hf.resume(other.id, RECALL, cwd=str(shop.work_dir), provider_session_id=NAMED)
    with pytest.raises(Refused, match=told):
        hf.enqueue(other.id, RECALL, NewTurn("", "scripted", TurnRequest(provider_session_id=NAMED)))
    assert hf.store.turns(other.id) == ()
    assert shop.prompts(NAMED) == [OPENING]


def test_of_two_that_take_over_a_session_at_once_one_gets_it(shop: Workshop) -> None:
    shop.by_hand(OPENING, "--session-id", NAMED)
    both = [shop.start("run", f"SAY {n}", "--provider-session-id", NAMED) for n in range(2)]
    codes = sorted(ended(process)[0] for process in both)
    assert codes == [0, 4]
    assert len(shop.prompts(NAMED)) == 2


@pytest.mark.parametrize("moment", ["after SqlStore launch", "before AgentProcess go"])
def test_an_id_whose_agent_was_killed_before_it_saved_anything_begins_with_the_next_turn(
    shop: Workshop, moment: str
) -> None:
    die(shop, *moment.split(), "run", OPENING, "--provider-session-id", NAMED)
    hf = shop.open()
    (session,) = hf.list_sessions()
    assert not shop.transcript(NAMED).exists()

    again = hf.resume(str(session["agent_id"]), RECALL, provider_session_id=NAMED)

    assert (again.ok, again.provider_session_id) == (True, NAMED)
    assert isinstance(again.decision, Fresh)
    assert again.text == FROM_PROMPT
    assert hf.resume(again.session_id, RECALL, provider_session_id=NAMED).ok
