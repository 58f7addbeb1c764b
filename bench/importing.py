"""Owns the section on importing: transcripts of Claude Code and Codex into Holdfast, beside agentsview on the same files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from bench.agentsview import VERSION, AgentsView, why_not
from bench.corpus import COMMON, RARE, Shape, write_corpus, write_long_session
from bench.machine import load
from bench.measure import Clock, cpu_of
from bench.results import Findings, Table, Target
from bench.scale import Place
from holdfast.domain.search import SearchRequest
from holdfast.engine.documents import search_document
from holdfast.store.contract import Store
from holdfast.store.open import open_store

MB = 1_000_000
RATE, MEMORY, STORED, RESTORING = 5.0, 200.0, 0.3, 1.5
_WARM_ROUNDS, _SEARCHES = 5, 7
_BLOCK = 1024 * 1024
_LOOK_SECONDS = 0.02
#: short turns: it is their number that counts
_SHORT = Shape(calls=1, result=200, answer=200, overhead=200)
_PEER = f"agentsview {VERSION}"


@dataclass(frozen=True, slots=True)
class Ran:
    cpu: float
    wall: float
    memory: float  #: MB at its peak, with that of the processes that it has started


class _Home:
    """A home of both agents, and a store of each subject beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        for agent in ("claude", "codex"):
            (folder / agent).mkdir()
            (self.home / f".{agent}").symlink_to(folder / agent)
        self.store = folder / "holdfast" / "holdfast.db"
        self.peer = AgentsView(self.home, folder / "agentsview")

    @property
    def url(self) -> str:
        return f"sqlite:///{self.store}"

    def holdfast(self, *words: str) -> Ran:
        command = [str(Path(sys.executable).with_name("holdfast")), "--url", self.url, *words]
        return _run(command, {"PATH": f"{self.folder / 'bin'}:{os.defpath}", "HOME": str(self.home)})

    def agentsview(self) -> Ran:
        return _run(self.peer.sync, self.peer.environ)

    def open(self) -> Store:
        return open_store(self.url)

    def forget(self) -> None:
        for folder in (self.store.parent, self.peer.data):
            for file in sorted(folder.rglob("*"), reverse=True):
                file.rmdir() if file.is_dir() else file.unlink()


def _run(command: Sequence[str], environ: Mapping[str, str]) -> Ran:
    start = time.monotonic()
    process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    memory = 0
    while True:
        memory = max(memory, _peak_of(process.pid))
        ended, status, used = os.wait4(process.pid, os.WNOHANG)
        if ended:
            break
        time.sleep(_LOOK_SECONDS)
    wall = time.monotonic() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return Ran(used.ru_utime + used.ru_stime, wall, max(memory, used.ru_maxrss) * 1024 / MB)


def _peak_of(pid: int) -> int:
    """KiB: the sum of the peaks of a process and of those below it that live at this moment."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    own = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)
    return own + sum(_peak_of(int(one)) for one in below)


def measure(place: Place, found: Findings) -> None:
    missing = why_not()
    _cold(place, found, missing)
    _many(place, found, missing)
    _long(place, found)


# --- everything is new ---


def _cold(place: Place, found: Findings, missing: str) -> None:
    home = _Home(place.directory / "import")
    corpus = write_corpus(home.folder, place.scale.imported)
    before = load()
    ours, theirs = list[Ran](), list[Ran]()
    for number in range(place.scale.imports):
        home.forget()
        if number % 2 and not missing:  # neither always comes second
            theirs.append(home.agentsview())
        ours.append(home.holdfast("import"))
        if not number % 2 and not missing:
            theirs.append(home.agentsview())
    pairs = list(zip(ours, theirs, strict=not missing))
    rate = None if missing else median(their.wall / our.wall for our, their in pairs)
    used = None if missing else median(their.cpu / our.cpu for our, their in pairs)
    found.targets.append(
        Target(
            f"import, vault and index included: rate beside {_PEER}",
            RATE,
            rate,
            at_least=True,
            why_not=missing,
        )
    )
    found.targets.append(Target("peak memory of an import", MEMORY, max(one.memory for one in ours), "MB"))
    store = home.open()
    figures = store.vault_figures()
    store.close()
    found.targets.append(
        Target(
            "vault: bytes stored for each byte of transcript",
            STORED,
            figures.stored_bytes / corpus["bytes"],
            "",
        )
    )
    rows = [_row("Holdfast", ours, corpus["bytes"])]
    rows += [] if missing else [_row(_PEER, theirs, corpus["bytes"])]
    ratio = "" if used is None else f" The ratio of CPU is {used:.2f} ×."
    found.tables.append(
        Table(
            f"Import of {corpus['bytes'] / MB:.0f} MB: {corpus['sessions']} sessions, {corpus['turns']} turns,"
            f" {corpus['calls']} tool calls",
            ("", "wall, s", "CPU, s", "MB/s", "peak memory, MB"),
            rows,
            f"Into an empty store, in {place.scale.imports} rounds of both.{ratio} Holdfast redacts secrets,"
            " keeps every file in the vault, and indexes prompts, answers, calls and results; agentsview indexes"
            f" messages. Load average {before} when it began.",
        )
    )


def _row(name: str, runs: Sequence[Ran], size: int) -> list[str]:
    wall, cpu = median(one.wall for one in runs), median(one.cpu for one in runs)
    return [
        name,
        f"{wall:.1f}",
        f"{cpu:.1f}",
        f"{size / MB / wall:.1f}",
        f"{max(one.memory for one in runs):.0f}",
    ]


# --- nothing is new, and searching ---


def _many(place: Place, found: Findings, missing: str) -> None:
    home = _Home(place.directory / "import-many")
    shape = replace(_SHORT, rare_every=2 * place.scale.unchanged)  # five turns have the rare word
    corpus = write_corpus(home.folder, place.scale.unchanged, shape=shape)
    before = load()
    first = [home.holdfast("import")]
    first += [] if missing else [home.agentsview()]
    state = _state(home.store)
    ours, theirs = [], []
    for _ in range(_WARM_ROUNDS):
        ours.append(home.holdfast("import"))
        theirs += [] if missing else [home.agentsview()]
    warm = None if missing else median(our.wall / their.wall for our, their in zip(ours, theirs, strict=True))
    files = corpus["sessions"]
    found.targets.append(
        Target(f"warm import of {files} unchanged files: time beside {_PEER}", 1.0, warm, why_not=missing)
    )
    found.targets.append(
        Target("warm import: files of the store that have changed", 0, len(state ^ _state(home.store)), "")
    )
    searched = _search(home, found, corpus["turns"], missing)
    rows = [
        [who, f"{before_all.wall:.0f}", *_typical(warm_runs), *searched[who]]
        for who, before_all, warm_runs in zip(("Holdfast", _PEER), first, (ours, theirs), strict=False)
    ]
    found.tables.append(
        Table(
            f"Import of {files} files, first and without a change, and search among their {corpus['turns']} turns",
            (
                "",
                "first import: wall, s",
                "warm: wall, s",
                "warm: CPU, s",
                "rare word: CPU, ms",
                "common word: CPU, ms",
            ),
            rows,
            f"Of a search, the CPU from the request to the last byte of its JSON: in Holdfast's process, and in"
            f" agentsview's server (`--fts`, which searches messages only). Load average {before} when it began.",
        )
    )


def _state(store: Path) -> set[tuple[str, int, int]]:
    """Of the database and its log; opening a store makes an empty log."""
    files = (store, store.with_name(f"{store.name}-wal"))
    seen = [(file.name, file.stat()) for file in files if file.exists()]
    return {(name, stat.st_size, stat.st_mtime_ns) for name, stat in seen if stat.st_size}


def _typical(runs: Sequence[Ran]) -> list[str]:
    return [f"{median(one.wall for one in runs):.2f}", f"{median(one.cpu for one in runs):.2f}"]


def _search(home: _Home, found: Findings, turns: int, missing: str) -> dict[str, list[str]]:
    words = {"rare": RARE, "common": COMMON}
    store = home.open()
    own = cpu_of([os.getpid()])
    ours = {name: _median_cpu(own, partial(_ours, store, word)) for name, word in words.items()}
    store.close()
    theirs: dict[str, float] = {}
    if not missing:
        with home.peer.serving(RARE) as server:
            clock = cpu_of([server])
            theirs = {
                name: _median_cpu(clock, partial(home.peer.search, word)) for name, word in words.items()
            }
    for name in words:
        ratio = None if missing else ours[name] / theirs[name]
        what = f"search a {name} word among {turns} imported turns: CPU beside {_PEER}"
        found.targets.append(Target(what, 1.0, ratio, why_not=missing))
    return {
        who: [f"{one:.1f}" for one in told.values()] for who, told in (("Holdfast", ours), (_PEER, theirs))
    }


def _ours(store: Store, word: str) -> str:
    found = store.search(SearchRequest(word))
    assert found.hits
    assert not found.pending
    return json.dumps(search_document(found, None))


def _median_cpu(clock: Clock, search: Callable[[], object]) -> float:
    """Milliseconds; the first one warms up."""
    told = []
    for _ in range(_SEARCHES):
        start = clock()
        search()
        told.append((clock() - start) / 1e6)
    return median(told[1:])


# --- one long session, there and back ---


def _long(place: Place, found: Findings) -> None:
    home = _Home(place.directory / "import-long")
    size = write_long_session(home.folder, place.scale.long_session)["bytes"]
    _install_claude(home.folder / "bin")
    before = load()
    ran = home.holdfast("import")
    (transcript,) = home.folder.rglob("claude/**/*.jsonl")
    written = _written(transcript, home.folder / "copy")
    transcript.unlink()
    restored = home.holdfast("restore", transcript.stem)
    assert transcript.stat().st_size == size
    told = f"one transcript of {size / 1024**2:.0f} MiB"
    found.targets.append(Target(f"peak memory of an import: {told}", MEMORY, ran.memory, "MB"))
    found.targets.append(
        Target(f"restore of {told}: time beside a synced copy", RESTORING, restored.wall / written)
    )
    rows = [
        ["import", f"{ran.wall:.1f}", f"{ran.cpu:.1f}", f"{size / MB / ran.wall:.0f}", f"{ran.memory:.0f}"],
        ["restore", f"{restored.wall:.1f}", f"{restored.cpu:.1f}", f"{size / MB / restored.wall:.0f}", f"{restored.memory:.0f}"],
        ["synced copy of the file", f"{written:.1f}", "", f"{size / MB / written:.0f}", ""],
    ]  # fmt: skip
    found.tables.append(
        Table(
            f"Import and restore of {told}",
            ("", "wall, s", "CPU, s", "MB/s", "peak memory, MB"),
            rows,
            f"Restoring compares every chunk with its digest. Load average {before} when it began.",
        )
    )


def _install_claude(folder: Path) -> None:
    """Restoring asks the program of the agent for its version, and nothing else."""
    folder.mkdir()
    program = folder / "claude"
    program.write_text("#!/bin/sh\necho '2.1.325 (Claude Code)'\n")
    program.chmod(0o755)


def _written(source: Path, target: Path) -> float:
    """Seconds to write the same bytes, synced: what the disk can do."""
    start = time.monotonic()
    with source.open("rb") as given, target.open("wb") as copy:
        while block := given.read(_BLOCK):
            copy.write(block)
        copy.flush()
        os.fsync(copy.fileno())
    return time.monotonic() - start
