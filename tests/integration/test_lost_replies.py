"""A reply that gets lost on its way from the server: the call has happened once, and its answer arrives."""

from collections.abc import Callable, Iterator

import pytest

from holdfast.clock import after
from holdfast.domain.ids import ProviderSessionId, SessionId
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import Old, SessionUpdate
from holdfast.domain.turns import Claim, Launch
from holdfast.domain.usage import NO_USAGE
from holdfast.errors import StoreUnavailable
from holdfast.store.contract import FACTS, Store
from holdfast.store.http_store import open_http
from holdfast.store.open import open_store
from holdfast.store.sql.idempotency import KEPT_SECONDS
from tests.builders import a_claim, a_pointer, a_runtime, a_session, a_turn
from tests.clock import ManualClock
from tests.consistency import driver_of
from tests.contract.heads import dump
from tests.contract.served import Served, serving
from tests.integration.faulty_proxy import FaultyProxy, faulty_proxy

ID = SessionId("agent-20260108-120000-00000000")
NATIVE = ProviderSessionId("5b1c2d3e-0000-4000-8000-000000000000")
KEY = "claim-of-this-test"


def claimed(store: Store) -> Claim:
    store.enqueue_turn(ID, a_turn())
    claim = store.claim_turn(a_claim(key=KEY))
    assert claim is not None
    return claim


def orphaned(store: Store) -> Claim:
    claim = claimed(store)
    store.launch(claim.lease, Launch(claim.decision))
    return claim


def pointed(store: Store) -> Store:
    store.register_runtime(a_runtime())
    store.set_pointer(a_pointer(ID, provider_session_id=NATIVE))
    return store


#: each prepares a session by the first store, and calls the verb of its name on the second
SCENARIOS: dict[str, Callable[[Store, Store], object]] = {
    "update_session": lambda here, there: there.update_session(ID, SessionUpdate(error="it broke")),
    "finalize_session": lambda here, there: there.finalize_session(ID, Phase.COMPLETED, "good"),
    "record_deed": lambda here, there: there.record_deed(ID, "restore"),
    "rename_session": lambda here, there: there.rename_session(ID, "blue"),
    "remove_session": lambda here, there: there.remove_session(ID),
    "enqueue_turn": lambda here, there: there.enqueue_turn(ID, a_turn()),
    "record_turn": lambda here, there: there.record_turn(ID, a_turn(), "planned", NO_USAGE),
    "cancel_turn": lambda here, there: there.cancel_turn(ID, here.enqueue_turn(ID, a_turn()).seq),
    "put_back": lambda here, there: there.put_back(claimed(here).lease),
    "recover": lambda here, there: (
        orphaned(here),
        there.recover(here.orphans(even_live=True)[0], owner_is_gone=True),
    )[1],
    "edit_turn": lambda here, there: (
        here.record_turn(ID, a_turn(), "planned", NO_USAGE),
        there.edit_turn(ID, 1, prompt="plan it better"),
    )[1],
    "truncate": lambda here, there: (
        here.record_turn(ID, a_turn(), "planned", NO_USAGE),
        there.truncate(ID, 0),
    )[1],
    "retry_turn": lambda here, there: (
        here.record_turn(ID, a_turn(), "planned", NO_USAGE),
        there.retry_turn(ID, 1),
    )[1],
    "new_generation": lambda here, there: there.new_generation(ID),
    "clear_pointer": lambda here, there: (
        pointed(here),
        there.clear_pointer(ID, "claude", NATIVE),
    )[1],
}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def proxy(served: Served) -> Iterator[FaultyProxy]:
    with faulty_proxy(served.url) as running:
        yield running


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    return (
        "sqlite:///:memory:" if request.param == "sqlite" else request.getfixturevalue("emptied_postgres_url")
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def behind(url: str, clock: ManualClock) -> Iterator[Store]:
    store = open_store(url, clock=clock)
    store.create_session(a_session(id=ID))
    yield store
    store.close()


@pytest.fixture
def over_http(behind: Store, served: Served, proxy: FaultyProxy) -> Iterator[Store]:
    proxy.lose = proxy.lost = 0
    store = open_http(proxy.url, served.room_of(behind), None)
    yield store
    store.close()


@pytest.fixture
def control(url: str, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Another store, to which the same happens with nothing lost."""
    other = url if url.startswith("sqlite") else request.getfixturevalue("postgres_url")
    store = open_store(other, clock=ManualClock())
    store.create_session(a_session(id=ID))
    yield store
    store.close()


def without_attempt_ids(store: Store) -> dict[str, list[str]]:
    """All that a store holds, with a number where there is the id of an attempt: ids are random."""
    kept = dump(store)
    with driver_of(store).read() as tx:
        ids = [row[0] for row in tx.all("SELECT id FROM attempts ORDER BY conversation_id, seq, number", {})]
    assert None not in ids
    for number, attempt_id in enumerate(ids, 1):
        for table, rows in kept.items():
            kept[table] = [row.replace(attempt_id, f"attempt {number}") for row in rows]
    return kept


def test_every_verb_that_would_happen_again_is_tried() -> None:
    assert set(SCENARIOS) == {name for name, facts in FACTS.items() if not facts.repeatable}


@pytest.mark.parametrize("verb", sorted(SCENARIOS))
def test_it_has_happened_once_and_its_answer_arrives(
    verb: str, behind: Store, over_http: Store, control: Store, proxy: FaultyProxy
) -> None:
    proxy.lose = 2

    answer = SCENARIOS[verb](behind, over_http)

    assert proxy.lost == 2
    assert answer == SCENARIOS[verb](control, control)
    assert without_attempt_ids(behind) == without_attempt_ids(control)


def said_anywhere(store: Store, words: str) -> list[str]:
    """The tables that hold these words."""
    kept = dump(store)
    with driver_of(store).read() as tx:
        kept["calls"] = [repr(row) for row in tx.all("SELECT * FROM calls", {})]
    return [table for table, rows in kept.items() if any(words in row for row in rows)]


@pytest.mark.parametrize("how", ["removed", "cleaned up"])
def test_what_was_answered_goes_with_its_session(
    how: str, behind: Store, over_http: Store, clock: ManualClock
) -> None:
    words = "plan the merger with Initech"
    turn = over_http.enqueue_turn(ID, a_turn(words))
    over_http.cancel_turn(ID, turn.seq)
    over_http.record_turn(ID, a_turn(words), words, NO_USAGE)
    over_http.edit_turn(ID, 2, prompt=f"{words}, quietly")
    over_http.finalize_session(ID, Phase.COMPLETED, words)
    assert {"calls", "messages", "sessions"} <= set(said_anywhere(behind, words))

    if how == "removed":
        over_http.remove_session(ID)
    else:
        clock.advance(1)
        over_http.clean_up(Old(clock()))

    assert said_anywhere(behind, words) == []


def test_cleaning_up_forgets_what_nobody_asks_for_any_more(
    behind: Store, over_http: Store, clock: ManualClock
) -> None:
    other = behind.create_session(a_session())
    for number in range(20):
        over_http.enqueue_turn(other.id, a_turn(f"step {number}"))
    clock.advance(KEPT_SECONDS + 1)
    over_http.enqueue_turn(other.id, a_turn("the last step"))

    behind.clean_up(Old(after(clock(), -24 * 3600)))

    with driver_of(behind).read() as tx:
        ((answer,),) = tx.all("SELECT answer FROM calls", {})
    assert "the last step" in answer


def test_a_server_that_never_answers_is_an_error_and_not_a_guess(
    over_http: Store, behind: Store, proxy: FaultyProxy
) -> None:
    proxy.lose = 1000

    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        over_http.update_session(ID, SessionUpdate(error="it broke"))

    assert behind.get_session(ID).error_count == 1, "it did happen, once; only nobody could say so"
