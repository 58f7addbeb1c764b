"""When a provider deletes its own sessions: by its settings, counted from the file's last change."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import SECOND, Instant
from holdfast.providers.contract import Archive
from holdfast.providers.registry import get_provider

DAY = 86_400
CHANGED = 1_767_895_530  #: 2026-01-08T18:05:30Z
FILES = {
    "claude": "projects/-srv-infra/6a13a176-0000-4000-8000-000000000001.jsonl",
    "codex": "sessions/2026/01/08/rollout-2026-01-08T18-05-30-6a13a176.jsonl",
    "gemini": "tmp/infra/chats/session-2026-01-08T18-05-6a13a176.jsonl",
    "opencode": "opencode.db",
    "scripted": "6a13a176.jsonl",
}


def a_home(folder: Path, provider: str, settings: Any = None) -> tuple[Archive, str]:
    """The archive of a home with one session in it, and the path of the session."""
    file = folder / FILES[provider]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    os.utime(file, (CHANGED, CHANGED))
    if settings is not None:
        text = settings if isinstance(settings, str) else json.dumps(settings)
        (folder / "settings.json").write_text(text)
    return get_provider(provider).archive(folder), str(file)


def retention(**rules: Any) -> dict[str, Any]:
    return {"general": {"sessionRetention": rules}}


@pytest.mark.parametrize(
    ("provider", "settings", "days"),
    [
        ("claude", None, 30),
        ("claude", {}, 30),
        ("claude", {"cleanupPeriodDays": 60}, 60),
        ("claude", {"cleanupPeriodDays": 1}, 1),
        ("claude", {"cleanupPeriodDays": 0}, 30),
        ("claude", {"cleanupPeriodDays": "ten"}, 30),
        ("claude", "{", 30),
        ("claude", "[]", 30),
        ("gemini", None, 30),
        ("gemini", retention(maxAge="7d"), 7),
        ("gemini", retention(maxAge="2w"), 14),
        ("gemini", retention(maxAge="1m"), 30),
        ("gemini", retention(maxAge="48h"), 2),
        ("gemini", retention(enabled=False), None),
        ("gemini", retention(maxAge="soon"), None),
        ("gemini", retention(maxAge="0d"), None),
        ("gemini", retention(maxAge="12h"), None),
        ("gemini", retention(maxAge="12h", minRetention="6h"), 0.5),
        ("gemini", {"general": 7}, 30),
        ("codex", None, None),
        ("opencode", None, None),
        ("scripted", None, None),
    ],
)
def test_a_session_expires_by_the_providers_own_settings(
    provider: str, settings: Any, days: float | None, tmp_path: Path
) -> None:
    archive, path = a_home(tmp_path, provider, settings)
    expected = None if days is None else Instant(round((CHANGED + days * DAY) * SECOND))
    assert archive.expires_at(path) == expected


@pytest.mark.parametrize("provider", ["claude", "gemini"])
def test_a_file_outside_the_providers_folder_does_not_expire(provider: str, tmp_path: Path) -> None:
    archive, _ = a_home(tmp_path / "home", provider)
    elsewhere = tmp_path / "copy.jsonl"
    elsewhere.touch()
    assert archive.expires_at(str(elsewhere)) is None


@pytest.mark.parametrize("provider", FILES)
def test_a_session_that_is_gone_does_not_expire(provider: str, tmp_path: Path) -> None:
    archive, path = a_home(tmp_path, provider)
    Path(path).unlink()
    assert archive.expires_at(path) is None
