"""stats: how well it goes, from the store, over any time."""

from holdfast import Holdfast
from tests.acceptance.command import holdfast, ok, on_terminal


def test_an_empty_store_has_no_data_and_says_so(each_engine: str) -> None:
    told = ok("stats").out
    assert "no data" in told
    document = ok("stats", "--json").json
    assert document["measures"]["resume_rate"] == {
        "value": None,
        "unit": "share",
        "target": "> 60%",
        "met": None,
        "of": {"resumed": 0, "could_resume": 0},
    }
    assert document["measures"]["storage"]["met"] is True


def test_what_was_removed_and_cleaned_up_stays_in_the_figures(each_engine: str, library: Holdfast) -> None:
    ran = [holdfast("run", "--provider", "scripted", "--json", p).json["session_id"] for p in ("one", "two")]
    for session in ran:
        assert holdfast("resume", session, "SAY more").code == 0
    library.finalize(library.create("terraform-architect").id, "completed")
    broken = library.create("terraform-architect")
    library.update(broken.id, error="no")
    before = ok("stats", "--json").json

    library.remove(ran[0])
    for _ in range(2):
        library.cleanup(0, conversation_hours=0)

    after = ok("stats", "--json").json
    for name in ("resume_rate", "resume_success", "turn_duration_median", "error_rate"):
        assert after["measures"][name] == before["measures"][name], name
    for name in ("sessions_by_agent", "fresh_starts", "fallbacks", "usage"):
        assert after[name] == before[name], name
    assert after["sessions_by_agent"] == {"scripted": 2, "terraform-architect": 2}
    assert after["measures"]["resume_rate"]["of"] == {"resumed": 2, "could_resume": 2}
    assert (after["measures"]["error_rate"]["value"], after["measures"]["error_rate"]["met"]) == (0.25, False)
    assert after["cleanups"]["removed"] == 1
    mine = ok("stats", "--agent", "terraform-architect", "--since", "2h", "--json").json
    assert mine["sessions_by_agent"] == {"terraform-architect": 2}
    assert mine["cleanups"] == {"abandoned": 1, "deleted": 2}
    assert mine["since"].endswith("T00:00:00Z")
    assert ok("stats", "--since", "2100-01-01", "--json").json["sessions_by_agent"] == {}


def test_the_questions_of_scripts_have_a_resume_rate(each_engine: str, library: Holdfast) -> None:
    asked = {"agent_name": "terraform-architect"}
    assert library.pre_delegate_hook(asked)["should_resume"] is False
    library.update(library.create("terraform-architect").id, phase="planning")
    assert library.pre_delegate_hook(asked)["should_resume"] is True

    rate = ok("stats", "--json").json["measures"]["delegations_resumed"]

    assert (rate["value"], rate["of"]) == (0.5, {"resumed": 1, "delegations": 2})


def test_it_fits_a_terminal(library: Holdfast) -> None:
    for number in range(12):
        library.create(f"an-agent-with-a-rather-long-name-{number}")
    shown = on_terminal("stats", env={"NO_COLOR": "1"})
    assert shown.code == 0
    assert "sessions a day" in shown.out
    assert "more" in shown.out


def test_a_moment_that_is_none_is_said() -> None:
    refused = holdfast("stats", "--since", "yesterdayish")
    assert (refused.code, "since" in refused.one_line_error()) == (2, True)
