from pathlib import Path

import pytest

from holdfast.domain.failures import FAILURES, Failure, FailureClass, Fallback, Retry

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "reference" / "failures.md"
RETRIES = {
    Retry.NEVER: "no",
    Retry.LATER: "yes, after a while",
    Retry.UNLESS_STOPPED: "yes, unless somebody or a time limit stopped it",
    Retry.AT_RESET: "once, when the limit ends",
}
FALLBACKS = {
    Fallback.NEVER: "no",
    Fallback.IF_SILENT: "if nothing was said yet",
    Fallback.ALWAYS: "yes",
}


def test_every_class_has_a_row_in_the_order_of_the_classes() -> None:
    assert list(FAILURES) == list(FailureClass)


@pytest.mark.parametrize("kind", FailureClass)
def test_the_documented_table_is_the_table(kind: FailureClass) -> None:
    then = Failure(kind, "it broke").then
    cells = [
        f"`{kind}`",
        then.meaning,
        RETRIES[then.retry],
        FALLBACKS[then.fallback],
        "yes" if then.retires else "no",
        str(then.exit_code),
    ]
    assert f"| {' | '.join(cells)} |" in PAGE.read_text().splitlines(), "docs/reference/failures.md"


@pytest.mark.parametrize("code", sorted({then.exit_code for then in FAILURES.values()}))
def test_every_exit_code_of_a_failure_is_documented(code: int) -> None:
    rows = (DOCS / "reference" / "cli.md").read_text().partition("## Exit codes")[2].splitlines()
    assert any(row.startswith(f"| {code} | ") for row in rows), "docs/reference/cli.md, Exit codes"
    listed = (DOCS.parent / "README.md").read_text().partition("Exit codes: ")[2].partition("\n")[0]
    assert any(item.startswith(f"{code} ") for item in listed.split(", ")), "README.md, Exit codes"


def test_a_session_that_is_certainly_gone_is_retired_at_once() -> None:
    for then in FAILURES.values():
        assert then.retires or then.fallback is not Fallback.ALWAYS
        assert then.blames_session or not then.retires
