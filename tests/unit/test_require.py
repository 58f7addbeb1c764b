import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[2]

WAYS_TO_SKIP = {
    "in_the_test": """
        import pytest
        def test_it():
            pytest.skip("no moon")
        """,
    "by_a_mark": """
        import pytest
        @pytest.mark.skipif(True, reason="no moon")
        def test_it(): ...
        """,
    "in_a_fixture": """
        import pytest
        @pytest.fixture
        def moon():
            pytest.skip("no moon")
        def test_it(moon): ...
        """,
    "at_import": """
        import pytest
        pytest.skip("no moon", allow_module_level=True)
        """,
    "by_a_missing_module": """
        import pytest
        pytest.importorskip("no_such_module", reason="no moon")
        """,
    "as_an_expected_failure": """
        import pytest
        @pytest.mark.xfail(reason="no moon")
        def test_it():
            assert False
        """,
    "as_an_expected_failure_that_passes": """
        import pytest
        @pytest.mark.xfail(reason="no moon")
        def test_it(): ...
        """,
}
PASSING = "def test_it(): ..."


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "xdist"])
def test_every_kind_of_skip_is_an_error_when_everything_is_required(
    tmp_path: Path, workers: list[str]
) -> None:
    run = run_pytest(tmp_path, WAYS_TO_SKIP, *workers, require="all")

    failed = {line.split()[1] for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR "))}
    assert {name.partition("::")[0] for name in failed} == {f"test_{way}.py" for way in WAYS_TO_SKIP}
    assert run.stdout.count("HOLDFAST_REQUIRE=all turns this into an error") == len(WAYS_TO_SKIP)
    assert run.stdout.count("no moon\n") >= len(WAYS_TO_SKIP)


def test_every_kind_of_skip_is_shown_with_its_reason_otherwise(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, WAYS_TO_SKIP, require=None)

    assert run.returncode == 0, run.stdout
    summary = run.stdout.split("short test summary info")[1]
    shown = [line for line in summary.splitlines() if line.startswith(("SKIPPED", "XFAIL", "XPASS"))]
    assert len(shown) == len(WAYS_TO_SKIP)
    assert all("no moon" in line for line in shown)


def test_one_skip_at_import_is_enough_to_fail_the_run(tmp_path: Path) -> None:
    modules = {"fine": PASSING, "at_import": WAYS_TO_SKIP["at_import"]}

    assert run_pytest(tmp_path, modules, require="all").returncode != 0


def test_what_passes_still_passes_when_everything_is_required(tmp_path: Path) -> None:
    assert run_pytest(tmp_path, {"fine": PASSING}, require="all").returncode == 0


def test_a_misspelt_requirement_is_refused(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, {"fine": PASSING}, require="al")

    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "'all' or not set" in run.stderr


def run_pytest(
    directory: Path, modules: dict[str, str], *arguments: str, require: str | None
) -> subprocess.CompletedProcess[str]:
    """Run pytest on these modules, with nothing of ours but the plugin under test."""
    for name, source in modules.items():
        (directory / f"test_{name}.py").write_text(dedent(source))
    # with CI set, pytest repeats the whole reason in its summary
    unwanted = {"HOLDFAST_REQUIRE", "CI", "BUILD_NUMBER"}
    environment = {name: value for name, value in os.environ.items() if name not in unwanted}
    environment["PYTHONPATH"] = str(ROOT)
    if require is not None:
        environment["HOLDFAST_REQUIRE"] = require
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-ra", "--continue-on-collection-errors"]
        # without a folder of its own it would end by removing those of earlier runs, which takes minutes
        + [
            f"--basetemp={directory / 'folders'}",
            "-p",
            "tests.require",
            "-p",
            "no:cacheprovider",
            *arguments,
        ],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
