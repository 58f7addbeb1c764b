"""Owns taking the spool to its store: in order, each record once, and none that is broken in the way of the next."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.clock import system_clock
from holdfast.config import Settings, default_url
from holdfast.domain.delegations import DelegationEnd, DelegationOutcome, NewDelegation, Question
from holdfast.domain.policy import NotifyPolicy
from holdfast.domain.records import PlainRecord
from holdfast.errors import Conflict, Forbidden, HoldfastError, InvalidInput, NotFound
from holdfast.hooks.configuration import spool_dir
from holdfast.hooks.log import HookLog
from holdfast.hooks.places import RECORD, record_names
from holdfast.hooks.spool import COPY, PARTIAL, forget_marks, settle_partial
from holdfast.notifying import done_notice, notify
from holdfast.store.contract import Store

_LOCK = "lock"
_BROKEN = ".broken"
#: what the record itself is to blame for; anything else may be over when it is tried again
_BROKEN_FOR_GOOD = (
    InvalidInput,
    NotFound,
    Conflict,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
)
_Verb = Callable[[Store, NotifyPolicy, Mapping[str, Any]], object]


def _end_delegation(store: Store, policy: NotifyPolicy, fields: Mapping[str, Any]) -> None:
    ended = store.end_delegation(DelegationEnd(**{**fields, "outcome": DelegationOutcome(fields["outcome"])}))
    if ended is not None and ended.finalized_now:
        notify(policy, done_notice(store.get_session(ended.session_id)))


def _observe(store: Store, _: NotifyPolicy, fields: Mapping[str, Any]) -> object:
    from holdfast.domain.observed import Sighting
    from holdfast.hooks.watching import watch  # brings what reads transcripts

    return watch(store, Sighting(**fields))


_VERBS: dict[str, _Verb] = {
    "delegate": lambda store, _, fields: store.delegate(NewDelegation(**fields)),
    "ask_delegation": lambda store, _, fields: store.ask_delegation(Question(**fields)),
    "end_delegation": _end_delegation,
    "lose_delegations": lambda store, _, fields: store.lose_delegations(fields["provider_session_id"]),
    "observe_session": _observe,
}


def empty_spool(store: Store, settings: Settings, environ: Mapping[str, str]) -> int:
    """How many records the store has taken. Never raises: what stays is taken by the next one who opens the store."""
    url = settings.url or default_url(environ)
    place = spool_dir(environ, url, settings.workspace)
    if place is None or not Path(place).is_dir():
        return 0
    is_copied = not url.startswith("sqlite:")  # hooks look into the SQLite file itself
    log = HookLog(environ, "spool")
    try:
        if not is_copied and not any(file.suffix in (RECORD, PARTIAL) for file in Path(place).iterdir()):
            return 0
        with _alone(Path(place)) as is_alone:
            if not is_alone:
                return 0
            settle_partial(place)
            taken = _take_records(store, settings.policy.notify, Path(place), log)
            if is_copied:
                _renew_copy(store, Path(place))
            # not before the copy says who works in what
            forget_marks(place, {str(record.get("key")) for record in taken})
            return len(taken)
    except (HoldfastError, OSError) as exc:
        log.problem(exc)
        return 0


@contextmanager
def _alone(place: Path) -> Iterator[bool]:
    """False if someone else is at it."""
    descriptor = os.open(place / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _take_records(store: Store, policy: NotifyPolicy, place: Path, log: HookLog) -> list[dict[str, Any]]:
    taken: list[dict[str, Any]] = []
    for name in record_names(str(place)):
        file = place / name
        try:
            record = json.loads(file.read_bytes())
            _VERBS[record["verb"]](store, policy, record["fields"])
        except _BROKEN_FOR_GOOD as exc:
            log.say("set aside", record=file, error=type(exc).__name__, message=exc)
            file.rename(file.with_suffix(_BROKEN))
            continue
        except Forbidden as exc:
            # of another agent on this machine: whoever may say it takes it there
            log.say("left", record=file, message=exc)
            continue
        # the verbs are idempotent: if this process dies in between, the next one says it again
        file.unlink()
        taken.append(record)
    return taken


def _renew_copy(store: Store, place: Path) -> None:
    copy = {"at": system_clock(), "sessions": [_plain(free) for free in store.free_sessions()]}
    partial = place / f"{COPY}{PARTIAL}"
    partial.touch(mode=0o600)
    partial.write_text(json.dumps(copy), "utf-8")
    partial.replace(place / COPY)


def _plain(value: object) -> Any:
    if isinstance(value, PlainRecord):
        return {name: _plain(getattr(value, name)) for name in type(value).__annotations__}
    return list(value) if isinstance(value, tuple) else value
