"""Owns the section on long histories: the same operation with 10 and with 10 000 turns behind it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from bench import seed
from bench import workload as w
from bench.floor import Floor
from bench.measure import Series, Task, calls, interleave, ratio
from bench.ours import Ours, open_sqlite
from bench.peers import open_peers
from bench.results import Curve, Findings, Table, Target, micros
from bench.scale import Place

FLAT_LIMIT = 1.2
WHOLE = "read the whole history"

#: one session in one file, and how to take back what a batch did to it
History = tuple[w.Subject, str, Callable[[], None]]


def measure(place: Place, found: Findings) -> None:
    folder = place.directory / "histories"
    folder.mkdir()
    sizes = place.scale.histories
    histories: dict[tuple[str, int], History] = {}
    for size in sizes:
        histories["floor", size], histories["Holdfast", size] = _open_pair(folder, size)
    rows: list[list[str]] = []
    for name, (make, size_of_batch) in _OPERATIONS.items():
        tasks = {f"{label} {size}": make(history) for (label, size), history in histories.items()}
        batch = int(place.scale.batch * size_of_batch)
        series = interleave(tasks, place.scale.pace, batch=batch, meter="cpu")
        ours = [series[f"Holdfast {size}"] for size in sizes]
        rows.append(_row(name, "Holdfast", ours))
        rows.append(_row(name, "floor", [series[f"floor {size}"] for size in sizes]))
        found.targets.append(_flat(name, sizes, ours))
        if name == "resume read and decision":
            found.curves.append(_curve("Holdfast: resume read and decision", sizes, ours))
        if name == "commit a turn":
            found.curves.append(_curve("Holdfast: commit a turn", sizes, ours))
    rows += _beside_peers(place, histories, found)
    for subject, _, _ in histories.values():
        subject.close()
    found.tables.append(
        Table(
            "CPU with a history behind it, µs",
            ("operation", "by", *(f"{size} turns" for size in sizes), f"{sizes[0]} → {sizes[-1]}"),
            rows,
            "One file for each length, so that nothing but this history is in it. Reading the whole history is"
            " what the peers do to go on, and what Holdfast needs only to show it or to start fresh with all of"
            " it; it grows with the history for everyone. The peers run as they come, with their commits"
            " synced; CPU hardly knows the difference.",
        )
    )


def _open_pair(folder: Path, size: int) -> tuple[History, History]:
    floor_path, our_path = folder / f"floor-{size}.db", folder / f"ours-{size}.db"
    floor = Floor.on_sqlite(floor_path, synchronous="OFF")
    session_id = seed.session_with_turns(floor, size)
    floor.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(floor_path, our_path)
    store, driver = open_sqlite(our_path, synchronous="OFF")

    def take_back() -> None:
        with driver.raw() as connection:
            seed.shrink(connection, session_id, size)

    return (
        (floor, session_id, lambda: seed.shrink(floor.connection, session_id, size)),
        (Ours(store), session_id, take_back),
    )


def _each_time(history: History) -> Callable[[int], list[str]]:
    """The session at its full length and not a turn longer."""
    _, session_id, take_back = history

    def prepare(count: int) -> list[str]:
        take_back()
        return [session_id] * count

    return prepare


def _forks(history: History) -> Task:
    subject, session_id, take_back = history

    def prepare(count: int) -> list[str]:
        take_back()
        return [w.new_session_id() for _ in range(count)]

    return calls(lambda child: subject.fork(session_id, child), prepare)


def _unchanged(history: History) -> Callable[[int], list[str]]:
    return lambda count: [history[1]] * count


#: how it is done, and calls in a batch relative to the usual
_OPERATIONS: dict[str, tuple[Callable[[History], Task], float]] = {
    "commit a turn": (lambda h: calls(h[0].record_turn, _each_time(h)), 0.5),
    "enqueue, claim, finish": (lambda h: calls(h[0].queue_turn, _each_time(h)), 0.5),
    "resume read and decision": (lambda h: calls(h[0].explain, _unchanged(h)), 2),
    "should_resume": (lambda h: calls(h[0].should_resume, _unchanged(h)), 4),
    "get": (lambda h: calls(h[0].get, _unchanged(h)), 4),
    "fork": (_forks, 0.5),
}


def _row(name: str, label: str, series: list[Series]) -> list[str]:
    growth = ratio(series[-1], series[0])
    return [name, label, *(micros(one.typical) for one in series), f"{growth:.2f} ×"]


def _flat(name: str, sizes: tuple[int, ...], series: list[Series]) -> Target:
    what = f"flat in history, {sizes[0]} → {sizes[-1]} turns: {name}"
    return Target(what, FLAT_LIMIT, ratio(series[-1], series[0]))


def _curve(label: str, sizes: tuple[int, ...], series: list[Series]) -> Curve:
    return Curve(label, [(size, one.typical) for size, one in zip(sizes, series, strict=True)])


def _beside_peers(
    place: Place, histories: dict[tuple[str, int], History], found: Findings
) -> list[list[str]]:
    peers = open_peers(place.directory, "peers-with-history")
    sizes = place.scale.histories
    rows = []
    for name in ("commit a turn", WHOLE):
        labels = [peer.name for peer in peers]
        tasks = {f"{peer.name} {size}": peer.with_turns(size)[name] for peer in peers for size in sizes}
        if name == WHOLE:
            labels = ["Holdfast", "floor", *labels]
            tasks |= {
                f"{label} {size}": calls(history[0].read_history, _each_time(history))
                for (label, size), history in histories.items()
            }
        batch = {f"{label} {size}": max(1, min(20, 1000 // size)) for label in labels for size in sizes}
        series = interleave(tasks, place.scale.pace, batch=batch, meter="cpu")
        for label in labels:
            of_label = [series[f"{label} {size}"] for size in sizes]
            rows.append(_row(name, label, of_label))
            if name == WHOLE and label != "floor":
                found.curves.append(_curve(f"{label}: {name}", sizes, of_label))
    for peer in peers:
        peer.close()
    return rows
