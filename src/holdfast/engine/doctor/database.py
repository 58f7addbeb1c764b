"""Owns the checks of the store itself: can it be opened, its schema, its damage, its size, its clock."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast.clock import SECOND, seconds_between, system_clock, to_iso
from holdfast.config import data_dir
from holdfast.engine.doctor.findings import Finding, Mending, counted, ok, problem, sized, warning
from holdfast.engine.doctor.scene import Scene
from holdfast.errors import (
    ConfigError,
    Forbidden,
    HoldfastError,
    SchemaTooNew,
    StoreCorrupt,
    StoreUnavailable,
    Unauthenticated,
)

_UPGRADE = "pip install --upgrade holdfast-sessions"
_LEAST_FREE_BYTES = 100_000_000
_LITTLE_FREE_BYTES = 1_000_000_000
#: a difference that a busy machine or network can make
_USUAL_SKEW_SECONDS = 5.0
_FUTURE_SECONDS = 60.0
_SHOWN_DAMAGE = 3


def check_store(scene: Scene) -> Iterator[Finding]:
    if scene.settings is None:
        return  # the configuration is the problem
    if scene.store_error is not None:
        yield _closed(scene, scene.store_error)
    elif scene.store is not None:
        yield from _open(scene)
    elif scene.schema is not None and scene.schema.found == 0:
        yield ok("store_new", f"there is no database yet ({_place(scene)}): the first command makes it")
    elif scene.schema is not None:
        found, known = scene.schema.found, scene.schema.known
        yield warning(
            "schema_old",
            f"the schema of {_place(scene)} has version {found}, this Holdfast has {known}",
            "The next command brings it up to date; SQLite files are copied before. Until then the sessions in it "
            "were not examined.",
            "holdfast doctor --fix",
            mending=Mending(lambda: _bring_up_to_date(scene, found)),
        )


def _place(scene: Scene) -> str:
    return str(scene.database) if scene.database is not None else "the database"


def _bring_up_to_date(scene: Scene, found: int) -> str:
    scene.open_store()
    known = "" if scene.schema is None else f" to version {scene.schema.known}"
    if scene.database is None:
        return f"brought the schema{known}"
    return f"brought the schema{known}; the database as it was: {scene.database}.v{found}.backup"


def _open(scene: Scene) -> Iterator[Finding]:
    store = scene.opened_store
    if scene.is_served:
        yield from _served(scene)
        return
    version = "" if scene.schema is None else f", schema {scene.schema.found}"
    yield ok("store_open", f"{store.where}{version}, {sized(store.bytes_used())}")


def _served(scene: Scene) -> Iterator[Finding]:
    store = scene.opened_store
    try:
        store.require_same_version()
    except ConfigError as exc:
        yield problem(
            "server_version",
            exc.message,
            "Workers cannot take turns from a server of another version, and some commands fail.",
            _UPGRADE,
            [store.where],
        )
    yield ok(
        "server_reached",
        f"{store.where} answers; {_role(scene)}",
        "The database, its size and its files are examined on the server.",
        "holdfast doctor",
    )


def _role(scene: Scene) -> str:
    """A call that only admins may make says which role the token has."""
    try:
        scene.opened_store.tokens()
    except Forbidden as exc:
        role = exc.details.get("role")
        return f"the token has the role {role}" if role else "it asks for no token"
    return "it lets you do everything"


def _closed(scene: Scene, error: HoldfastError) -> Finding:
    database = scene.database
    match error:
        case SchemaTooNew():
            meaning = "A newer Holdfast has written to this store. This one changes nothing there."
            return problem("schema_new", error.message, meaning, _UPGRADE)
        case StoreCorrupt() if database is not None:
            return _damaged(database, error.message)
        case Unauthenticated() | Forbidden():
            meaning = "The server does not let this token in. Ask whoever runs the server for one."
            return problem("token_refused", error.message, meaning, "holdfast token create --role operator")
        case ConfigError():
            meaning = "The store cannot be found. Correct what is named."
            return problem("store_unknown", error.message, meaning, None)
        case StoreUnavailable() if database is not None:
            meaning = "No session can be read or continued until the file can be opened by this user."
            return problem(
                "store_closed",
                error.message,
                meaning,
                shlex.join(["ls", "-ld", str(database.parent), str(database)]),
            )
        case _:
            meaning = "No session can be read or continued until it answers."
            where = error.details.get("where")
            command = (
                f"pg_isready -d {shlex.quote(str(where))}" if str(where).startswith("postgres") else None
            )
            return problem("store_closed", error.message, meaning, command)


def _damaged(database: Path, found: str) -> Finding:
    copies = sorted(database.parent.glob(f"{database.name}.*.backup"), key=lambda one: one.stat().st_mtime)
    newest = f" The newest copy of it is {copies[-1]}." if copies else ""
    recovered = f"{database}.recovered"
    return problem(
        "store_damaged",
        found,
        "Stop everything that uses this file and copy it with its -wal file before anything else. The command reads "
        f"what can still be read into a new file.{newest}",
        f"sqlite3 {shlex.quote(str(database))} .recover | sqlite3 {shlex.quote(recovered)}",
        [str(database)],
    )


def check_damage(scene: Scene) -> Iterator[Finding]:
    if scene.is_served:
        return
    damage = scene.opened_store.find_damage(deep=scene.deep)
    if not damage:
        how = "no damage" if scene.deep else "no damage (--deep also compares indexes)"
        yield ok("store_whole", how if scene.database is not None else "no checksum has failed")
        return
    told = f"{counted(len(damage), 'fault')}: {'; '.join(damage[:_SHOWN_DAMAGE])}"
    if scene.database is not None:
        yield _damaged(scene.database, f"{scene.database} is damaged, {told}")
    else:
        meaning = "The disk of the database server may be failing. Make a copy now."
        yield problem("store_damaged", told, meaning, "pg_dump --format=custom --file=holdfast.dump")


def check_disk(scene: Scene) -> Iterator[Finding]:
    """Of the SQLite file, or else of Holdfast's own files here."""
    place = scene.database.parent if scene.database is not None else data_dir(scene.environ)
    place = next((folder for folder in (place, *place.parents) if folder.exists()), place)
    free = shutil.disk_usage(place).free
    used = scene.store.bytes_used() if scene.store is not None and scene.database is not None else 0
    found = f"{sized(free)} are free on the disk of {place}"
    if free < _LEAST_FREE_BYTES:
        meaning = "Turns fail when their end cannot be written. Make room on this disk."
        yield problem("disk_full", found, meaning, f"du -sh {shlex.quote(str(place))}", [str(place)])
    elif free < max(_LITTLE_FREE_BYTES, 2 * used):
        meaning = "The database and its copies may soon find no room. Old sessions can be deleted."
        yield warning("disk_low", found, meaning, "holdfast cleanup --dry-run", [str(place)])
    else:
        yield ok("disk_room", found)


def check_clock(scene: Scene) -> Iterator[Finding]:
    store = scene.opened_store
    before = system_clock()
    now = store.now()
    later = system_clock()
    skew = (
        seconds_between(later, now) if now > later else seconds_between(before, now) if now < before else 0.0
    )
    if abs(skew) > _USUAL_SKEW_SECONDS:
        way = "ahead of" if skew < 0 else "behind"
        yield warning(
            "clock_skew",
            f"the clock of this machine is {abs(skew):.0f} s {way} that of the store",
            "Leases and times are the store's own, so no turn is lost. Times that agents and files report here are "
            "wrong by as much.",
            _set_clock(),
        )
    newest = scene.survey.newest_change
    ahead = 0.0 if newest is None else (newest[0] - now) / SECOND
    if newest is not None and ahead > _FUTURE_SECONDS:
        yield problem(
            "time_future",
            f"a session was changed at {to_iso(newest[0])}, which is {ahead:.0f} s from now",
            "The clock was ahead then, or is behind now. Until that moment the order of sessions and their idle times "
            "are wrong.",
            _set_clock(),
            [newest[1]],
        )
    elif abs(skew) <= _USUAL_SKEW_SECONDS:
        yield ok("clock_right", "the clocks agree")


def _set_clock() -> str:
    if sys.platform == "darwin":
        return "sudo systemsetup -setusingnetworktime on"
    return "sudo timedatectl set-ntp true"
