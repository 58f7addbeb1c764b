"""Who comes in, and whose forms count: what a browser is not needed for."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from holdfast import Holdfast
from holdfast.domain.policy import ServerPolicy
from holdfast.domain.tokens import ENTROPY, Role, make_token
from holdfast.errors import ConfigError
from holdfast.web.page.login import Entrance
from tests.acceptance.command import HOLDFAST, holdfast
from tests.builders import an_approval
from tests.page.conftest import Site, serving
from tests.page.sample import fill

FORM = "application/x-www-form-urlencoded"


@dataclass
class Client:
    """A browser without a screen: it keeps cookies, and sends what browsers send with forms."""

    url: str
    cookies: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
        return self._ask("GET", path, None, headers)

    def post(
        self, path: str, *, csrf: str | None = None, origin: str | None = None, **fields: str
    ) -> tuple[int, dict[str, str], str]:
        body = urlencode({**fields, **({} if csrf is None else {"csrf": csrf})})
        return self._ask("POST", path, body, {"Content-Type": FORM, "Origin": origin or self.url})

    def token_of(self, path: str) -> str:
        """The token of a form on this page."""
        found = re.search(r'name="csrf" value="([0-9a-f]{64})"', self.get(path)[2])
        assert found is not None
        return found[1]

    def _ask(
        self, method: str, path: str, body: str | None, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], str]:
        parts = urlsplit(self.url)
        connection = HTTPConnection(str(parts.hostname), parts.port, timeout=60)
        sent = {key.replace("_", "-"): value for key, value in headers.items()}
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            given = {name.lower(): value for name, value in answer.getheaders()}
            if "set-cookie" in given:
                name, _, value = given["set-cookie"].partition(";")[0].partition("=")
                self.cookies[name] = value
            return answer.status, given, answer.read().decode()
        finally:
            connection.close()


def a_token(holdfast: Holdfast, role: Role, seed: int = 1) -> str:
    new, text = make_token(role, f"ada-{role}", None, bytes([seed]) * ENTROPY)
    holdfast.store.create_token(new)
    return text


@pytest.fixture
def guarded(opened: Holdfast) -> Iterator[Site]:
    """A server that has tokens."""
    sample = fill(opened)
    a_token(opened, Role.OPERATOR)
    with serving(opened) as url:
        yield Site(url, opened, sample)


def log_in(site: Site, role: Role = Role.OPERATOR, seed: int = 2) -> Client:
    client = Client(site.url)
    token = a_token(site.holdfast, role, seed)
    status, _, _ = client.post("/login", csrf=client.token_of("/login"), token=token)
    assert status == 303
    return client


# --- tokens ---


@pytest.mark.parametrize("path", ["/", "/s/buckets", "/inbox", "/fleet", "/numbers"])
def test_without_a_token_every_page_leads_to_the_login_and_back(guarded: Site, path: str) -> None:
    status, headers, body = Client(guarded.url).get(path)

    assert (status, headers["location"].partition("?")[0]) == (303, "/login")
    assert (
        headers["location"].endswith(path.replace("/", "%2F"))
        or "next=" + path in headers["location"]
        or path == "/"
    )
    assert body == ""


def test_a_token_logs_in_and_the_cookie_is_only_for_this_server_and_its_pages(guarded: Site) -> None:
    client = Client(guarded.url)
    token = a_token(guarded.holdfast, Role.OPERATOR, 3)
    status, headers, _ = client.post("/login", csrf=client.token_of("/login"), token=token, next="/inbox")

    assert (status, headers["location"]) == (303, "/inbox")
    cookie = headers["set-cookie"]
    assert cookie.startswith(f"holdfast_{urlsplit(guarded.url).port}=")
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert client.get("/inbox")[0] == 200
    assert client.get("/v1/sessions")[0] == 401, "the cookie is no token for programs"


def test_a_wrong_token_says_so_and_opens_nothing(guarded: Site) -> None:
    client = Client(guarded.url)
    status, headers, body = client.post(
        "/login", csrf=client.token_of("/login"), token=f"hft_{'0' * 12}_{'0' * 64}"
    )

    assert (status, "set-cookie" in headers) == (401, False)
    assert "not known here" in body


@pytest.mark.parametrize(
    "elsewhere", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"]
)
def test_a_login_leads_to_no_other_site(guarded: Site, elsewhere: str) -> None:
    client = Client(guarded.url)
    token = a_token(guarded.holdfast, Role.OPERATOR, 4)
    _, headers, _ = client.post("/login", csrf=client.token_of("/login"), token=token, next=elsewhere)

    assert headers["location"] == "/"


def test_a_revoked_token_is_out_at_its_next_page(guarded: Site) -> None:
    client = log_in(guarded)
    token_id = next(iter(client.cookies.values())).split("_")[1]
    guarded.holdfast.store.revoke_token(token_id)
    # the server remembers a token for a second
    until = time.monotonic() + 60
    while client.get("/inbox")[0] != 303:
        assert time.monotonic() < until, "the token still opens the page"


def test_logging_out_forgets_the_cookie(guarded: Site) -> None:
    client = log_in(guarded)
    status, headers, _ = client.post("/logout", csrf=client.token_of("/"))

    assert status == 303
    assert "Max-Age=0" in headers["set-cookie"] or "expires" in headers["set-cookie"].lower()


def test_a_reader_sees_no_button_and_cannot_act(guarded: Site) -> None:
    client = log_in(guarded, Role.READER)
    body = client.get("/s/buckets")[2]
    assert "Continue fresh" not in body
    csrf = client.token_of("/")

    status, _, told = client.post("/s/buckets/continue", csrf=csrf, prompt="do it")

    assert (status, "role reader" in told) == (403, True)
    assert guarded.holdfast.store.head_turn(guarded.sample.idle) is None


@pytest.mark.parametrize("path", ["/", "/s/buckets", "/inbox", "/fleet", "/numbers", "/s/buckets/lineage"])
def test_a_viewer_sees_states_without_contents(guarded: Site, path: str) -> None:
    status, _, body = log_in(guarded, Role.VIEWER).get(path)

    assert status == 200
    for word in (
        "Step 1",
        "two buckets",
        "terraform plan",
        "terraform apply",
        "Move the log buckets",
        "upgrade it",
    ):
        assert word not in body


def test_who_did_what_is_recorded(guarded: Site) -> None:
    client = log_in(guarded)
    asked = guarded.holdfast.approval(guarded.sample.approval)
    status, _, _ = client.post(
        f"/a/{asked.id}", csrf=client.token_of("/inbox"), answer="approve",
        arguments_hash=asked.arguments_hash, nonce=asked.nonce,
    )  # fmt: skip

    assert status == 303
    answered = guarded.holdfast.approval(asked.id).answered_by
    assert answered is not None
    assert answered.startswith("ada-operator (")


# --- forms ---

FORMS = ("continue", "fork", "edit", "truncate", "retry", "cancel", "finalize", "rename", "restore")


@pytest.mark.parametrize("act", FORMS)
def test_a_form_without_its_token_changes_nothing(site: Site, act: str) -> None:
    client = Client(site.url)
    before = site.holdfast.session(site.sample.idle), site.holdfast.history(site.sample.idle)

    for csrf in (None, "0" * 64):
        status, _, body = client.post(
            f"/s/buckets/{act}", csrf=csrf, turn="1", outcome="failed", name="x", prompt="y"
        )
        assert (status, "load the page again" in body) == (403, True)

    assert (site.holdfast.session(site.sample.idle), site.holdfast.history(site.sample.idle)) == before


def test_a_form_of_another_site_changes_nothing_even_with_the_token(site: Site) -> None:
    client = Client(site.url)
    csrf = client.token_of("/s/buckets")

    for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
        assert client.post("/s/buckets/rename", csrf=csrf, origin=origin, name="taken")[0] == 403

    assert site.holdfast.session(site.sample.idle).name == "buckets"


def test_a_page_under_another_name_for_this_machine_is_refused(site: Site) -> None:
    assert Client(site.url).get("/", Host="evil.example")[0] == 421


def test_a_link_from_elsewhere_opens_the_page(site: Site) -> None:
    status, _, _ = Client(site.url).get("/inbox", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")
    assert status == 200
    assert Client(site.url).get("/inbox", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors")[0] == 403


def test_an_answer_to_another_question_does_not_count(site: Site) -> None:
    client = Client(site.url)
    asked = site.holdfast.approval(site.sample.approval)
    status, _, _ = client.post(
        f"/a/{asked.id}",
        csrf=client.token_of("/inbox"),
        answer="approve",
        arguments_hash="0" * 64,
        nonce=asked.nonce,
    )

    assert status == 409
    assert site.holdfast.approval(asked.id).answered_at is None


# --- headers, files, paths ---


@pytest.mark.parametrize("path", ["/", "/login", "/s/nothing", "/static/holdfast.js", "/static/live.js"])
def test_the_browser_is_told_to_run_nothing_but_our_files(site: Site, path: str) -> None:
    policy = Client(site.url).get(path)[1]["content-security-policy"]

    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "style-src 'self'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("path", ["/", "/s/buckets", "/inbox", "/fleet", "/numbers", "/login"])
def test_nothing_is_inline(site: Site, path: str) -> None:
    body = Client(site.url).get(path)[2]

    assert not re.search(r"<style|style=|<script(?![^>]*src=)|\son[a-z]+=|javascript:", body)


@pytest.mark.parametrize(
    "file", ["../routes.py", "..%2froutes.py", "vendor/../../routes.py", "holdfast.py", ""]
)
def test_only_the_files_of_the_page_are_served(site: Site, file: str) -> None:
    assert Client(site.url).get(f"/static/{file}")[0] == 404


def test_a_question_shows_every_argument_that_is_approved(site: Site) -> None:
    edits = [
        {"file_path": "a.tf", "old_string": "old-one", "new_string": "new-one", "command": "hidden-command"},
        {"path": "b.tf", "edits": [{"old_string": "x", "new_string": "y", "url": "https://hidden.example"}]},
        {"file_path": "c.tf", "content": "whole", "filePath": "hidden.tf", "replace_all": True},
        {"file_path": "d.tf", "old_string": "z", "new_string": "n" * 30_000 + "hidden-end"},
    ]
    for arguments in edits:
        site.holdfast.store.request_approval(
            site.sample.delegated, an_approval(call_id=None, tool="Edit", arguments=arguments)
        )
    body = Client(site.url).get("/inbox")[2]

    for shown in (
        "old-one",
        "new-one",
        "hidden-command",
        "https://hidden.example",
        "hidden.tf",
        "replace_all",
    ):
        assert shown in body, shown
    assert re.search(r"… 1[0-9],[0-9]{3} more characters", body)


def test_an_edit_that_changes_nothing_is_none(site: Site) -> None:
    client, session = Client(site.url), site.sample.idle
    token = client.token_of("/s/buckets")
    store = site.holdfast.store
    conversation = store.get_session(session).conversation_id
    known, before = store.history(conversation)[0], store.get_conversation(conversation).revision

    status, headers, _ = client.post(
        f"/s/{session}/edit", csrf=token, turn="1", prompt=known.prompt, response=known.response or ""
    )

    assert (status, "said=unchanged" in headers["location"]) == (303, True)
    assert store.get_conversation(conversation).revision == before


@pytest.mark.parametrize("path", ["/static/%00", f"/static/{'x' * 5000}.css", "/login?code=%C3%A9"])
def test_odd_addresses_are_answered(site: Site, path: str) -> None:
    assert Client(site.url).get(path)[0] in (200, 404)


def test_no_file_of_the_machine_can_be_asked_for(site: Site, tmp_path: Path) -> None:
    secret = tmp_path / "notes.txt"
    secret.write_text("secret")
    client = Client(site.url)

    for path in (f"/static/{secret}", f"/static//{secret}", f"/static/..{secret}", f"/static/%2f{secret}"):
        status, _, body = client.get(path)
        assert (status, "secret" in body) == (404, False), path


def test_behind_a_base_path_every_address_begins_with_it(opened: Holdfast) -> None:
    fill(opened)
    with serving(opened, policy=ServerPolicy(base_path="/holdfast")) as url:
        for stripped in ("", "/holdfast"):  # proxies do it either way
            body = Client(url).get(f"{stripped}/s/buckets")[2]
            paths = re.findall(r'(?:href|src|action|hx-get)="(/[^"]*)"', body)
            assert paths
            assert {path for path in paths if not path.startswith("/holdfast/")} == set()


# --- holdfast ui ---


def test_the_code_of_ui_opens_the_door_once(opened: Holdfast) -> None:
    fill(opened)
    with serving(opened, Entrance("the-key", "the-code")) as url:
        assert Client(url).get("/")[0] == 303, "others on this machine stay out"
        assert Client(url).get("/v1/sessions")[0] == 401
        client = Client(url)
        assert client.get("/login?code=another")[0] == 200
        assert client.cookies == {}
        assert client.get("/login?code=the-code")[0] == 303
        assert client.get("/s/buckets")[0] == 200
        second = Client(url)
        assert "was used already" in second.get("/login?code=the-code")[2]
        assert second.get("/")[0] == 303


def test_ui_prints_an_address_runs_a_worker_and_ends_when_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SCRIPTED_HOME": tmp_path / "agent", "HOLDFAST_RUN__PROVIDER": "scripted"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(tmp_path)
    session = json.loads(holdfast("run", "say hello", "--json").out)["session_id"]
    process = subprocess.Popen([HOLDFAST, "ui", "--no-browser", "--json"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        client = Client(told["url"])
        assert client.get(told["login_url"].removeprefix(told["url"]))[0] == 303
        csrf = client.token_of(f"/s/{session}")
        assert client.post(f"/s/{session}/continue", csrf=csrf, prompt="and again")[0] == 303
        until = time.monotonic() + 100
        while "I was told: and again" not in client.get(f"/s/{session}")[2]:
            assert time.monotonic() < until, "no worker has run the turn"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        if process.stdout is not None:
            process.stdout.close()
    assert process.returncode == 0


def test_ui_without_the_servers_packages_says_what_to_install() -> None:
    script = "import sys; sys.modules['fastapi'] = None; sys.argv = ['holdfast', 'ui']\nfrom holdfast.cli.main import main; sys.exit(main())"
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )

    assert "pip install 'holdfast-sessions[server]'" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.returncode == ConfigError.exit_code


def test_a_person_who_is_logged_in_may_read_the_api(guarded: Site) -> None:
    client = log_in(guarded)

    assert [client.get(path)[0] for path in ("/docs", "/docs.css", "/openapi.json")] == [200, 200, 200]
