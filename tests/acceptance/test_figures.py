"""The server's figures: each one moves when its thing happens, is named as Prometheus expects, and is on the page."""

import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from holdfast.domain.delegations import DelegationEnd, DelegationOutcome
from holdfast.domain.failures import Failure, FailureClass
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import SessionUpdate
from holdfast.domain.turns import Launch
from holdfast.domain.usage import Usage, UsageReport
from holdfast.errors import LeaseLost
from holdfast.store.contract import Store
from holdfast.store.http_store import open_http
from holdfast.store.sqlite_file import WriteLock
from tests.acceptance.served import ask, server
from tests.builders import (
    a_bundle,
    a_chunk,
    a_claim,
    a_delegation,
    a_process,
    a_provider_session_id,
    a_question,
    an_approval,
    done,
)
from tests.steps import WIDER, begin, claim, defer, enqueue, fail, point_to, run

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
ALERTS = PAGE.parents[1] / "how-to" / "server.md"
#: longer than figures are kept
PATIENCE = 20.0

Series = tuple[str, frozenset[tuple[str, str]]]


class Look(NamedTuple):
    families: Mapping[str, Metric]
    values: Mapping[Series, float]

    def value(self, name: str, labels: Mapping[str, str]) -> float:
        return self.values.get((name, frozenset(labels.items())), 0.0)


class Story(NamedTuple):
    before: Look
    after: Look


def look(url: str) -> Look:
    parts = urlsplit(url)
    with closing(HTTPConnection(str(parts.hostname), parts.port, timeout=30)) as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    samples = [sample for family in families.values() for sample in family.samples]
    return Look(families, {(one.name, frozenset(one.labels.items())): one.value for one in samples})


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """One server, looked at before and after everything that is counted has happened."""
    path = tmp_path_factory.mktemp("figures") / "holdfast.db"
    with (
        server("--url", f"sqlite:///{path}") as (url, _),
        closing(open_http(url, "default", None)) as store,
    ):
        before = look(url)
        turns(store)
        leases(store)
        locks(store)
        delegations(store)
        approvals(store)
        spending(store)
        store.keep_bundles([a_bundle()], [a_chunk()])
        wait_at_the_gate(url, path)
        ask(url, "GET", "/nothing")
        ask(url, "GET", "/readyz", headers={"Origin": "https://elsewhere.example"})
        yield Story(before, look_again(url))


def turns(store: Store) -> None:
    """Three sessions: a resume that succeeds and a refused turn; one that falls back; one that fails for good."""
    session = begin(store)
    run(store, session)
    run(store, session)
    enqueue(store, session, "with wider rights", request=WIDER)
    assert store.claim_turn(a_claim(session_id=session.id)) is None
    session = begin(store)
    run(store, session)
    enqueue(store, session, "go on")
    resumed = claim(store, session)
    store.launch(resumed.lease, Launch(resumed.decision, a_process()))
    again = store.fall_back(resumed.lease, Failure(FailureClass.GONE, "no such session"), "fallback")
    store.finish_turn(again.lease, done(provider_session_id=a_provider_session_id()))
    session = begin(store)
    fail(store, session, FailureClass.AUTH)
    store.finalize_session(session.id, Phase.FAILED, None)


def leases(store: Store) -> None:
    """One is lost and taken over, and its worker comes too late; another has expired."""
    for is_taken in (True, False):
        session = begin(store)
        enqueue(store, session, "one")
        lost = claim(store, session, lease_seconds=0.001).lease
        until = time.monotonic() + PATIENCE
        while not (orphans := [one for one in store.orphans() if one.lease.session_id == session.id]):
            assert time.monotonic() < until
        if is_taken:
            store.recover(orphans[0])
            with pytest.raises(LeaseLost):
                store.finish_turn(lost, done())


def locks(store: Store) -> None:
    """Of two sessions in one provider session the second waits at its claim; a third is put back at its launch."""
    shared = a_provider_session_id()
    first, second, third = begin(store), begin(store), begin(store)
    for session in (first, second):
        point_to(store, session, shared)
        enqueue(store, session, "go on")
    claim(store, first)
    assert store.claim_turn(a_claim(session_id=second.id)) is None
    enqueue(store, third, "go on")
    store.put_back(claim(store, third).lease, because=Failure(FailureClass.LOCKED, "held"))


def delegations(store: Store) -> None:
    paused = begin(store, project="/srv/infra", agent="gitops-operator")
    store.update_session(paused.id, SessionUpdate(phase=Phase.PLANNING, error="it broke"))
    store.delegate(a_delegation(agent="gitops-operator"))
    new = a_delegation()
    store.delegate(new)
    store.end_delegation(DelegationEnd(id=new.id, outcome=DelegationOutcome.COMPLETED))
    store.ask_delegation(a_question(agent="nobody"))


def approvals(store: Store) -> None:
    defer(store, begin(store))
    store.request_approval(begin(store).id, an_approval(call_id=None, tool=None))


def spending(store: Store) -> None:
    """A turn that cost something, in a session that is removed again."""
    session = begin(store)
    run(store, session, usage=UsageReport(Usage(100, 40, 20, 0.5)))
    store.remove_session(session.id)


def wait_at_the_gate(url: str, path: Path) -> None:
    """Somebody else writes to the file, for longer and longer, until the server has met them."""
    began, until, pause = look(url), time.monotonic() + PATIENCE, 0.05
    waits = ("holdfast_lock_waits_total", {"lock": "database"})
    with closing(WriteLock(f"{path}-gate")) as write_lock, closing(open_http(url, "default", None)) as store:
        while look(url).value(*waits) == began.value(*waits):
            assert time.monotonic() < until
            write_lock.acquire(PATIENCE)
            writer = threading.Thread(target=begin, args=(store,))
            writer.start()
            time.sleep(pause)
            write_lock.release()
            writer.join()
            pause *= 2


def look_again(url: str) -> Look:
    """Once what was counted before is too old."""
    until = time.monotonic() + PATIENCE
    name = "holdfast_sessions_created_total"
    while not (seen := look(url)).value(name, {"kind": "delegated"}):
        assert time.monotonic() < until
        time.sleep(0.2)
    return seen


MOVES: list[tuple[str, dict[str, str], float | None]] = [
    ("holdfast_sessions_created_total", {"kind": "delegated"}, None),
    ("holdfast_sessions", {"phase": "initializing", "kind": "delegated"}, None),
    ("holdfast_session_duration_seconds_count", {"phase": "failed", "kind": "delegated"}, 1),
    ("holdfast_session_duration_seconds_sum", {"phase": "failed", "kind": "delegated"}, None),
    ("holdfast_session_errors", {"phase": "failed", "kind": "delegated"}, 1),
    ("holdfast_session_errors", {"phase": "planning", "kind": "delegated"}, 1),
    ("holdfast_store_bytes", {}, None),
    ("holdfast_vault_bytes", {}, None),
    ("holdfast_turns", {"status": "waiting", "failure": ""}, 1),
    ("holdfast_turns_ended_total", {"status": "done", "failure": ""}, 5),
    ("holdfast_turns_ended_total", {"status": "failed", "failure": "auth"}, 1),
    ("holdfast_turns_ended_total", {"status": "failed", "failure": "refused"}, 1),
    ("holdfast_attempts_total", {"decision": "fresh", "reason": "retired", "status": "done"}, 1),
    ("holdfast_attempts_total", {"decision": "fresh", "reason": "no_pointer", "status": "put_back"}, 1),
    ("holdfast_continuations_total", {"decision": "resume", "reason": "resumable"}, 2),
    ("holdfast_agent_sessions_created_total", {"agent": "terraform-architect"}, None),
    ("holdfast_turn_duration_seconds_count", {}, 5),
    ("holdfast_resume_attempts_total", {}, 2),
    ("holdfast_resume_successes_total", {}, 1),
    ("holdfast_fallbacks_total", {}, 1),
    ("holdfast_queue_depth", {}, 3),
    ("holdfast_queue_oldest_age_seconds", {}, None),
    ("holdfast_leases", {}, 2),
    ("holdfast_orphans", {}, 1),
    ("holdfast_leases_lost_total", {}, 1),
    ("holdfast_late_reports_total", {}, 1),
    ("holdfast_approvals_waiting", {}, 2),
    ("holdfast_delegations_total", {"start": "new"}, 1),
    ("holdfast_delegations_total", {"start": "resumed"}, 1),
    ("holdfast_delegations_total", {"start": "asked_new"}, 1),
    ("holdfast_delegations_ended_total", {"outcome": "completed"}, 1),
    ("holdfast_delegations_open", {}, 1),
    ("holdfast_delegated_duration_seconds_count", {}, 2),
    ("holdfast_delegated_duration_seconds_bucket", {"le": "300.0"}, 2),
    ("holdfast_sessions_with_errors_total", {}, 2),
    ("holdfast_cleanups_total", {"action": "removed"}, 1),
    ("holdfast_input_tokens_total", {}, 100),
    ("holdfast_cached_input_tokens_total", {}, 40),
    ("holdfast_output_tokens_total", {}, 20),
    ("holdfast_cost_usd_total", {}, 0.5),
    ("holdfast_requests_total", {"verb": "delegate", "status": "200"}, 2),
    ("holdfast_request_duration_seconds_count", {"verb": "delegate"}, 2),
    ("holdfast_refusals_total", {"code": "lease_lost"}, 1),
    ("holdfast_refusals_total", {"code": "not_found"}, 1),
    ("holdfast_refusals_total", {"code": "foreign_origin"}, 1),
    ("holdfast_decisions_total", {"decision": "resume", "reason": "resumable"}, 3),
    ("holdfast_decisions_total", {"decision": "refuse", "reason": "rights_wider"}, 1),
    ("holdfast_decisions_total", {"decision": "wait", "reason": "busy"}, 1),
    ("holdfast_claim_latency_seconds_count", {}, None),
    ("holdfast_lock_waits_total", {"lock": "provider_session"}, 2),
    ("holdfast_lock_waits_total", {"lock": "database"}, None),
]


@pytest.mark.parametrize(("name", "labels", "by"), MOVES, ids=[f"{move[0]}-{move[1]}" for move in MOVES])
def test_a_figure_moves_when_its_thing_happens(
    story: Story, name: str, labels: dict[str, str], by: float | None
) -> None:
    moved = story.after.value(name, labels) - story.before.value(name, labels)
    assert moved > 0 if by is None else moved == by


def test_every_figure_has_been_seen_to_move(story: Story) -> None:
    moved = {name for name, _, _ in MOVES}
    unmoved = [
        family.name
        for family in story.after.families.values()
        if not moved & {family.name, *(sample.name for sample in family.samples)}
    ]
    assert unmoved == []


# --- names and the page -----------------------------------------------------------------------------------------


def on_the_page() -> dict[str, tuple[str, frozenset[str]]]:
    rows = re.findall(
        r"^\| `(holdfast_\w+)` \| (\w+) \| ([^|]*)\| [^|]+ \|$", PAGE.read_text("utf-8"), re.MULTILINE
    )
    return {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def exposed(look: Look) -> dict[str, tuple[str, frozenset[str]]]:
    """By the name that a query uses; of histograms and summaries, the name that their series begin with."""
    found = {}
    for family in look.families.values():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        found[name] = (family.type, frozenset(labels))
    return found


def test_the_page_and_the_server_list_the_same(story: Story) -> None:
    assert on_the_page() == exposed(story.after)


def test_every_figure_is_explained_and_named_as_prometheus_expects(story: Story) -> None:
    for family in story.after.families.values():
        assert len(family.documentation) > 10, family.name
        assert re.fullmatch(r"holdfast_[a-z_]+", family.name)
        if family.type in ("histogram", "summary"):
            assert family.name.endswith("_seconds")
        assert not (family.type == "gauge" and family.name.endswith("_total"))


def test_alerts_ask_for_figures_that_there_are(story: Story) -> None:
    named = set(
        re.findall(
            r"holdfast_\w+", "\n".join(re.findall(r"`([^`]*holdfast_[^`]*)`", ALERTS.read_text("utf-8")))
        )
    )
    assert named
    assert named - {"holdfast_"} <= set(exposed(story.after))


def test_no_label_is_an_id(story: Story) -> None:
    values = {
        value for _, labels in story.after.values for name, value in labels if name not in ("le", "agent")
    }
    assert [value for value in values if not re.fullmatch(r"[a-z_]*|\d{3}", value)] == []
