"""Owns counting what is asked of a store: the calls, and the bytes of their answers as they travel over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

from holdfast.store.contract import Store
from holdfast.store.verbs import verbs


class CountedStore:
    """Passes every verb on; ``as_store`` is what an engine is given."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._verbs = verbs()
        self.calls: list[str] = []
        self.bytes_read = 0

    @property
    def as_store(self) -> Store:
        return cast(Store, self)

    def clear(self) -> None:
        self.calls, self.bytes_read = [], 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._counted(name, found) if name in self._verbs else found

    def _counted(self, name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: object, **kwargs: object) -> Any:
            self.calls.append(name)
            answer = verb(*args, **kwargs)
            self.bytes_read += len(json.dumps(self._verbs[name].answer.encode(answer)))
            return answer

        return call
