"""Owns procrastinate as a peer: a queue of jobs on PostgreSQL, used as its own documentation shows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import procrastinate
import psycopg

from bench import workload as w
from bench.crews import Shift
from bench.floor_sessions import wall_clock
from bench.floor_turns import NOTHING_TO_RESUME
from bench.postgres_stage import IN_SCHEMA

_RECORD = (
    """
INSERT INTO attempts (workspace, conversation_id, seq, number, session_id, provider, runtime_id, version, owner,
    claim_key, fence, cause, status, decision, reason, evidence, work_dir, model, rights, epoch, generation, seen,
    input_tokens, cached_input_tokens, output_tokens, cost_usd, started_at, ended_at)
VALUES (%(ws)s, %(conversation_id)s, %(seq)s, 1, %(session_id)s, %(provider)s, %(runtime_id)s, %(version)s,
    %(owner)s, %(key)s, %(seq)s, 'first', 'done', 'fresh', 'no_pointer', %(evidence)s, %(work_dir)s, %(model)s,
    '{}', 0, 0, %(seen)s, 300, 100, 250, 0.01, %(now)s, %(now)s)""",
    """
INSERT INTO messages (workspace, conversation_id, seq, role, revision, text)
VALUES (%(ws)s, %(conversation_id)s, %(seq)s, 'response', 0, %(response)s)""",
    """
UPDATE turns SET status = 'done', ended_at = %(now)s, attempts = 1, tries = 1
WHERE workspace = %(ws)s AND conversation_id = %(conversation_id)s AND seq = %(seq)s""",
    """
UPDATE sessions SET updated_at = %(now)s, error_count = 0, input_tokens = input_tokens + 300,
    cached_input_tokens = cached_input_tokens + 100, output_tokens = output_tokens + 250,
    cost_usd = cost_usd + 0.01 WHERE workspace = %(ws)s AND id = %(session_id)s""",
)

#: what a job is given: everything that a worker needs, as it has no other store
Body = Callable[..., Awaitable[None]]
_TASK = "turn"
#: of one worker: one that works and one that listens
_CONNECTIONS = 2


def defer_turns(url: str, sessions: Sequence[str], turns: int) -> None:
    """A job for each turn, under the lock of its session; the first turns of all sessions come first."""
    asyncio.run(_defer(_app(url, _nothing), sessions, turns))


async def _defer(app: procrastinate.App, sessions: Sequence[str], turns: int) -> None:
    deferrers = {session_id: app.tasks[_TASK].configure(lock=session_id) for session_id in sessions}
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for seq in range(1, turns + 1):
            jobs = [
                deferrer.make_new_job(session_id=session_id, seq=seq, prompt=w.PROMPT)
                for session_id, deferrer in deferrers.items()
            ]
            await app.job_manager.batch_defer_jobs_async(jobs)
        await app.connector.execute_query_async("ANALYZE")


def check_jobs(url: str) -> None:
    """A job that failed would have been done in no time, and workers without jobs do nothing."""
    with psycopg.connect(url) as connection:
        statuses = connection.execute("SELECT DISTINCT status::text FROM procrastinate_jobs").fetchall()
    if ("failed",) in statuses or ("todo",) not in statuses:
        raise RuntimeError("jobs of procrastinate failed, or none were left: its figures mean nothing")


class Recording:
    """Jobs that leave the record of a turn in Holdfast's tables, in one transaction of a connection of its own."""

    def __init__(self, url: str, number: int) -> None:  # noqa: ARG002 - workers are all alike
        self._runner = asyncio.Runner()
        self._connection = self._runner.run(
            psycopg.AsyncConnection.connect(url, autocommit=True, options=IN_SCHEMA)
        )
        self._worker = _Worker(self._runner, url, self._record)

    def work(self, shift: Shift) -> None:
        self._worker.work(shift)

    def close(self) -> None:
        self._runner.run(self._connection.close())
        self._worker.close()

    async def _record(self, session_id: str, seq: int, prompt: str) -> None:
        given = {
            "ws": w.WORKSPACE, "session_id": session_id, "conversation_id": w.conversation_of(session_id),
            "seq": seq, "provider": w.PROVIDER, "runtime_id": w.RUNTIME.id, "version": w.RUNTIME.version,
            "owner": w.OWNER, "key": f"{session_id}-{seq}", "evidence": NOTHING_TO_RESUME,
            "work_dir": w.WORK_DIR, "model": w.MODEL, "seen": "1" if seq == 1 else f"1-{seq}",
            "response": w.RESPONSE if prompt else "", "now": wall_clock(),
        }  # fmt: skip
        async with self._connection.transaction():
            for statement in _RECORD:
                await self._connection.execute(statement, given)


class Empty:
    """Jobs without a body: what the queue alone costs."""

    def __init__(self, url: str, number: int) -> None:  # noqa: ARG002 - workers are all alike
        self._worker = _Worker(asyncio.Runner(), url, _nothing)
        self.work = self._worker.work
        self.close = self._worker.close


async def _nothing(**_: object) -> None:
    pass


class _Worker:
    """One job at a time, as its own documentation shows, within an event loop that goes on between shifts."""

    def __init__(self, runner: asyncio.Runner, url: str, body: Body) -> None:
        self._runner = runner
        self._shift: Shift | None = None
        self._app = _app(url, self._counted(body))
        self._runner.run(self._app.open_async().__aenter__())

    def work(self, shift: Shift) -> None:
        self._shift = shift
        self._runner.run(self._until_over(shift))

    def close(self) -> None:
        self._runner.run(self._app.close_async())
        self._runner.close()

    def _counted(self, body: Body) -> Body:
        async def counted(**given: object) -> None:
            await body(**given)
            assert self._shift is not None
            self._shift.done()

        return counted

    async def _until_over(self, shift: Shift) -> None:
        working = asyncio.create_task(self._app.run_worker_async(install_signal_handlers=False))
        await asyncio.wait([working], timeout=shift.ends_at - time.monotonic())
        working.cancel()
        await asyncio.wait([working])


def _app(url: str, body: Body) -> procrastinate.App:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, min_size=_CONNECTIONS))
    app.task(body, name=_TASK)
    return app
