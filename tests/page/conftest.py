"""Owns what the tests of the page share: a server in this process, a real browser, and what the browser must never do."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

import holdfast
from holdfast import Holdfast
from holdfast.domain.policy import ServerPolicy
from holdfast.web.admission import Callers, LocalCallers, Rates
from holdfast.web.page.login import Entrance
from holdfast.web.server import create_app, listen
from holdfast.web.serving import Workspaces
from tests.page.browser import FLAGS, axe, chromium
from tests.page.sample import Sample, fill

END_SECONDS = 30.0
#: for what the browser waits for, on a busy machine
PATIENCE = 60_000


@dataclass
class Site:
    url: str
    holdfast: Holdfast
    sample: Sample


@contextmanager
def serving(
    opened: Holdfast, entrance: Entrance | None = None, policy: ServerPolicy | None = None
) -> Iterator[str]:
    store = opened.store
    callers = LocalCallers(store, entrance.key) if entrance and entrance.key else Callers(store)
    app = create_app(Workspaces(store.workspace, opened.within), callers, Rates(1e9), policy, entrance)
    with listen("127.0.0.1", 0) as listening:
        config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            app.state.queues.close()
            app.state.changes.close()
            server.should_exit = True
            thread.join(END_SECONDS)
            assert not thread.is_alive()


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Holdfast]:
    monkeypatch.setenv("HOLDFAST_DURABILITY", "normal")
    with holdfast.open(f"sqlite:///{tmp_path / 'sessions.db'}") as one:
        yield one


@pytest.fixture
def site(opened: Holdfast) -> Iterator[Site]:
    """The page on a store with one session of each kind, without tokens."""
    sample = fill(opened)
    with serving(opened) as url:
        yield Site(url, opened, sample)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium()
    if path is None:
        pytest.skip("no Chromium here; it is installed by: python -m tests.page.browser")
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture(scope="module")
def axe_script() -> str:
    path = axe()
    if path is None:
        pytest.skip("no axe-core here; it is installed by: python -m tests.page.browser")
    return path.read_text("utf-8")


@dataclass
class Watched:
    """What went wrong in a context: errors on the console, and requests to other hosts."""

    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)


Open = Callable[..., Page]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    """Opens pages. At the end, no page may have had an error or asked another host for anything."""
    seen, contexts = Watched(), list[BrowserContext]()
    # what a test expects: an answer with an error is an error on the console, too
    expected: list[str] = []

    def open_page(url: str, *, expect: str | None = None, **options: object) -> Page:
        context = browser.new_context(**options)  # type: ignore[arg-type] # Playwright's own
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        if expect is not None:
            expected.append(expect)
        context.on(
            "console",
            lambda said: seen.errors.append(said.text) if said.type in ("error", "warning") else None,
        )
        context.on("weberror", lambda error: seen.errors.append(str(error.error)))
        context.on(
            "request",
            lambda asked: (
                None
                if asked.url.startswith(("http://127.0.0.1:", "data:"))
                else seen.foreign.append(asked.url)
            ),
        )
        page = context.new_page()
        page.on("dialog", lambda asked: asked.accept())
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert seen.foreign == []
    assert [error for error in seen.errors if not any(word in error for word in expected)] == []
