"""What a run amounts to where its stream did not bring everything."""

from holdfast.domain.events import Ended, Said
from holdfast.providers.report import Report


def a_report(*said: str) -> Report:
    report = Report(skipped_lines=1)
    for text in said:
        report.add(Said(text))
    report.add(Ended(ok=True))
    return report


def test_a_saved_answer_that_says_more_makes_up_for_a_line_that_was_skipped() -> None:
    report = a_report("first")
    report.take_answer("first, and what was in the line")
    assert (report.response, report.skipped_lines) == ("first, and what was in the line", 0)


def test_one_that_says_the_same_does_not() -> None:
    report = a_report("first")
    report.take_answer("first")
    assert (report.response, report.skipped_lines) == ("first", 1)
