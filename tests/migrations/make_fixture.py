"""Owns making the fixtures of the newest version: a dump of a rich store, what it says, and the schema.

    python -m tests.migrations.make_fixture

Run it when a migration is added, and commit what it writes; the fixtures of older versions are kept as they are.
What a migration adds is in the fixture only if ``rich_store.py`` gives it a value and ``portrait.py`` reads it.
"""

import json
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from holdfast.store.migrate import migrations
from holdfast.store.open import open_store
from holdfast.store.sql import sqlite_words
from tests.clock import ManualClock
from tests.migrations.catalog import describe, sqlite_schema
from tests.migrations.portrait import portrait
from tests.migrations.rich_store import fill

HERE = Path(__file__).parent
FIXTURES = HERE / "fixtures"
SCHEMA = HERE / "schema.txt"


def main() -> None:
    version = migrations("sqlite")[-1].version
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "holdfast.db"
        clock = ManualClock()
        with closing(open_store(f"sqlite:///{path}", clock=clock)) as store:
            fill(store, clock)
            said = portrait(store)
        with closing(sqlite3.connect(path)) as connection:
            leave_out_words(connection)
            write(FIXTURES / f"v{version}.sqlite.sql", "\n".join(dump(connection)) + "\n")
            write(SCHEMA, describe(sqlite_schema(connection)))
    write(FIXTURES / f"v{version}.json", json.dumps(said, indent=1, ensure_ascii=False) + "\n")


def leave_out_words(connection: sqlite3.Connection) -> None:
    """The full-text index is no part of the schema: it is made when it is first needed, and cannot be dumped."""
    for statement in (*sqlite_words.EMPTY, "DROP TABLE search_words", "DROP INDEX turns_in_search"):
        connection.execute(statement)
    connection.commit()


def dump(connection: sqlite3.Connection) -> Iterator[str]:
    """As SQL, with the marks that SQLite's own dump leaves out."""
    yield from connection.iterdump()
    for mark in ("user_version", "application_id"):
        (value,) = connection.execute(f"PRAGMA {mark}").fetchone()
        yield f"PRAGMA {mark} = {value};"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, "utf-8")
    print(f"{path.relative_to(HERE.parents[1])}: {len(text.splitlines())} lines", file=sys.stderr)


if __name__ == "__main__":
    main()
