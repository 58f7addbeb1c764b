"""Failures."""

from pathlib import Path

import pytest

from tests.agents.driver import Driver, finish, only
from tests.agents.lab.model_servers.replies import CallTool, CutStream, EmptyStream, Fail, Hang, Reply, Say
from tests.agents.lab.model_servers.server import ModelRequest

MEGABYTE = 1024 * 1024

FAILURES: dict[str, Reply] = {
    "HTTP 400": Fail(400),
    "HTTP 404": Fail(404),
    "HTTP 401": Fail(401),
    "HTTP 429": Fail(429, headers={"retry-after": "1"}),
    "HTTP 500": Fail(500),
    "HTTP 529": Fail(529),
    "a cut stream": CutStream(),
    "an empty stream": EmptyStream(),
}
#: whatever is not the service's own trouble; a 400 tells nothing certain about the session
CLASSES = {"HTTP 400": "not_accepted", "HTTP 401": "auth", "HTTP 404": "config"}


@pytest.mark.parametrize("name", FAILURES)
def test_a_model_that_fails_fails_the_turn_and_is_told_apart(driver: Driver, name: str) -> None:
    first = driver.run("colour?")
    driver.lab.server.otherwise(FAILURES[name])

    second = driver.resume(first.session, "again?")

    expected = CLASSES.get(name, "transient")
    assert (second.exit_code, second["status"], second.failure) == (1, "failed", expected)
    # what may be the fault of the history is tried afresh, once; what fails then too is not
    assert any("is not logged in" in notice for notice in second["notices"]) == (expected == "auth")
    assert second.decision == ("fresh" if expected == "not_accepted" else "resume")
    assert driver.holdfast("why", first.session).decision == "resume"


def test_a_history_that_has_become_too_large_is_told_in_a_new_session(driver: Driver) -> None:
    first = driver.run("colour?")
    driver.lab.server.otherwise(lambda request: Fail(413) if len(request.texts) > 1 else Say("ok"))

    second = driver.resume(first.session, "again?")

    assert (second.exit_code, second.decision, second.reason) == (0, "fresh", "resume_failed")
    by_name = driver.resume(first.session, "by name", "--provider-session-id", first.native)
    assert (by_name.exit_code, by_name.reason) == (4, "retired")


@pytest.mark.parametrize("status", [400, 422])
def test_a_history_that_its_service_does_not_accept_costs_no_turn(driver: Driver, status: int) -> None:
    driver.lab.server.script(Say("violet"))
    first = driver.run("colour?")
    refuse = Fail(status, message="nobody knows these words")
    driver.lab.server.otherwise(lambda request: refuse if len(request.texts) > 1 else Say("still violet"))

    second = driver.resume(first.session, "again?")

    assert (second.exit_code, second["text"]) == (0, "still violet")
    assert (second.decision, second.reason) == ("fresh", "resume_failed")
    (sent,) = driver.request.texts
    assert (sent.count("colour?"), sent.count("violet")) == (1, 1)
    assert sent.endswith("\nagain?")
    by_name = driver.resume(first.session, "by name", "--provider-session-id", first.native)
    assert (by_name.exit_code, by_name.reason) == (4, "retired")


def test_a_session_is_kept_if_a_fresh_one_gets_the_same_error(driver: Driver) -> None:
    driver.lab.server.script(Say("violet"))
    first = driver.run("colour?")
    driver.lab.server.otherwise(Fail(400, message="nobody knows these words"))
    for _ in range(3):
        assert driver.resume(first.session, "again?").exit_code == 1
    driver.lab.server.otherwise(Say("ok"))

    last = driver.resume(first.session, "and now?")

    assert (last.exit_code, last.decision, last.native) == (0, "resume", first.native)
    assert " ".join(driver.request.texts).count("violet") == 1


def test_a_session_goes_on_after_its_model_failed(driver: Driver) -> None:
    driver.lab.server.script(Say("violet"))
    first = driver.run("colour?")
    driver.lab.server.otherwise(Fail(500))
    driver.resume(first.session, "stone?")
    driver.lab.server.otherwise(Say("ok"))

    third = driver.resume(first.session)

    assert (third.exit_code, third.native) == (0, first.native)
    sent = " ".join(driver.request.texts)
    assert [sent.count(said) for said in ("colour?", "violet", "stone?")] == [1, 1, 1]


@only("claude", "codex", "opencode", "gemini")
def test_a_first_request_whose_agent_is_not_logged_in_is_answered_after_the_login(driver: Driver) -> None:
    driver.lab.server.otherwise(Fail(401))
    first = driver.run("colour?")
    driver.lab.server.otherwise(Say("violet"))

    second = driver.holdfast(*first["continue_with"].split()[1:])

    assert (first.failure, second.exit_code, second["text"]) == ("auth", 0, "violet")
    assert "colour?" in "\n".join(driver.request.texts)


@only("claude")
def test_all_answers_of_a_run_with_a_background_agent_are_kept(driver: Driver) -> None:
    errand = {"description": "look", "prompt": "look into it", "subagent_type": "general-purpose"}
    replies: list[Reply] = [CallTool("Agent", errand), Say("it is under way"), Say("the report is in")]
    answers = iter(replies)

    def answer(request: ModelRequest) -> Reply:
        return Say("nothing") if request.texts[0] == errand["prompt"] else next(answers)

    driver.lab.server.otherwise(answer)

    run = driver.run("delegate", "--allow-tool", "Agent")

    assert run.exit_code == 0
    assert run["text"] == "it is under way\n\nthe report is in"


def test_success_without_a_saved_session_is_told_and_the_next_turn_has_the_context(driver: Driver) -> None:
    # for root no folder is unwritable; a file in its place is
    home, sessions = driver.traits.sessions.split("/")[:2]
    (driver.lab.home / home).mkdir(exist_ok=True)
    (driver.lab.home / home / sessions).touch()
    driver.lab.server.script(Say("violet"))

    first = driver.run("colour?")
    second = driver.resume(first.session, "again?")

    assert (first.exit_code, first["text"]) == (0, "violet")
    assert any("did not save its session" in notice for notice in first["notices"])
    assert (second.exit_code, second.decision) == (0, "fresh")
    (sent,) = driver.request.texts
    assert (sent.count("colour?"), sent.count("violet")) == (1, 1)


@only("gemini")
def test_an_empty_answer_is_an_answer(driver: Driver) -> None:
    """Gemini takes the request of one out of its session again."""
    first = driver.run("colour?")
    driver.lab.server.otherwise(Say(""))

    empty = driver.resume(first.session, "stone?")
    shown = driver.show(first.session)
    driver.lab.server.otherwise(Say("oak"))
    third = driver.resume(first.session, "tree?")

    assert (empty.exit_code, empty["text"], empty["notices"]) == (0, None, [])
    assert shown["decision"]["kind"] == third.decision == "resume"
    assert third.native == first.native
    sent = "\n".join(driver.request.texts)
    assert (sent.count("stone?"), sent.count("An empty answer")) == (1, 1)


@only("gemini")
def test_an_empty_first_answer_leaves_nothing_to_resume(driver: Driver) -> None:
    driver.lab.server.otherwise(Say(""))

    empty = driver.run("colour?")
    shown = driver.show(empty.session)
    driver.lab.server.otherwise(Say("oak"))
    second = driver.resume(empty.session, "tree?")

    assert (empty.exit_code, empty["text"]) == (0, None)
    assert (second.decision, second.reason) == ("fresh", shown["decision"]["reason"])
    sent = "\n".join(driver.request.texts)
    assert (sent.count("colour?"), sent.count("An empty answer")) == (1, 1)


def test_a_line_of_200_megabytes_takes_no_memory_and_hides_no_answer(driver: Driver) -> None:
    line = "head -c 200000000 /dev/zero | tr '\\0' x; echo"
    driver.put_first(f'case "$*" in *--version*|*--help*) ;; *) {line};; esac')
    hang = Hang("violet")
    driver.lab.server.script(hang)
    with driver.started("run", "--provider", driver.provider, "colour?") as process:
        hang.await_reached()
        peak = _peak_memory(process.pid)
        hang.release()
        run = finish(process)

    assert (run.exit_code, run["text"]) == (0, "violet")
    assert peak < 150 * MEGABYTE


def _peak_memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
