"""The command observed: what hooks have seen, for a person, a pipe and a program."""

from holdfast import Holdfast
from holdfast.clock import after, to_iso
from holdfast.domain.observed import Reading, Sighting
from tests.acceptance.command import ok, on_terminal

IDS = [f"5b1c2d3e-0000-4000-8000-00000000000{number}" for number in range(2)]


def observe(library: Holdfast) -> None:
    """One that has ended, and an hour later one that is open and has spent something."""
    now = library.store.now()
    spent = Reading(start=0, end=100, input_tokens=500, output_tokens=40, context_tokens=450)
    for seen in (
        Sighting(provider="claude", id=IDS[0], at=after(now, -7200), cwd="/srv/infra", end_reason="logout"),
        Sighting(
            provider="claude", id=IDS[1], at=after(now, -3600), source="startup", compacts=True, reading=spent
        ),
    ):
        library.store.observe_session(seen)


def test_a_pipe_gets_a_line_for_each_the_last_one_first(library: Holdfast) -> None:
    observe(library)
    first, second = (line.split("\t") for line in ok("observed").lines)
    seen = library.store.observed_session("claude", IDS[1])
    assert seen is not None
    assert first == [IDS[1], "open", to_iso(seen.last_seen_at), "500", "40", "450", "-"]
    assert second[:2] + second[3:] == [IDS[0], "ended", "0", "0", "-", "/srv/infra"]


def test_a_program_gets_everything(library: Holdfast) -> None:
    observe(library)
    (newest,) = ok("observed", "--json", "--limit", "1").json["observed"]
    assert newest["provider_session_id"] == IDS[1]
    assert (newest["source"], newest["compactions"], newest["ended_at"]) == ("startup", 1, None)
    assert (newest["input_tokens"], newest["cached_input_tokens"], newest["context_tokens"]) == (500, 0, 450)


def test_a_person_sees_how_long_ago_it_was(library: Holdfast) -> None:
    assert "no session was seen by a hook" in on_terminal("observed").out
    observe(library)
    shown = on_terminal("observed", columns=140).out
    assert IDS[0] in shown
    assert "2h" in shown
    assert "/srv/infra" in shown


def test_nothing_seen_prints_nothing() -> None:
    assert ok("observed").out == ""
    assert ok("observed", "--json").json["observed"] == []
