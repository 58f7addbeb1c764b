"""Owns the section on the server: what HTTP adds to a verb of the store, beside an empty request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import httpx

from bench import workload as w
from bench.measure import Clock, Meter, Series, Task, calls, cpu_of, interleave
from bench.ours import Ours
from bench.results import Findings, Table, Target, micros
from bench.scale import Place
from holdfast.store.contract import Store
from holdfast.store.open import open_store

LIMIT = 2.0
#: nobody else may take the session while it is measured
LEASE_SECONDS = 3600.0
EMPTY = "empty request"
#: for orientation: what the framework takes to read JSON, and to answer with it
ECHO = "JSON there and back"
VERBS = ("get_session", "heartbeat")
_SERVE = [str(Path(sys.executable).with_name("holdfast")), "serve", "--port", "0", "--json", "--rate", "1e9"]
_SERVE_NOTHING = [sys.executable, str(Path(__file__).with_name("empty_server.py"))]
_STOP_SECONDS = 20.0


class Server(NamedTuple):
    url: str
    pid: int


def measure(place: Place, found: Findings) -> None:
    database = f"sqlite:///{place.directory}/http.db"
    settings = {"HOLDFAST_URL": database, "HOLDFAST_DURABILITY": "normal"}
    with _running(_SERVE, settings) as served, _running(_SERVE_NOTHING, {}) as bare:
        tasks = _tasks(open_store(database, durability="normal"), served, bare)
        rows = []
        for name, meter in _meters((os.getpid(), served.pid, bare.pid)).items():
            if isinstance(meter, OSError):
                found.targets += [
                    Target(_what(name, verb), LIMIT, None, why_not=str(meter)) for verb in VERBS
                ]
                continue
            series = interleave(tasks, place.scale.pace, batch=place.scale.batch, meter=meter)
            for verb in VERBS:
                times = _added(series, verb)
                found.targets.append(Target(_what(name, verb), LIMIT, times))
                shown = (EMPTY, ECHO, f"{verb}, directly", f"{verb}, over HTTP")
                rows.append(
                    [f"{verb}, {name}", *(micros(series[one].typical) for one in shown), f"{times:.2f} ×"]
                )
    found.tables.append(
        Table(
            "A verb over HTTP, µs",
            (
                "verb",
                EMPTY,
                ECHO,
                "the verb, on the store itself",
                "the verb, over HTTP",
                "what HTTP adds, in empty requests",
            ),
            rows,
            "(over HTTP − on the store itself) / empty request, each round for itself. Over HTTP: `holdfast serve`"
            " on SQLite, whose commits are not synced here, and the store that `HOLDFAST_URL=http://…` opens. The"
            " empty request: one `async` route without arguments, answer or middleware, the same FastAPI and uvicorn"
            " with the same settings, asked by the same `httpx` over a connection that stays open. JSON there and"
            " back, for orientation: a route that takes an empty object and answers with it. CPU is that of client"
            " and server together.",
        )
    )


def _what(meter: str, verb: str) -> str:
    return f"HTTP adds, in empty requests, {meter}: {verb}"


def _meters(pids: tuple[int, ...]) -> dict[str, Meter | Clock | OSError]:
    try:
        return {"wall time": "wall", "CPU": cpu_of(pids)}
    except OSError as exc:
        return {"wall time": "wall", "CPU": exc}


def _added(series: Mapping[str, Series], verb: str) -> float:
    rounds = (series[name].rounds for name in (EMPTY, f"{verb}, directly", f"{verb}, over HTTP"))
    return float(median((over - direct) / empty for empty, direct, over in zip(*rounds, strict=True)))


def _tasks(store: Store, served: Server, bare: Server) -> dict[str, Task]:
    ours = Ours(store)
    session_id = w.new_session_id()
    ours.create(session_id)
    ours.enqueue(session_id)
    claim = ours.claim()
    assert claim is not None
    lease = store.heartbeat(claim.lease, LEASE_SECONDS).lease

    def verbs(asked: Store) -> dict[str, Callable[[int], object]]:
        return {
            "get_session": lambda _: asked.get_session(session_id),
            "heartbeat": lambda _: asked.heartbeat(lease, LEASE_SECONDS),
        }

    tasks = {EMPTY: calls(_request_to(bare, "/empty"), range), ECHO: calls(_request_to(bare, "/echo"), range)}
    for how, asked in {"directly": store, "over HTTP": open_store(served.url)}.items():
        tasks |= {f"{verb}, {how}": calls(run, range) for verb, run in verbs(asked).items()}
    return tasks


def _request_to(server: Server, path: str) -> Callable[[int], object]:
    connections = httpx.HTTPTransport(trust_env=False)
    url, headers = httpx.URL(server.url + path), {"Content-Type": "application/json"}

    def ask(_: int) -> None:
        response = connections.handle_request(httpx.Request("POST", url, headers=headers, content=b"{}"))
        response.read()
        assert response.status_code == 200

    return ask


@contextmanager
def _running(command: list[str], settings: Mapping[str, str]) -> Iterator[Server]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | settings)
    assert process.stdout is not None
    try:
        with process.stdout as said:
            yield Server(json.loads(said.readline())["url"], process.pid)
    finally:
        process.terminate()
        process.wait(_STOP_SECONDS)
