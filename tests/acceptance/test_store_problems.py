"""A store that cannot be used: one clear line that says where and why, and nothing is harmed."""

import json
import os
import resource
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.acceptance.command import (
    HOLDFAST,
    Ended,
    default_database,
    environment,
    holdfast,
    ok,
    without_privileges,
)

NOT_A_DATABASE = b"just some text\n" * 100


def test_a_file_that_is_no_database_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(NOT_A_DATABASE)

    wrong = holdfast("create", "--agent", "a", "--url", f"sqlite:///{path}")

    assert (wrong.code, wrong.one_line_error()) == (1, f"{path}: it is not a database")
    assert path.read_bytes() == NOT_A_DATABASE
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "command",
    [
        "list",
        "search x",
        "show x",
        "log x",
        "why x",
        "get x",
        "stats",
        "usage",
        "rm x",
        "resume x hello",
        "cleanup",
    ],
)
def test_a_file_that_was_mistyped_is_not_made(tmp_path: Path, command: str) -> None:
    path = tmp_path / "typo.db"

    wrong = holdfast(*command.split(), "--url", f"sqlite:///{path}")

    told = f"{path}: there is no such file (run, chat, create, enqueue and import make a new store)"
    assert (wrong.code, wrong.one_line_error()) == (1, told)
    assert list(tmp_path.iterdir()) == []
    ok("create", "--agent", "a", "--url", f"sqlite:///{path}")
    assert len(ok("list", "--json", "--url", f"sqlite:///{path}").json["sessions"]) == 1


def test_the_first_list_of_a_store_that_is_configured_is_empty(tmp_path: Path) -> None:
    assert ok("list", "--json").json["sessions"] == []
    assert ok("list", "--json", env={"HOLDFAST_URL": f"sqlite:///{tmp_path}/new.db"}).json["sessions"] == []


def test_the_database_of_another_program_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bookmarks (url)")
    connection.close()
    before = path.read_bytes()

    wrong = holdfast("list", "--json", "--url", f"sqlite:///{path}")

    assert (wrong.code, wrong.json["error"]["code"]) == (1, "store_corrupt")
    assert (
        "it is a database of another program (it has a table 'bookmarks')" in wrong.json["error"]["message"]
    )
    assert path.read_bytes() == before


def test_a_database_made_by_a_newer_holdfast_is_refused(library: Holdfast) -> None:
    library.create("a")
    library.close()
    with sqlite3.connect(default_database()) as connection:
        connection.execute("PRAGMA user_version = 9999")
    connection.close()

    wrong = holdfast("list")

    assert wrong.code == 1
    assert "made by a newer Holdfast" in wrong.one_line_error()


@pytest.mark.parametrize("command", [["list"], ["create", "--agent", "a"], ["get", "x"]])
def test_a_directory_in_place_of_the_database(command: list[str]) -> None:
    default_database().mkdir(parents=True)

    wrong = holdfast(*command)

    assert (wrong.code, wrong.one_line_error()) == (1, f"{default_database()}: Is a directory")
    assert list(default_database().iterdir()) == []


def test_a_database_that_may_not_be_written(library: Holdfast) -> None:
    session = library.create("a")
    library.close()
    default_database().chmod(0o444)

    for command in (["update", session.id, "--phase", "planning"], ["create", "--agent", "b"]):
        wrong = holdfast(*command, before=without_privileges)
        assert (wrong.code, wrong.one_line_error()) == (1, f"{default_database()}: Permission denied")
    default_database().chmod(0o600)
    assert ok("get", session.id).json["phase"] == "initializing"
    assert len(ok("list").lines) == 1


def test_a_directory_that_may_not_be_written(library: Holdfast) -> None:
    session = library.create("a")
    library.close()
    folder = default_database().parent
    for beside in folder.glob("*-gate"):
        beside.unlink()
    folder.chmod(0o555)
    try:
        wrong = holdfast("update", session.id, "--phase", "planning", before=without_privileges)
        assert wrong.code == 1
        assert wrong.one_line_error().startswith(f"{default_database()}: ")

        elsewhere = folder / "new.db"
        wrong = holdfast(
            "create", "--agent", "a", "--url", f"sqlite:///{elsewhere}", before=without_privileges
        )
        assert (wrong.code, wrong.one_line_error()) == (1, f"{elsewhere}: Permission denied")
    finally:
        folder.chmod(0o700)
    assert ok("get", session.id).json["phase"] == "initializing"


def test_a_home_that_does_not_exist_and_cannot_be_made(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)

    wrong = holdfast("list", env={"HOME": str(tmp_path / "nobody")}, before=without_privileges)

    assert (wrong.code, wrong.err.endswith(": Permission denied\n")) == (1, True)
    wrong.one_line_error()


@pytest.fixture
def on_a_full_disk(tmp_path: Path) -> Callable[[str, str], list[Ended]]:
    """Runs two commands in a row: the first on a full disk, the second when there is room again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    return lambda full, again: _on_tiny_disk(disk, full, again) or _at_the_file_limit(disk, full, again)


def test_a_full_disk_loses_nothing(on_a_full_disk: Callable[[str, str], list[Ended]]) -> None:
    metadata = "head -c 200000 /dev/zero | tr '\\0' x | sed 's/.*/{\"k\": \"&\"}/'"

    failed, after = on_a_full_disk(
        f"{metadata} | holdfast update deploy --phase planning --metadata -", "holdfast get deploy"
    )

    assert failed.code == 1
    assert failed.one_line_error().endswith((": the disk is full", ": reading or writing failed"))
    assert (after.code, after.err) == (0, "")
    assert (after.json["phase"], after.json["metadata"]) == ("initializing", {"kept": 1})


def test_on_a_full_disk_everything_that_is_stored_can_be_read(
    on_a_full_disk: Callable[[str, str], list[Ended]],
) -> None:
    reads = ("get deploy", "list", "show deploy", "log deploy", "why deploy")
    commands = " && ".join(f"holdfast {read}" for read in reads)

    full, _ = on_a_full_disk(f"{{ {commands}; holdfast should-resume deploy; }}", "true")

    assert (full.code, full.err) == (4, ""), "4: it may not continue in its phase"


def test_on_a_full_disk_a_hook_answers_and_ends_well(
    on_a_full_disk: Callable[[str, str], list[Ended]],
) -> None:
    stop = """echo '{"agent_id": "deploy", "exit_code": 0}' | holdfast hook subagent-stop"""
    ask = """echo '{"agent_name": "a"}' | holdfast hook pre-delegate"""

    full, after = on_a_full_disk(f"{stop} && {ask}", "holdfast get deploy")

    assert (full.code, full.err) == (0, "")
    assert json.loads(full.out.splitlines()[-1])["should_resume"] is False
    assert after.json["phase"] == "initializing"


BEGIN = "holdfast create --agent a --name deploy --metadata '{\"kept\": 1}' >/dev/null"


def _on_tiny_disk(folder: Path, full: str, again: str) -> list[Ended]:
    """On a disk of 600 kB in memory, seen by these processes only; [] where that is not allowed."""
    unshare = shutil.which("unshare")
    options = ["--mount"] if os.geteuid() == 0 else ["--mount", "--map-root-user"]
    mount = f"mount -t tmpfs -o size=600k none '{folder}'"
    if unshare is None:
        return []
    allowed = subprocess.run([unshare, *options, "sh", "-c", mount], check=False, capture_output=True)
    if allowed.returncode != 0:
        return []
    fill = f"head -c 600000 /dev/zero >'{folder}/filler' 2>/dev/null"
    script = f"""
        {mount} && {BEGIN} || exit 99
        {fill}
        {full} >'{folder.parent}/out1' 2>'{folder.parent}/err1'; echo $? >'{folder.parent}/code1'
        rm '{folder}/filler'
        {again} >'{folder.parent}/out2' 2>'{folder.parent}/err2'; echo $? >'{folder.parent}/code2'
    """
    _shell(folder, [unshare, *options, "sh", "-c", script])
    return _results(folder.parent)


def _at_the_file_limit(folder: Path, full: str, again: str) -> list[Ended]:
    """Without the right to mount: no file may grow any more, which a write notices in the same way."""
    folder.mkdir(exist_ok=True)
    _shell(folder, ["sh", "-c", f"{BEGIN}"])
    # as far as the log may grow, which what is written now passes
    size = 128 * 1024

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    out = folder.parent
    _shell(folder, ["sh", "-c", f"{full} >'{out}/out1' 2>'{out}/err1'; echo $? >'{out}/code1'"], limit)
    _shell(folder, ["sh", "-c", f"{again} >'{out}/out2' 2>'{out}/err2'; echo $? >'{out}/code2'"])
    return _results(out)


def _shell(folder: Path, command: list[str], before: Callable[[], None] | None = None) -> None:
    env = environment(
        {"PATH": f"{HOLDFAST.parent}:{os.environ['PATH']}", "HOLDFAST_URL": f"sqlite:///{folder}/holdfast.db"}
    )
    subprocess.run(command, env=env, check=True, preexec_fn=before)


def _results(folder: Path) -> list[Ended]:
    def text(name: str) -> str:
        return (folder / name).read_text()

    return [Ended(int(text(f"code{n}")), text(f"out{n}"), text(f"err{n}")) for n in (1, 2)]


def test_at_the_limit_of_file_sizes_nothing_is_lost(tmp_path: Path) -> None:
    metadata = "head -c 200000 /dev/zero | tr '\\0' x | sed 's/.*/{\"k\": \"&\"}/'"

    failed, after = _at_the_file_limit(
        tmp_path / "disk", f"{metadata} | holdfast update deploy --metadata -", "holdfast get deploy"
    )

    assert failed.code == 1
    failed.one_line_error()
    assert after.json["metadata"] == {"kept": 1}


def test_a_postgresql_that_does_not_answer_is_named_without_its_password() -> None:
    url = "postgresql://ada:hunter2@127.0.0.1:1/holdfast"

    wrong = holdfast("list", env={"HOLDFAST_URL": url})

    assert wrong.code == 1
    assert wrong.one_line_error().startswith("postgresql://127.0.0.1:1/holdfast: cannot be reached: ")
    assert "hunter2" not in wrong.err
    assert holdfast("list", "--json", "--url", url).json["error"]["code"] == "store_unavailable"


def test_a_url_that_names_no_file_is_not_a_database_in_memory() -> None:
    wrong = holdfast("create", "--agent", "a", "--url", "sqlite:///")

    assert wrong.code == 2
    assert "names no file" in wrong.one_line_error()


def test_a_postgresql_url_that_cannot_be_understood() -> None:
    wrong = holdfast("list", "--url", "postgresql://ada:hunter2@[half")

    assert wrong.code == 1
    assert "hunter2" not in wrong.one_line_error()


def test_postgresql_without_its_extra_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "psycopg.py").write_text("raise ImportError('no module named psycopg')")

    wrong = holdfast("list", "--url", "postgresql://localhost/x", env={"PYTHONPATH": str(tmp_path)})

    assert (wrong.code, wrong.one_line_error()) == (
        2,
        "url: PostgreSQL needs an extra: pip install 'holdfast-sessions[postgres]'",
    )


def test_a_server_without_the_extra_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "httpx.py").write_text("raise ImportError('no module named httpx')")

    wrong = holdfast("list", "--url", "https://fleet.example", env={"PYTHONPATH": str(tmp_path)})

    assert (wrong.code, wrong.one_line_error()) == (
        2,
        "url: a Holdfast server needs an extra: pip install 'holdfast-sessions[http]'",
    )


def test_a_database_that_is_not_of_holdfast_on_postgresql_is_made_ready(empty_postgres_url: str) -> None:
    env = {"HOLDFAST_URL": empty_postgres_url}

    assert ok("list", env=env).out == ""
    session_id = ok("create", "--agent", "a", env=env).out.strip()
    assert ok("list", env=env).out.startswith(session_id)


def test_several_at_once_make_the_database_and_all_get_through() -> None:
    writers = [
        subprocess.Popen([HOLDFAST, "create", "--agent", f"a{n}"], stdout=subprocess.PIPE, env=environment())
        for n in range(4)
    ]

    ids = {writer.communicate(timeout=60)[0].decode().strip() for writer in writers}

    assert [writer.returncode for writer in writers] == [0] * 4
    assert {line.split("\t")[0] for line in ok("list").lines} == ids
