"""Owns the peers: libraries that keep the sessions of agents, each used as its own documentation shows.

None of them does the same as Holdfast, so each says in its caveat what one operation of it is.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

from bench import seed
from bench import workload as w
from bench.measure import Task, awaits, calls

MESSAGES = [{"role": "user", "content": w.PROMPT}, {"role": "assistant", "content": w.RESPONSE}]


class Peer(Protocol):
    name: str
    caveat: str

    def tasks(self) -> dict[str, Task]:
        """By the names of the operations it can do."""
        ...

    def with_turns(self, turns: int) -> dict[str, Task]:
        """``commit a turn`` and ``read the whole history`` on a session with so many turns behind it."""
        ...

    def close(self) -> None: ...


def open_peers(directory: Path, name: str = "peers") -> list[Peer]:
    folder = directory / name
    folder.mkdir()
    return [LangGraph.on_sqlite(folder / "langgraph.db"), OpenAIAgents(folder), GoogleAdk(folder)]


def _ids(count: int) -> list[str]:
    return [w.new_session_id() for _ in range(count)]


def _same(session: object) -> Callable[[int], Sequence[object]]:
    return lambda count: [session] * count


class LangGraph:
    name = "langgraph-checkpoint"
    caveat = (
        "LangGraph: one `put` of a checkpoint that holds the whole state, all messages included, or one"
        " `get_tuple` that reads it."
    )

    def __init__(self, saver: Any, close: Callable[[], None]) -> None:
        self._saver = saver
        self.close = close

    @classmethod
    def on_sqlite(cls, path: Path) -> LangGraph:
        from langgraph.checkpoint.sqlite import SqliteSaver

        connection = sqlite3.connect(path, check_same_thread=False)
        saver = SqliteSaver(connection)
        saver.setup()
        return cls(saver, connection.close)

    @classmethod
    def on_postgres(cls, url: str) -> LangGraph:
        from langgraph.checkpoint.postgres import PostgresSaver

        context = PostgresSaver.from_conn_string(url)
        saver = context.__enter__()
        saver.setup()
        return cls(saver, lambda: context.__exit__(None, None, None))

    def tasks(self) -> dict[str, Task]:
        return {
            "create": calls(lambda thread: self._put(thread, []), _ids),
            "update": calls(lambda thread: self._put(thread, []), _ids),
            "commit a turn": self.with_turns(1)["commit a turn"],
        }

    def with_turns(self, turns: int) -> dict[str, Task]:
        thread = w.new_session_id()
        messages = MESSAGES * turns
        self._put(thread, messages)
        return {
            "commit a turn": calls(lambda _: self._put(thread, messages), _same(None)),
            "read the whole history": calls(self._saver.get_tuple, _same(_thread(thread))),
        }

    def _put(self, thread: str, messages: list[dict[str, str]]) -> None:
        from langgraph.checkpoint.base import empty_checkpoint

        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": messages, **w.METADATA}
        # every put is a new version of the messages, so the whole of them is written again
        versions = {"messages": checkpoint["id"]}
        checkpoint["channel_versions"] = versions
        self._saver.put(_thread(thread), checkpoint, {"source": "loop", "step": 1}, versions)


def _thread(thread: str) -> dict[str, dict[str, str]]:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


class OpenAIAgents:
    name = "openai-agents"
    caveat = (
        "OpenAI Agents: `SQLiteSession.add_items` with both messages in one transaction, no state of the"
        " session beside them; `get_items` reads them all. A session is made by its first message."
    )

    def __init__(self, folder: Path) -> None:
        self._path = folder / "openai.db"
        self._loop = asyncio.new_event_loop()
        self._sessions: list[Any] = []

    def _session(self) -> Any:
        from agents.memory.sqlite_session import SQLiteSession

        session = SQLiteSession(w.new_session_id(), self._path)
        self._sessions.append(session)
        return session

    def _awaits(self, run: Callable[[Any], Coroutine[Any, Any, object]], session: object) -> Task:
        return awaits(run, _same(session), self._loop.run_until_complete)

    def tasks(self) -> dict[str, Task]:
        return {"commit a turn": self.with_turns(1)["commit a turn"]}

    def with_turns(self, turns: int) -> dict[str, Task]:
        session = self._session()
        self._loop.run_until_complete(session.add_items(MESSAGES * turns))
        return {
            "commit a turn": self._awaits(lambda s: s.add_items(MESSAGES), session),
            "read the whole history": self._awaits(lambda s: s.get_items(), session),
        }

    def close(self) -> None:
        for session in self._sessions:
            session.close()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


class GoogleAdk:
    name = "google-adk"
    caveat = (
        "Google ADK: `SqliteSessionService`, a new connection for each call and a rollback journal; a turn is"
        " two `append_event` calls, each a transaction of its own; `get_session` reads all events."
    )

    def __init__(self, folder: Path) -> None:
        from google.adk.sessions.sqlite_session_service import SqliteSessionService

        self._path = folder / "adk.db"
        self._loop = asyncio.new_event_loop()
        self._service = SqliteSessionService(str(self._path))

    def _awaits(
        self, run: Callable[[Any], Coroutine[Any, Any, object]], prepare: Callable[[int], Sequence[object]]
    ) -> Task:
        return awaits(run, prepare, self._loop.run_until_complete)

    async def _create(self, session_id: str) -> Any:
        return await self._service.create_session(
            app_name="bench", user_id="bench", state=dict(w.METADATA), session_id=session_id
        )

    async def _get(self, session_id: str) -> Any:
        return await self._service.get_session(app_name="bench", user_id="bench", session_id=session_id)

    async def _append(self, session: Any, author: str, text: str, state: dict[str, Any]) -> None:
        from google.adk.events import Event, EventActions
        from google.genai import types

        role = "user" if author == "user" else "model"
        content = types.Content(role=role, parts=[types.Part(text=text)])
        event = Event(author=author, content=content, actions=EventActions(state_delta=state))
        await self._service.append_event(session, event)

    async def _turn(self, session: Any) -> None:
        await self._append(session, "user", w.PROMPT, {})
        await self._append(session, "agent", w.RESPONSE, dict(w.PATCH))

    def tasks(self) -> dict[str, Task]:
        session = self._loop.run_until_complete(self._create(w.new_session_id()))
        return {
            "create": self._awaits(self._create, _ids),
            "update": self._awaits(lambda s: self._append(s, "agent", "", dict(w.PATCH)), _same(session)),
            "commit a turn": self.with_turns(1)["commit a turn"],
        }

    def with_turns(self, turns: int) -> dict[str, Task]:
        session_id = w.new_session_id()
        session = self._loop.run_until_complete(self._create(session_id))
        self._loop.run_until_complete(self._turn(session))
        connection = sqlite3.connect(self._path)
        with connection:
            seed.multiply(
                connection, "events", f"session_id = '{session_id}'", 2, turns, {"id": "id || '-' || n"}
            )
        connection.close()
        session = self._loop.run_until_complete(self._get(session_id))
        return {
            "commit a turn": self._awaits(self._turn, _same(session)),
            "read the whole history": self._awaits(self._get, _same(session_id)),
        }

    def close(self) -> None:
        self._loop.close()
