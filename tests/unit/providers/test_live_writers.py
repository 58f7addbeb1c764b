"""Who has a session of opencode or Gemini open is told by the command lines of running programs."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.domain.ids import ProviderSessionId
from holdfast.processes.owners import ON_LINUX
from holdfast.providers.contract import Archive
from holdfast.providers.gemini import GeminiArchive
from holdfast.providers.opencode import OpencodeArchive

pytestmark = pytest.mark.skipif(not ON_LINUX, reason="only Linux shows the command lines of others")

NATIVE = ProviderSessionId("ses_529cd501")
#: says that it has begun, and stays until its input ends
PROGRAM = "print(flush=True); input()\n"


@contextmanager
def running(folder: Path, program: str, *arguments: str, environ: Mapping[str, str]) -> Iterator[int]:
    script = folder / program
    script.write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, "-I", script, *arguments],
        env=dict(environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        yield process.pid
        process.stdin.close()


def archives(home: Path) -> dict[str, Archive]:
    return {
        "opencode": OpencodeArchive(home / ".local" / "share" / "opencode"),
        "gemini": GeminiArchive(home / ".gemini"),
    }


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("opencode", ("--session", NATIVE)),
        ("opencode", ("run", f"--session={NATIVE}", "hello")),
        ("opencode", ("-s", NATIVE)),
        ("gemini", ("--resume", NATIVE)),
        ("gemini", (f"--resume={NATIVE}",)),
        ("gemini", ("-r", NATIVE)),
        ("gemini", ("--session-id", NATIVE)),
    ],
)
def test_a_program_that_was_started_on_the_session_has_it_open(
    tmp_path: Path, program: str, arguments: tuple[str, ...]
) -> None:
    archive = archives(tmp_path)[program]
    with running(tmp_path, program, *arguments, environ={"HOME": str(tmp_path)}) as pid:
        assert archive.writer(str(tmp_path / "none"), NATIVE) == f"{program} (process {pid})"
    assert archive.writer(str(tmp_path / "none"), NATIVE) is None


@pytest.mark.parametrize(
    ("program", "arguments", "home"),
    [
        ("opencode", (), "."),
        ("opencode", ("--continue",), "."),
        ("opencode", ("--session", "ses_other"), "."),
        ("opencode", ("run", f"--session={NATIVE}", "--fork", "hello"), "."),
        ("opencode", ("export", NATIVE), "."),
        ("opencode", ("--session", NATIVE), "elsewhere"),
        ("gemini", ("--resume", "latest"), "."),
        ("gemini", ("-p", NATIVE), "."),
        ("gemini", ("--resume", NATIVE), "elsewhere"),
        ("tail", ("--resume", NATIVE), "."),
    ],
)
def test_whoever_has_another_one_open_or_only_reads_is_no_writer(
    tmp_path: Path, program: str, arguments: tuple[str, ...], home: str
) -> None:
    with running(tmp_path, program, *arguments, environ={"HOME": str(tmp_path / home)}):
        for archive in archives(tmp_path).values():
            assert archive.writer(str(tmp_path / "none"), NATIVE) is None
