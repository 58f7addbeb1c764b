"""The names of the package: which there are, and what it costs to have them."""

import os
import subprocess
import sys

import pytest

import holdfast
from holdfast.errors import InvalidInput

VERBS = {
    "cleanup_old_sessions",
    "create_session",
    "finalize_session",
    "get_session",
    "list_sessions",
    "pre_delegate_hook",
    "should_resume",
    "update_state",
}


def test_every_public_name_is_there() -> None:
    assert {*VERBS, "Holdfast", "HoldfastError", "errors", "open"} <= set(holdfast.__all__)
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None
    assert issubclass(InvalidInput, holdfast.HoldfastError)
    assert holdfast.errors.InvalidInput is InvalidInput
    namespace: dict[str, object] = {}
    exec("from holdfast import *", namespace)
    assert set(holdfast.__all__) <= set(namespace)


def test_what_can_be_seen_is_what_is_public() -> None:
    assert dir(holdfast) == sorted([*holdfast.__all__, "__version__"])


@pytest.mark.parametrize("name", ["Nothing", "import_session", "default", "open_with"])
def test_any_other_name_is_not_there(name: str) -> None:
    with pytest.raises(AttributeError, match=f"'holdfast' has no attribute '{name}'"):
        getattr(holdfast, name)


def loaded_by(program: str) -> set[str]:
    """The modules that a new process has loaded after this program, and not before."""
    script = (
        f"import sys; before = set(sys.modules)\n{program}\nprint(*(set(sys.modules) - before), sep='\\n')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], env=os.environ, capture_output=True, text=True, check=True, timeout=60
    )
    return set(ran.stdout.split())


def test_importing_the_package_loads_next_to_nothing() -> None:
    loaded = loaded_by("import holdfast; dir(holdfast)")
    assert {name for name in loaded if name.startswith("holdfast")} == {"holdfast"}
    heavy = {"click", "dataclasses", "json", "logging", "pathlib", "psycopg", "rich", "sqlite3", "tomllib"}
    assert not loaded & heavy


def test_using_the_library_on_sqlite_loads_nothing_but_the_standard_library() -> None:
    loaded = loaded_by("import holdfast; holdfast.should_resume(holdfast.create_session('a'))")
    assert "sqlite3" in loaded
    assert {name.partition(".")[0] for name in loaded} <= sys.stdlib_module_names | {"holdfast"}


def test_reading_a_session_loads_nothing_that_runs_agents_or_takes_long_to_load() -> None:
    loaded = loaded_by("import holdfast; holdfast.get_session(holdfast.create_session('a'))")
    running = {
        "holdfast.engine.running",
        "holdfast.engine.vault",
        "holdfast.providers",
        "subprocess",
        "tempfile",
    }
    assert not loaded & running
    assert not loaded & {"dataclasses", "inspect", "importlib.metadata", "tomllib"}
