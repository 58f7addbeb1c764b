"""Owns what cannot happen to a fleet at work: an older database put back, with an agent that went on since."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests.chaos.databases import Database, Postgres

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
LATER = "what the older database does not know"


@dataclass(frozen=True)
class Drill:
    hit: bool  #: the agent's session holds a turn that the database that was put back does not
    unsaid: bool  #: and it was resumed as if there were none


def restore_database(database: Database, root: Path, number: int) -> Drill:
    """One session of its own, in a database of its own on the same engine."""
    folder = root / f"drill-{number}"
    folder.mkdir()
    kept = _Kept(database, folder, f"drill_{number}")
    first = kept.run("run", "SAY one", "--provider", "scripted")
    session = str(first["session_id"])
    kept.run("resume", session, "SAY two")
    kept.save()
    kept.run("resume", session, f"SAY {LATER}")
    kept.put_back()
    last = kept.run("resume", session, "SAY four")
    hit = any(LATER in file.read_text() for file in folder.glob("agent/sessions/*.jsonl"))
    told = kept.told("show", session) + kept.told("log", session) + json.dumps(last)
    is_resumed = last["decision"]["kind"] == "resume"
    shutil.rmtree(folder)
    return Drill(hit, is_resumed and LATER not in told)


class _Kept:
    def __init__(self, database: Database, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._server = database.url if isinstance(database, Postgres) else None
        self._file = folder / "holdfast.db"
        self._change(f"CREATE DATABASE {name}")

    @property
    def _url(self) -> str:
        if self._server is None:
            return f"sqlite:///{self._file}"
        path, _, options = self._server.partition("?")
        return f"{path.rpartition('/')[0]}/{self._name}" + (f"?{options}" if options else "")

    def run(self, *command: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.told(*command))
        return found

    def told(self, *command: str) -> str:
        environ = {
            "PATH": os.environ["PATH"], "HOME": str(self._folder), "SCRIPTED_HOME": str(self._folder / "agent"),
            "HOLDFAST_URL": self._url,
        }  # fmt: skip
        done = subprocess.run(
            [HOLDFAST, *command, "--json"], cwd=self._folder, env=environ, capture_output=True, text=True,
            check=True, timeout=120,
        )  # fmt: skip
        return done.stdout

    def save(self) -> None:
        if self._server is None:
            self._checkpoint()
            shutil.copy(self._file, self._file.with_name("saved.db"))
        else:
            self._change(f"CREATE DATABASE {self._name}_saved TEMPLATE {self._name}")

    def put_back(self) -> None:
        if self._server is None:
            self._checkpoint()
            for file in self._folder.glob("holdfast.db*"):
                file.unlink()
            shutil.copy(self._file.with_name("saved.db"), self._file)
        else:
            self._change(f"DROP DATABASE {self._name}")
            self._change(f"ALTER DATABASE {self._name}_saved RENAME TO {self._name}")

    def _checkpoint(self) -> None:
        import sqlite3

        with closing(sqlite3.connect(self._file)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _change(self, statement: str) -> None:
        if self._server is not None:
            with closing(psycopg.connect(self._server, autocommit=True)) as connection:
                connection.execute(statement.encode())
