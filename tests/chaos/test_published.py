"""What the README says of the last campaign is what came out of it."""

from tests.chaos.__main__ import ENGINES
from tests.chaos.publish import BEGIN, END, README, quote, read


def test_the_readme_quotes_the_published_figures() -> None:
    _, _, rest = README.read_text().partition(BEGIN)

    assert rest.partition(END)[0] == quote(read()), "run: make chaos ARGS=--write"


def test_the_published_campaign_was_a_long_one_on_either_database_and_broke_nothing() -> None:
    results = read()

    assert [result["engine"] for result in results] == list(ENGINES)
    for result in results:
        assert result["turns"] >= 200
        assert sum(result["faults"].values()) >= 30
        assert set(result["broken"].values()) == {0}
