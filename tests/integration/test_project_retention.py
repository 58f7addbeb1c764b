"""A time to keep sessions that the file of a project sets is for the sessions of that project."""

from pathlib import Path

import pytest

from holdfast.config import Settings
from holdfast.domain.policy import Policy, RetentionPolicy
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
