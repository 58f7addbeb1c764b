import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]

NEVER_ENDS = """
    import threading

    def wait_for_ever():
        threading.Event().wait()

    def test_it():
        threading.Thread(target=wait_for_ever).start()
    """


def test_a_process_that_outlives_its_last_test_says_where_it_is_and_ends(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, NEVER_ENDS)

    assert "1 passed" in run.stdout
    assert "in wait_for_ever" in run.stderr
    assert run.returncode != 0


def test_a_worker_that_outlives_its_last_test_does_not_hold_up_the_run(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, NEVER_ENDS, "-n1")

    assert "1 passed" in run.stdout
    assert "in wait_for_ever" in run.stderr


def run_pytest(directory: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on this module, with nothing of ours but the plugin under test."""
    (directory / "test_it.py").write_text(dedent(module))
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.workers", "-p", "no:cacheprovider"]
        # without a folder of its own it would end by removing those of earlier runs, which takes minutes
        + [f"--basetemp={directory / 'folders'}", "-o", "linger_seconds=1", *arguments],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
