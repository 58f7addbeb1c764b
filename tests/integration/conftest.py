"""Owns the SQLite file that integration tests work on, unless they bring a store of their own."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.store.contract import Store
from holdfast.store.open import open_store


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "holdfast.db"


@pytest.fixture
def url(file: Path) -> str:
    return f"sqlite:///{file}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_store(url)) as store:
        yield store
