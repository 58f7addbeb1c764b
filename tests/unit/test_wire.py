"""Records and errors on the wire."""

import json
from dataclasses import replace
from typing import Any

import pytest

from holdfast.domain.decisions import Decision, Fresh, Outcome, Reason, Refuse, Resume, Standing, Verdict
from holdfast.domain.failures import FailureClass
from holdfast.domain.ids import ProviderSessionId
from holdfast.domain.pointers import Rights
from holdfast.domain.redaction import Json
from holdfast.domain.sessions import NewSession, SessionFilter
from holdfast.domain.turns import NewTurn, TurnEnd, TurnRequest
from holdfast.errors import (
    AmbiguousId,
    Busy,
    ConfigError,
    HoldfastError,
    InvalidInput,
    LeaseLost,
    MissingBinary,
    NotFound,
    PhaseConflict,
    Refused,
    SessionClosed,
    StoreUnavailable,
    UnreadableSession,
)
from holdfast.hooks.spool import SpoolStore
from holdfast.store.contract import FACTS, Store
from holdfast.store.hook_verbs import HookVerbs
from holdfast.store.sql_store import IN_PARTS
from holdfast.store.verbs import verbs
from holdfast.store.wire import check_json, coder
from holdfast.store.wire_errors import decode_error, encode_error
from tests.builders import a_pointer, a_runtime, a_session, an_event, failed

VERDICT = Verdict(Reason.RETIRED, Standing.FAILED, Outcome.FRESH, "gone")


def over_the_wire(hint: Any, value: object) -> object:
    code = coder(hint)
    return code.decode(json.loads(json.dumps(code.encode(value))), "it")


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (NewSession, a_session(metadata={"list": [1, {"deep": None}], "é": 1.5})),
        (Decision, Resume(ProviderSessionId("5b"), ((1, 2), (4, 9)), (VERDICT,))),
        (Decision, Fresh(Reason.RETIRED, (VERDICT,))),
        (Decision, Refuse(Reason.RIGHTS_WIDER, ())),
        (TurnEnd, failed(FailureClass.LIMIT, "later")),
        (
            NewTurn,
            NewTurn(
                "p", "claude", TurnRequest(rights=Rights("plan", frozenset({"b", "a"}), extra_args=("x",)))
            ),
        ),
        (SessionFilter, SessionFilter(active_only=True)),
        (type(an_event()), an_event(3)),
        (type(a_runtime()), a_runtime(version=None)),
        (type(a_pointer("agent-1")), a_pointer("agent-1")),
    ],
)
def test_a_record_arrives_as_it_was_sent(hint: Any, value: object) -> None:
    assert over_the_wire(hint, value) == value


def test_every_verb_of_the_contract_travels() -> None:
    public = {name for name, member in vars(Store).items() if callable(member) and not name.startswith("_")}

    assert set(FACTS) == public - {"close", "within"}
    assert set(verbs()) == {name for name, facts in FACTS.items() if not facts.local}


def test_the_verbs_that_are_read_in_parts_say_so() -> None:
    assert {name for name, facts in FACTS.items() if facts.in_parts} == set(IN_PARTS)


@pytest.mark.parametrize("store", [HookVerbs, SpoolStore])
def test_hooks_have_a_light_way_to_the_verbs_that_they_call(store: type) -> None:
    public = {name for name in vars(store) if not name.startswith("_")}

    assert {name for name, facts in FACTS.items() if facts.hooks} == public - {"close"}


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"agent": 7}, "it.agent"),
        ({"kind": "nonsense"}, "it.kind"),
        ({"metadata": []}, "it.metadata"),
        ({"colour": "red"}, "it.colour"),
        ({"agent": None}, "it.agent"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_place(change: dict[str, Json], place: str) -> None:
    sent = coder(NewSession).encode(a_session())
    assert isinstance(sent, dict)

    with pytest.raises(InvalidInput) as refused:
        coder(NewSession).decode({**sent, **change}, "it")

    assert refused.value.field == place


def test_what_is_missing_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"it\.agent: is missing"):
        coder(NewSession).decode({"id": "agent-1"}, "it")


def test_json_that_is_nested_too_deeply_is_refused_by_its_place() -> None:
    value: Json = 1
    for _ in range(2000):
        value = {"a": [value]}
    with pytest.raises(InvalidInput, match="metadata: is nested too deeply"):
        check_json(value, "metadata")


def test_true_is_no_number() -> None:
    with pytest.raises(InvalidInput, match="must be int"):
        coder(int).decode(True, "it")


def test_a_record_of_several_says_which_it_is() -> None:
    with pytest.raises(InvalidInput, match="must be one of"):
        coder(Decision).decode({"$type": "Maybe"}, "it")


@pytest.mark.parametrize(
    "error",
    [
        InvalidInput("phase", "is no phase"),
        ConfigError("url", "is wrong"),
        MissingBinary("claude", "is not there"),
        NotFound("session", "agent-1"),
        AmbiguousId("agent", ("agent-1", "agent-2")),
        PhaseConflict("agent-1", "planning", "approval"),
        SessionClosed("agent-1", "completed"),
        Refused("rights_wider", "no"),
        Busy("agent-1", "worker", "noon"),
        LeaseLost("agent-1", 3, 7),
        StoreUnavailable("db", "is gone"),
        UnreadableSession("db", "agent-1", "half a row"),
    ],
)
def test_an_error_is_caught_as_what_it_was(error: HoldfastError) -> None:
    arrived = decode_error(json.loads(json.dumps(encode_error(error))))

    assert arrived is not None
    assert type(arrived) is type(error)
    assert (arrived.message, str(arrived), arrived.exit_code) == (error.message, str(error), error.exit_code)
    assert json.dumps(vars(arrived), sort_keys=True) == json.dumps(vars(error), sort_keys=True)


def test_an_error_that_nobody_knows_is_still_an_error() -> None:
    told: dict[str, Json] = {
        "code": "from_the_future",
        "detail": "hm",
        "details": {},
        "fields": {"when": "soon"},
    }

    arrived = decode_error(told)

    assert (type(arrived), str(arrived)) == (HoldfastError, "hm")


def test_a_problem_that_is_none_of_ours_is_no_error_of_ours() -> None:
    assert decode_error({"code": "bad_gateway", "detail": "hm"}) is None


def test_the_defaults_of_a_record_need_not_be_sent() -> None:
    assert coder(TurnRequest).decode({}, "it") == replace(TurnRequest())
