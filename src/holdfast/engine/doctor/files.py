"""Owns the checks of Holdfast's own files: the configuration, who may read them, the spool, what killed programs left."""

from __future__ import annotations

import os
import pwd
import shlex
import stat
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from holdfast.clock import SECOND, system_clock
from holdfast.config import cache_dir, data_dir, state_dir
from holdfast.config_files import PROJECT_FILE, project_file, user_file
from holdfast.engine.doctor.findings import Finding, Mending, counted, ok, problem, warning
from holdfast.engine.doctor.scene import Scene
from holdfast.hooks.process import LOG_NAME, record_names
from holdfast.hooks.settings import spool_dir
from holdfast.hooks.spool import BROKEN, MOST_RECORDS, empty_spool
from holdfast.processes.owners import this_user

#: a record of a hook is taken to the store within a few seconds
_SPOOL_SECONDS = 60
#: no copy of a database takes that long
_LEFT_SECONDS = 24 * 3600
_XDG = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")
_EFFECTIVE = os.access in os.supports_effective_ids
_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_WRITE_OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def check_configuration(scene: Scene) -> Iterator[Finding]:
    if scene.settings_error is not None:
        yield problem(
            "configuration_wrong",
            scene.settings_error.message,
            "No command works here until it is corrected. The store was not examined.",
            None,
        )
        return
    notices = () if scene.settings is None else scene.settings.notices
    for notice in notices:
        meaning = "These settings have no effect here. Read the file before you trust it."
        command = "holdfast trust --show" if "holdfast trust" in notice else None
        yield warning("configuration_ignored", notice, meaning, command)
    passed_over = scene.cwd / PROJECT_FILE
    if passed_over.exists() and project_file(scene.environ, scene.cwd) is None:
        yield warning(
            "configuration_ignored",
            f"{passed_over} is ignored: everybody may write to its directory",
            "Somebody else could have put it there. Move the project to a directory of your own.",
            shlex.join(["ls", "-ld", str(scene.cwd)]),
            [str(passed_over)],
        )
    relative = [
        name for name in _XDG if scene.environ.get(name) and not Path(scene.environ[name]).is_absolute()
    ]
    if relative:
        yield warning(
            "configuration_ignored",
            f"{', '.join(relative)}: a relative path, which is ignored",
            "Holdfast uses the usual place in your home directory instead.",
            f"unset {' '.join(relative)}",
        )
    if not notices and not relative:
        yield ok("configuration_read", _read_files(scene))


def _read_files(scene: Scene) -> str:
    files = (user_file(scene.environ, scene.cwd), project_file(scene.environ, scene.cwd))
    return ", ".join(str(file) for file in files if file is not None) or "no configuration file"


# --- who may read and write ---


def check_permissions(scene: Scene) -> Iterator[Finding]:
    folders, files = _own_folders(scene), _own_files(scene)
    yield from _owned_by_others(scene, [*folders, *files])
    closed = list(_not_writable(scene))
    yield from closed
    wrong = bool(closed)
    for paths, mode, what in ((folders, 0o700, "directory"), (files, 0o600, "file")):
        loose = [path for path in paths if _mode(path) & _OF_OTHERS]
        if not loose:
            continue
        wrong = True
        names = [str(path) for path in loose]
        number = counted(len(loose), what, "directories" if what == "directory" else None)
        is_writable = any(_mode(path) & _WRITE_OF_OTHERS for path in loose)
        make = problem if is_writable else warning
        yield make(
            "permissions_loose",
            f"other users may {'change' if is_writable else 'read'} {number} of Holdfast: {names[0]}",
            "They hold prompts, answers and what tools returned.",
            shlex.join(["chmod", f"{mode:o}", *names]),
            names,
            Mending(partial(_chmod, loose, mode)),
        )
    if not wrong:
        yield ok("permissions_tight", "only you may read what Holdfast keeps")


def _not_writable(scene: Scene) -> Iterator[Finding]:
    """Folders that Holdfast writes to, or would have to make."""
    wanted = [data_dir(scene.environ), state_dir(scene.environ), cache_dir(scene.environ)]
    if scene.database is not None:
        wanted.append(scene.database.parent)
    there = (next(one for one in (folder, *folder.parents) if os.path.lexists(one)) for folder in wanted)
    closed = list(dict.fromkeys(str(one) for one in there if not _may_write(one)))
    if closed:
        yield problem(
            "folder_read_only",
            f"Holdfast cannot write to {counted(len(closed), 'directory', 'directories')}: {closed[0]}",
            "Its store, its locks and its log are written there. It is read-only for you, or is no directory.",
            shlex.join(["ls", "-ld", *closed]),
            closed,
        )


def _may_write(folder: Path) -> bool:
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK, effective_ids=_EFFECTIVE)  # noqa: PTH112


def _own_folders(scene: Scene) -> list[Path]:
    """A directory that was there before the database keeps its mode, so only Holdfast's own are asked for."""
    own = (data_dir(scene.environ), state_dir(scene.environ), cache_dir(scene.environ))
    inner = [data_dir(scene.environ) / name for name in ("locks", "leases", "trusted")]
    spools = state_dir(scene.environ) / "spool"
    return [path for path in (*own, *inner, spools, *_children(spools)) if path.is_dir()]


def _own_files(scene: Scene) -> list[Path]:
    found = [state_dir(scene.environ) / LOG_NAME]
    if scene.database is not None:
        found += [scene.database, Path(f"{scene.database}-gate")]
        found += sorted(scene.database.parent.glob(f"{scene.database.name}.*.backup"))
        if scene.database.is_file() and not _mode(scene.database) & _OF_OTHERS:
            # SQLite makes these with the mode of the database, and removes them when nobody has it open
            found += [Path(f"{scene.database}-wal"), Path(f"{scene.database}-shm")]
    mine = user_file(scene.environ, scene.cwd)
    if mine is not None and scene.settings is not None and scene.settings.sources.get("token") == str(mine):
        found.append(mine)
    return [path for path in found if path.is_file()]


def _owned_by_others(scene: Scene, paths: Sequence[Path]) -> Iterator[Finding]:
    home = Path(scene.environ.get("HOME") or "/")
    strange = [path for path in (home, *paths) if path.exists() and path.stat().st_uid != os.geteuid()]
    if strange:
        yield problem(
            "owner_other",
            f"{strange[0]} belongs to {_name(strange[0].stat().st_uid)}, and you are {this_user()}",
            "Files that you make there cannot be used by its owner, and the other way round; as after sudo.",
            shlex.join(["sudo", "chown", "-R", this_user(), *(str(path) for path in strange[:3])]),
            [str(path) for path in strange],
        )


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _chmod(paths: Sequence[Path], mode: int) -> str:
    for path in paths:
        path.chmod(mode)
    return f"set the mode of {counted(len(paths), 'path')} to {mode:o}"


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


# --- the spool ---


def check_spool(scene: Scene) -> Iterator[Finding]:
    """Records that hooks could not give to the store themselves."""
    spools = state_dir(scene.environ) / "spool"
    ours = _spool_of(scene)
    old = {folder: _old_records(folder) for folder in _children(spools) if folder.is_dir()}
    waiting = old.pop(ours, 0) if ours is not None else 0
    if waiting:
        full = waiting >= MOST_RECORDS
        make = problem if full else warning
        yield make(
            "spool_waits",
            f"{counted(waiting, 'record')} of hooks wait to be taken to the store",
            "Delegations and watched sessions are not up to date. Every command that opens the store takes them there."
            + (" No more records fit, and hooks record nothing." if full else ""),
            "holdfast doctor --fix",
            [str(ours)],
            None if scene.store is None else Mending(lambda: _empty(scene), changes_store=True),
        )
    elsewhere = [folder for folder, number in old.items() if number]
    if elsewhere:
        yield warning(
            "spool_elsewhere",
            f"{counted(sum(old.values()), 'record')} of hooks wait for another store or workspace",
            "Any command on that store takes them there: set HOLDFAST_URL and HOLDFAST_WORKSPACE as they were.",
            "holdfast list",
            [str(folder) for folder in elsewhere],
        )
    broken = [
        str(file) for folder in _children(spools) for file in _children(folder) if file.name.endswith(BROKEN)
    ]
    if broken:
        yield warning(
            "spool_broken",
            f"{counted(len(broken), 'record')} of hooks could not be understood and were set aside",
            "The other records were taken. The log says why; the files can be deleted.",
            f"grep 'set aside' {shlex.quote(str(state_dir(scene.environ) / LOG_NAME))}",
            broken,
        )
    if not waiting and not elsewhere and not broken:
        yield ok("spool_empty", "no record of a hook waits")


def _spool_of(scene: Scene) -> Path | None:
    if scene.url is None or scene.settings is None:
        return None
    found = spool_dir(scene.environ, scene.url, scene.settings.workspace)
    return None if found is None else Path(found)


def _old_records(folder: Path) -> int:
    """The names of records begin with the moment they were written."""
    names, latest = record_names(str(folder)), system_clock() - _SPOOL_SECONDS * SECOND
    return sum(name.partition("-")[0] <= f"{latest:020d}" for name in names)


def _empty(scene: Scene) -> str:
    assert scene.settings is not None
    taken = empty_spool(scene.opened_store, scene.settings, scene.environ)
    return f"took {counted(taken, 'record')} to the store"


# --- what killed programs left ---


def check_leftovers(scene: Scene) -> Iterator[Finding]:
    """Half copies of the database. Lock files are no leftovers: nobody holds a lock that a dead process had."""
    folder = None if scene.database is None else scene.database.parent
    if folder is None or scene.database is None or not folder.is_dir():
        return
    partial_copies = folder.glob(f"{scene.database.name}.*.partial*")
    left = [file for file in sorted(partial_copies) if _age(file) > _LEFT_SECONDS]
    if left:
        yield warning(
            "copies_half",
            f"{counted(len(left), 'half copy', 'half copies')} of the database are left of programs that were killed",
            "They only take room.",
            shlex.join(["rm", *(str(file) for file in left)]),
            [str(file) for file in left],
            Mending(partial(_remove, left)),
        )


def _age(file: Path) -> float:
    return system_clock() / SECOND - file.stat().st_mtime


def _remove(files: Sequence[Path]) -> str:
    for file in files:
        file.unlink(missing_ok=True)
    return f"removed {counted(len(files), 'half copy', 'half copies')}"
