"""The examples of a deployment: the commands in their files, run from an installed wheel as a manager would."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped] # schemathesis brings it

from tests.acceptance.installation import ROOT, Environment, build_wheel, install_whole
from tests.acceptance.served import ask

EXAMPLES = ROOT / "examples" / "server"
#: what systemd gives to a service
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: until somebody makes the file that is called ``go``
WAIT = 'TOOL shell {"command": "touch begun; while [ ! -e go ]; do sleep 0.05; done"}'


@pytest.fixture(scope="module")
def opt(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What the units find in /opt/holdfast."""
    wheel = build_wheel(tmp_path_factory.mktemp("dist"))
    return install_whole(wheel, tmp_path_factory.mktemp("opt") / "holdfast", "server", "postgres")


class Unit:
    def __init__(self, name: str, opt: Environment) -> None:
        # systemd knows neither interpolation nor names in lower case
        parser = ConfigParser(interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read(EXAMPLES / name, "utf-8")
        self.settings = parser["Service"]
        self.command = shlex.split(self.settings["ExecStart"].replace("/opt/holdfast", str(opt.folder)))

    @property
    def stop_seconds(self) -> float:
        return float(self.settings["TimeoutStopSec"])


@contextmanager
def running(command: list[str], environ: Mapping[str, str], cwd: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, env={"PATH": PATH, **environ}, cwd=cwd, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def listening(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return str(json.loads(process.stdout.readline())["url"])


def test_the_units_serve_and_work_and_end_well(opt: Environment, tmp_path: Path) -> None:
    server, worker = Unit("holdfast-server.service", opt), Unit("holdfast-worker.service", opt)
    environ = {"HOME": str(tmp_path), "HOLDFAST_URL": f"sqlite:///{tmp_path}/holdfast.db"}
    admin = say(opt, environ, "token", "create", "--role", "admin")
    with running([*server.command, "--port", "0"], environ, Path("/")) as serving:
        environ |= {"HOLDFAST_URL": (url := listening(serving)), "HOLDFAST_TOKEN": admin}
        token = say(opt, environ, "token", "create", "--role", "worker")
        with running(worker.command, {**environ, "HOLDFAST_TOKEN": token}, tmp_path) as working:
            say(opt, environ, "enqueue", "--agent", "a", "--provider", "scripted", "--name", "slow", WAIT)
            until_there(tmp_path / "begun")
            working.send_signal(signal.SIGTERM)
            (tmp_path / "go").touch()
            assert working.wait(worker.stop_seconds) == 0
        session = json.loads(say(opt, environ, "show", "slow", "--json"))
        assert [turn["status"] for turn in session["turns"]] == ["done"]
        response, _ = ask(url, "GET", "/healthz")
        assert response.status == 200
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(server.stop_seconds) == 0


def test_the_worker_has_time_to_hand_back_before_it_is_killed(opt: Environment) -> None:
    worker = Unit("holdfast-worker.service", opt)
    drain = float(worker.command[worker.command.index("--drain") + 1])
    stubborn = 10.0  # until an agent that ignores signals is gone

    assert drain + stubborn < worker.stop_seconds
    assert worker.settings["KillMode"] == "mixed", "its agents are not to get the signal"


@pytest.fixture(scope="module")
def compose() -> Any:
    return yaml.safe_load((EXAMPLES / "compose.yaml").read_text("utf-8"))


def test_the_composed_server_begins_with_a_token_is_healthy_and_ends_well(
    compose: Any, opt: Environment, postgres_url: str, tmp_path: Path
) -> None:
    service = compose["services"]["server"]
    password = tmp_path / "password"
    password.write_text("not used here\n")
    entry = json.loads(
        re.findall(r"^ENTRYPOINT (.*)", service["build"]["dockerfile_inline"], re.MULTILINE)[0]
    )
    # compose makes one dollar out of two
    entry = [
        part.replace("$$", "$").replace("/run/secrets/postgres_password", str(password)) for part in entry
    ]
    environ = {
        "HOME": str(tmp_path), "HOLDFAST_URL": postgres_url, "PATH": f"{opt.folder}/bin:{PATH}"
    }  # fmt: skip
    command = [*entry, *service["command"], "--port", "0"]
    refused = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (refused.returncode, "make one first" in refused.stderr) == (2, True), "others reach it"
    first = re.findall(
        r"docker compose run --rm server (.*?)   ", (EXAMPLES / "compose.yaml").read_text("utf-8")
    )
    made = subprocess.run([*entry, *shlex.split(first[0])], env=environ, stdout=subprocess.PIPE, check=True)
    assert made.stdout.startswith(b"hft_")

    with running(command, environ, Path("/")) as serving:
        port = listening(serving).rpartition(":")[2]
        kind, python, *check = [part.replace("8787", port) for part in service["healthcheck"]["test"]]
        assert (kind, python) == ("CMD", "python")
        subprocess.run([sys.executable, *check], check=True)
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(float(service["stop_grace_period"].removesuffix("s"))) == 0


def test_the_proxy_passes_on_to_where_the_server_listens(compose: Any) -> None:
    server, proxy = compose["services"]["server"], compose["services"]["proxy"]
    port = server["command"][server["command"].index("--port") + 1]

    assert proxy["command"][proxy["command"].index("--to") + 1] == f"server:{port}"
    assert "ports" not in server, "nobody gets past the proxy"


def say(opt: Environment, environ: Mapping[str, str], *arguments: str) -> str:
    ran = subprocess.run(
        [opt.program("holdfast"), *arguments], env={"PATH": PATH, **environ}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def until_there(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} never came"
        time.sleep(0.02)
