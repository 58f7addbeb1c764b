"""The server keeps to its own description, whatever it is sent."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode, checks

from holdfast import Holdfast
from holdfast.store.open import open_store
from holdfast.web.admission import Callers, Rates
from holdfast.web.server import create_app
from holdfast.web.serving import Workspaces
from tests.acceptance.served import server
from tests.contract.served import NoTokens

EXAMPLES = 8
#: what fits the schema may still break a rule of the domain
NOT_PROMISED = [checks.positive_data_acceptance]


def described() -> list[Any]:
    with Holdfast(open_store("sqlite:///:memory:")) as behind:
        app = create_app(Workspaces("default", behind.within), Callers(NoTokens()), Rates(1))
        document = app.openapi()
    del document["security"]  # without tokens nobody is asked for one
    del document["paths"]["/v1/changes"]  # a stream that does not end; see tests/integration/test_changes.py
    found: list[Any] = list(schemathesis.openapi.from_dict(document).get_all_operations())
    return [operation.ok() for operation in found]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    store = f"sqlite:///{tmp_path_factory.mktemp('described')}/holdfast.db"
    with server("--url", store, "--rate", "100000") as (url, _):
        yield url


OPERATIONS = described()
CASES = [(operation, GenerationMode.POSITIVE) for operation in OPERATIONS] + [
    (operation, GenerationMode.NEGATIVE)
    for operation in OPERATIONS
    if "requestBody" in operation.definition.raw or "parameters" in operation.definition.raw
]


@pytest.mark.parametrize(("operation", "mode"), CASES, ids=lambda part: getattr(part, "label", None))
def test_what_it_answers_is_what_it_says(operation: Any, mode: GenerationMode, url: str) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def keeps_to_it(case: Any) -> None:
        case.call_and_validate(base_url=url, excluded_checks=NOT_PROMISED)

    keeps_to_it()
