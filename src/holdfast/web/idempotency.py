"""Owns ``Idempotency-Key``: a request that is made again under the same key happens once, and is answered alike."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, cast

from fastapi import Depends, Header, Request

from holdfast.domain.ids import MAX_ID, check_id
from holdfast.engine.holdfast import Holdfast
from holdfast.errors import InvalidInput
from holdfast.store.contract import Store
from holdfast.store.sql.calls import Call
from holdfast.store.sql_store import SqlStore
from holdfast.store.verbs import KEY_HEADER, verbs
from holdfast.web.access import caller_of, confined, verb_of
from holdfast.web.serving import Served, served, signed


class _Once:
    """A store on which one verb happens once."""

    def __init__(self, store: SqlStore, verb: str, call: Call) -> None:
        self._store = store
        self._verb = verb
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store.once(self._call) if name == self._verb else self._store, name)


async def once(request: Request, holdfast: Holdfast) -> Holdfast:
    """On whose store the verb of the request is signed, and happens once if the request has a key.

    A key belongs to the caller who used it, and to the request that it was used for.
    """
    holdfast = signed(request, holdfast)
    keys = request.headers.getlist(KEY_HEADER)
    if not keys:
        return holdfast
    if len(keys) > 1:
        raise InvalidInput(KEY_HEADER, "is given more than once")
    store, verb = holdfast.store, verb_of(request)
    assert isinstance(store, SqlStore)
    asked = hashlib.sha256(f"{request.method} {request.url.path}\n".encode() + await request.body())
    call = Call(caller_of(request).id, check_id(KEY_HEADER, keys[0]), asked.hexdigest(), verbs()[verb].answer)
    return Holdfast(cast(Store, _Once(store, verb, call)), holdfast.policy)


async def _once(
    request: Request,
    _described: Served,  # for its header
    _documented: Annotated[str | None, Header(alias=KEY_HEADER, max_length=MAX_ID)] = None,
) -> Holdfast:
    return confined(caller_of(request), await once(request, served(request)))


ServedOnce = Annotated[Holdfast, Depends(_once)]
