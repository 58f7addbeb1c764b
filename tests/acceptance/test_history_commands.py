"""fork, edit, truncate, retry and new: the history of a conversation, changed from a shell."""

import pytest

from holdfast import Holdfast
from tests import steps
from tests.acceptance.command import holdfast, ok


@pytest.fixture
def deploy(library: Holdfast) -> str:
    """A session named ``deploy`` with three turns."""
    session = library.create("terraform-architect", name="deploy")
    for prompt in ("plan", "apply", "check"):
        steps.run(library.store, session, prompt)
    return session.id


def prompts(library: Holdfast, session_id: str) -> list[tuple[int, str]]:
    return [(turn.seq, turn.prompt) for turn in library.history(session_id)]


def test_fork_prints_the_id_of_a_session_with_the_same_history(
    each_engine: str, library: Holdfast, deploy: str
) -> None:
    whole = ok("fork", "deploy").out.strip()
    part = ok("fork", deploy, "--at", "1", "--name", "another-way", "--json").json

    assert prompts(library, whole) == prompts(library, deploy)
    assert prompts(library, part["session_id"]) == [(1, "plan")]
    assert part["parent_session_id"] == deploy
    assert (part["name"], part["forked_at"]) == ("another-way", 1)
    assert library.find("another-way") == part["session_id"]


def test_edit_changes_one_turn_and_keeps_the_others(each_engine: str, library: Holdfast, deploy: str) -> None:
    assert ok("edit", "deploy", "1", "--prompt", "plan again").lines == ["turn 1 was edited (revision 1)"]
    edited = ok("edit", "deploy", "1", "--response", "-", "--json", stdin="two\nlines\n").json

    assert (edited["session_id"], edited["turn"], edited["revision"]) == (deploy, 1, 2)
    assert (edited["prompt"], edited["response"]) == ("plan again", "two\nlines")
    assert prompts(library, deploy) == [(1, "plan again"), (2, "apply"), (3, "check")]


def test_truncate_drops_everything_after_a_turn(library: Holdfast, deploy: str) -> None:
    assert ok("truncate", "deploy", "2").lines == ["the turns after 2 were removed (revision 1)"]
    assert prompts(library, deploy) == [(1, "plan"), (2, "apply")]
    assert ok("truncate", "deploy", "2").lines == ["there is no turn after 2: nothing was removed"]

    emptied = ok("truncate", "deploy", "0", "--json").json
    assert (emptied["session_id"], emptied["kept"], emptied["next_turn"]) == (deploy, 0, 4)
    assert prompts(library, deploy) == []


def test_retry_puts_a_turn_into_the_queue_again(library: Holdfast, deploy: str) -> None:
    assert ok("retry", "deploy", "2").lines == [
        "turn 2 is queued again as turn 4; a worker runs it, or: holdfast resume deploy"
    ]
    assert prompts(library, deploy) == [(1, "plan"), (4, "apply")]

    again = ok("retry", "deploy", "4", "--prompt", "apply to staging", "--json").json
    assert (again["turn"], again["retry_of"], again["status"]) == (5, 4, "queued")
    assert prompts(library, deploy) == [(1, "plan"), (5, "apply to staging")]


def test_new_begins_again_with_an_empty_history(library: Holdfast, deploy: str) -> None:
    assert ok("new", "deploy").lines == [f"{deploy} starts again with turn 4"]
    assert prompts(library, deploy) == []
    assert ok("new", "deploy", "--json").json["generation"] == 2


def test_a_turn_that_is_not_in_the_history_is_not_found(library: Holdfast, deploy: str) -> None:
    before = steps.snapshot(library.store)

    for arguments in (
        ("edit", deploy, "9", "--prompt", "x"),
        ("retry", deploy, "9"),
        ("fork", deploy, "--at", "9"),
    ):
        missing = holdfast(*arguments)
        assert (missing.code, missing.one_line_error()) == (
            3,
            "turn not found: 9; holdfast log ID shows the turns",
        )
    assert steps.snapshot(library.store) == before


@pytest.mark.parametrize("turn", ["0", "-1", "x", "1.5", str(2**70)])
def test_what_is_no_turn_number_is_wrong_usage(turn: str, deploy: str) -> None:
    wrong = holdfast("edit", deploy, "--prompt", "x", "--", turn)

    assert wrong.code == 2
    wrong.one_line_error()


def test_edit_without_a_text_and_with_two_texts_from_one_input_is_refused(deploy: str) -> None:
    nothing = holdfast("edit", deploy, "1")
    assert (nothing.code, "give --prompt, --response or both" in nothing.one_line_error()) == (2, True)

    twice = holdfast("edit", deploy, "1", "--prompt", "-", "--response", "-", stdin="x")
    assert (twice.code, twice.one_line_error()) == (
        2,
        "response: standard input is already used for prompt",
    )


def test_a_running_turn_cannot_be_truncated_and_a_closed_session_cannot_be_retried(
    library: Holdfast, deploy: str
) -> None:
    session = library.session(deploy)
    steps.enqueue(library.store, session, "more")
    steps.claim(library.store, session)

    busy = holdfast("truncate", deploy, "1")
    assert (busy.code, busy.one_line_error()) == (4, "turn 4 is running: cancel it first")

    library.finalize(deploy, "failed")
    closed = holdfast("retry", deploy, "1")
    assert closed.code == 4
    assert f"holdfast fork {deploy}" in closed.one_line_error()
