"""Owns the examination: the table of checks, made one after the other, and mending what can be mended safely."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from holdfast.domain.records import record, replace
from holdfast.engine.doctor.database import check_clock, check_damage, check_disk, check_store
from holdfast.engine.doctor.files import (
    check_configuration,
    check_leftovers,
    check_permissions,
    check_spool,
)
from holdfast.engine.doctor.findings import Finding, Severity, problem, warning
from holdfast.engine.doctor.programs import check_agents, check_homes, check_path, check_the_hooks
from holdfast.engine.doctor.scene import Scene
from holdfast.engine.doctor.vault import check_vault
from holdfast.engine.doctor.work import (
    check_orphans,
    check_queue,
    check_retention,
    check_sessions,
    check_transcripts,
)
from holdfast.errors import Forbidden, HoldfastError


@record
class Check:
    name: str
    look: Callable[[Scene], Iterable[Finding]]
    needs_store: bool = False


#: in the order in which they are made; a new check is a function and a line
CHECKS: Final = (
    Check("configuration", check_configuration),
    Check("holdfast", check_path),
    Check("store", check_store),
    Check("damage", check_damage, needs_store=True),
    Check("disk", check_disk),
    Check("permissions", check_permissions),
    Check("leftovers", check_leftovers),
    Check("clock", check_clock, needs_store=True),
    Check("sessions", check_sessions, needs_store=True),
    Check("orphans", check_orphans, needs_store=True),
    Check("queue", check_queue, needs_store=True),
    Check("spool", check_spool),
    Check("agents", check_agents),
    Check("homes", check_homes),
    Check("hooks", check_the_hooks),
    Check("transcripts", check_transcripts, needs_store=True),
    Check("retention", check_retention),
    Check("vault", check_vault, needs_store=True),
)


def examine(scene: Scene) -> tuple[Finding, ...]:
    """All findings, in the order of the checks. Changes nothing. Raises nothing that a store or a file can cause."""
    return tuple(finding for check in CHECKS for finding in _made(check, scene))


def _made(check: Check, scene: Scene) -> Iterator[Finding]:
    if check.needs_store and scene.store is None:
        return
    try:
        for finding in check.look(scene):
            yield replace(finding, check=check.name)
    except Forbidden as exc:
        meaning = "An examination on the server, by somebody who may read its database, sees more."
        yield replace(warning("check_forbidden", exc.message, meaning, "holdfast doctor"), check=check.name)
    except (HoldfastError, OSError) as exc:
        meaning = "This check could not be made to its end; the others were."
        found = (
            exc.message if isinstance(exc, HoldfastError) else f"{exc.filename or 'a file'}: {exc.strerror}"
        )
        yield replace(problem("check_failed", found, meaning, None), check=check.name)


@record
class Mended:
    """One finding that ``mend`` acted on."""

    finding: Finding
    done: str | None  #: what was done; None: it failed
    error: str | None = None


@record
class Examination:
    """The findings as they are in the end, what was done before, and the copy of the database that was made first."""

    findings: tuple[Finding, ...]
    mended: tuple[Mended, ...] = ()
    copy: str | None = None

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)


def mend(scene: Scene) -> Examination:
    """Examine, mend what is safe to mend, and examine again, until nothing is left that was not tried.

    A SQLite database is copied before the first change. What cannot be copied is not changed.
    """
    mended: list[Mended] = []
    tried: set[tuple[str, tuple[str, ...]]] = set()
    copy = None
    while True:
        findings = examine(scene)
        # an old schema hides what is in the database, so there may be more after the first round
        left = [one for one in findings if one.mending is not None and (one.code, one.subjects) not in tried]
        if not left:
            return Examination(findings, tuple(mended), copy)
        for finding in left:
            tried.add((finding.code, finding.subjects))
            try:
                if copy is None and finding.mending is not None and finding.mending.changes_store:
                    copy = scene.opened_store.back_up()
                mended.append(Mended(finding, _act(finding)))
            except (HoldfastError, OSError) as exc:
                mended.append(Mended(finding, None, str(exc)))
        scene.look_again()


def _act(finding: Finding) -> str:
    assert finding.mending is not None
    return finding.mending.act()
