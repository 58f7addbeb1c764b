from typing import Any

import pytest

from holdfast.domain.ids import SessionId
from holdfast.domain.records import replace
from holdfast.domain.sessions import MAX_PURPOSE, NewSession, check_new_session
from holdfast.errors import InvalidInput

PLAIN = NewSession(SessionId("s-1"), "reviewer", "x" * MAX_PURPOSE, name="deploy", provider="claude")


def test_what_a_store_can_keep_is_accepted() -> None:
    check_new_session(PLAIN)
    check_new_session(NewSession(SessionId("s-1"), "reviewer"))


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"id": "../s-1"}, "id"),
        ({"agent": " "}, "agent"),
        ({"purpose": "x" * (MAX_PURPOSE + 1)}, "purpose"),
        ({"name": "agent-20260101-120000-"}, "name"),
        ({"provider": "no provider"}, "provider"),
        ({"conversation_id": ""}, "conversation"),
    ],
)
def test_each_thing_that_is_said_about_a_new_session_is_checked(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_new_session(replace(PLAIN, **wrong))
    assert refused.value.field == field
