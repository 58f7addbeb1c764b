"""Owns ``Idempotency-Key``: a request that is repeated under its key happens once, and gets the same answer."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, cast

from fastapi import Depends, Header, Request

from holdfast.domain.ids import MAX_ID, check_id
from holdfast.engine.holdfast import Holdfast
from holdfast.errors import InvalidInput
from holdfast.store.contract import KeyedCall, Store
from holdfast.store.verbs import KEY_HEADER, verbs
from holdfast.web.access import caller_of, confined, verb_of
from holdfast.web.serving import Served, served, signed


class _Once:
    """A store on which one verb happens once; all others are as they were."""

    def __init__(self, store: Store, verb: str, call: KeyedCall) -> None:
        self._store = store
        self._verb = verb
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store.once(self._call) if name == self._verb else self._store, name)


async def once(request: Request, holdfast: Holdfast) -> Holdfast:
    """The same Holdfast, on a store that records the caller; with a key, the verb of the request happens once.

    A key belongs to the caller who used it, and to the request that it was used for.
    """
    holdfast = signed(request, holdfast)
    keys = request.headers.getlist(KEY_HEADER)
    if not keys:
        return holdfast
    if len(keys) > 1:
        raise InvalidInput(KEY_HEADER, "is given more than once")
    store, verb = holdfast.store, verb_of(request)
    asked = hashlib.sha256(f"{request.method} {request.url.path}\n".encode() + await request.body())
    call = KeyedCall(
        caller_of(request).id, check_id(KEY_HEADER, keys[0]), asked.hexdigest(), verbs()[verb].answer
    )
    request.state.call = call
    return Holdfast(cast(Store, _Once(store, verb, call)), holdfast.policy)


async def _once(
    request: Request,
    _described: Served,  # for its header
    _documented: Annotated[str | None, Header(alias=KEY_HEADER, max_length=MAX_ID)] = None,
) -> Holdfast:
    return confined(caller_of(request), await once(request, served(request)))


ServedOnce = Annotated[Holdfast, Depends(_once)]
