"""One writer at a time for a provider's own session, also when Holdfast is gone and its agent is not."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.domain.failures import StopCause
from holdfast.domain.ids import ProviderSessionId
from holdfast.errors import ConfigError
from holdfast.processes.locks import SessionLock
from tests.integration.agents import SLEEPS, an_agent, first_line, python, until


def a_lock(tmp_path: Path, home: str = "home", provider: str = "claude", session: str = "one") -> SessionLock:
    return SessionLock(tmp_path / "locks", tmp_path / home, provider, ProviderSessionId(session))


def test_only_one_holds_a_lock(tmp_path: Path) -> None:
    with a_lock(tmp_path) as first, a_lock(tmp_path) as second:
        assert first.is_free()
        assert first.try_acquire()
        assert not first.try_acquire()
        assert not second.try_acquire()
        assert not second.is_free()
        first.release()
        assert second.try_acquire()


@pytest.mark.parametrize("other", [{"home": "other"}, {"provider": "codex"}, {"session": "two"}])
def test_another_session_has_another_lock(tmp_path: Path, other: dict[str, str]) -> None:
    with a_lock(tmp_path) as first, a_lock(tmp_path, **other) as second:
        assert first.try_acquire()
        assert second.try_acquire()


def test_a_home_is_the_same_by_whatever_path(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "home")
    with a_lock(tmp_path) as first, a_lock(tmp_path, home="link") as second:
        assert first.try_acquire()
        assert not second.try_acquire()


def test_a_lock_lives_as_long_as_the_agent_that_inherits_it(tmp_path: Path) -> None:
    with a_lock(tmp_path) as held, a_lock(tmp_path) as other:
        assert held.try_acquire()
        with an_agent(python(SLEEPS), keep_open=(held.fileno(),)) as agent:
            agent.go()
            first_line(agent)
            held.release()
            assert not other.is_free()
            agent.stop(StopCause.CANCELLED)
            agent.wait()
            assert other.is_free()


def test_a_lock_ends_with_the_process_that_held_it(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.integration.test_session_locks import a_lock\n"
        "print(a_lock(Path(sys.argv[1])).try_acquire(), flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"True\n"
        assert not a_lock(tmp_path).is_free()
        os.kill(process.pid, signal.SIGKILL)
        until(a_lock(tmp_path).is_free)


def test_the_files_are_private_and_stay(tmp_path: Path) -> None:
    with a_lock(tmp_path) as lock:
        lock.try_acquire()
    (file,) = (tmp_path / "locks").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_lock_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "locks").write_text("")
    with pytest.raises(ConfigError, match="cannot be opened"):
        a_lock(tmp_path).try_acquire()
