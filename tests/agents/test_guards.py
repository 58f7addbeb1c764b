"""Guards that end in a fresh start."""

import shutil
from collections.abc import Callable

import pytest

from holdfast.domain.decisions import Reason
from holdfast.domain.sessions import SessionKind
from tests.agents.driver import Driver, Ended
from tests.agents.lab.model_servers.replies import Say
from tests.agents.traits import TRAITS

#: does what the guard is there for to the session of a first turn, and asks for the next one
Meddling = Callable[[Driver, Ended], Ended]

NEXT = "again?"
FRESH = "[holdfast] fresh session"
#: guards that have tests of their own, because their outcome is another or their situation is
ELSEWHERE = {
    Reason.FORK_POINT_MOVED,
    Reason.RIGHTS_WIDER,
    Reason.BUSY,
    Reason.EXPLICIT_ID,
    Reason.GENERATION_CHANGED,
    Reason.RESUME_FAILED,
    Reason.RESUMABLE,
}


def _force_fresh(driver: Driver, first: Ended) -> Ended:
    return driver.resume(first.session, NEXT, "--fresh")


def _resume_disabled(driver: Driver, first: Ended) -> Ended:
    return driver.resume(first.session, NEXT, HOLDFAST_RESUME__NATIVE_RESUME="false")


def _no_pointer(driver: Driver, first: Ended) -> Ended:
    """A turn that ran elsewhere is recorded, and no session of an agent with it."""
    with driver.library() as hf:
        recorded = hf.create(
            first["provider"], "colours", kind=SessionKind.CONVERSATION, provider=driver.provider
        )
        hf.record(recorded.id, "colour?", "violet")
    return driver.resume(recorded.id, NEXT)


def _capability_missing(driver: Driver, first: Ended) -> Ended:
    without = f"'{driver.lab.program}' \"$@\" | grep -v -e --resume -e '^ *resume'"
    driver.put_first(f'case "$*" in *--help*) {without}; exit;; esac')
    return driver.resume(first.session, NEXT)


def _runtime_changed(driver: Driver, first: Ended) -> Ended:
    home = driver.lab.home / driver.traits.home_folder
    other = driver.lab.home / "other"
    shutil.copytree(home, other)
    return driver.resume(first.session, NEXT, **{driver.traits.home_variable: str(other)})


def _workdir_changed(driver: Driver, first: Ended) -> Ended:
    return driver.resume(first.session, NEXT, "--cwd", str(driver.lab.home))


def _history_changed(driver: Driver, first: Ended) -> Ended:
    edited = driver.holdfast("edit", first.session, "1", "--prompt", "which colour?")
    assert edited.exit_code == 0
    return driver.resume(first.session, NEXT)


def _model_changed(driver: Driver, first: Ended) -> Ended:
    return driver.resume(first.session, NEXT, "--model", "another", HOLDFAST_RESUME__SAME_MODEL="true")


def _retired(driver: Driver, first: Ended) -> Ended:
    _fail_oddly(driver, first, times=2)
    return driver.resume(first.session, NEXT)


def _errors(driver: Driver, first: Ended) -> Ended:
    _fail_oddly(driver, first, times=1)
    return driver.resume(first.session, NEXT, HOLDFAST_RESUME__MAX_PROVIDER_SESSION_ERRORS="1")


def _fail_oddly(driver: Driver, first: Ended, times: int) -> None:
    driver.put_first("case \"$*\" in *resume*) echo 'something odd' >&2; exit 3;; esac")
    for _ in range(times):
        assert driver.resume(first.session, "what now?").failure == "unknown"
    driver.put_first()


def _context_full(driver: Driver, first: Ended) -> Ended:
    shares = {"HOLDFAST_RESUME__CONTEXT_WARN": "0.00001", "HOLDFAST_RESUME__CONTEXT_REFRESH": "0.00002"}
    return driver.resume(first.session, NEXT, **shares)


def _transcript_missing(driver: Driver, first: Ended) -> Ended:
    driver.session_file(first.native).unlink()
    return driver.resume(first.session, NEXT, HOLDFAST_RESUME__RESTORE="off")


def _transcript_altered(driver: Driver, first: Ended) -> Ended:
    file = driver.session_file(first.native)
    file.write_bytes(file.read_bytes().replace(b"violet", b"yellow"))
    return driver.resume(first.session, NEXT, HOLDFAST_RESUME__RESTORE="off")


def _transcript_ahead(driver: Driver, first: Ended) -> Ended:
    by_hand = driver.lab.turn("by hand?", resume=first.native)
    assert by_hand.exit_code == 0
    answered = driver.resume(first.session, NEXT, HOLDFAST_RESUME__TRANSCRIPT_AHEAD="fresh")
    assert "by hand?" in driver.request.texts[0]
    return answered


MEDDLING: dict[Reason, Meddling] = {
    Reason.FORCE_FRESH: _force_fresh,
    Reason.RESUME_DISABLED: _resume_disabled,
    Reason.NO_POINTER: _no_pointer,
    Reason.CAPABILITY_MISSING: _capability_missing,
    Reason.RUNTIME_CHANGED: _runtime_changed,
    Reason.WORKDIR_CHANGED: _workdir_changed,
    Reason.HISTORY_CHANGED: _history_changed,
    Reason.MODEL_CHANGED: _model_changed,
    Reason.RETIRED: _retired,
    Reason.ERRORS: _errors,
    Reason.CONTEXT_FULL: _context_full,
    Reason.TRANSCRIPT_MISSING: _transcript_missing,
    Reason.TRANSCRIPT_ALTERED: _transcript_altered,
    Reason.TRANSCRIPT_AHEAD: _transcript_ahead,
}

CASES = [
    pytest.param(provider, reason, id=f"{provider}-{reason}")
    for provider, traits in TRAITS.items()
    for reason in MEDDLING
    if traits.reports_context or reason is not Reason.CONTEXT_FULL
]


def test_every_guard_is_driven() -> None:
    assert set(MEDDLING) | ELSEWHERE == set(Reason)


@pytest.mark.parametrize(("driver", "reason"), CASES, indirect=["driver"])
def test_it_resumes_nothing_and_sends_the_whole_context(driver: Driver, reason: Reason) -> None:
    driver.lab.server.script(Say("violet"))
    first = driver.run("colour?", "--model", "lab-model")

    answered = MEDDLING[reason](driver, first)

    assert (answered.exit_code, answered.decision, answered.reason) == (0, "fresh", reason.value)
    assert answered.native != first.native
    assert not driver.traits.continuing & set(driver.launches[-1])
    (sent,) = driver.request.texts
    assert sent.startswith(f"{FRESH}: {reason}")
    assert sent.count("colour?") == 1
    assert sent.count("violet") == 1
    assert sent.endswith(f"\n{NEXT}")


def test_a_conversation_that_was_begun_again_takes_nothing_along(driver: Driver) -> None:
    first = driver.run("colour?")
    assert driver.holdfast("new", first.session).exit_code == 0

    answered = driver.resume(first.session, NEXT)

    assert (answered.decision, answered.reason) == ("fresh", "generation_changed")
    assert answered.native != first.native
    assert driver.request.texts == [NEXT]


def test_a_session_that_was_asked_for_by_name_is_used_or_refused_and_never_replaced(driver: Driver) -> None:
    first = driver.run("colour?")
    driver.session_file(first.native).unlink()

    named = ("--provider-session-id", first.native)
    refused = driver.resume(first.session, NEXT, *named, HOLDFAST_RESUME__RESTORE="off")

    assert (refused.exit_code, refused.decision, refused.reason) == (4, "refuse", "transcript_missing")
    assert len(driver.lab.server.requests) == 1
