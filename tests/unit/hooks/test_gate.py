import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.domain.approvals import hash_arguments
from holdfast.domain.redaction import Json
from holdfast.hooks import gate

COMMAND = {"command": "terraform apply"}
CALL = "toolu_01"


class Folder:
    """What one run gives its gate."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.transcript = path / "session.jsonl"
        self.says(message(CALL))
        self.given: dict[str, Any] = {
            "patterns": ["Bash(terraform apply*)"], "withheld": "", "answer": gate.DEFER, "given": None,
        }  # fmt: skip

    def rules(self, **changes: Any) -> None:
        self.given |= changes

    def answer(self, note: str | None = None, **changes: Any) -> None:
        answer = {"call_id": CALL, "arguments_hash": hash_arguments(COMMAND), "approved": True}
        self.rules(given={**answer, **changes})
        (self.path / gate.UNUSED).touch()
        (self.path / gate.NOTE).write_text(note or "")

    def says(self, *lines: dict[str, Any]) -> None:
        self.transcript.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    def call(self, **changes: Any) -> dict[str, Any]:
        call = {
            "tool_name": "Bash",
            "tool_use_id": CALL,
            "tool_input": COMMAND,
            "transcript_path": str(self.transcript),
        }
        return {name: value for name, value in {**call, **changes}.items() if value is not ...}

    def program(self, rules: str | None = None) -> list[str]:
        given = json.dumps(self.given) if rules is None else rules
        return [sys.executable, "-I", "-S", gate.__file__, str(self.path), given]

    def done(self, **changes: Any) -> tuple[int, dict[str, Any]]:
        """Exit code, and what it says after a call."""
        done = subprocess.run(
            [*self.program(), gate.DONE], input=json.dumps(self.call(**changes)).encode(), capture_output=True,
            check=False, timeout=60,
        )  # fmt: skip
        return done.returncode, json.loads(done.stdout or "{}")

    def ask(
        self, given: bytes | None = None, rules: str | None = None, **changes: Any
    ) -> tuple[int, str | None, str]:
        """Exit code, decision and reason of the program; the decision is None if it has no opinion."""
        done = subprocess.run(
            self.program(rules),
            input=json.dumps(self.call(**changes)).encode() if given is None else given,
            capture_output=True, check=False, timeout=60,
        )  # fmt: skip
        if not done.stdout:
            return done.returncode, None, done.stderr.decode()
        answer = json.loads(done.stdout)["hookSpecificOutput"]
        assert answer["hookEventName"] == "PreToolUse"
        return done.returncode, answer["permissionDecision"], answer["permissionDecisionReason"]


def message(*calls: str, id: str = "msg_1", stop_reason: str | None = "tool_use") -> dict[str, Any]:
    content = [{"type": "tool_use", "id": call, "name": "Bash", "input": {}} for call in calls]
    return {"type": "assistant", "message": {"id": id, "stop_reason": stop_reason, "content": content}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    return Folder(tmp_path)


def test_a_call_that_needs_no_approval_is_none_of_its_business(folder: Folder) -> None:
    assert folder.ask(tool_input={"command": "terraform plan"}) == (0, None, "")


def test_a_call_that_waits_is_deferred(folder: Folder) -> None:
    assert folder.ask()[:2] == (0, "defer")


def test_a_call_that_once_waited_is_deferred_whatever_the_patterns_say_now(folder: Folder) -> None:
    folder.rules(patterns=[], withheld=f"00000000 {gate.digest(CALL)}")
    assert folder.ask(tool_input={"command": "ls"})[:2] == (0, "defer")


def test_an_approved_call_may_run_once(folder: Folder) -> None:
    folder.answer()
    assert folder.ask()[:2] == (0, "allow")
    assert folder.ask()[:2] == (0, "deny")


@pytest.mark.parametrize(("note", "told"), [("not today", "not today"), (None, "no reason was given")])
def test_a_denied_call_is_told_why(folder: Folder, note: str | None, told: str) -> None:
    folder.answer(approved=False, note=note)
    _, decision, reason = folder.ask()
    assert decision == "deny"
    assert told in reason


@pytest.mark.parametrize(
    "answer",
    [{"arguments_hash": hash_arguments({"command": "terraform apply -destroy"})}, {"approved": "yes"}],
    ids=["other arguments", "no verdict"],
)
def test_an_answer_to_something_else_allows_nothing(folder: Folder, answer: dict[str, Any]) -> None:
    folder.answer(**answer)
    assert folder.ask()[1] == "deny"


def test_the_answer_to_another_call_stays_for_that_one(folder: Folder) -> None:
    folder.answer(call_id="toolu_99")
    assert folder.ask()[1] == "defer"
    assert (folder.path / gate.UNUSED).exists()


def test_a_subagent_cannot_wait(folder: Folder) -> None:
    folder.answer()
    _, decision, reason = folder.ask(agent_id="a45af4ce68c5051a9")
    assert decision == "deny"
    assert "subagent" in reason


def test_a_person_in_front_of_the_agent_is_asked_there(folder: Folder) -> None:
    folder.rules(answer=gate.ASK)
    assert folder.ask()[:2] == (0, "ask")


@pytest.mark.parametrize(
    "lines",
    [
        [message(CALL, "toolu_02")],
        [message("toolu_02"), message(CALL)],
        [message(CALL), {"type": "user"}, message("toolu_02", "toolu_03")],
    ],
    ids=["in one line", "in one message of two lines", "asked late"],
)
def test_beside_other_calls_it_is_denied(folder: Folder, lines: list[dict[str, Any]]) -> None:
    folder.says(*lines)
    _, decision, reason = folder.ask()
    assert decision == "deny"
    assert "call it alone" in reason


def test_calls_of_other_messages_do_not_count(folder: Folder) -> None:
    folder.says(message("toolu_00", id="msg_0"), message(CALL), message("toolu_02", id="msg_2"))
    assert folder.ask()[1] == "defer"


def test_it_waits_until_the_message_is_complete(folder: Folder) -> None:
    folder.transcript.unlink()
    with subprocess.Popen(
        folder.program(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as asked:  # fmt: skip
        assert asked.stdin is not None
        asked.stdin.write(json.dumps(folder.call()))
        asked.stdin.close()
        for lines in ([message(CALL, stop_reason=None)], [message(CALL), message("toolu_02")]):
            with pytest.raises(subprocess.TimeoutExpired):
                asked.wait(0.3)
            folder.says(*lines)
        assert asked.stdout is not None
        assert "call it alone" in asked.stdout.read()


def test_without_a_conversation_to_look_at_it_is_denied(folder: Folder) -> None:
    assert folder.ask(transcript_path=...)[1] == "deny"


@pytest.mark.parametrize(
    "given",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b"{}", b'{"tool_name": "Bash"}', b" " * (11 * 1024 * 1024)],
    ids=lambda text: ascii(text[:20]),
)  # fmt: skip
def test_what_it_cannot_understand_is_denied(folder: Folder, given: bytes) -> None:
    assert folder.ask(given)[:2] == (0, "deny")


@pytest.mark.parametrize(
    "rules", ["", "[]", "{}", '{"patterns": ["Bash("], "withheld": "", "answer": "defer"}', '{"patterns": 7}']
)
def test_without_rules_that_it_can_read_it_stays_closed(folder: Folder, rules: str) -> None:
    assert folder.ask(rules=rules)[:2] == (gate.BLOCKED, None)


def empty(folder: Folder) -> None:
    for file in folder.path.iterdir():
        if file != folder.transcript:
            file.unlink()


def overwrite(folder: Folder) -> None:
    for name in ("gate.json", "answer.json", gate.UNUSED, gate.NOTE, gate.ARMED, gate.EXECUTED):
        (folder.path / name).write_text("{}")


@pytest.mark.parametrize("meddle", [empty, overwrite])
def test_nothing_in_its_folder_switches_it_off(folder: Folder, meddle: Callable[[Folder], None]) -> None:
    meddle(folder)
    assert folder.ask()[1] == "defer"
    folder.rules(given={"call_id": CALL, "arguments_hash": "other", "approved": True})
    assert folder.ask()[1] == "deny"


def test_an_answer_that_someone_used_up_allows_nothing(folder: Folder) -> None:
    folder.answer()
    empty(folder)
    assert folder.ask()[1] == "deny"


def test_an_approved_call_that_ran_as_it_was_approved_is_noted(folder: Folder) -> None:
    folder.answer()
    assert folder.done() == (0, {})
    assert (folder.path / gate.EXECUTED).exists()
    assert not (folder.path / gate.CHANGED).exists()


def test_a_call_that_needs_no_approval_is_not_compared(folder: Folder) -> None:
    assert folder.done(tool_input={"command": "ls"}) == (0, {})
    assert sorted(folder.path.iterdir()) == [folder.transcript]


@pytest.mark.parametrize(
    ("answer", "call"),
    [
        ({}, {"tool_input": {"command": "terraform apply -destroy"}}),
        ({}, {"tool_input": {"command": "ls"}}),
        ({"approved": False}, {}),
        ({"call_id": "toolu_99"}, {}),
        ({}, {"tool_input": ...}),
    ],
    ids=["other arguments", "another call", "denied", "never asked", "not told"],
)
def test_a_call_that_ran_otherwise_stops_the_agent(
    folder: Folder, answer: dict[str, Any], call: dict[str, Any]
) -> None:
    folder.answer(**answer)
    code, said = folder.done(**call)
    assert (code, said["continue"]) == (0, False)
    assert (folder.path / gate.CHANGED).read_text() == said["stopReason"]
    assert folder.ask(tool_input={"command": "ls"})[1] == "deny"
    assert not (folder.path / gate.EXECUTED).exists()


def test_a_call_that_ran_otherwise_stops_the_agent_also_without_the_folder(folder: Folder) -> None:
    folder.answer()
    folder.path = folder.path / "removed"
    code, said = folder.done(tool_input={"command": "terraform apply -destroy"})
    assert (code, said["continue"]) == (0, False)


def test_it_gives_up_before_its_agent_does(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_MESSAGE_SECONDS", 0)
    folder.says()
    with pytest.raises(gate.Denied):
        gate.decide(str(folder.path), folder.given, json.dumps(folder.call()).encode())


def test_arguments_are_hashed_as_the_rest_of_holdfast_does() -> None:
    arguments: dict[str, Json] = {"b": ["ü", 1.5, None], "a": {"z": True, "y": "\ud800"}}
    assert gate.hash_arguments(arguments) == hash_arguments(arguments)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
#: what a shell may put around a command without changing it
AROUND = st.text("abc ;|&\n\t'\"\\(){}$=<>#é☃", max_size=20).map(lambda text: f" {text} ")
FIELDS = st.sampled_from(["tool_name", "tool_use_id", "tool_input", "transcript_path", "agent_id", "cwd"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_whatever_it_is_told_about_a_call_that_waits_it_never_lets_it_through(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    monkeypatch.setattr(gate, "_MESSAGE_SECONDS", 0)
    before, behind = data.draw(AROUND), data.draw(AROUND)
    call = folder.call(tool_input={"command": f"{before}terraform apply{behind}", **data.draw(st.dictionaries(st.text(), JSON, max_size=2).filter(lambda more: "command" not in more))})  # fmt: skip
    odd = data.draw(st.dictionaries(FIELDS.filter(lambda name: name not in ("tool_name", "tool_input")), JSON, max_size=2))  # fmt: skip
    (folder.transcript).write_bytes(data.draw(st.binary(max_size=40)) + json.dumps(message(CALL)).encode())
    assert _decision(folder, json.dumps({**call, **odd}).encode()) in ("deny", "defer", "failed")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(given=st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_input_whatsoever_is_allowed(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, given: bytes
) -> None:
    monkeypatch.setattr(gate, "_MESSAGE_SECONDS", 0)
    folder.answer()
    assert _decision(folder, given) in ("deny", "failed")


def _decision(folder: Folder, given: bytes) -> str | None:
    """As the program ends, without starting one for each example."""
    try:
        return gate.decide(str(folder.path), folder.given, given)[0]
    except gate.Denied:
        return "deny"
    except Exception:  # noqa: BLE001 - any of them ends the program with the code that blocks
        return "failed"
