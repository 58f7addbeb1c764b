"""Owns the long form: campaigns on each database, and their figures as lines of JSON."""

import argparse
import multiprocessing
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from tests.chaos import databases
from tests.chaos.campaign import Campaign, Figures, Plan, added_up
from tests.chaos.crew import Scripted
from tests.chaos.databases import Database
from tests.chaos.publish import add_part, publish, read_parts, too_short

#: more than 2,000 faults on either database, 50 of each kind at the least
LONG = Plan(sessions=6, turns=4, rounds=13, seconds=7200.0, times=6)
SIDE_BY_SIDE = 4
ENGINES: dict[str, Callable[[Path], AbstractContextManager[Database]]] = {
    "sqlite": databases.sqlite,
    "postgres": databases.postgres,
}


def campaign(engine: str, plan: Plan, root: Path) -> Figures:
    with ENGINES[engine](root) as database:
        return Campaign(plan, database, Scripted(root / "agent"), root).run()


def campaigns(engine: str, plan: Plan, root: Path, side_by_side: int) -> Figures:
    """The same plan so many times at once, each in an order of its own: most of a fault's time is waited for."""
    plans = [replace(plan, chance=plan.chance * side_by_side + number) for number in range(side_by_side)]
    roots = [root / str(number) for number in range(side_by_side)]
    for folder in roots:
        folder.mkdir()
    # leaving it ends what is still running
    with multiprocessing.get_context("fork").Pool(side_by_side, _end_in_order) as pool:
        found = pool.starmap(campaign, zip([engine] * side_by_side, plans, roots, strict=True))
        # SIGTERM can be lost between two waits of a process that has a handler for it, and leaving waits for that one
        pool.close()
        pool.join()
    return added_up(found)


def _end_in_order() -> None:
    """Whoever ends it ends what it has started, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.chaos", description=__doc__)
    parser.add_argument("engines", nargs="*", help=f"of {', '.join(ENGINES)}; all of them")
    parser.add_argument("--sessions", type=int, default=LONG.sessions, help="at a time")
    parser.add_argument("--turns", type=int, default=LONG.turns, help="of each session")
    parser.add_argument("--rounds", type=int, default=LONG.rounds, help="of all faults, in each campaign")
    parser.add_argument("--times", type=int, default=LONG.times, help="quick faults in each round")
    parser.add_argument(
        "--chance", type=int, default=LONG.chance, help="another number, another order of faults"
    )
    parser.add_argument(
        "--side-by-side", type=int, default=SIDE_BY_SIDE, help="campaigns at once, which add up"
    )
    parser.add_argument("--seconds", type=float, default=LONG.seconds, help="at the most")
    parser.add_argument(
        "--parts", type=Path, help="keep the figures in this file, and count those that stand there, too"
    )
    parser.add_argument("--write", action="store_true", help="publish it, if nothing is broken")
    args = parser.parse_args()
    _end_in_order()
    plan = Plan(args.sessions, args.turns, args.rounds, args.seconds, args.chance, args.times)
    found = []
    for engine in args.engines or ENGINES:
        root = Path(tempfile.mkdtemp(prefix=f"holdfast-chaos-{engine}-"))
        before = read_parts(args.parts, engine) if args.parts else []
        figures = campaigns(engine, replace(plan, chance=plan.chance + len(before)), root, args.side_by_side)
        print(figures.line(), flush=True)
        found.append(add_part(args.parts, figures) if args.parts else figures)
        if figures.broken:
            print(f"chaos: broken; what is left is in {root}", file=sys.stderr)
    if any(figures.broken for figures in found):
        return 1
    if not all(figures.late and figures.strays for figures in found):
        print("chaos: nobody came too late, or no agent was left behind: try more turns", file=sys.stderr)
        return 1
    if args.write:
        if (why := too_short(found)) is not None:
            print(f"chaos: not published: {why}", file=sys.stderr)
            return 1
        publish(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
