"""Sessions that the agents' own programs keep are taken in, all at once, and again only what is new."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.domain.conversations import SeenTurns
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.observed import Sighting
from holdfast.domain.pointers import NO_RIGHTS
from holdfast.domain.policy import ImportPolicy, Policy, VaultPolicy
from holdfast.domain.records import replace
from holdfast.domain.runtimes import Runtime
from holdfast.domain.sessions import SessionFilter, SessionKind
from holdfast.engine import importing, reading_ahead
from holdfast.engine.importing import ImportReport, ImportRequest
from holdfast.engine.vault import Vault
from holdfast.errors import AmbiguousId, InvalidInput, NotFound, Refused
from holdfast.store.contract import Store
from tests import processes
from tests.clock import give_time
from tests.integration.mortal import killed_everywhere
from tests.integration.workshop import HOLDFAST, Workshop, ended

ONE, TWO, THREE = (f"6a13a17{n}-1111-4222-8333-123456789abc" for n in range(3))
LONG_AGO = 1_700_000_000


@pytest.fixture
def begun(shop: Workshop) -> Workshop:
    shop.by_hand("SAY violet", "--session-id", ONE)
    shop.by_hand("SAY amber", "--resume", ONE)
    shop.by_hand("SAY blue", "--session-id", TWO)
    return shop


def imported(hf: Holdfast, **wanted: Any) -> ImportReport:
    return hf.import_sessions(ImportRequest(("scripted",), **wanted))


def figures(report: ImportReport) -> tuple[int, int, int, dict[str, int]]:
    """Imported, updated, unchanged, and the skipped ones by reason."""
    reasons: dict[str, int] = {}
    for one in report.skipped:
        reasons[one.reason] = reasons.get(one.reason, 0) + 1
    assert report.found == report.imported + report.updated + report.unchanged + len(report.skipped)
    return report.imported, report.updated, report.unchanged, reasons


def session_of(hf: Holdfast, native: str, provider: str = "scripted") -> str:
    owner = hf.store.owner_of(provider, ProviderSessionId(native))
    assert owner is not None
    return owner


def prompts(hf: Holdfast, session: str) -> list[str]:
    return [turn.prompt for turn in hf.history(session)]


def test_everything_is_taken_in_with_whole_pointers(begun: Workshop) -> None:
    hf = begun.open()

    report = imported(hf)

    assert figures(report) == (2, 0, 0, {})
    assert report.turns == 3
    session = session_of(hf, ONE)
    assert prompts(hf, session) == ["SAY violet", "SAY amber"]
    pointer = hf.store.pointer(session, "scripted")
    assert pointer is not None
    assert (pointer.rights, pointer.seen) == (NO_RIGHTS, SeenTurns.up_to(2))
    assert pointer.transcript is not None
    assert pointer.transcript.size == begun.transcript(ONE).stat().st_size


def test_again_takes_only_what_is_new(begun: Workshop) -> None:
    hf = begun.open()
    imported(hf)
    begun.by_hand("SAY more", "--resume", ONE)
    begun.by_hand("SAY green", "--session-id", THREE)

    report = imported(hf)

    assert figures(report) == (1, 1, 1, {})
    assert report.turns == 2
    assert prompts(hf, session_of(hf, ONE)) == ["SAY violet", "SAY amber", "SAY more"]


def test_a_warm_run_writes_nothing(begun: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    imported(begun.open())
    hf = begun.open()
    driver = hf.store._driver  # type: ignore[attr-defined]
    monkeypatch.setattr(driver, "write", lambda: pytest.fail("it writes"))

    assert figures(imported(hf)) == (0, 0, 2, {})


def test_a_dry_run_changes_nothing(begun: Workshop) -> None:
    hf = begun.open()
    assert figures(imported(hf, dry_run=True)) == (2, 0, 0, {})
    assert hf.store.list_sessions(SessionFilter(), 10).sessions == ()
    assert hf.store.runtimes() == ()


def test_a_session_of_ours_is_not_doubled(begun: Workshop) -> None:
    first = begun.begin("SAY ours")
    hf = begun.open()
    assert figures(imported(hf, dry_run=True)) == (2, 0, 1, {})
    assert figures(imported(hf)) == (2, 0, 1, {})
    assert figures(imported(hf)) == (0, 0, 3, {})
    assert session_of(hf, first.provider_session_id or "") == first.session_id
    assert prompts(hf, first.session_id) == ["SAY ours"]


def test_a_dry_run_tells_a_session_of_ours_that_has_grown_by_hand(begun: Workshop) -> None:
    first = begun.begin("SAY ours")
    begun.by_hand("SAY by hand", "--resume", first.provider_session_id or "")
    hf = begun.open()

    for dry_run in (True, False):
        assert figures(imported(hf, dry_run=dry_run)) == (2, 1, 0, {})


def test_what_was_rewritten_is_noticed_and_not_appended_to(begun: Workshop) -> None:
    hf = begun.open()
    imported(hf)
    path = begun.transcript(ONE)
    path.write_text(path.read_text().replace("violet", "purple"))
    begun.by_hand("SAY more", "--resume", ONE)

    assert figures(imported(hf)) == (0, 0, 1, {"rewritten": 1})
    assert prompts(hf, session_of(hf, ONE)) == ["SAY violet", "SAY amber"]
    assert figures(imported(hf)) == (0, 0, 1, {"rewritten": 1})


def test_what_was_removed_stays_removed_until_it_is_named(begun: Workshop) -> None:
    hf = begun.open()
    imported(hf)
    hf.remove(session_of(hf, ONE))
    assert figures(imported(hf)) == (0, 0, 1, {"removed": 1})
    begun.by_hand("SAY more", "--resume", ONE)
    assert figures(imported(hf)) == (0, 0, 1, {"removed": 1})

    brought = hf.bring(ONE)

    assert prompts(hf, brought.session_id) == ["SAY violet", "SAY amber", "SAY more"]
    assert figures(imported(hf)) == (0, 0, 2, {})


def test_what_another_process_is_at_is_taken_in_the_next_time(begun: Workshop) -> None:
    hf = begun.open()
    imported(hf)
    begun.by_hand("SAY green", "--resume", TWO)
    with hf.agents.get("scripted").lock(ProviderSessionId(TWO)) as lock:
        assert lock.try_acquire()
        assert figures(imported(begun.open())) == (0, 0, 1, {"busy": 1})
    assert figures(imported(hf)) == (0, 1, 1, {})
    assert prompts(hf, session_of(hf, TWO)) == ["SAY blue", "SAY green"]


def test_a_name_survives_the_next_import(begun: Workshop) -> None:
    hf = begun.open()
    imported(hf)
    hf.rename(session_of(hf, ONE), "paint")
    begun.by_hand("SAY more", "--resume", ONE)
    imported(hf)
    assert hf.find("paint") == session_of(hf, ONE)
    assert hf.session(session_of(hf, ONE)).name == "paint"


def test_sessions_are_dated_as_they_were(begun: Workshop) -> None:
    os.utime(begun.transcript(TWO), (LONG_AGO, LONG_AGO))
    hf = begun.open()
    imported(hf)
    session = hf.session(session_of(hf, TWO))
    assert session.created_at == session.updated_at == LONG_AGO * 1_000_000
    assert session.id.startswith("agent-20231114-")
    assert figures(imported(hf, since=LONG_AGO * 1_000_000 + 1)) == (0, 0, 1, {})


def test_the_agents_own_id_is_known_when_its_file_is_gone(begun: Workshop) -> None:
    hf = begun.open()
    imported(hf)
    owner = session_of(hf, ONE)
    begun.transcript(ONE).unlink()
    assert (hf.owner_of(ONE), hf.owner_of("nobody-s")) == (owner, None)
    code, out, _ = ended(begun.start("--json", "show", ONE))
    assert (code, json.loads(out)["session_id"]) == (0, owner)


def test_an_empty_session_is_skipped_until_it_has_a_turn(begun: Workshop) -> None:
    path = begun.transcript(THREE)
    path.write_text("")
    hf = begun.open()
    assert figures(imported(hf)) == (2, 0, 0, {"empty": 1})
    assert figures(imported(hf)) == (0, 0, 2, {"empty": 1})
    asked = {"type": "user", "id": "u1", "text": "SAY now"}
    answer = {"type": "assistant", "answers": "u1", "text": "now", "complete": True}
    path.write_text(json.dumps(asked) + "\n" + json.dumps(answer) + "\n")
    assert figures(imported(hf)) == (1, 0, 2, {})


def test_a_session_in_use_is_taken_in_up_to_its_open_turn(begun: Workshop) -> None:
    path = begun.transcript(ONE)
    with path.open("a") as file:
        file.write(json.dumps({"type": "user", "id": "open", "text": "SAY later"}) + "\n")
    hf = begun.open()
    imported(hf)
    session = session_of(hf, ONE)
    assert prompts(hf, session) == ["SAY violet", "SAY amber"]
    with path.open("a") as file:
        done = {"type": "assistant", "answers": "open", "text": "later", "complete": True}
        file.write(json.dumps(done) + "\n")

    assert figures(imported(hf)) == (0, 1, 1, {})
    assert prompts(hf, session) == ["SAY violet", "SAY amber", "SAY later"]


def keep_writing(connection: Connection, path: Path) -> None:
    """Until it is told to stop; flushed in the middle of lines, too, as programs do whenever their buffer is full."""
    number = 0
    with path.open("ab", buffering=0) as file:
        while not connection.poll(0.001):
            asked = {"type": "user", "id": f"w{number}", "text": f"SAY {number}"}
            answer = {"type": "assistant", "answers": f"w{number}", "text": f"{number}", "complete": True}
            content = b"".join(json.dumps(line).encode() + b"\n" for line in (asked, answer))
            for start in range(0, len(content), 40):
                file.write(content[start : start + 40])
            number += 1
            if number == 1:
                connection.send("writing")
    connection.send(number)


def test_a_session_that_grows_while_it_is_imported_is_taken_in_whole_and_once(begun: Workshop) -> None:
    path, hf = begun.transcript(ONE), begun.open()
    process, connection = processes.start(keep_writing, path)
    with closing(connection):
        assert processes.receive(connection) == "writing"
        told: list[str] = []
        for _ in range(5):
            before = told
            assert not imported(hf).skipped
            told = prompts(hf, session_of(hf, ONE))
            assert told[: len(before)] == before
            (copy,) = copy_of(hf, ONE).values()
            assert path.read_bytes().startswith(copy)
        connection.send("stop")
        written = processes.receive(connection)
    assert processes.finish(process) == 0

    imported(hf)

    assert prompts(hf, session_of(hf, ONE)) == [
        "SAY violet",
        "SAY amber",
        *(f"SAY {n}" for n in range(written)),
    ]
    assert list(copy_of(hf, ONE).values()) == [path.read_bytes()]
    assert figures(imported(hf)) == (0, 0, 2, {})


def test_a_long_session_goes_in_pieces(begun: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_ahead, "PART_CHARACTERS", 10)
    hf = begun.open()
    assert figures(imported(hf)) == (2, 0, 0, {})
    session = session_of(hf, ONE)
    assert prompts(hf, session) == ["SAY violet", "SAY amber"]
    pointer = hf.store.pointer(session, "scripted")
    assert pointer is not None
    assert pointer.seen == SeenTurns.up_to(2)
    assert figures(imported(hf)) == (0, 0, 2, {})


@pytest.fixture
def reads_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small session is worth a process, and this one must not read it."""
    monkeypatch.setattr(reading_ahead, "_WORTH_BYTES", 1)
    monkeypatch.setattr(reading_ahead, "SessionParts", lambda *_, **__: pytest.fail("it reads here"))


#: a process that ends behind its first part; each turn of a session is a part
DIES = """
from holdfast.engine import reading_ahead

class Dying(reading_ahead._Outbox):
    def put(self, data):
        super().put(data)
        super().put(b"")
        raise SystemExit

reading_ahead.PART_CHARACTERS, reading_ahead._Outbox = 10, Dying
reading_ahead.main()
"""


@pytest.mark.usefixtures("reads_ahead")
def test_another_process_reads_ahead(begun: Workshop) -> None:
    begun.transcript(THREE).write_text("")
    hf = begun.open()
    assert figures(imported(hf)) == (2, 0, 0, {"empty": 1})
    assert prompts(hf, session_of(hf, ONE)) == ["SAY violet", "SAY amber"]
    assert prompts(hf, session_of(hf, TWO)) == ["SAY blue"]
    pointer = hf.store.pointer(session_of(hf, ONE), "scripted")
    assert pointer is not None
    assert pointer.seen == SeenTurns.up_to(2)
    assert figures(imported(hf)) == (0, 0, 2, {"empty": 1})


@pytest.mark.parametrize("program", ["pass", DIES, "import os; os.close(0); os.write(1, b'half')"],
                         ids=["does not begin", "dies between two parts", "dies in a part"])  # fmt: skip
def test_what_the_other_process_leaves_is_read_here(
    begun: Workshop, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(reading_ahead, "_WORTH_BYTES", 1)
    monkeypatch.setattr(reading_ahead, "PART_CHARACTERS", 10)
    monkeypatch.setattr(reading_ahead, "_PROGRAM", program)
    hf = begun.open()
    assert figures(imported(hf)) == (2, 0, 0, {})
    assert prompts(hf, session_of(hf, ONE)) == ["SAY violet", "SAY amber"]
    assert prompts(hf, session_of(hf, TWO)) == ["SAY blue"]
    assert figures(imported(hf)) == (0, 0, 2, {})


def test_an_import_needs_no_other_process(begun: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_ahead, "_WORTH_BYTES", 1)
    hf = begun.open()
    with monkeypatch.context() as patch:
        patch.setattr("sys.executable", "/none")
        assert figures(imported(hf)) == (2, 0, 0, {})
    assert prompts(hf, session_of(hf, ONE)) == ["SAY violet", "SAY amber"]


@pytest.mark.usefixtures("reads_ahead")
def test_secrets_that_another_process_reads_are_redacted(claude: Workshop) -> None:
    path = claude_session(claude, ONE, "one")
    call = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "login --password hunter22x"}}
    line = {"type": "assistant", "uuid": "b", "parentUuid": "a-one", "cwd": "/w", "sessionId": ONE,
            "message": {"id": "m", "stop_reason": "end_turn", "content": [call]}}  # fmt: skip
    path.write_text(path.read_text() + json.dumps(line) + "\n")
    assert take(claude.open()).imported == 1
    with closing(sqlite3.connect(claude.root / "holdfast.db")) as connection:
        told = "\n".join(data for (data,) in connection.execute("SELECT data FROM events"))
    assert ("login --password [redacted:password]" in told, "hunter22x" in told) == (True, False)


def test_an_unknown_agent_is_named(begun: Workshop) -> None:
    code, _, err = ended(begun.start("import", "cursor"))
    assert (code, "cursor is not known" in err) == (2, True)
    with pytest.raises(InvalidInput):
        begun.open().import_sessions(ImportRequest(home="/elsewhere"))


def test_the_command_reports_figures_that_add_up(begun: Workshop) -> None:
    begun.transcript(THREE).write_text("")
    code, out, _ = ended(begun.start("--json", "import", "scripted"))
    told = json.loads(out)
    assert (code, told["found"], told["imported"], told["turns"]) == (0, 3, 2, 3)
    size = sum(begun.transcript(native).stat().st_size for native in (ONE, TWO))
    assert told["vault"] == {"sessions": 2, "bytes": size, "failed": 0, "problem": None}
    assert [(one["reason"], one["file"]) for one in told["skipped"]] == [("empty", str(begun.transcript(THREE)))]  # fmt: skip
    _, out, _ = ended(begun.start("import", "scripted"))
    assert "3 sessions found: 0 imported, 0 updated, 2 unchanged, 1 skipped" in out


def test_a_directory_without_sessions_is_named_with_the_homes_that_were_searched(begun: Workshop) -> None:
    code, out, _ = ended(begun.start("import", "scripted", "--project", "/nowhere", "--since", "3d"))
    assert (code, out.splitlines()) == (
        0,
        [
            "0 sessions found: 0 imported, 0 updated, 0 unchanged, 0 skipped",
            "no agent has a session of /nowhere, which is no directory here, or of a directory below it",
            "only sessions that were used since 3d were asked for",
            "looked for sessions in:",
            f"  {begun.home}: scripted",
        ],
    )
    _, out, _ = ended(begun.start("--json", "import", "scripted", "--project", "/nowhere"))
    assert json.loads(out)["homes"] == [{"provider": "scripted", "home": str(begun.home)}]


def test_the_report_is_indented_and_counts_in_the_singular(begun: Workshop) -> None:
    begun.transcript(ONE).unlink()
    begun.transcript(THREE).write_text("")
    _, out, _ = ended(begun.start("import", "scripted"))
    size = begun.transcript(TWO).stat().st_size
    assert out.splitlines() == [
        "2 sessions found: 1 imported, 0 updated, 0 unchanged, 1 skipped",
        "1 turn was added",
        f"the vault got {size} bytes of 1 session",
        "skipped, because it holds no turn:",
        f"  {begun.transcript(THREE)}",
    ]


def test_show_and_why_agree_on_what_was_imported(begun: Workshop) -> None:
    """Its turns were made elsewhere, and were made."""
    imported(begun.open())
    _, shown, _ = ended(begun.start("show", ONE))
    fields = dict(line.split(maxsplit=1) for line in shown.split("\n\n")[0].splitlines())
    assert fields["phase"] == "investigating"
    assert fields["imported"].endswith("s ago)")
    _, why, _ = ended(begun.start("why", ONE))
    assert "the runtime that it was found in" in why
    assert "Holdfast has seen no call of it end yet" in why
    assert why.strip().endswith(
        "Holdfast has run no turn of this session yet: its turns were made in scripted itself."
    )

    hf = begun.open()
    session = session_of(hf, ONE)
    hf.resume(session, "SAY on", cwd=str(begun.work_dir))
    _, why, _ = ended(begun.start("why", session))
    assert "the runtime that it used before" in why
    assert "itself" not in why


# --- what only real formats have ---


@pytest.fixture
def claude(shop: Workshop) -> Workshop:
    """Claude Code is not installed; its sessions are here all the same."""
    home = shop.folder("claude")
    shop.changes |= {"CLAUDE_CONFIG_DIR": str(home), "HOLDFAST_CLAUDE_BINARY": str(shop.root / "none")}
    return shop


def claude_session(shop: Workshop, native: str, *turns: str, folder: str = "-w", **more: Any) -> Path:
    path = shop.root / "claude" / "projects" / folder / f"{native}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    parent, lines = None, []
    for number, text in enumerate(turns):
        at = f"2026-03-02T08:{number:02}:00.000Z"
        common = {"cwd": "/w", "sessionId": native, "timestamp": at, **more}
        asked, answered = f"u-{text}", f"a-{text}"
        lines.append(
            {"type": "user", "uuid": asked, "parentUuid": parent, "message": {"content": text}, **common}
        )
        message = {"id": f"m-{text}", "model": "opus", "stop_reason": "end_turn", "content": [{"type": "text", "text": f"re {text}"}]}  # fmt: skip
        lines.append(
            {"type": "assistant", "uuid": answered, "parentUuid": asked, "message": message, **common}
        )
        parent = answered
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def take(hf: Holdfast, **wanted: Any) -> ImportReport:
    return hf.import_sessions(ImportRequest(("claude",), **wanted))


def test_a_file_with_times_to_come_is_dated_now(claude: Workshop) -> None:
    claude_session(claude, ONE, "one", timestamp="2099-01-01T00:00:00.000Z")
    hf = claude.open()
    hf.import_sessions(ImportRequest(("claude",)))
    session = hf.session(session_of(hf, ONE, "claude"))
    assert session.created_at <= session.updated_at <= hf.store.now()


def test_sessions_of_an_agent_that_is_not_installed_are_readable(claude: Workshop) -> None:
    claude_session(claude, ONE, "colour?")
    hf = claude.open()
    assert figures(take(hf)) == (1, 0, 0, {})
    session = hf.session(session_of(hf, ONE, "claude"))
    assert prompts(hf, session.id) == ["colour?"]
    assert session.purpose == "colour?"
    assert [known.usage for known in hf.store.provider_sessions(session.id)] == [session.usage]


def test_a_session_of_an_agent_that_is_not_installed_is_named_by_the_beginning_of_its_id(
    claude: Workshop,
) -> None:
    claude_session(claude, ONE, "colour?")
    brought = claude.open().bring(ONE[:8])
    assert (brought.is_new, brought.turns) == (True, 1)
    code, out, _ = ended(claude.start("log", ONE[:8]))
    assert (code, "> colour?" in out) == (0, True)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_an_agent_that_is_installed_later_is_pointed_to(begun: Workshop, is_resumed: bool) -> None:
    begun.changes["HOLDFAST_SCRIPTED_BINARY"] = str(begun.root / "none")
    assert figures(imported(begun.open())) == (2, 0, 0, {})
    del begun.changes["HOLDFAST_SCRIPTED_BINARY"]
    hf = begun.open()
    session = session_of(hf, ONE)
    begun.by_hand("SAY more", "--resume", ONE)

    if is_resumed:
        hf.resume(session, "SAY now", fresh=True)
    else:
        assert figures(imported(hf)) == (0, 1, 1, {})

    assert prompts(hf, session)[:3] == ["SAY violet", "SAY amber", "SAY more"]
    pointer = hf.store.pointer(session, "scripted")
    assert pointer is not None
    assert pointer.runtime_id in {known.id for known in hf.store.runtimes()}


def test_of_two_files_with_one_id_the_newer_counts(claude: Workshop) -> None:
    old = claude_session(claude, ONE, "colour?")
    os.utime(old, (LONG_AGO, LONG_AGO))
    claude_session(claude, ONE, "colour?", "stone?", folder="-x")
    hf = claude.open()
    report = take(hf)
    assert figures(report) == (1, 0, 0, {"duplicate": 1})
    assert report.skipped[0].place == str(old)
    assert prompts(hf, session_of(hf, ONE, "claude")) == ["colour?", "stone?"]


def test_of_two_sessions_with_one_id_each_is_known_by_its_directory(
    claude: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claude takes the same --session-id again in another directory, and begins a second session there."""
    folders = [claude.folder("one"), claude.folder("two")]
    files = []
    for folder, text in zip(folders, ("colour?", "stone?"), strict=True):
        name = str(folder).replace("/", "-").replace("_", "-").replace(".", "-")
        files.append(claude_session(claude, ONE, text, folder=name, cwd=str(folder)))
    os.utime(files[1], (LONG_AGO, LONG_AGO))
    hf = claude.open()
    monkeypatch.chdir("/")
    with pytest.raises(AmbiguousId) as ambiguous:
        hf.bring(ONE)
    assert all(f"(claude, {folder})" in ambiguous.value.message for folder in folders)

    monkeypatch.chdir(folders[0])
    session = hf.bring(ONE).session_id
    assert prompts(hf, session) == ["colour?"]
    assert figures(take(hf)) == (0, 0, 1, {"duplicate": 1})
    os.utime(files[1])  # it was used last
    assert figures(take(hf)) == (0, 0, 1, {"duplicate": 1})
    assert prompts(hf, session) == ["colour?"]

    monkeypatch.chdir("/")
    assert hf.bring(ONE).session_id == session, "the one that is ours"
    monkeypatch.chdir(folders[1])
    with pytest.raises(
        Refused, match=re.escape(f"{files[1]}: a session of the same id was taken over")
    ) as caught:
        hf.bring(ONE)
    assert caught.value.details["session_id"] == session


def test_subagents_and_forks_stand_below_their_session(claude: Workshop) -> None:
    path = claude_session(claude, ONE, "colour?")
    below = claude_session(claude, "agent-a1", "count", folder=f"-w/{ONE}/subagents", isSidechain=True)
    fork = claude_session(claude, TWO, "colour?", "idea")
    opened = {"type": "queue-operation", "operation": "enqueue", "timestamp": "2026-03-05T08:00:00.000Z"}
    fork.write_text(json.dumps(opened) + "\n" + fork.read_text())
    os.utime(path, (LONG_AGO, LONG_AGO))  # the fork is read first
    hf = claude.open()

    assert figures(take(hf)) == (3, 0, 0, {})

    parent = session_of(hf, ONE, "claude")
    children = {child.kind: child.id for child in hf.store.children(parent)}
    assert children == {
        SessionKind.SUBAGENT: session_of(hf, f"{ONE}/{below.stem}", "claude"),
        SessionKind.CONVERSATION: session_of(hf, TWO, "claude"),
    }
    listed = {session.id for session in hf.store.list_sessions(SessionFilter(), 10).sessions}
    assert listed == {parent, children[SessionKind.CONVERSATION]}


def test_a_directory_can_be_chosen_and_excluded(claude: Workshop) -> None:
    claude_session(claude, ONE, "colour?", folder="-w-app", cwd="/w/app")
    claude_session(claude, TWO, "secret?", folder="-w-private", cwd="/w/private")
    hf = claude.open()
    assert figures(take(hf, project="/w/app")) == (1, 0, 0, {})
    rules = Policy(import_=ImportPolicy(frozenset({"/w/private"})))
    assert figures(take(claude.open(policy=rules))) == (0, 0, 1, {"excluded": 1})


def test_what_no_store_can_keep_costs_only_itself(claude: Workshop) -> None:
    claude_session(claude, ONE, "colour?")
    claude_session(claude, TWO, "lone \ud800", cwd="/w/\ud800", gitBranch="a\x00b", title="\udfff")
    hostile = claude_session(claude, "none", "stone?")
    nameless = Path(os.fsdecode(os.fsencode(hostile.parent) + b"/\xff\xfe.jsonl"))
    hostile.rename(nameless)
    hf = claude.open()
    for report in (take(hf, dry_run=True), take(hf)):
        assert figures(report) == (2, 0, 0, {"its name is not valid UTF-8": 1})
        assert report.skipped[0].place == str(hostile.with_name("\\xff\\xfe.jsonl"))
    assert report.vault.failed == 0
    assert prompts(hf, session_of(hf, TWO, "claude")) == ["lone \ufffd"]
    assert figures(take(hf)) == (0, 0, 2, {"its name is not valid UTF-8": 1})


def test_a_session_that_the_store_refuses_does_not_hold_up_the_others(claude: Workshop) -> None:
    """Its messages claim more tokens than a number can count exactly."""
    for native in (ONE, THREE):
        claude_session(claude, native, f"ask {native}")
    path = claude_session(claude, TWO, "one", "two")
    path.write_text(
        path.read_text().replace('"model"', '"usage": {"input_tokens": 9007199254740991}, "model"')
    )
    hf = claude.open()

    assert figures(take(hf)) == (2, 0, 0, {"invalid": 1})
    assert figures(take(hf)) == (0, 0, 2, {"invalid": 1})


def test_a_pipe_in_the_place_of_a_session_is_passed_over(claude: Workshop) -> None:
    """To open it would wait for ever."""
    claude_session(claude, ONE, "colour?")
    folder = claude_session(claude, TWO, "stone?", folder="-x", cwd="/x").parent
    os.mkfifo(folder / f"{THREE}.jsonl")
    hf = claude.open()
    with pytest.raises(NotFound):
        hf.bring("a title that none has")
    with pytest.raises(Refused):
        hf.bring(THREE)
    assert figures(take(hf)) == (2, 0, 0, {})


def test_a_folder_with_a_second_name_does_not_make_its_sessions_ambiguous(claude: Workshop) -> None:
    folder = claude_session(claude, ONE, "colour?").parent
    folder.with_name("-link").symlink_to(folder)
    hf = claude.open()
    brought = hf.bring(ONE[:8])
    assert (brought.is_new, hf.bring(ONE).session_id) == (True, brought.session_id)


def test_what_cannot_be_read_is_reported_whatever_was_asked_for(claude: Workshop) -> None:
    """A link that leads to itself: root, too, cannot read it."""
    claude_session(claude, ONE, "colour?", folder="-w-app", cwd="/w/app")
    projects = claude.root / "claude" / "projects"
    folder, file = projects / "-w-closed", projects / "-w-app" / f"{TWO}.jsonl"
    for path in (folder, file):
        path.symlink_to(path)
    hf = claude.open()
    rules = Policy(import_=ImportPolicy(frozenset({"/w/private"})))

    for report in (
        take(hf),
        take(hf, project="/w/app"),
        take(hf, since=hf.store.now()),
        take(claude.open(policy=rules), dry_run=True),
    ):
        problems = {one.place: one.problem for one in report.skipped}
        assert problems == {
            str(folder): "the folder cannot be read: Too many levels of symbolic links",
            str(file): "it cannot be read: Too many levels of symbolic links",
        }
    assert figures(take(hf))[2] == 1


def test_damage_costs_only_what_is_damaged(claude: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    path = claude_session(claude, ONE, "colour?", "stone?")
    whole = path.read_bytes()
    path.write_bytes(
        b"\x00" * 5000 + b"\n" + b'{"type":"user","message":{"content":"\xff\xfe"}}\n'
        + whole + b"[1, 2]\n\n" + b'{"type":"brand-new"}\n' + b'{"type":"user","torn'
    )  # fmt: skip
    claude_session(claude, TWO, "fine")
    (claude.root / "claude" / "projects" / "-w" / f"{THREE}.jsonl").mkdir()
    hf = claude.open()

    report = take(hf)

    assert figures(report) == (2, 0, 0, {})
    assert (report.damaged_lines, report.unknown_lines) == (4, 1)
    assert prompts(hf, session_of(hf, ONE, "claude")) == ["colour?", "stone?"]
    metadata = hf.session(session_of(hf, ONE, "claude")).metadata
    assert metadata["imported"] == {"damaged_lines": 4, "unknown_lines": 1}


def test_what_is_damaged_as_a_whole_is_named_as_such(claude: Workshop) -> None:
    path = claude_session(claude, ONE, "colour?")
    whole = path.read_bytes()
    path.write_bytes(b"\x00" * len(whole))
    hf = claude.open()
    assert figures(take(hf)) == (0, 0, 0, {"damaged": 1})
    assert figures(take(hf)) == (0, 0, 0, {"damaged": 1})
    path.write_bytes(whole + b"\n")
    assert figures(take(hf)) == (1, 0, 0, {})


def test_a_copy_of_a_home_doubles_nothing(begun: Workshop) -> None:
    hf = begun.open()
    imported(hf)
    copy = begun.root / "copy"
    shutil.copytree(begun.home, copy)

    assert figures(imported(hf, home=str(copy), dry_run=True)) == (0, 0, 0, {"other_home": 2})
    assert figures(imported(hf, home=str(copy))) == (0, 0, 0, {"other_home": 2})
    assert figures(imported(hf, home=str(copy))) == (0, 0, 0, {"other_home": 2})
    assert prompts(hf, session_of(hf, ONE)) == ["SAY violet", "SAY amber"]


@pytest.mark.parametrize("is_altered", [False, True])
def test_a_home_that_was_moved_takes_its_sessions_along(begun: Workshop, is_altered: bool) -> None:
    imported(begun.open())
    begun.by_hand("SAY more", "--resume", ONE)
    moved = begun.root / "moved"
    shutil.move(begun.home, moved)
    if is_altered:
        file = moved / "sessions" / f"{TWO}.jsonl"
        file.write_bytes(file.read_bytes().replace(b"blue", b"grey"))
    begun.changes["SCRIPTED_HOME"] = str(moved)
    hf = begun.open()

    report = imported(hf)

    assert figures(report) == ((0, 1, 0, {"rewritten": 1}) if is_altered else (0, 1, 1, {}))
    assert prompts(hf, session_of(hf, ONE)) == ["SAY violet", "SAY amber", "SAY more"]
    pointer = hf.store.pointer(session_of(hf, ONE), "scripted")
    assert pointer is not None
    assert pointer.transcript is not None
    assert pointer.transcript.path == str(moved / "sessions" / f"{ONE}.jsonl")
    homes = {known.id: known.runtime.home for known in hf.store.runtimes()}
    assert pointer.runtime_id is not None
    assert homes[pointer.runtime_id] == str(moved)
    assert list(copy_of(hf, ONE).values()) == [Path(pointer.transcript.path).read_bytes()]
    assert imported(hf).updated == 0


def test_what_a_home_of_another_machine_has_is_not_taken_away_from_there(begun: Workshop) -> None:
    hf = begun.open()
    imported(hf)
    session = session_of(hf, ONE)
    pointer = hf.store.pointer(session, "scripted")
    assert pointer is not None
    there = Runtime("elsewhere", "scripted", "scripted", "/home/ada/.scripted")
    hf.store.register_runtime(there)
    assert pointer.transcript is not None
    far = replace(
        pointer, runtime_id=there.id, transcript=replace(pointer.transcript, path="/home/ada/s.jsonl")
    )
    hf.store.set_pointer(far)
    begun.by_hand("SAY more", "--resume", ONE)

    assert figures(imported(hf)) == (0, 0, 1, {"other_home": 1})
    after = hf.store.pointer(session, "scripted")
    assert after is not None
    assert (after.runtime_id, after.transcript) == (far.runtime_id, far.transcript)


def test_a_session_of_another_home_is_pointed_to_there(begun: Workshop) -> None:
    other = begun.root / "other"
    shutil.move(begun.home, other)
    hf = begun.open()
    assert figures(imported(hf, home=str(other))) == (2, 0, 0, {})
    pointer = hf.store.pointer(session_of(hf, ONE), "scripted")
    assert pointer is not None
    homes = {known.id: known.runtime.home for known in hf.store.runtimes()}
    assert pointer.runtime_id is not None
    assert homes[pointer.runtime_id] == str(other)


def test_before_a_list_no_more_than_a_short_look_is_taken(
    claude: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        claude_session(claude, f"6a13a17{number}-1111-4222-8333-123456789abc", "colour?")
    ticking = iter(range(1000))
    give_time(importing, monkeypatch, monotonic=lambda: float(next(ticking)))
    monkeypatch.setattr(importing, "_REFRESH_SECONDS", 10_000.0)
    hf = claude.open()
    hf.catch_up("/w")
    assert len(hf.store.list_sessions(SessionFilter(), 10).sessions) == 1


def test_what_is_new_in_a_directory_is_found_before_a_list(claude: Workshop) -> None:
    claude_session(claude, ONE, "colour?")
    claude_session(claude, TWO, "elsewhere", folder="-x", cwd="/x")
    hf = claude.open()
    hf.catch_up("/w")
    assert [session.purpose for session in hf.store.list_sessions(SessionFilter(), 10).sessions] == [
        "colour?"
    ]


def test_no_process_is_started_to_look(claude: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    claude_session(claude, ONE, "colour?")
    hf = claude.open()
    hf.catch_up("/w")
    monkeypatch.setattr(importing._Home, "_agent", property(lambda _: pytest.fail("it asks the binary")))
    hf.catch_up("/w")


def test_the_database_is_whole_after_an_import(begun: Workshop) -> None:
    imported(begun.open())
    with closing(sqlite3.connect(begun.root / "holdfast.db")) as connection:
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_watched_session_is_in_the_list_wherever_it_runs(claude: Workshop) -> None:
    path = claude_session(claude, ONE, "colour?", folder="-x", cwd="/x")
    hf = claude.open()
    seen = Sighting(provider="claude", id=ONE, at=hf.store.now(), cwd="/x", transcript_path=str(path))
    hf.store.observe_session(seen)
    hf.catch_up("/w")
    assert [session.purpose for session in hf.store.list_sessions(SessionFilter(), 10).sessions] == [
        "colour?"
    ]


def test_a_list_for_a_person_is_current(claude: Workshop) -> None:
    work_dir = os.path.realpath(claude.work_dir)
    folder = "".join(each if each.isalnum() else "-" for each in work_dir)
    claude_session(claude, ONE, "colour?", folder=folder, cwd=work_dir)
    assert ended(claude.start("list"))[1] == "", "a script gets what is there"
    read, write = os.openpty()
    shown = subprocess.Popen(
        [HOLDFAST, "list"], cwd=claude.work_dir, env={**claude.environ, "TERM": "xterm"}, stdout=write, stdin=write,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert shown.wait(timeout=30) == 0
    assert b"colour?" in os.read(read, 65536)


# --- the vault ---


def copy_of(hf: Holdfast, native: str, provider: str = "scripted") -> dict[str, bytes]:
    """What the vault has of a session, by the names of the files."""
    bundle = hf.store.bundle(provider, ProviderSessionId(native))
    if bundle is None:
        return {}
    vault = Vault(hf.store, VaultPolicy())
    return {file.name: b"".join(vault.read(bundle, file)) for file in bundle.files}


def with_vault(**changes: Any) -> Policy:
    return Policy(vault=VaultPolicy(**changes))


def test_the_vault_gets_what_is_imported_and_what_is_added(begun: Workshop) -> None:
    hf = begun.open()
    before = begun.transcript(ONE).stat().st_size

    report = imported(hf)

    assert (report.vault.sessions, report.vault.failed) == (2, 0)
    assert report.vault.added == before + begun.transcript(TWO).stat().st_size
    begun.by_hand("SAY more", "--resume", ONE)
    again = imported(hf)
    assert (again.vault.sessions, again.vault.added) == (1, begun.transcript(ONE).stat().st_size - before)
    whole = begun.transcript(ONE).read_bytes()
    begun.transcript(ONE).unlink()
    assert list(copy_of(hf, ONE).values()) == [whole]


def test_a_session_that_is_named_is_in_the_vault(begun: Workshop) -> None:
    hf = begun.open()
    hf.bring(ONE)
    assert list(copy_of(hf, ONE).values()) == [begun.transcript(ONE).read_bytes()]
    begun.by_hand("SAY more", "--resume", ONE)
    hf.bring(ONE)
    assert list(copy_of(hf, ONE).values()) == [begun.transcript(ONE).read_bytes()]


def test_a_session_that_was_named_once_continues_natively_when_its_file_is_gone(begun: Workshop) -> None:
    assert ended(begun.start("show", ONE))[0] == 0
    begun.transcript(ONE).unlink()
    session = session_of(begun.open(), ONE)

    code, out, _ = ended(begun.start("--json", "resume", session, "SAY next"))

    told = json.loads(out)
    assert (code, told["decision"]["kind"], told["provider_session_id"]) == (0, "resume", ONE)
    assert [prompt.splitlines()[-1] for prompt in begun.prompts(ONE)] == [
        "SAY violet",
        "SAY amber",
        "SAY next",
    ]


def test_what_the_vault_lacks_is_made_up_for_without_reading_it_as_a_session(
    begun: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported(begun.open(with_vault(mode="run")))
    assert copy_of(begun.open(), ONE) == {}
    monkeypatch.setattr(reading_ahead, "SessionParts", lambda *_: pytest.fail("it reads the session again"))

    report = imported(begun.open())

    assert (figures(report), report.vault.sessions) == ((0, 0, 2, {}), 2)
    assert list(copy_of(begun.open(), ONE).values()) == [begun.transcript(ONE).read_bytes()]
    assert imported(begun.open()).vault.sessions == 0


def test_a_full_vault_is_reported_and_fails_no_import(begun: Workshop) -> None:
    code, out, _ = ended(
        begun.start("import", "scripted", environ={**begun.environ, "HOLDFAST_VAULT__LIMIT_BYTES": "10"})
    )
    assert (code, "2 imported" in out) == (0, True)
    assert "the vault has no copy of what is new in 2 sessions: the vault is full" in out
    hf = begun.open()
    assert prompts(hf, session_of(hf, ONE)) == ["SAY violet", "SAY amber"]
    begun.by_hand("SAY more", "--resume", ONE)
    full = imported(begun.open(with_vault(limit_bytes=10)))
    assert (figures(full), full.vault.failed) == ((0, 1, 1, {}), 2)
    assert (full.vault.problem or "").startswith("the vault is full")
    assert imported(hf).vault.sessions == 2
    assert list(copy_of(hf, ONE).values()) == [begun.transcript(ONE).read_bytes()]


def test_a_session_that_has_grown_while_the_vault_was_full_is_kept_later(begun: Workshop) -> None:
    hf = begun.open()
    imported(hf)
    begun.by_hand("SAY more", "--resume", ONE)
    assert figures(imported(begun.open(with_vault(limit_bytes=10)))) == (0, 1, 1, {})

    assert imported(hf).vault.sessions == 1
    assert list(copy_of(hf, ONE).values()) == [begun.transcript(ONE).read_bytes()]


def test_one_file_that_cannot_be_kept_does_not_stand_in_the_way_of_others(claude: Workshop) -> None:
    claude_session(claude, ONE, "colour?")
    odd = claude.root / "claude" / "projects" / "-w" / ONE / "tool-results"
    odd.mkdir(parents=True)
    (odd / "a\\b.txt").write_text("a name that no other system has")
    whole = claude_session(claude, TWO, "stone?")
    hf = claude.open()

    report = take(hf)

    assert (figures(report), report.vault.sessions, report.vault.failed) == ((2, 0, 0, {}), 1, 1)
    assert "is not a path below a provider's home" in (report.vault.problem or "")
    assert list(copy_of(hf, TWO, "claude").values()) == [whole.read_bytes()]


def test_a_subagent_is_kept_with_its_session(claude: Workshop) -> None:
    claude_session(claude, ONE, "colour?")
    below = claude_session(claude, "agent-a1", "count", folder=f"-w/{ONE}/subagents", isSidechain=True)
    hf = claude.open()

    assert take(hf).vault.sessions == 1

    name = f"projects/-w/{ONE}/subagents/agent-a1.jsonl"
    assert copy_of(hf, ONE, "claude")[name] == below.read_bytes()
    assert copy_of(hf, f"{ONE}/agent-a1", "claude") == {}
    claude_session(claude, "agent-a1", "count", "again", folder=f"-w/{ONE}/subagents", isSidechain=True)
    take(hf)
    assert copy_of(hf, ONE, "claude")[name] == below.read_bytes()


# --- kill -9 at every point of an import ---


@pytest.fixture(params=["sqlite", "postgres"])
def mortal(request: pytest.FixtureRequest, begun: Workshop) -> Workshop:
    if request.param == "postgres":
        begun.database = request.getfixturevalue("postgres_url")
    return begun


def import_all(store: Store, environ: dict[str, str], piece: int | None = None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if piece == 0:
            patch.setattr(reading_ahead, "_WORTH_BYTES", 1)
        elif piece is not None:
            patch.setattr(reading_ahead, "PART_CHARACTERS", piece)
        imported(Holdfast(store, Policy(), environ=environ))


@pytest.mark.parametrize("piece", [None, 10, 0], ids=["at once", "in pieces", "read ahead"])
def test_a_killed_import_loses_and_doubles_nothing(mortal: Workshop, piece: int | None) -> None:
    hf = mortal.open()
    for _ in killed_everywhere(import_all, mortal.url, mortal.environ, piece):
        nothing_is_half_there(hf, mortal)
    assert figures(imported(hf)) == (0, 0, 2, {})
    assert prompts(hf, session_of(hf, ONE)) == ["SAY violet", "SAY amber"]
    assert prompts(hf, session_of(hf, TWO)) == ["SAY blue"]
    pointer = hf.store.pointer(session_of(hf, ONE), "scripted")
    assert pointer is not None
    assert pointer.seen == SeenTurns.up_to(2)
    for native in (ONE, TWO):
        assert list(copy_of(hf, native).values()) == [mortal.transcript(native).read_bytes()]
    assert len(hf.store.vault_entries()) == 2


def test_a_killed_update_loses_and_doubles_nothing(mortal: Workshop) -> None:
    hf = mortal.open()
    imported(hf)
    mortal.by_hand("SAY more", "--resume", ONE)
    for _ in killed_everywhere(import_all, mortal.url, mortal.environ):
        nothing_is_half_there(hf, mortal)
    report = imported(hf)
    assert (figures(report), report.vault.sessions) == ((0, 0, 2, {}), 0)
    assert prompts(hf, session_of(hf, ONE)) == ["SAY violet", "SAY amber", "SAY more"]
    assert list(copy_of(hf, ONE).values()) == [mortal.transcript(ONE).read_bytes()]
    assert len(hf.store.vault_entries()) == 2


def nothing_is_half_there(hf: Holdfast, shop: Workshop) -> None:
    """Whatever is there is the beginning of what the agent has, and a pointer has no more than the history."""
    listed = hf.store.list_sessions(SessionFilter(), 10).sessions
    assert len(listed) <= 2
    for session in listed:
        pointer = hf.store.pointer(session.id, "scripted")
        assert pointer is not None
        native, told = pointer.provider_session_id, prompts(hf, session.id)
        assert told == shop.prompts(native)[: len(told)]
        assert pointer.seen == SeenTurns.up_to(len(told))
        for copy in copy_of(hf, native).values():
            assert shop.transcript(native).read_bytes().startswith(copy)
