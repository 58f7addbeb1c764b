"""Turns that a person made in the agent's own program join the history; the policy says how it goes on."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from holdfast import Holdfast
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import Pointer, TranscriptMark
from holdfast.domain.policy import Policy, ResumePolicy
from holdfast.domain.turns import Claim, ClaimRequest, NewTurn, TurnEnd, TurnRequest, TurnStatus
from holdfast.domain.usage import Usage, UsageReport
from holdfast.engine.documents import result_document
from holdfast.engine.result import RunResult
from holdfast.engine.running import agents
from holdfast.engine.running.provider_sessions import adopt_outside_turns
from holdfast.providers.contract import ArchivedTurn
from holdfast.providers.scripted import ScriptedArchive
from holdfast.store.contract import Store
from holdfast.store.open import open_store
from tests.integration.scripted import Agent
from tests.integration.workshop import FROM_PROMPT, OPENING, PATIENCE, RECALL, Workshop, ended, eventually


@pytest.mark.parametrize(("ahead", "decision"), [("resume", "resume"), ("fresh", "fresh")])
def test_a_session_that_went_on_by_hand_is_resumed_unless_the_policy_says_otherwise(
    ahead: Literal["resume", "fresh"], decision: str, tmp_path: Path
) -> None:
    policy = Policy(resume=ResumePolicy(transcript_ahead=ahead))
    agent = Agent(tmp_path / "agent", tmp_path)
    store = open_store(f"sqlite:///{tmp_path}/holdfast.db", policy=policy)
    hf = Holdfast(store, policy, environ={**os.environ, "SCRIPTED_HOME": str(agent.home)})
    first = hf.run("SAY violet", provider="scripted", cwd=str(tmp_path))
    assert first.provider_session_id is not None
    agent.ask("SAY by hand", "--resume", first.provider_session_id)

    second = hf.resume(first.session_id, "SAY again")

    assert second.ok
    document = result_document(second)["decision"]
    assert isinstance(document, dict)
    assert document["kind"] == decision
    assert [turn.prompt for turn in hf.history(first.session_id)] == [
        "SAY violet",
        "SAY by hand",
        "SAY again",
    ]
    store.close()


class Beset(ScriptedArchive):
    """Something happens right after the first look at a session, whatever is looked at."""

    def __init__(self, home: Path, happens: Callable[[], None]) -> None:
        super().__init__(home)
        self._happens = [happens]

    def mark(self, path: str, session_id: ProviderSessionId) -> TranscriptMark | None:
        found = super().mark(path, session_id)
        self._let_happen()
        return found

    def turns(
        self, path: str, session_id: ProviderSessionId, after: TranscriptMark | None = None
    ) -> Iterator[ArchivedTurn]:
        found = list(super().turns(path, session_id, after))
        self._let_happen()
        yield from found

    def _let_happen(self) -> None:
        if self._happens:
            self._happens.pop()()


class Outside:
    """A session with one turn of ours, and one that only the agent's own session tells of."""

    def __init__(self, shop: Workshop, first: RunResult) -> None:
        self.shop, self.session_id, self.native = shop, first.session_id, str(first.provider_session_id)
        self.hf = shop.open()
        self.agent = agents.Agents(shop.environ).get("scripted")
        self.by_hand("SAY by hand")

    @property
    def store(self) -> Store:
        return self.hf.store

    @property
    def pointer(self) -> Pointer:
        pointer = self.store.pointer(self.session_id, "scripted")
        assert pointer is not None
        return pointer

    def by_hand(self, prompt: str) -> None:
        self.shop.by_hand(prompt, "--resume", self.native)

    def begin(self, prompt: str) -> None:
        """A turn of ours that gets no further than this."""
        request = ClaimRequest(self.agent.runtime, "someone", prompt, 60, self.pointer.session_id)
        new = NewTurn(prompt, "scripted", foreground=True)
        assert isinstance(self.store.start_turn(self.session_id, new, request), Claim)

    def adopt(self, agent: agents.Agent | None = None) -> int:
        situation = self.store.situation(self.session_id)
        return adopt_outside_turns(self.store, agent or self.agent, ResumePolicy(), situation).adopted

    def history(self) -> list[str]:
        return [turn.prompt for turn in self.hf.history(self.session_id)]


@pytest.fixture
def outside(shop: Workshop) -> Outside:
    return Outside(shop, shop.begin())


def test_what_a_person_writes_while_turns_are_adopted_is_not_missed(outside: Outside) -> None:
    beset = Beset(outside.shop.home, lambda: outside.by_hand("SAY meanwhile"))
    outside.adopt(replace(outside.agent, archive=beset))
    outside.adopt()
    assert outside.history() == [OPENING, "SAY by hand", "SAY meanwhile"]
    assert outside.adopt() == 0, "it has been reached"


def test_nothing_is_adopted_beside_a_turn_of_ours(outside: Outside) -> None:
    outside.begin("SAY ours")
    before = outside.pointer
    assert (outside.adopt(), outside.pointer) == (0, before)


def test_the_pointer_counts_as_it_is_once_the_session_is_locked(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = agents.Agent.lock

    def late(agent: agents.Agent, native: ProviderSessionId) -> Any:
        """Meanwhile the turn was found out to be ours."""
        reached = agent.saved(native, None)
        outside.store.set_pointer(replace(outside.pointer, transcript=reached))
        return lock(agent, native)

    monkeypatch.setattr(agents.Agent, "lock", late)
    assert outside.adopt() == 0
    assert outside.history() == [OPENING]


def test_a_pointer_that_has_moved_meanwhile_is_not_set_back(outside: Outside) -> None:
    newer = replace(outside.pointer, model="newer", updated_at=outside.store.now())
    beset = Beset(outside.shop.home, lambda: outside.store.set_pointer(newer))
    assert outside.adopt(replace(outside.agent, archive=beset)) == 0, "recording and moving are one"
    assert outside.pointer == newer
    assert outside.adopt() == 1
    assert outside.history() == [OPENING, "SAY by hand"]
    assert (outside.adopt(), outside.pointer.model) == (0, "newer")


@pytest.mark.parametrize(
    "change",
    [
        lambda hf, session_id: hf.edit(session_id, 1, response="another"),
        lambda hf, session_id: hf.truncate(session_id, 2),
        lambda hf, session_id: hf.fork(session_id),
    ],
    ids=["edit", "truncate", "fork"],
)
def test_the_history_is_changed_with_what_was_made_by_hand(
    outside: Outside, change: Callable[[Any, str], object]
) -> None:
    change(outside.hf, outside.session_id)
    assert outside.history() == [OPENING, "SAY by hand"]


def test_a_retry_leaves_what_was_made_by_hand_behind(outside: Outside) -> None:
    outside.hf.retry(outside.session_id, 1)
    assert outside.history() == [OPENING]
    assert outside.adopt() == 0


def test_a_prompt_that_ended_well_before_is_a_persons_when_it_comes_again(outside: Outside) -> None:
    outside.hf.resume(outside.session_id, "SAY again")
    outside.by_hand("SAY again")
    assert outside.adopt() == 1


def test_what_a_person_began_and_broke_off_joins_the_history_with_the_next_turn(outside: Outside) -> None:
    person = Agent(outside.shop.home, outside.shop.work_dir)
    person.ask("SAY half\nCRASH", "--resume", outside.native)

    ours = outside.hf.resume(outside.session_id, "SAY ours")

    assert ours.ok
    assert outside.history() == [OPENING, "SAY by hand", "SAY ours", "SAY half\nCRASH"]
    assert outside.adopt() == 0
    outside.hf.resume(outside.session_id, "SAY again")
    assert not any("SAY half" in request for request in outside.shop.prompts(outside.native)[3:]), (
        "told again"
    )


def test_what_a_person_is_at_while_a_turn_of_ours_is_refused_is_not_passed_over(
    shop: Workshop, tmp_path: Path
) -> None:
    first = shop.begin()
    outside = Outside(shop, first)
    person = Agent(shop.home, shop.work_dir).start("--resume", outside.native)
    with person:
        assert person.stdin is not None
        go = tmp_path / "go"
        wait = f'TOOL shell {{"command": "until [ -e {go} ]; do sleep 0.05; done"}}'
        person.stdin.write(f"{wait}\nSAY at last")
        person.stdin.close()
        person.stdin = None
        eventually(lambda: len(shop.prompts(outside.native)) == 3)
        refused = outside.hf.resume(outside.session_id, "SAY ours")
        go.touch()
        person.communicate(timeout=PATIENCE)

    assert not refused.ok
    assert outside.hf.resume(outside.session_id, "SAY again").ok
    assert any("SAY at last" in prompt for prompt in outside.history())


def test_an_interrupted_turn_is_told_of_though_a_person_went_on_meanwhile(outside: Outside) -> None:
    outside.hf.resume(outside.session_id, 'TOOL shell {"command": "touch marked"}\nCRASH')
    outside.by_hand("SAY second by hand")

    outside.hf.resume(outside.session_id)

    assert "[holdfast] interrupted: turn " in outside.shop.prompts(outside.native)[-1]


class Counting(ScriptedArchive):
    """Of an agent that counts over the whole session."""

    def spent(self, path: str, session_id: ProviderSessionId) -> Usage | None:
        return Usage(input_tokens=100, output_tokens=10)


def _used_next(outside: Outside) -> Usage:
    request = ClaimRequest(outside.agent.runtime, "someone", "next", 60, outside.pointer.session_id)
    claim = outside.store.start_turn(
        outside.session_id, NewTurn("next", "scripted", foreground=True), request
    )
    assert isinstance(claim, Claim)
    counted = UsageReport(Usage(input_tokens=150, output_tokens=12), cumulative=True)
    outside.store.finish_turn(claim.lease, TurnEnd(TurnStatus.DONE, usage=counted))
    return outside.store.attempts(claim.turn.conversation_id, claim.turn.seq)[-1].usage


@pytest.mark.parametrize("is_answered", [True, False])
def test_what_a_command_by_hand_used_is_not_ours(outside: Outside, is_answered: bool) -> None:
    if not is_answered:
        outside.hf.resume(outside.session_id, "SAY half\nCRASH")
    outside.adopt()
    with Path(outside.pointer.transcript.path if outside.pointer.transcript else "").open("a") as file:
        file.write('{"type": "compacted"}\n')

    outside.adopt(replace(outside.agent, archive=Counting(outside.shop.home)))

    # what follows a turn of ours that was broken off may be of that turn
    ours = Usage(input_tokens=50, output_tokens=2)
    assert (_used_next(outside) == ours) is is_answered


# --- a turn that waited in the queue, and leaves the session behind ---

ADOPTED = "1 turn was made outside Holdfast in the agent's session: the history has it now"


def _work(shop: Workshop, **environ: str) -> str:
    code, _, err = ended(shop.start("worker", "--once", environ=environ))
    assert code == 0, err
    return err


@pytest.mark.parametrize("kind", ["forced", "policy", "elsewhere", "model", "full"])
def test_a_worker_that_starts_fresh_tells_what_only_the_session_holds(shop: Workshop, kind: str) -> None:
    first = shop.begin("SAY one\nCONTEXT 990 1000" if kind == "full" else "SAY one", model="old")
    shop.by_hand(OPENING, "--resume", str(first.provider_session_id))
    hf = shop.open()
    requests = {
        "forced": TurnRequest(force_fresh=True),
        "elsewhere": TurnRequest(str(shop.folder("else"))),
        "model": TurnRequest(model="new"),
    }
    environ = {
        "policy": {"HOLDFAST_RESUME__TRANSCRIPT_AHEAD": "fresh"},
        "model": {"HOLDFAST_RESUME__SAME_MODEL": "true"},
    }.get(kind, {})
    hf.store.enqueue_turn(first.session_id, NewTurn(RECALL, "scripted", requests.get(kind, TurnRequest())))

    said = _work(shop, **environ)

    turns = hf.history(first.session_id)
    assert [turn.prompt for turn in turns][1:] == [RECALL, OPENING]
    assert turns[1].response == FROM_PROMPT
    assert ADOPTED in said
    fresh = hf.store.pointer(first.session_id, "scripted")
    assert fresh is not None
    assert fresh.provider_session_id != first.provider_session_id
    assert str(fresh.seen) == "1-3", "it is not told again"
    hf.resume(first.session_id, "SAY on")
    assert OPENING not in shop.prompts(fresh.provider_session_id)[-1]


def test_a_turn_that_was_adopted_while_another_waited_is_told_to_it(outside: Outside) -> None:
    outside.by_hand(OPENING)
    queued = NewTurn(RECALL, "scripted", TurnRequest(force_fresh=True))
    outside.store.enqueue_turn(outside.session_id, queued)
    assert outside.adopt() == 2

    _work(outside.shop)

    assert outside.hf.history(outside.session_id)[1].response == FROM_PROMPT


def test_a_fresh_start_tells_nothing_of_a_session_that_the_history_has_left_behind(outside: Outside) -> None:
    outside.hf.truncate(outside.session_id, 0)
    outside.store.enqueue_turn(outside.session_id, NewTurn("HISTORY", "scripted"))

    said = _work(outside.shop)

    assert outside.history() == ["HISTORY"]
    assert ADOPTED not in said


def test_a_fresh_start_does_not_wait_for_a_session_that_somebody_is_at(outside: Outside) -> None:
    queued = NewTurn("SAY on", "scripted", TurnRequest(force_fresh=True))
    outside.store.enqueue_turn(outside.session_id, queued)
    with outside.agent.lock(ProviderSessionId(outside.native)) as lock:
        assert lock.try_acquire()
        _work(outside.shop)
    assert outside.history() == [OPENING, "SAY on"]


# --- a fork ---


@pytest.mark.parametrize("prompt", ["HISTORY", None])
def test_a_fork_says_that_it_adopted_turns(outside: Outside, prompt: str | None) -> None:
    arguments = ("fork", outside.session_id, *([] if prompt is None else [prompt]))
    code, out, err = ended(outside.shop.start(*arguments))
    assert (code, f"holdfast: {ADOPTED}" in err) == (0, True), (out, err)

    outside.by_hand("SAY more by hand")
    code, out, _ = ended(outside.shop.start("--json", *arguments))
    assert (code, json.loads(out)["notices"]) == (0, [ADOPTED])
