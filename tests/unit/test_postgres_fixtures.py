import pytest

from tests.postgres_fixtures import _on_this_machine

pytest.importorskip("psycopg", reason="psycopg is not installed", exc_type=ImportError)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:///x",
        "postgresql:///x?host=/run/postgresql",
        "postgresql://user@localhost:5432/x",
        "postgresql://user@127.0.0.1/x",
        "postgresql://[::1]/x",
    ],
)
def test_a_server_on_this_machine_is_accepted(url: str) -> None:
    assert _on_this_machine(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user@db.example.com/x",
        "postgresql:///x?host=192.0.2.1",
        "postgresql:///x?hostaddr=192.0.2.1",
        "postgresql://localhost,db.example.com/x",
    ],
)
def test_a_server_elsewhere_is_refused(url: str) -> None:
    with pytest.raises(pytest.UsageError, match="do not reach beyond this machine"):
        _on_this_machine(url)
