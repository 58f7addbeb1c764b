"""Which machine this is, and whether a process that was recorded can still be running."""

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.clock import Instant
from holdfast.domain.ids import ConversationId, SessionId
from holdfast.domain.turns import Lease, ProcessMark
from holdfast.errors import ConfigError
from holdfast.processes.machine import Machine, machine_id, this_machine
from holdfast.processes.owners import ON_LINUX, Location, boot_id, has_ended, process_start
from holdfast.processes.table import processes
from tests.integration.agents import lives, until
from tests.processes import together

BOOT = "boot-1/pid:[7]/host"
MACHINE = Machine("m", BOOT)


def test_a_machine_keeps_its_id_for_one_data_directory_only(tmp_path: Path) -> None:
    first = machine_id(tmp_path / "data")
    assert machine_id(tmp_path / "data") == first
    assert machine_id(tmp_path / "other") != first


def test_a_copied_data_directory_on_another_system_is_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = machine_id(tmp_path)
    other = tmp_path / "etc-machine-id"
    other.write_text("f" * 32 + "\n")
    monkeypatch.setattr("holdfast.processes.machine._SYSTEM_ID", other)
    assert machine_id(tmp_path) != here
    other.unlink()
    assert machine_id(tmp_path) != here


def test_the_kept_id_is_private_and_alone(tmp_path: Path) -> None:
    machine_id(tmp_path / "data")
    (file,) = (tmp_path / "data").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def ask_for_the_id(ready: object, data_dir: str) -> str:
    assert callable(ready)
    ready()
    return machine_id(Path(data_dir))


def test_all_who_come_first_at_once_get_the_same_id(tmp_path: Path) -> None:
    ids = together(ask_for_the_id, [(str(tmp_path / "data"),)] * 8)
    assert len(set(ids)) == 1
    assert len(list((tmp_path / "data").iterdir())) == 1


@pytest.mark.parametrize("content", ["", "garbage"])
def test_a_damaged_id_is_told_and_not_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / "machine-id").write_text(content)
    with pytest.raises(ConfigError, match="machine-id: does not hold a machine id"):
        machine_id(tmp_path)
    assert (tmp_path / "machine-id").read_text() == content


def test_an_id_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be read or made"):
        machine_id(tmp_path / "file" / "data")


@pytest.mark.parametrize(
    ("machine", "boot", "place"),
    [
        ("m", BOOT, Location.HERE),
        ("m", "boot-1/pid:[7]/renamed", Location.HERE),
        ("m", "boot-0/pid:[7]/host", Location.PAST),
        ("m", "boot-0/pid:[9]/host", Location.PAST),
        ("m", "boot-1/pid:[9]/host", Location.ELSEWHERE),
        ("m", "boot-0/pid:[7]/twin", Location.ELSEWHERE),
        ("other", BOOT, Location.ELSEWHERE),
        ("m", "/pid:[7]/host", Location.ELSEWHERE),
        ("m", "", Location.ELSEWHERE),
    ],
    ids=[
        "same",
        "renamed",
        "rebooted",
        "container-rebooted",
        "container",
        "twin",
        "other",
        "no-boot",
        "none",
    ],
)
def test_where_a_recorded_process_is(machine: str, boot: str, place: Location) -> None:
    assert MACHINE.location_of(ProcessMark(machine, boot, 1, 1)) is place


def test_a_system_that_does_not_tell_its_boot_proves_nothing_gone() -> None:
    assert Machine("m", "//host").location("m", "boot-0/pid:[7]/host") is Location.ELSEWHERE


def test_a_process_is_gone_exactly_when_it_has_ended(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from holdfast.processes.machine import this_machine\n"
        "print(this_machine(Path(sys.argv[1])).this_process(), flush=True); input()"
    )
    machine = this_machine(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout
        owner = process.stdout.readline().strip()
        assert not machine.is_gone(owner)
        process.kill()
        # nobody has collected it yet, and it is gone all the same
        until(lambda: not lives(process.pid))
        assert machine.is_gone(owner)
    assert machine.is_gone(owner)


def test_a_process_id_that_was_used_again_is_another_process() -> None:
    machine = Machine("m", boot_id())
    pid, start, *rest = machine.this_process().split("/")
    assert not machine.is_gone("/".join((pid, start, *rest)))
    assert machine.is_gone("/".join((pid, str(int(start) - 1), *rest)))


def test_an_owner_of_an_earlier_boot_is_gone_and_of_another_machine_is_not_known() -> None:
    assert MACHINE.is_gone("1/2/m/boot-0/pid:[7]/host")
    assert not MACHINE.is_gone("1/2/other/boot-0/pid:[7]/host")


@pytest.mark.parametrize(
    "owner", ["", "worker", "1/2", "1/None/m/boot-0/pid:[7]/host", "/////", "²/1/m/b/p/h"]
)
def test_nothing_is_known_of_an_owner_that_is_no_process_of_ours(owner: str) -> None:
    assert not MACHINE.is_gone(owner)


@pytest.mark.skipif(not ON_LINUX, reason="macOS has no /proc that could hide a process")
def test_a_process_that_is_hidden_from_us_is_not_known_to_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.processes.owners._PROC", tmp_path)
    assert not has_ended(os.getppid(), 1)


def test_a_program_may_have_any_name(tmp_path: Path) -> None:
    odd = tmp_path / "a) S (b 1"
    shutil.copy("/bin/sleep", odd)
    with subprocess.Popen([str(odd), "60"]) as process:
        try:
            began, ours = process_start(process.pid), process_start(os.getpid())
            assert began is not None
            assert ours is not None
            assert began >= ours
        finally:
            process.kill()


def test_there_is_no_start_of_a_process_that_does_not_exist() -> None:
    with subprocess.Popen(["/bin/sleep", "0"]) as process:
        process.wait()
        assert process_start(process.pid) is None
        assert has_ended(process.pid, 1)


@pytest.mark.skipif(not Path("/bin/ps").exists(), reason="there is no ps on this machine")
def test_ps_tells_the_same_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("owners", "table"):
        monkeypatch.setattr(f"holdfast.processes.{module}.ON_LINUX", False)
    now = time.time()
    with subprocess.Popen(["/bin/sleep", "60"], start_new_session=True) as process:
        began = process_start(process.pid)
        (listed,) = (found for found in processes() if found.pid == process.pid)
        process.kill()
        until(lambda: process_start(process.pid) is None)
    assert began is not None
    assert abs(began - listed.started_at) <= 1  # Linux works it out anew each time
    assert abs(began - now) < 30
    assert (listed.parent, listed.group) == (os.getpid(), process.pid)


# --- copies of a machine ---

GONE_HERE = "999999/1/m/boot-1/pid:[7]/host"
BEFORE_THE_BOOT = "999999/1/m/boot-0/pid:[7]/host"


def a_lease(owner: str, until: int = 60) -> Lease:
    return Lease(SessionId("s"), ConversationId("c"), 1, 1, 1, owner, Instant(until))


def a_machine(folder: Path, boot: str = BOOT) -> Machine:
    folder.mkdir(exist_ok=True)
    return Machine("m", boot, folder)


def silent(machine: Machine) -> None:
    """Nobody has renewed anything for a while."""
    assert machine.folder is not None
    for file in (machine.folder / "leases").iterdir():
        os.utime(file, (1, 1))


def test_a_lease_of_a_process_that_is_gone_is_lost_where_it_was_held(tmp_path: Path) -> None:
    machine = a_machine(tmp_path / "data")
    machine.witness(a_lease(GONE_HERE))
    assert machine.has_lost(a_lease(GONE_HERE))
    assert not machine.has_lost(a_lease(machine.this_process()))
    machine.forget(a_lease(GONE_HERE))
    assert not machine.has_lost(a_lease(GONE_HERE))


def test_who_was_killed_before_it_held_its_lease_has_lost_it_where_it_had_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, copy = a_machine(tmp_path / "data"), a_machine(tmp_path / "copy")
    with monkeypatch.context() as patched:
        patched.setattr(Machine, "this_process", lambda _: GONE_HERE)
        lease = a_lease(machine.claimant())
    assert machine.has_lost(lease, launched=False)
    assert not machine.has_lost(lease, launched=True)
    assert not copy.has_lost(lease, launched=False)
    machine.witness(lease)
    assert not machine.has_lost(a_lease(GONE_HERE, until=75), launched=False), "renewed elsewhere"
    machine.forget(lease)
    assert not machine.has_lost(lease, launched=False)


@pytest.mark.parametrize("boot", [BOOT, "boot-2/pid:[7]/host"], ids=["of a snapshot", "of a disk"])
def test_a_copy_made_before_knows_nothing_of_the_lease(tmp_path: Path, boot: str) -> None:
    original, copy = a_machine(tmp_path / "data"), a_machine(tmp_path / "copy", boot)
    original.witness(a_lease(GONE_HERE))
    assert copy.is_gone(GONE_HERE), "all that it sees says so"
    assert not copy.has_lost(a_lease(GONE_HERE))


def test_a_copy_made_meanwhile_sees_that_the_lease_was_renewed_elsewhere(tmp_path: Path) -> None:
    original = a_machine(tmp_path / "data")
    original.witness(a_lease(GONE_HERE))
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    copy = a_machine(tmp_path / "copy", "boot-2/pid:[7]/host")
    renewed = a_lease(GONE_HERE, until=75)
    original.witness(renewed)
    silent(copy)
    assert not copy.has_lost(renewed)
    assert original.has_lost(renewed)


def test_after_a_boot_a_lease_is_lost_once_its_holder_was_silent(tmp_path: Path) -> None:
    machine = a_machine(tmp_path / "data")
    machine.witness(a_lease(BEFORE_THE_BOOT))
    assert not machine.has_lost(a_lease(BEFORE_THE_BOOT))
    silent(machine)
    assert machine.has_lost(a_lease(BEFORE_THE_BOOT))


def test_witnesses_that_nobody_removed_do_not_stay_for_good(tmp_path: Path) -> None:
    machine = a_machine(tmp_path / "data")
    machine.forget_old()
    machine.witness(a_lease(GONE_HERE))
    machine.forget_old()
    assert len(list((tmp_path / "data" / "leases").iterdir())) == 1
    silent(machine)
    machine.forget_old()
    assert list((tmp_path / "data" / "leases").iterdir()) == []
