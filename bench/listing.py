"""Owns the section on listing: the newest 50 of 100, of 10 000, of 100 000 sessions."""

from __future__ import annotations

from bench import seed
from bench import workload as w
from bench.floor import Floor
from bench.measure import Series, calls, interleave, ratio
from bench.ours import Library
from bench.results import Bar, Findings, Table, Target, beside, micros
from bench.scale import Place

PAGE = 50
LIST_LIMIT = 1.5
FLAT_LIMIT = 1.2


def measure(place: Place, found: Findings) -> None:
    folder = place.directory / "listing"
    folder.mkdir()
    subjects: dict[str, w.Subject] = {}
    for count in place.scale.listings:
        path = folder / f"{count}.db"
        seed.many_sessions(path, count)
        subjects[f"floor {count}"] = Floor.on_sqlite(path)
        subjects[f"Holdfast {count}"] = Library.on_sqlite(path)
    tasks = {
        label: calls(subject.list_newest, lambda count: [PAGE] * count) for label, subject in subjects.items()
    }
    series = interleave(tasks, place.scale.pace, batch=max(place.scale.batch // 4, 10), meter="cpu")
    for subject in subjects.values():
        subject.close()
    _report(place.scale.listings, series, found)


def _report(counts: tuple[int, ...], series: dict[str, Series], found: Findings) -> None:
    rows = []
    for count in counts:
        floor, ours = series[f"floor {count}"], series[f"Holdfast {count}"]
        times = ratio(ours, floor)
        found.bars.append(Bar(f"list {PAGE} of {count}", times, LIST_LIMIT))
        rows.append([f"{count}", micros(floor.typical), beside(ours.typical, times)])
        found.targets.append(Target(f"CPU: list {PAGE} of {count}", LIST_LIMIT, times))
    large, larger = counts[-2:]
    growth = ratio(series[f"Holdfast {larger}"], series[f"Holdfast {large}"])
    found.targets.append(Target(f"list {PAGE}: flat, {large} → {larger} sessions", FLAT_LIMIT, growth))
    found.tables.append(
        Table(
            f"CPU of listing the newest {PAGE}, µs",
            ("sessions in the store", "floor", "Holdfast"),
            rows,
            "The floor fetches the same rows and parses their metadata; Holdfast makes records of them.",
        )
    )
