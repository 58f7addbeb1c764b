"""Homes of agents that are not as the agents leave them: lines of 200 MB, forks without their parents, moved, copied, in use."""

import json
import resource
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import zstandard

from holdfast import Holdfast
from holdfast.domain.events import EventKind
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.policy import Policy, VaultPolicy
from holdfast.engine.importing import ImportRequest
from holdfast.engine.vault import Vault
from holdfast.store.open import open_store
from tests import processes
from tests.counted_store import CountedStore
from tests.integration.workshop import Workshop

ONE, TWO, THREE = (f"019a0000-0000-7000-8000-00000000000{n}" for n in range(1, 4))
AT = "2026-03-02T08:00:00.000Z"
MEBIBYTE = 1024 * 1024


@pytest.fixture
def homes(shop: Workshop) -> Workshop:
    """Neither Claude Code nor Codex is installed; their sessions are here all the same."""
    for name, variable in (("claude", "CLAUDE_CONFIG_DIR"), ("codex", "CODEX_HOME")):
        missing = str(shop.root / "none")
        shop.changes |= {variable: str(shop.folder(name)), f"HOLDFAST_{name.upper()}_BINARY": missing}
    return shop


def claude_line(kind: str, uuid: str, parent: str | None, content: object) -> dict[str, Any]:
    about = {"cwd": "/w", "sessionId": ONE, "timestamp": AT}
    return {"type": kind, "uuid": uuid, "parentUuid": parent, "message": {"id": uuid, "stop_reason": "end_turn", "content": content}, **about}  # fmt: skip


def codex_turn(number: int, answer: str | None = "") -> list[dict[str, Any]]:
    def event(**payload: object) -> dict[str, Any]:
        return {"timestamp": AT, "type": "event_msg", "payload": payload}

    def said(kind: str, text: str) -> dict[str, Any]:
        return event(type="item_completed", item={"type": kind, "content": [{"type": "text", "text": text}]})

    asked = [event(type="task_started", turn_id=f"t{number}"), said("UserMessage", f"ask {number}")]
    if answer is None:
        return asked
    return [*asked, said("AgentMessage", answer or f"answer {number}"), event(type="task_complete")]


def codex_meta(native: str, **more: object) -> dict[str, Any]:
    return {"timestamp": AT, "type": "session_meta", "payload": {"id": native, "timestamp": AT, "cwd": "/w", **more}}  # fmt: skip


def written(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def rollout(shop: Workshop, native: str, ending: str = "", home: str = "codex") -> Path:
    path = (
        shop.root
        / home
        / "sessions"
        / "2026"
        / "03"
        / "02"
        / f"rollout-2026-03-02T08-00-00-{native}.jsonl{ending}"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def session_of(hf: Holdfast, provider: str, native: str) -> str:
    owner = hf.store.owner_of(provider, ProviderSessionId(native))
    assert owner is not None
    return owner


def prompts(hf: Holdfast, session: str) -> list[str]:
    return [turn.prompt for turn in hf.history(session)]


# --- lines of 200 MB ---


def claude_with(long_line: Iterator[bytes], shop: Workshop) -> Path:
    path = shop.root / "claude" / "projects" / "-w" / f"{ONE}.jsonl"
    path.parent.mkdir(parents=True)
    asked = claude_line("user", "u1", None, "ask 1")
    rest = [
        claude_line("assistant", "a1", "u1", [{"type": "text", "text": "answer 1"}]),
        claude_line("user", "u2", "a1", "ask 2"),
        claude_line("assistant", "a2", "u2", [{"type": "text", "text": "answer 2"}]),
    ]
    with path.open("wb") as file:
        file.writelines((written([asked]), *long_line, written(rest)))
    return path


def codex_with(long_line: Iterator[bytes], shop: Workshop, ending: str = "") -> Path:
    path = rollout(shop, ONE, ending)
    first, answer = codex_turn(1)[:2], codex_turn(1)[2:]
    parts = (written([codex_meta(ONE), *first]), *long_line, written([*answer, *codex_turn(2)]))
    packed = zstandard.ZstdCompressor().compressobj()
    with path.open("wb") as file:
        for part in parts:
            file.write(packed.compress(part) if ending else part)
        file.write(packed.flush() if ending else b"")
    return path


def long_line(mebibytes: int = 200) -> Iterator[bytes]:
    yield b'{"type":"user","uuid":"b","parentUuid":"u1","message":{"content":"'
    for _ in range(mebibytes):
        yield b"x" * MEBIBYTE
    yield b'"}}\n'


@pytest.mark.parametrize("kind", ["claude", "codex", "codex.zst"])
def test_a_line_of_200_mb_is_kept_and_stands_as_a_note_in_the_history(homes: Workshop, kind: str) -> None:
    provider, _, ending = kind.partition(".")
    if provider == "claude":
        path = claude_with(long_line(), homes)
    else:
        path = codex_with(long_line(), homes, f".{ending}" if ending else "")
    process, connection = processes.start(import_in_little_memory, homes.url, provider, homes.environ)
    with closing(connection):
        before, after = processes.receive(connection)
    assert processes.finish(process) == 0
    assert after - before < 100 * MEBIBYTE

    hf = homes.open()
    session = session_of(hf, provider, ONE)
    assert prompts(hf, session) == ["ask 1", "ask 2"]
    assert hf.session(session).metadata["imported"] == {"long_lines": 1}
    told = hf.store.events(hf.session(session).conversation_id, 1)
    (note,) = [str(event.data["text"]) for _, event in told if event.kind is EventKind.NOTICE]
    assert note.startswith("a line of 209,715,")
    bundle = hf.store.bundle(provider, ProviderSessionId(ONE))
    assert bundle is not None
    assert bundle.size == path.stat().st_size
    with path.open("rb") as file:
        assert all(
            file.read(len(part)) == part for part in Vault(hf.store, VaultPolicy()).read(bundle, bundle.main)
        )


def import_in_little_memory(connection: Connection, url: str, provider: str, environ: dict[str, str]) -> None:
    with closing(Holdfast(open_store(url, durability="normal"), Policy(), environ=environ)) as hf:
        hf.agents.archives()
        before = peak_memory()
        report = hf.import_sessions(ImportRequest((provider,)))
        assert (report.imported, report.long_lines) == (1, 1)
        connection.send((before, peak_memory()))


def peak_memory() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


# --- many sessions ---


def test_the_calls_of_an_import_do_not_grow_with_its_sessions_and_turns(homes: Workshop) -> None:
    """Over HTTP each of them is a request."""
    for number in range(60):
        native = f"019a0000-0000-7000-8000-{number:012}"
        turns = [line for turn in range(number % 5 + 1) for line in codex_turn(turn)]
        rollout(homes, native).write_bytes(written([codex_meta(native), *turns]))
    counted = CountedStore(homes.open().store)
    hf = Holdfast(counted.as_store, Policy(), environ=homes.environ)

    report = hf.import_sessions(ImportRequest(("codex",)))

    assert (report.imported, report.turns) == (60, 180)
    assert Counter(counted.calls) == {"sources": 1, "now": 1, "import_sessions": 1, "keep_bundles": 1}
    counted.clear()
    assert hf.import_sessions(ImportRequest(("codex",))).unchanged == 60
    assert Counter(counted.calls) == {"sources": 1, "vault_entries": 2}
