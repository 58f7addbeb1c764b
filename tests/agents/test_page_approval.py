"""An answer that is given on the page, in a real browser, to a real agent that is no longer running."""

from playwright.sync_api import expect

from tests.agents.driver import Driver, only
from tests.agents.lab.model_servers.replies import Say
from tests.agents.test_approvals import COMMAND, applied, deferred
from tests.page.conftest import PATIENCE, Open, browser, serving, visit

__all__ = ["browser", "visit"]  # fixtures

expect.set_options(timeout=PATIENCE)


@only("claude")
def test_an_approval_on_the_page_lets_the_waiting_turn_continue(driver: Driver, visit: Open) -> None:
    waiting = deferred(driver)
    driver.lab.server.script(Say("finished"))
    with driver.library() as hf, serving(hf) as url:
        page = visit(f"{url}/a/{waiting['approval']['id']}", viewport={"width": 360, "height": 640})
        expect(page.locator("pre.command")).to_have_text(COMMAND)
        page.get_by_role("button", name="Approve").click()
        expect(page.get_by_role("status")).to_contain_text("Approved")

        page.goto(f"{url}/s/{waiting.session}")
        done = driver.resume(waiting.session)

        assert (done.exit_code, done["text"], done.decision) == (0, "finished", "resume")
        assert applied(driver) == 1
        expect(page.locator(".answer").last).to_have_text("finished")
