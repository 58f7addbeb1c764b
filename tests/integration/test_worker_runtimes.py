"""Workers with different runtimes: a session is resumed where it ran, and told everywhere else."""

import signal

import pytest

from holdfast.domain.decisions import DecisionKind, Reason
from holdfast.domain.ids import RuntimeId
from holdfast.domain.policy import Policy, QueuePolicy
from holdfast.domain.turns import AttemptStatus, NewTurn, Turn, TurnStatus
from holdfast.engine.running.agents import Agents
from tests.integration.crew import WAIT, Crew
from tests.integration.workshop import FROM_PROMPT, FROM_SESSION, OPENING, RECALL, ended, eventually


class Place:
    """A runtime: the same agent, with a home of its own."""

    def __init__(self, crew: Crew, name: str) -> None:
        self._crew = crew
        home = crew.shop.folder("homes") / name
        self.environ = {"SCRIPTED_HOME": str(home)}
        found = Agents({**crew.shop.environ, **self.environ}).get("scripted")
        self.runtime_id: RuntimeId = found.runtime.id

    def work(self) -> None:
        """Whatever can be run here now."""
        code, _, err = ended(self._crew.enlist("--once", environ=self.environ))
        assert code == 0, err


@pytest.fixture
def old(crew: Crew) -> Place:
    return Place(crew, "old")


@pytest.fixture
def new(crew: Crew) -> Place:
    return Place(crew, "new")


def decision(crew: Crew, turn: Turn) -> tuple[DecisionKind, Reason]:
    decided = crew.attempts(turn)[-1].decision
    return decided.kind, decided.reason


def pinned(where: Place) -> NewTurn:
    return NewTurn("", "scripted", runtime_id=where.runtime_id)


def begun(crew: Crew, where: Place) -> str:
    """A session that has run its first turn there."""
    session = crew.session()
    turn = crew.ask(session, OPENING)
    where.work()
    assert crew.look(turn).status is TurnStatus.DONE
    return session


def test_another_runtime_never_resumes_and_is_told_everything_in_the_same_directory(
    crew: Crew, old: Place, new: Place
) -> None:
    session = begun(crew, old)
    new.work()  # it has made itself known
    turn = crew.hf.enqueue(session, RECALL, pinned(new))
    new.work()

    assert decision(crew, turn) == (DecisionKind.FRESH, Reason.RUNTIME_CHANGED)
    assert crew.look(turn).response == FROM_PROMPT
    assert crew.attempts(turn)[0].work_dir == str(crew.shop.work_dir)


def test_the_old_runtime_still_resumes_its_own_while_the_new_one_is_there(
    crew: Crew, old: Place, new: Place
) -> None:
    session = begun(crew, old)
    new.work()  # it has made itself known
    turn = crew.follow_up(session, RECALL)
    old.work()

    assert decision(crew, turn)[0] is DecisionKind.RESUME
    assert crew.look(turn).response == FROM_SESSION


def test_the_pointer_and_its_runtime_move_together(crew: Crew, old: Place, new: Place) -> None:
    session = begun(crew, old)
    new.work()
    crew.hf.enqueue(session, "SAY taken over", pinned(new))
    new.work()

    pointer = crew.hf.store.pointer(session, "scripted")
    attempt = crew.hf.store.newest_attempt(session)
    assert pointer is not None
    assert attempt is not None
    assert (pointer.runtime_id, pointer.provider_session_id) == (new.runtime_id, attempt.provider_session_id)
    again = crew.hf.enqueue(session, RECALL, pinned(old))
    old.work()
    assert decision(crew, again) == (DecisionKind.FRESH, Reason.RUNTIME_CHANGED)


@pytest.mark.parametrize("claimer", ["old", "new"])
def test_a_stale_pointer_with_a_newer_attempt_elsewhere_is_each_runtimes_own(
    crew: Crew, old: Place, new: Place, claimer: str
) -> None:
    """The new one began a session of its own and was killed before any pointer moved to it."""
    session = begun(crew, old)
    new.work()
    stale = crew.hf.store.pointer(session, "scripted")
    assert stale is not None
    lost = crew.hf.enqueue(session, f"{WAIT}\nSAY never", pinned(new))
    worker = crew.enlist(environ=new.environ)
    crew.until_begun(lost)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    theirs = eventually(lambda: crew.hf.store.newest_attempt(session))
    crew.hf.store.set_pointer(stale)
    crew.hf.take_over(session)
    crew.hf.cancel(session, lost.seq)

    turn = crew.hf.enqueue(session, RECALL, pinned(old if claimer == "old" else new))
    (old if claimer == "old" else new).work()

    (attempt,) = crew.attempts(turn)
    assert attempt.status is AttemptStatus.DONE
    resumed = attempt.provider_session_id if attempt.decision.kind is DecisionKind.RESUME else None
    assert resumed != (theirs if claimer == "old" else stale).provider_session_id
    assert "swordfish" in (crew.look(turn).response or "")


def test_a_directory_that_another_machine_does_not_have_is_not_asked_for_there(
    crew: Crew, old: Place, new: Place
) -> None:
    gone = crew.shop.folder("gone")
    session = crew.session()
    crew.ask(session, OPENING, cwd=gone)
    old.work()
    new.work()
    gone.rmdir()

    turn = crew.hf.enqueue(session, RECALL, pinned(new))
    new.work()

    assert crew.look(turn).response == FROM_PROMPT
    assert crew.attempts(turn)[0].work_dir == str(crew.shop.work_dir), "where the worker was started"


def test_a_session_that_cannot_be_resumed_keeps_its_directory(crew: Crew, old: Place) -> None:
    elsewhere = crew.shop.folder("elsewhere")
    session = crew.session()
    first = crew.ask(session, OPENING, cwd=elsewhere)
    old.work()
    named = crew.attempts(first)[0].provider_session_id
    assert named is not None
    crew.hf.store.retire(session, "scripted", named, "poisoned")

    turn = crew.follow_up(session, RECALL)
    old.work()

    assert decision(crew, turn) == (DecisionKind.FRESH, Reason.RETIRED)
    assert crew.attempts(turn)[0].work_dir == str(elsewhere)
    assert crew.look(turn).response == FROM_PROMPT


def test_a_session_that_never_began_keeps_its_directory(crew: Crew, old: Place) -> None:
    elsewhere = crew.shop.folder("elsewhere")
    session = crew.session()
    crew.ask(session, "EXIT 3 no", cwd=elsewhere)
    turn = crew.follow_up(session, "SAY hello")
    old.work()

    assert crew.attempts(turn)[-1].work_dir == str(elsewhere)


def test_whoever_holds_the_session_comes_first_and_then_anyone(crew: Crew, old: Place, new: Place) -> None:
    session = begun(crew, old)
    turn = crew.follow_up(session, RECALL)
    new.work()
    assert crew.look(turn).status is TurnStatus.QUEUED

    old.work()

    assert decision(crew, turn)[0] is DecisionKind.RESUME


def test_a_runtime_that_does_not_come_is_not_waited_for_for_ever(crew: Crew, old: Place, new: Place) -> None:
    crew.shop.changes["HOLDFAST_QUEUE__AFFINITY_SECONDS"] = "0.5"
    crew.hf = crew.shop.open(Policy(queue=QueuePolicy(affinity_seconds=3600)))  # the worker decides
    session = begun(crew, old)
    turn = crew.follow_up(session, RECALL)
    crew.enlist(environ=new.environ)

    assert crew.until(turn, TurnStatus.DONE).response == FROM_PROMPT
