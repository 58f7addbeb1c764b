"""Several hands."""

from tests.agents.driver import Driver, only
from tests.agents.lab.laboratory import Laboratory
from tests.agents.lab.model_servers.replies import Say


@only("claude")
def test_each_agent_of_a_conversation_is_told_once_what_it_has_not_seen(
    driver: Driver, codex: Laboratory
) -> None:
    both = {name: value for name, value in codex.environment.items() if name == "LAB_KEY"}
    both |= {"HOLDFAST_CODEX_BINARY": str(codex.program), "CODEX_HOME": str(codex.home / ".codex")}
    driver.lab.server.script(Say("violet"), Say("third"))
    codex.server.script(Say("amber"))

    first = driver.run("colour?", **both)
    second = driver.resume(first.session, "stone?", "--provider", "codex", **both)
    third = driver.resume(first.session, "all?", "--provider", "claude", **both)

    assert [turn.exit_code for turn in (first, second, third)] == [0, 0, 0]
    (told,) = codex.server.requests[-1].texts
    assert [told.count(said) for said in ("colour?", "violet", "stone?")] == [1, 1, 1]
    assert (third.decision, third.native) == ("resume", first.native)
    assert driver.request.texts[:2] == ["colour?", "violet"]
    (caught_up,) = driver.request.texts[2:]
    assert [caught_up.count(said) for said in ("colour?", "violet", "stone?", "amber")] == [0, 0, 1, 1]

    fourth = driver.resume(first.session, "and now?", "--provider", "claude", **both)
    assert fourth.decision == "resume"
    assert "amber" not in driver.request.texts[-1]


def test_what_was_said_in_the_agents_own_program_is_in_the_history(driver: Driver) -> None:
    first = driver.run("colour?")
    driver.lab.server.script(Say("by hand!"))
    driver.put_first(driver.traits.by_hand.format(program=driver.lab.program))

    opened = driver.holdfast("open", first.session)

    assert opened.exit_code == 0
    turns = driver.show(first.session)["turns"]
    assert [(turn["prompt"], turn["response"]) for turn in turns] == [
        ("colour?", "ok"),
        ("by hand?", "by hand!"),
    ]
    driver.put_first()
    further = driver.resume(first.session, "again?")
    assert (further.decision, further.native) == ("resume", first.native)
    assert driver.request.texts[:4] == ["colour?", "ok", "by hand?", "by hand!"]
    assert "by hand" not in driver.request.texts[4]


def test_a_chat_is_one_session_of_the_agent(driver: Driver) -> None:
    driver.lab.server.script(Say("violet"), Say("amber"))

    chat = driver.chat("colour?", "stone?", "quit", "never asked")

    assert chat.exit_code == 0
    assert driver.request.texts[:2] == ["colour?", "violet"]
    assert len(driver.lab.server.requests) == 2
    assert len({request.session for request in driver.lab.server.requests}) == 1
    assert driver.alive() == []
