import sqlite3
from contextlib import closing
from pathlib import Path

from bench.backlog import Backlog
from bench.crews import compare
from bench.floor import Floor
from bench.ours import Ours
from bench.postgres_stage import connect, open_floor
from bench.workers import ByHand, WithHoldfast
from holdfast.domain.turns import TurnStatus
from holdfast.store.open import open_store
from tests.consistency import assert_consistent


def test_a_backlog_is_what_the_store_itself_would_have_made(file: Path, url: str) -> None:
    backlog = Backlog(sessions=4, turns=5, leased=1)
    with closing(Floor.on_sqlite(file)) as floor:
        backlog.fill(floor)
    with closing(Ours(open_store(url), claims=1_000)) as ours:
        assert_consistent(ours.store)
        done = [ours.finish(claim).status for claim in iter(ours.claim, None)]
        assert done == [TurnStatus.DONE] * backlog.in_all
        assert_consistent(ours.store)


def test_crews_have_done_the_turns_that_they_count(postgres_url: str) -> None:
    with closing(open_floor(postgres_url)) as floor:
        Backlog(sessions=8, turns=100).fill(floor)
    series = compare({"by hand": (ByHand, postgres_url), "Holdfast": (WithHoldfast, postgres_url)}, 2, 1, 0.2)
    counted = [round(0.2 * rate) for one in series.values() for rate in one.rounds]
    with connect(postgres_url) as connection:
        (done,) = connection.execute("SELECT COUNT(*) FROM turns WHERE status = 'done'").fetchone() or (0,)
    assert min(counted) > 0
    assert sum(counted) <= done


def test_the_tables_can_be_made_with_their_primary_keys_alone(file: Path) -> None:
    with closing(Floor.on_sqlite(file, primary_keys_only=True)), closing(sqlite3.connect(file)) as looking:
        made = looking.execute("SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
        assert made.fetchall() == []
