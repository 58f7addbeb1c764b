"""Agents lose their session files: the vault puts them back, whole, and the session continues natively."""

import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.domain.decisions import Fork, Fresh, Reason, Refuse, Resume
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.policy import Policy, ResumePolicy, VaultPolicy
from holdfast.domain.records import replace
from holdfast.domain.vault import VaultChunk, VaultFile, VaultPart
from holdfast.engine.restoring import RestoreOutcome
from holdfast.engine.result import RunResult
from holdfast.engine.vault import Vault
from holdfast.errors import Busy, NotFound, Refused
from holdfast.providers.contract import Comparison
from holdfast.store.contract import Store
from tests.contract.served import serving
from tests.integration.mortal import killed_everywhere
from tests.integration.workshop import (
    FROM_PROMPT,
    FROM_SESSION,
    PATIENCE,
    RECALL,
    Workshop,
    ended,
)

ASK, OFF = (Policy(resume=ResumePolicy(restore=mode)) for mode in ("ask", "off"))
UNKEPT = Policy(vault=VaultPolicy(mode="off"))
RESTORED = "the agent's files were gone or cut off: restored from the vault"


@pytest.fixture
def first(shop: Workshop) -> RunResult:
    return shop.begin()


@pytest.fixture
def file(shop: Workshop, first: RunResult) -> Path:
    return shop.transcript(first.provider_session_id)


def kept_branches(hf: Holdfast, first: RunResult) -> list[str]:
    native = ProviderSessionId(first.provider_session_id or "")
    return [bundle.branch for bundle in hf.store.bundles("scripted", native)]


# --- in a turn ---


def test_files_that_are_gone_are_restored_and_the_session_continues_natively(
    shop: Workshop, first: RunResult, file: Path
) -> None:
    before = file.read_bytes()
    file.unlink()

    result = shop.open().resume(first.session_id, RECALL)

    assert isinstance(result.decision, Resume)
    assert result.text == FROM_SESSION
    assert RESTORED in result.notices
    assert file.read_bytes().startswith(before)
    assert file.stat().st_mode & 0o777 == 0o600
    (verdict,) = (each for each in result.decision.verdicts if each.reason is Reason.TRANSCRIPT_MISSING)
    assert verdict.evidence == RESTORED


def test_a_home_that_is_gone_is_made_again(shop: Workshop, first: RunResult, file: Path) -> None:
    for left in file.parent.iterdir():
        left.unlink()
    file.parent.rmdir()
    file.parent.parent.rmdir()

    assert shop.open().resume(first.session_id, RECALL).text == FROM_SESSION


def test_a_file_that_was_cut_off_is_restored(shop: Workshop, first: RunResult, file: Path) -> None:
    before = file.read_bytes()
    file.write_bytes(before[: len(before) // 2])

    result = shop.open().resume(first.session_id, RECALL)

    assert (result.text, RESTORED in result.notices) == (FROM_SESSION, True)
    assert file.read_bytes().startswith(before)


def test_a_file_that_a_person_continued_is_left_alone(shop: Workshop, first: RunResult, file: Path) -> None:
    shop.by_hand("SAY amber", "--resume", str(first.provider_session_id))

    result = shop.open().resume(first.session_id, RECALL)

    assert (result.text, RESTORED in result.notices) == (FROM_SESSION, False)
    assert any(prompt.endswith("SAY amber") for prompt in shop.prompts(first.provider_session_id))


def test_a_file_that_went_another_way_is_kept_as_a_branch_and_never_overwritten(
    shop: Workshop, first: RunResult, file: Path
) -> None:
    other = file.read_bytes().replace(b"swordfish", b"cuttlefish")
    file.write_bytes(other)
    hf = shop.open()

    result = hf.resume(first.session_id, RECALL)

    assert isinstance(result.decision, Fresh)
    assert result.decision.reason is Reason.TRANSCRIPT_ALTERED
    assert result.text == FROM_PROMPT
    assert any("kept as a branch" in notice for notice in result.notices)
    assert file.read_bytes() == other
    own, branch = kept_branches(hf, first)
    assert (own, len(branch)) == ("", 64)


def test_a_fork_of_a_session_whose_files_are_gone_is_a_native_one(
    shop: Workshop, first: RunResult, file: Path
) -> None:
    before = file.read_bytes()
    file.unlink()

    result = shop.open().fork(first.session_id, RECALL)

    assert isinstance(result.decision, Fork)
    assert result.text == FROM_SESSION
    assert file.read_bytes() == before


def test_what_the_vault_does_not_have_is_told_from_the_history(
    shop: Workshop, first: RunResult, file: Path
) -> None:
    hf = shop.open()
    assert hf.store.drop_bundle("scripted", ProviderSessionId(file.stem))
    file.unlink()

    result = hf.resume(first.session_id, RECALL)

    assert isinstance(result.decision, Fresh)
    assert (result.decision.reason, result.text) == (Reason.TRANSCRIPT_MISSING, FROM_PROMPT)


def test_an_older_copy_is_no_session_to_resume(shop: Workshop, first: RunResult, file: Path) -> None:
    shop.open(UNKEPT).resume(first.session_id, "SAY unkept")
    file.unlink()

    result = shop.open().resume(first.session_id, RECALL)

    assert isinstance(result.decision, Fresh)
    assert result.decision.reason is Reason.TRANSCRIPT_ALTERED
    assert result.text == FROM_PROMPT


# --- by the policy ---


def test_a_person_who_wants_to_be_asked_is_told_the_command(
    shop: Workshop, first: RunResult, file: Path
) -> None:
    file.unlink()
    hf = shop.open(ASK)

    refused = hf.resume(first.session_id, RECALL)

    assert isinstance(refused.decision, Refuse)
    assert refused.failure is not None
    assert f"holdfast restore {first.session_id}" in refused.failure.message
    assert not file.exists()
    hf.restore(first.session_id)
    assert hf.resume(first.session_id, RECALL).text == FROM_SESSION


def test_switched_off_nothing_is_restored(shop: Workshop, first: RunResult, file: Path) -> None:
    file.unlink()

    result = shop.open(OFF).resume(first.session_id, RECALL)

    assert (type(result.decision), result.text) == (Fresh, FROM_PROMPT)


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_why_says_what_the_next_turn_restores_and_writes_nothing(
    shop: Workshop, first: RunResult, file: Path, damage: str
) -> None:
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-9])
    left = file.read_bytes() if file.exists() else None

    code, out, _ = ended(shop.start("why", first.session_id))

    assert (code, "the next turn restores the session from the vault" in out) == (0, True)
    assert "resume" in out
    assert (file.read_bytes() if file.exists() else None) == left


# --- the command ---


def command(shop: Workshop, *arguments: str) -> tuple[int, dict[str, Any], str]:
    code, out, err = ended(shop.start("--json", "restore", *arguments))
    return code, json.loads(out or err), err


def test_the_command_restores_byte_by_byte_and_says_what_it_found(
    shop: Workshop, first: RunResult, file: Path
) -> None:
    before = file.read_bytes()
    file.unlink()
    begun = time.time()

    code, dry, _ = command(shop, first.session_id, "--dry-run")
    assert (code, dry["dry_run"], file.exists()) == (0, True, False)
    code, told, _ = command(shop, first.session_id)

    assert (code, file.read_bytes()) == (0, before)
    assert file.stat().st_mtime >= begun - 1
    (restored,) = told["restored"]
    assert restored["outcome"] == "restored"
    assert restored["files"] == [
        {"name": f"sessions/{file.name}", "path": str(file), "found": "absent", "written": True}
    ]


def test_the_command_leaves_the_same_and_the_newer_alone(
    shop: Workshop, first: RunResult, file: Path
) -> None:
    hf = shop.open()
    (same,) = hf.restore(first.session_id)
    assert same.outcome is RestoreOutcome.UNCHANGED
    shop.by_hand("SAY amber", "--resume", file.stem)
    newer = file.read_bytes()

    (left,) = hf.restore(first.session_id)

    assert (left.outcome, left.files[0].found) == (RestoreOutcome.NEWER, Comparison.AHEAD)
    assert file.read_bytes() == newer


def test_the_command_refuses_to_overwrite_what_differs(shop: Workshop, first: RunResult, file: Path) -> None:
    file.write_bytes(b'{"another": "session"}\n')

    code, told, _ = command(shop, first.session_id)

    (restored,) = told["restored"]
    assert (code, restored["outcome"]) == (4, "diverged")
    assert file.read_bytes() == b'{"another": "session"}\n'
    assert kept_branches(shop.open(), first) == ["", restored["branch"]]


def test_nothing_in_the_vault_is_an_error(shop: Workshop, first: RunResult, file: Path) -> None:
    hf = shop.open()
    hf.store.drop_bundle("scripted", ProviderSessionId(file.stem))
    with pytest.raises(NotFound, match="in the vault"):
        hf.restore(first.session_id)


def test_nothing_is_restored_while_a_program_has_the_session_open(
    shop: Workshop, first: RunResult, file: Path
) -> None:
    hf = shop.open()
    content = file.read_bytes()
    holder = subprocess.Popen(
        [sys.executable, "-c", "import sys; file = open(sys.argv[1], 'ab'); print(flush=True); input()", file],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        file.write_bytes(content[:-5])
        with pytest.raises(Busy, match=str(holder.pid)):
            hf.restore(first.session_id)
    assert file.read_bytes() == content[:-5]


def test_nothing_is_restored_while_a_turn_runs_in_the_session(
    shop: Workshop, first: RunResult, file: Path
) -> None:
    hf = shop.open()
    lock = hf.agents.get("scripted").lock(ProviderSessionId(file.stem))
    file.unlink()
    with lock:
        assert lock.try_acquire()
        with pytest.raises(Busy):
            hf.restore(first.session_id)
    assert not file.exists()


def test_a_session_in_a_servers_store_is_restored_here(shop: Workshop, first: RunResult, file: Path) -> None:
    before = file.read_bytes()
    file.unlink()
    with serving() as served:
        hf = Holdfast(served.store_for(shop.open().store), environ=shop.environ)

        (restored,) = hf.restore(first.session_id)

        assert (restored.outcome, file.read_bytes()) == (RestoreOutcome.RESTORED, before)
        file.unlink()
        assert hf.resume(first.session_id, RECALL).text == FROM_SESSION
        hf.close()


# --- a vault that others have written to ---

EVIL = b'{"hooks": "evil"}\n'


def plant(hf: Holdfast, file: Path, *names: str) -> None:
    """Adds files to what the vault has of the session, as everybody can who may keep copies."""
    bundle = hf.store.bundle("scripted", ProviderSessionId(file.stem))
    assert bundle is not None
    digest = hashlib.sha256(EVIL).hexdigest()
    planted = tuple(
        VaultFile(name, len(EVIL), is_main=False, parts=(VaultPart(digest, len(EVIL)),)) for name in names
    )
    hf.store.keep_bundles(
        [replace(bundle, files=(*bundle.files, *planted))], [VaultChunk(digest, len(EVIL), "raw", EVIL)]
    )


def test_no_other_file_is_put_into_the_home_of_an_agent(shop: Workshop, first: RunResult, file: Path) -> None:
    planted = ["settings.json", "plugins/evil.js", "sessions/another.jsonl", "hooks/\x1b[2J"]
    hf, home, before = shop.open(), file.parent.parent, file.read_bytes()
    plant(hf, file, *planted)
    file.unlink()
    there = sorted(home.rglob("*"))

    code, dry, _ = command(shop, first.session_id, "--dry-run")
    assert (code, dry["restored"][0]["left_out"], sorted(home.rglob("*"))) == (0, planted, there)
    (restored,) = hf.restore(first.session_id)

    assert (restored.outcome, restored.left_out) == (RestoreOutcome.RESTORED, tuple(planted))
    assert [each.name for each in restored.files] == [f"sessions/{file.name}"]
    assert file.read_bytes() == before
    assert sorted(home.rglob("*")) == sorted([*there, file])
    (again,) = hf.restore(first.session_id)
    assert again.outcome is RestoreOutcome.UNCHANGED
    _, printed, _ = ended(shop.start("restore", first.session_id))
    assert "'settings.json', 'plugins/evil.js', 'sessions/another.jsonl' and 1 more" in printed


def test_a_turn_puts_no_other_file_into_the_home_of_an_agent(
    shop: Workshop, first: RunResult, file: Path
) -> None:
    hf = shop.open()
    plant(hf, file, "settings.json")
    file.unlink()

    result = hf.resume(first.session_id, RECALL)

    assert result.text == FROM_SESSION
    assert any(RESTORED in notice and "'settings.json'" in notice for notice in result.notices)
    assert not (file.parent.parent / "settings.json").exists()


def test_a_copy_whose_main_file_is_another_one_is_refused(
    shop: Workshop, first: RunResult, file: Path
) -> None:
    hf = shop.open()
    plant(hf, file, "settings.json")
    bundle = hf.store.bundle("scripted", ProviderSessionId(file.stem))
    assert bundle is not None
    own, evil = bundle.files
    swapped = (replace(evil, is_main=True), replace(own, is_main=False))
    hf.store.drop_bundle("scripted", ProviderSessionId(file.stem))
    hf.store.keep_bundles([replace(bundle, files=swapped, revision=0)])
    file.unlink()

    with pytest.raises(Refused, match=r"'settings\.json' is no file of it"):
        hf.restore(first.session_id)
    assert isinstance(hf.resume(first.session_id, RECALL).decision, Fresh)
    assert not (file.parent.parent / "settings.json").exists()


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(
    shop: Workshop, first: RunResult, file: Path, tmp_path: Path
) -> None:
    before, target = file.read_bytes(), tmp_path / "target"
    file.unlink()
    file.symlink_to(target)

    shop.open().restore(first.session_id)

    assert (file.is_symlink(), file.read_bytes(), target.exists()) == (False, before, False)


# --- trouble ---


@pytest.fixture
def small_disk(shop: Workshop, file: Path) -> Iterator[Path]:
    """The agent's sessions on a disk that has room for half of one."""
    content = b"".join(b'{"type": "note", "n": %d}\n' % n for n in range(4000))
    with file.open("ab") as opened:
        opened.write(content)
    folder = file.parent
    file.unlink()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_leaves_nothing_half_written(shop: Workshop, first: RunResult, small_disk: Path) -> None:
    hf = shop.open()
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 32 * 1024)

    with pytest.raises(Refused, match="there is no room"):
        hf.restore(first.session_id)

    assert [left.name for left in small_disk.iterdir()] == ["filler"]
    filler.unlink()
    (restored,) = hf.restore(first.session_id)
    assert restored.outcome is RestoreOutcome.RESTORED


#: Holdfast that may write files of so many bytes
LIMITED = """
import resource, sys
from holdfast.engine import restoring
from holdfast.cli.main import main
real = restoring._write
def limited(*arguments):
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    real(*arguments)
restoring._write = limited
sys.exit(main())
"""


def test_a_file_that_may_not_be_written_whole_is_not_there(
    shop: Workshop, first: RunResult, file: Path
) -> None:
    file.unlink()
    others = set(file.parent.iterdir())
    refused = subprocess.run(
        [sys.executable, "-c", LIMITED, "restore", first.session_id], cwd=shop.work_dir, env=shop.environ,
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert (refused.returncode, "there is no room" in refused.stderr) == (4, True)
    assert set(file.parent.iterdir()) == others


#: Holdfast that kills itself right before or after one of the steps of a restore
MORTAL = """
import os, signal, sys
from pathlib import Path
from holdfast.engine import restoring
from holdfast.cli.main import main
when, step = sys.argv[1:3]
del sys.argv[1:3]
owner = {"replace": Path, "link": os, "fsync": os}.get(step, restoring)
real = getattr(owner, step)
def dies(*arguments, **keywords):
    if when == "after":
        real(*arguments, **keywords)
    os.kill(os.getpid(), signal.SIGKILL)
def armed(*arguments, **keywords):
    setattr(owner, step, dies)
    return begin(*arguments, **keywords)
begin = restoring.write_whole
if step == "write_whole":
    restoring.write_whole = dies
else:
    restoring.write_whole = armed
main()
"""

STEPS = [
    (when, step)
    for step in ("write_whole", "_write", "fsync", "link", "replace", "_sync")
    for when in ("before", "after")
]


@pytest.mark.parametrize(
    ("act", "engine"), [(act, engine) for act in ("restore", "resume") for engine in ("sqlite", "postgres")]
)
@pytest.mark.parametrize(("when", "step"), STEPS)
def test_a_restore_that_is_killed_at_any_step_leaves_whole_files_only(
    request: pytest.FixtureRequest, shop: Workshop, when: str, step: str, act: str, engine: str
) -> None:
    shop.database = request.getfixturevalue("postgres_url") if engine == "postgres" else None
    first = shop.begin()
    file = shop.transcript(first.provider_session_id)
    before = file.read_bytes()
    file.write_bytes(before[: len(before) // 2])
    half = file.read_bytes()
    prompt = [RECALL] if act == "resume" else []

    died = subprocess.run(
        [sys.executable, "-c", MORTAL, when, step, act, first.session_id, *prompt], cwd=shop.work_dir,
        env=shop.environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False,
    )  # fmt: skip

    assert died.returncode == -signal.SIGKILL, died.stderr
    assert file.read_bytes() in (half, before)
    for left in file.parent.glob(".*"):  # a copy that is whole, and was not put in its place yet
        assert left.read_bytes() == before
    hf = shop.open()
    assert hf.resume(first.session_id, RECALL).text == FROM_SESSION
    assert file.read_bytes().startswith(before)
    assert not list(file.parent.glob(".*"))


def restore_here(store: Store, environ: dict[str, str], session_id: str) -> None:
    Holdfast(store, environ=environ).restore(session_id)


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_restore_that_is_killed_while_it_keeps_the_agents_own_version_overwrites_nothing(
    request: pytest.FixtureRequest, shop: Workshop, engine: str
) -> None:
    shop.database = request.getfixturevalue("postgres_url") if engine == "postgres" else None
    first = shop.begin()
    file = shop.transcript(first.provider_session_id)
    other = file.read_bytes().replace(b"swordfish", b"cuttlefish")
    file.write_bytes(other)
    hf = shop.open()
    for _ in killed_everywhere(restore_here, shop.url, shop.environ, first.session_id):
        assert file.read_bytes() == other
        assert len(kept_branches(hf, first)) <= 2
    own, branch = hf.store.bundles("scripted", ProviderSessionId(file.stem))
    vault = Vault(hf.store, VaultPolicy())
    assert b"".join(vault.read(branch, branch.main)) == file.read_bytes() == other
    assert b"swordfish" in b"".join(vault.read(own, own.main))
