import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.quick_redaction import may_hold_secret, redact_seldom
from holdfast.domain.redaction import redact_text
from tests.unit import redaction_corpus as corpus
from tests.unit.redaction_corpus import Sample


@pytest.mark.parametrize("sample", corpus.POSITIVES, ids=lambda sample: sample.kind)
def test_it_takes_out_what_the_patterns_take_out(sample: Sample) -> None:
    assert redact_seldom(sample.text) == redact_text(sample.text)
    assert sample.secret not in redact_seldom(sample.text)


@given(
    st.text()
    | st.lists(st.sampled_from([sample.text for sample in corpus.POSITIVES]), max_size=3).map(" ".join)
)
def test_any_text_comes_out_as_from_the_patterns(text: str) -> None:
    assert redact_seldom(text) == redact_text(text)


@pytest.mark.parametrize(
    "text", ["", "look around", "Plan the change to the network, then report what you found."]
)
def test_an_ordinary_task_needs_no_patterns(text: str) -> None:
    assert not may_hold_secret(text)
