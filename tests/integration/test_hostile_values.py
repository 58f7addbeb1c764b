"""What no store can keep, in every place of every call: refused at the door, and told to nobody."""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any, cast

import httpx
import pytest

from holdfast.errors import HoldfastError
from holdfast.store.contract import Store
from holdfast.store.http_store import open_http
from holdfast.store.open import open_store
from holdfast.store.sql_store import SqlStore
from tests.acceptance.served import ask
from tests.builders import a_delegation, a_runtime
from tests.clock import ManualClock
from tests.contract.served import Served, serving
from tests.contract.test_workspaces import VERBS, Theirs, begin_theirs

SECRET = "swordfish"
LONE = f"{SECRET}\ud800{SECRET}"
#: in JSON: Python reads 1e999 as infinity
NUMBERS = [
    "1e999",
    "-1e999",
    "1e300",
    "-1e300",
    "1" + "0" * 30,
    "NaN",
    "9223372036854775807",
    "-9223372036854775808",
]
HOSTILE = [json.dumps(LONE), json.dumps({LONE: 1}), json.dumps([LONE]), *NUMBERS]
PLACE = "%%place%%"
NOT_WITHOUT_TOKENS = {"create_token", "revoke_token", "tokens"}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def somewhere(served: Served) -> Iterator[dict[str, str]]:
    """The header of a workspace that is there."""
    with closing(open_store("sqlite:///:memory:")) as database:
        yield {"Holdfast-Workspace": served.room_of(database)}


class Overheard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(logging.Formatter("%(message)s %(about)s", defaults={"about": ""}).format(record))


@pytest.fixture
def log() -> Iterator[list[str]]:
    overheard, root = Overheard(), logging.getLogger()
    root.addHandler(overheard)
    yield overheard.lines
    root.removeHandler(overheard)


def places(value: Any) -> Iterator[Any]:
    """The value with each of its leaves, and each of its parts, replaced in turn."""
    yield PLACE
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        for changed in places(part):
            copy = dict(value) if isinstance(value, dict) else list(value)
            copy[key] = changed
            yield copy


def body_of(served: Served, room: str, verb: str, theirs: Theirs) -> dict[str, Any]:
    """As the client sends it."""
    bodies: list[bytes] = []
    with closing(open_http(served.url, room, None)) as store:
        sending = cast(Any, store)
        exchange = sending._exchange

        def overheard(request: httpx.Request) -> httpx.Response:
            bodies.append(request.read())
            return cast(httpx.Response, exchange(request))

        sending._exchange = overheard
        calls: dict[str, Callable[[Store, Theirs], object]] = {
            **VERBS,
            "register_runtime": lambda s, _: s.register_runtime(a_runtime()),
            "delegate": lambda s, _: s.delegate(a_delegation()),
        }
        with suppress(HoldfastError):
            calls[verb](store, theirs)
    return cast(dict[str, Any], json.loads(bodies[0]))


@pytest.mark.parametrize("verb", sorted({*VERBS, "register_runtime", "delegate"} - NOT_WITHOUT_TOKENS))
def test_no_value_in_any_place_of_a_call_is_the_servers_fault(
    served: Served, log: list[str], verb: str
) -> None:
    clock = ManualClock()
    with closing(open_store("sqlite:///:memory:", clock=clock)) as database:
        assert isinstance(database, SqlStore)
        room, full = served.room_in(database)
        theirs = begin_theirs(full, clock)
        whole = body_of(served, room, verb, theirs)
        log.clear()
        bodies = [{**whole, name: changed} for name in whole for changed in places(whole[name])]
        for at in bodies:
            for value in HOSTILE:
                text = json.dumps(at).replace(json.dumps(PLACE), value)
                response, told = ask(
                    served.url, "POST", f"/v1/store/{verb}", text, {"Holdfast-Workspace": room}
                )
                assert response.status < 500, (text, told)
                if value in HOSTILE[:3]:
                    assert response.status == 422, (text, told)
                    assert told["detail"].startswith(verb), told
    assert SECRET not in "\n".join(log)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/sessions", {"agent": LONE}),
        ("POST", "/v1/sessions", {"agent": "a", "metadata": {"x": LONE}}),
        ("POST", "/v1/sessions", {"agent": "a", "metadata": {LONE: 1}}),
        ("POST", "/v1/sessions", {"agent": "a", LONE: 1}),
        ("POST", "/v1/sessions/x/turns", {"prompt": LONE}),
        ("POST", "/v1/sessions/x/turns", {"prompt": "a", "allowed_tools": [LONE]}),
        ("PATCH", "/v1/sessions/x", {"error": LONE}),
        ("POST", "/v1/approvals/x/answer", {"approved": True, "arguments_hash": LONE, "nonce": "a"}),
    ],
)
def test_nor_in_any_place_of_a_resource(
    served: Served, somewhere: dict[str, str], log: list[str], method: str, path: str, body: dict[str, Any]
) -> None:
    response, told = ask(served.url, method, path, json.dumps(body), somewhere)

    assert (response.status, told["code"]) == (422, "invalid_input")
    assert told["detail"].startswith("body")
    assert SECRET not in "\n".join(log)


def test_an_error_of_our_own_is_logged_without_its_words(
    served: Served, somewhere: dict[str, str], log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr("holdfast.web.store_calls.check_arguments", fail)
    response, told = ask(served.url, "POST", "/v1/store/now", b"{}", somewhere)

    assert (response.status, told["code"]) == (500, "internal_error")
    assert SECRET not in "\n".join(log)
    assert any("RuntimeError" in line and "test_hostile_values.py" in line for line in log)
