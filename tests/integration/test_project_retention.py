"""A time to keep sessions that the file of a project sets is for the sessions of that project."""

from pathlib import Path

import pytest

from holdfast.config import Settings
from holdfast.domain.policy import Policy, RetentionPolicy
from holdfast.domain.sessions import CleanupReport
from holdfast.engine.default import open_with
from holdfast.engine.holdfast import Holdfast

AT_ONCE = Policy(retention=RetentionPolicy(max_age_hours=0, conversations_max_age_hours=0))
KEYS = ("retention.max_age_hours", "retention.conversations_max_age_hours")


@pytest.fixture
def projects(tmp_path: Path) -> tuple[Path, Path]:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for project in (ours, theirs):
        project.mkdir()
        (project / ".holdfast.toml").write_text("[retention]\nmax_age_hours = 0\n")
    return ours, theirs


@pytest.fixture
def sessions(projects: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A delegated session and a conversation in each project."""
    made = {}
    for project in projects:
        monkeypatch.chdir(project)
        with _opened("user file") as hf:
            made[f"{project.name}: delegated"] = hf.create_session("terraform-architect")
            made[f"{project.name}: conversation"] = hf.run(
                "hello", provider="scripted", cwd=str(project)
            ).session_id
    return made


def _opened(source: str) -> Holdfast:
    return open_with(Settings(policy=AT_ONCE, sources=dict.fromkeys(KEYS, source)))


def test_it_touches_no_other_projects_sessions(
    projects: tuple[Path, Path], sessions: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _ = projects
    monkeypatch.chdir(ours)

    with _opened(str(ours / ".holdfast.toml")) as hf:
        taken = hf.cleanup().abandoned

    assert set(taken) == {sessions["ours: delegated"], sessions["ours: conversation"]}


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """A repository whose file keeps nothing."""
    project = _repository(tmp_path / "ours")
    (project / ".holdfast.toml").write_text("[retention]\nmax_age_hours = 0\n")
    return project


def _repository(project: Path) -> Path:
    (project / ".git").mkdir(parents=True)
    return project


def _cleaned(project: Path, monkeypatch: pytest.MonkeyPatch) -> CleanupReport:
    """By what the project's file says; a dry run must have said the same."""
    monkeypatch.chdir(project)
    with _opened(str(project / ".holdfast.toml")) as hf:
        told = hf.cleanup(dry_run=True)
        report = hf.cleanup()
    assert told == report
    return report


def test_a_repository_inside_it_is_another_project(ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = _repository(ours / "vendored" / "tool")
    monkeypatch.chdir(inside)
    with _opened("user file") as hf:
        hf.create_session("terraform-architect")
        hf.run("hello", provider="scripted", cwd=str(inside))

    assert _cleaned(ours, monkeypatch).count == 0


def test_its_own_directories_are_of_it(ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (ours / "modules").mkdir()
    monkeypatch.chdir(ours / "modules")
    with _opened("user file") as hf:
        made = {hf.create_session("terraform-architect")}
        made.add(hf.run("hello", provider="scripted", cwd=str(ours / "modules")).session_id)

    assert set(_cleaned(ours, monkeypatch).abandoned) == made


def test_a_directory_that_is_not_on_this_machine_is_not_of_it(
    ours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ours / "modules").mkdir()
    with _opened("user file") as hf:
        hf.run("hello", provider="scripted", cwd=str(ours / "modules"))
    (ours / "modules").rmdir()

    assert _cleaned(ours, monkeypatch).count == 0


def test_a_session_of_another_project_that_worked_here_stays(
    ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(_repository(tmp_path / "theirs"))
    with _opened("user file") as hf:
        guest = hf.create_session("terraform-architect")
        hf.resume(guest, "hello", provider="scripted", cwd=str(ours))

    assert _cleaned(ours, monkeypatch).count == 0


def test_a_conversation_shared_with_another_project_is_not_deleted(
    ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ours)
    with _opened("user file") as hf:
        first = hf.create("terraform-architect")
    monkeypatch.chdir(_repository(tmp_path / "theirs"))
    with _opened("user file") as hf:
        guest = hf.create("reviewer", joins=first.conversation_id)
        for session in (first, guest):
            hf.finalize(session.id, "completed")

    assert _cleaned(ours, monkeypatch).count == 0


def test_what_a_person_says_is_for_every_session(
    projects: tuple[Path, Path], sessions: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _ = projects
    monkeypatch.chdir(ours)

    with _opened(str(ours / ".holdfast.toml")) as hf:
        assert set(hf.cleanup(0, conversation_hours=0).abandoned) == set(sessions.values())


def test_what_the_persons_own_file_says_is_for_every_session(
    projects: tuple[Path, Path], sessions: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(projects[0])

    with _opened("user file") as hf:
        assert set(hf.cleanup().abandoned) == set(sessions.values())
