"""Sessions that people began in an agent's own program, continued by Holdfast under the agent's own id."""

from tests.agents.driver import Driver, only
from tests.agents.lab.model_servers.replies import Say


@only("claude", "codex", "opencode", "gemini")
def test_a_session_begun_by_hand_is_taken_over_with_its_calls_and_resumed(driver: Driver) -> None:
    driver.lab.server.script(driver.lab.agent.shell("echo from-the-tool"), Say("violet"))
    native = driver.lab.session_of(driver.lab.turn("colour?", tools=True))
    driver.lab.server.script(Say("amber"))

    resumed = driver.resume(native[:20], "stone?")

    assert (resumed.exit_code, resumed.decision, resumed.native) == (0, "resume", native)
    assert [turn["prompt"] for turn in driver.show(resumed.session)["turns"]] == ["colour?", "stone?"]
    sent = "\n".join(driver.request.texts)
    assert [sent.count(word) for word in ("colour?", "violet", "stone?")] == [1, 1, 1]
    logged = driver.holdfast("log", resumed.session, "--turn", "1").stdout
    assert "echo from-the-tool" in logged
    assert "from-the-tool" in logged


@only("claude", "codex", "opencode", "gemini")
def test_a_run_in_a_session_begun_by_hand_takes_it_over_as_an_import_does(driver: Driver) -> None:
    driver.lab.server.script(Say("violet"))
    native = driver.lab.session_of(driver.lab.turn("colour?"))
    driver.lab.server.script(Say("amber"))

    run = driver.run("stone?", "--provider-session-id", native)

    assert (run.exit_code, run.decision, run.native) == (0, "resume", native)
    with driver.library() as holdfast:
        session = holdfast.session(run.session)
        first, _ = holdfast.store.turns(session.id)
    assert session.imported_at is not None
    assert session.created_at <= first.created_at < session.imported_at, "as it was"
    assert driver.holdfast("import", driver.provider)["imported"] == 0, "it is not doubled"


@only("claude")
def test_a_session_is_known_by_the_title_that_a_person_gave_it(driver: Driver) -> None:
    driver.lab.server.script(Say("violet"))
    command = driver.lab.agent.command("colour?")
    native = driver.lab.session_of(driver.lab.run([*command, "--name", "Paint the shed"]))

    assert native in driver.holdfast("show", "paint the shed").stdout
