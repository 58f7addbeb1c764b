"""What a person sees and does on the page, in a real browser."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from holdfast.domain.approvals import ApprovalStatus
from holdfast.domain.events import EventKind, Writing
from holdfast.domain.phases import Phase
from holdfast.domain.sessions import SessionKind, SessionStatus
from holdfast.domain.turns import NewTurn, TurnRequest
from holdfast.domain.usage import NO_USAGE
from tests.builders import a_claim, an_answer, an_approval, an_event, deferred, done
from tests.page.conftest import PATIENCE, Open, Site
from tests.page.sample import ANSWER

expect.set_options(timeout=PATIENCE)

HOSTILE = (
    "<script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">"
    "<svg onload=\"document.title='pwned'\"></svg>\x1b[31mred\x1b[0m \u202eesrever\u202c {{ 7*7 }} '\"><b hx-get=/inbox hx-trigger=load>"
)


# --- the list ---


def test_the_list_shows_every_session_with_what_it_waits_for(site: Site, visit: Open) -> None:
    page = visit(site.url)

    expect(page.locator("table.sessions tbody tr")).to_have_count(6)
    waiting = page.locator(f"#row-{site.sample.waiting}")
    expect(waiting).to_contain_text("waiting for you")
    expect(waiting).to_contain_text("terraform apply plan.out")
    expect(page).to_have_title("(1) Sessions · Holdfast")


def test_filters_are_in_the_address(site: Site, visit: Open) -> None:
    page = visit(site.url)
    page.select_option("select[name=status]", "failed")

    expect(page.locator("table.sessions tbody tr")).to_have_count(1)
    assert page.url == f"{site.url}/?status=failed"
    page.goto(f"{site.url}/?status=done&provider=claude")
    expect(page.locator("table.sessions tbody tr")).to_contain_text("Write the runbook")


def test_a_filter_that_does_not_exist_is_an_error(site: Site, visit: Open) -> None:
    page = visit(f"{site.url}/?colour=red", expect="422")

    expect(page.get_by_role("alert")).to_contain_text("colour")


def test_the_list_changes_by_itself(site: Site, visit: Open) -> None:
    page = visit(site.url)
    expect(page.locator("table.sessions tbody tr")).to_have_count(6)

    site.holdfast.create("claude", "Begun behind its back", kind=SessionKind.CONVERSATION)

    expect(page.locator("table.sessions tbody tr")).to_have_count(7)
    expect(page.locator("table.sessions tbody tr").first).to_contain_text("Begun behind its back")


def test_search_finds_what_was_said_and_leads_to_the_turn(site: Site, visit: Open) -> None:
    page = visit(site.url)
    page.keyboard.press("/")
    page.keyboard.type("force_destroy")
    page.keyboard.press("Enter")

    expect(page.locator(".hits li").first).to_contain_text("force")
    page.locator(".hits a").first.click()
    expect(page.locator("article.turn").first).to_be_visible()


def test_keys_alone_open_a_session(site: Site, visit: Open) -> None:
    page = visit(site.url)
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("Enter")

    expect(page.get_by_role("heading", level=1)).to_contain_text("Review the network module")
    page.wait_for_load_state()  # its script listens
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()


def test_many_sessions_come_in_pages(site: Site, visit: Open) -> None:
    for number in range(50):
        site.holdfast.create("claude", f"Session {number}", kind=SessionKind.CONVERSATION)
    page = visit(site.url)
    expect(page.locator("table.sessions tbody tr")).to_have_count(50)

    page.get_by_text("Older sessions").click()

    expect(page.locator("table.sessions tbody tr")).to_have_count(6)


# --- a session ---


def test_a_session_begins_with_its_verdict_and_every_guard(site: Site, visit: Open) -> None:
    page = visit(f"{site.url}/s/buckets")

    expect(page.locator(".sentence")).to_contain_text("The next turn resumes the claude session")
    expect(page.locator(".guards tbody tr")).to_have_count(19)
    expect(page.get_by_text("42,000 tokens, 21% of its window")).to_be_visible()
    expect(page.get_by_text("cd /srv/infra && holdfast resume buckets")).to_be_visible()
    expect(page.get_by_text("No worker for claude has reported")).to_have_count(0)


def test_the_conversation_has_markdown_calls_and_diffs(site: Site, visit: Open) -> None:
    page = visit(f"{site.url}/s/buckets")
    turn = page.locator("#turn-1")

    expect(turn.locator(".answer strong")).to_have_text("two buckets")
    expect(turn.locator(".answer pre span.k").first).to_have_text("def")
    edit = turn.locator("details.call").nth(1)
    edit.locator("summary").click()
    expect(edit.locator(".diff .del")).to_have_text('−  bucket = "logs"')
    expect(edit.locator(".diff .add").first).to_have_text('+  bucket = "logs-eu"')
    expect(turn.locator("details.call").nth(2)).to_contain_text("command not found")


def test_continue_puts_a_turn_into_the_queue_with_the_recorded_rights(site: Site, visit: Open) -> None:
    page = visit(f"{site.url}/s/buckets")
    page.get_by_label("What to do next").fill("now the other region")
    page.get_by_role("button", name="Continue", exact=True).click()

    expect(page.get_by_role("status")).to_contain_text("in the queue")
    head = site.holdfast.store.head_turn(site.sample.idle)
    assert head is not None
    assert (head.prompt, head.request) == ("now the other region", TurnRequest())


def test_continue_fresh_says_so_in_the_turn(site: Site, visit: Open) -> None:
    page = visit(f"{site.url}/s/buckets")
    page.get_by_role("button", name="Continue fresh").click()

    expect(page.get_by_role("status")).to_contain_text("in the queue")
    head = site.holdfast.store.head_turn(site.sample.idle)
    assert head is not None
    assert head.request.force_fresh


def test_a_queued_turn_can_be_cancelled(site: Site, visit: Open) -> None:
    page = visit(f"{site.url}/s/{site.sample.queued}")
    page.get_by_role("button", name="Cancel the turn").click()

    expect(page.get_by_role("status")).to_contain_text("cancelled")
    assert site.holdfast.store.head_turn(site.sample.queued) is None


def test_a_closed_session_is_forked(site: Site, visit: Open) -> None:
    page = visit(f"{site.url}/s/{site.sample.closed}")
    expect(page.locator(".sentence")).to_contain_text("a fork can continue its work")
    page.get_by_role("button", name="Fork", exact=True).click()

    expect(page.get_by_role("status")).to_have_text("This is the fork.")
    (child,) = site.holdfast.store.children(site.sample.closed)
    assert page.url.startswith(f"{site.url}/s/{child.id}")
    page.get_by_text("Lineage and what it cost").click()
    expect(page.locator("svg.chart .node circle")).to_have_count(2)
    page.locator("svg .node").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Write the runbook")


def test_one_turn_is_forked_edited_and_dropped(site: Site, visit: Open) -> None:
    page = visit(f"{site.url}/s/buckets")
    menu = page.locator("#menu-2")
    menu.locator("> summary").click()
    menu.get_by_text("Edit the texts").click()
    expect(page.get_by_label("Answer")).to_have_value(ANSWER)
    page.get_by_label("Request").fill("another request")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("edited")
    expect(page.locator("#turn-2 .prompt")).to_have_text("another request")
    expect(page.locator(".sentence")).to_contain_text("fresh")

    page.locator("#menu-2 > summary").click()
    page.locator("#menu-2").get_by_role("button", name="Drop all later turns").click()
    expect(page.get_by_role("status")).to_contain_text("out of the history")
    assert [turn.seq for turn in site.holdfast.history(site.sample.idle)] == [1, 2]

    page.locator("#menu-1 > summary").click()
    page.locator("#menu-1").get_by_role("button", name="Fork after this turn").click()
    expect(page.get_by_role("status")).to_have_text("This is the fork.")


def test_a_session_is_renamed_and_closed(site: Site, visit: Open) -> None:
    page = visit(f"{site.url}/s/{site.sample.delegated}")
    expect(page.locator(".phases .now")).to_have_text("planning")
    page.locator("#more > summary").click()
    page.get_by_label("Name", exact=True).fill("network")
    page.get_by_role("button", name="Rename").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("network")

    page.locator("#more > summary").click()
    page.get_by_label("Summary").fill("reviewed")
    page.get_by_role("button", name="Close it").click()
    expect(page.get_by_role("status")).to_contain_text("closed")
    assert site.holdfast.session(site.sample.delegated).phase is Phase.COMPLETED


def test_text_of_a_running_turn_appears_while_it_runs(site: Site, visit: Open) -> None:
    store, queued = site.holdfast.store, site.sample.queued
    page = visit(f"{site.url}/s/{queued}")
    claim = store.claim_turn(a_claim(session_id=queued))
    assert claim is not None
    expect(page.locator(".end.claimed, .end.running")).to_contain_text("running")

    store.put_partial_text(claim.lease, 1, Writing("about to be half way there "))
    expect(page.locator("#turns .writing")).to_contain_text("about to be half way there")
    store.record_events(claim.lease, [an_event(1, data={"text": "half way there"})])
    expect(page.locator("#turns .writing")).to_have_count(0)
    expect(page.locator("#turns")).to_contain_text("half way there")

    store.finish_turn(claim.lease, done("upgraded"))
    expect(page.locator("#turns .answer")).to_have_text("upgraded")
    expect(page.locator("#follows")).to_have_count(0)


def test_the_button_is_always_that_of_the_verdict(site: Site, visit: Open) -> None:
    store, idle = site.holdfast.store, site.sample.idle
    page = visit(f"{site.url}/s/buckets")
    page.get_by_label("What to do next").fill("half a thought")

    store.enqueue_turn(idle, NewTurn("from elsewhere", "claude"))
    expect(page.get_by_role("button", name="Cancel the turn")).to_be_visible()
    expect(page.get_by_role("button", name="Continue", exact=True)).to_have_count(0)

    claim = store.claim_turn(a_claim(session_id=idle))
    assert claim is not None
    store.finish_turn(claim.lease, deferred())
    expect(page.get_by_role("button", name="Approve")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel the turn", exact=True)).to_have_count(0)

    (asked,) = store.approvals(session_id=idle)
    store.answer_approval(asked.id, an_answer(asked))
    claim = store.claim_turn(a_claim(session_id=idle))
    assert claim is not None
    store.finish_turn(claim.lease, done("applied"))
    expect(page.get_by_role("button", name="Continue", exact=True)).to_be_visible()
    expect(page.get_by_label("What to do next")).to_have_value("half a thought")


def test_what_cannot_be_undone_is_asked_first(site: Site, visit: Open) -> None:
    page = visit(f"{site.url}/s/buckets")
    page.evaluate("window.confirm = (words) => { window.asked = words; return false; }")
    page.locator("#more > summary").click()
    page.get_by_role("button", name="Close it").click()

    assert page.evaluate("window.asked") == "Close the session? Only a fork can continue it then."
    assert site.holdfast.status(site.sample.idle) is SessionStatus.IDLE


def test_what_the_reader_has_opened_and_typed_stays(site: Site, visit: Open) -> None:
    page = visit(f"{site.url}/s/buckets")
    page.get_by_label("What to do next").fill("half a thought")
    page.locator("#turn-3 details.call summary").first.click()

    site.holdfast.record(site.sample.idle, "said elsewhere", "and answered", NewTurn("", "claude"), NO_USAGE)

    expect(page.locator("#turn-4")).to_contain_text("and answered")
    expect(page.get_by_label("What to do next")).to_have_value("half a thought")
    expect(page.locator("#turn-3 details.call").first).to_have_attribute("open", "")


def test_the_newest_turns_come_first_and_older_ones_on_request(site: Site, visit: Open) -> None:
    made = site.holdfast.create("claude", "Long", kind=SessionKind.CONVERSATION, provider="claude").id
    for number in range(1, 26):
        site.holdfast.record(made, f"request {number}", f"answer {number}", NewTurn("", "claude"), NO_USAGE)
    page = visit(f"{site.url}/s/{made}")
    expect(page.locator("article.turn")).to_have_count(10)
    expect(page.locator("article.turn").last).to_contain_text("answer 25")

    page.get_by_text("Show turns before 16").click()

    expect(page.locator("article.turn")).to_have_count(20)
    expect(page.locator("article.turn").first).to_contain_text("answer 6")
    page.locator("#toc > summary").click()
    expect(page.locator("#toc li")).to_have_count(25)


def test_the_page_says_that_no_worker_can_take_a_turn(site: Site, visit: Open) -> None:
    made = site.holdfast.create("helper", "For nobody", kind=SessionKind.CONVERSATION, provider="codex").id
    page = visit(f"{site.url}/s/{made}")

    expect(page.locator(".warn")).to_contain_text("holdfast worker --provider codex")


# --- the inbox ---


@pytest.mark.parametrize(
    ("button", "status"), [("Approve", ApprovalStatus.APPROVED), ("Deny", ApprovalStatus.DENIED)]
)
def test_a_question_is_answered_with_a_thumb(
    site: Site, visit: Open, button: str, status: ApprovalStatus
) -> None:
    page = visit(
        f"{site.url}/a/{site.sample.approval}",
        viewport={"width": 360, "height": 640},
        has_touch=True,
        is_mobile=True,
    )
    expect(page.locator("pre.command")).to_have_text("terraform apply plan.out")
    page.get_by_label("Note to the agent").fill("only the logs")
    page.get_by_role("button", name=button).tap()

    expect(page.get_by_role("status")).to_contain_text(
        "Approved" if status is ApprovalStatus.APPROVED else "Denied"
    )
    answered = site.holdfast.approval(site.sample.approval)
    assert (answered.status, answered.note) == (status, "only the logs")
    expect(page).to_have_title("Inbox · Holdfast")


def test_a_question_elsewhere_is_counted_in_the_title_of_every_page(site: Site, visit: Open) -> None:
    page = visit(f"{site.url}/s/buckets")

    site.holdfast.store.request_approval(site.sample.delegated, an_approval(call_id=None))

    expect(page).to_have_title("(2) buckets · Holdfast")


def test_a_new_question_appears_in_the_inbox_and_in_the_title(site: Site, visit: Open) -> None:
    page = visit(f"{site.url}/inbox")
    expect(page).to_have_title("(1) Inbox · Holdfast")

    site.holdfast.request_approval(site.sample.delegated, "delete the old module")

    expect(page.locator(".question")).to_have_count(2)
    expect(page).to_have_title("(2) Inbox · Holdfast")


# --- fleet and numbers ---


def test_the_fleet_shows_the_queue_and_the_machines(site: Site, visit: Open) -> None:
    page = visit(f"{site.url}/fleet")

    expect(page.get_by_role("row").filter(has_text="Upgrade the cluster")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="npm 2.1.0")).to_contain_text("live")


def test_the_numbers_are_those_of_the_command(site: Site, visit: Open) -> None:
    page = visit(f"{site.url}/numbers")

    expect(page.get_by_role("row").filter(has_text="resume rate")).to_contain_text("100.0%")
    expect(page.get_by_role("row").filter(has_text="auth")).to_contain_text("1")
    assert page.locator("svg.chart").count() >= 2


# --- on every page ---

PAGES = (
    "/",
    "/s/buckets",
    "/s/{waiting}",
    "/s/{delegated}",
    "/s/buckets/lineage",
    "/inbox",
    "/fleet",
    "/numbers",
    "/login",
    "/?q=plan",
)


def _paths(site: Site) -> list[str]:
    return [path.format(waiting=site.sample.waiting, delegated=site.sample.delegated) for path in PAGES]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(site: Site, visit: Open, axe_script: str, scheme: str) -> None:
    page = visit(site.url, color_scheme=scheme, bypass_csp=True)
    found = {}
    for path in _paths(site):
        page.goto(site.url + path)
        page.evaluate(axe_script)
        answer = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        found[path] = [
            (one["id"], one["help"], [node["html"][:200] for node in one["nodes"][:3]])
            for one in answer["violations"]
        ]
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("width", [360, 700, 1000, 2560])
def test_nothing_is_wider_than_the_screen(site: Site, visit: Open, width: int) -> None:
    page = visit(site.url, viewport={"width": width, "height": 700})
    for path in _paths(site):
        page.goto(site.url + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path


def test_hostile_texts_are_only_texts(site: Site, visit: Open) -> None:
    made = _hostile_session(site)
    page = visit(site.url)
    for path in (
        "/",
        f"/s/{made}",
        f"/s/{made}/lineage",
        "/inbox",
        "/fleet",
        "/numbers",
        "/?q=pwned",
        f"/?q={'%3Cscript%3E'}",
    ):
        page.goto(site.url + path)
        assert page.title() != "pwned", path
        assert (
            page.locator("main script, main img, main [onerror], main [onload], main b[hx-get]").count() == 0
        ), path
        assert "\u202e" not in page.content(), path
        assert "\x1b" not in page.content(), path
    page.goto(f"{site.url}/s/{made}")
    expect(page.locator("#turn-1 .prompt")).to_contain_text("<script>")
    expect(page.locator("#turn-1 .answer")).to_contain_text("{{ 7*7 }}")


def _hostile_session(site: Site) -> str:
    holdfast = site.holdfast
    made = holdfast.create(
        "agent <i>x", HOSTILE, kind=SessionKind.CONVERSATION, provider="claude", name="<script>pwned</script>"
    ).id
    markdown = f"{HOSTILE}\n\n[a](javascript:alert(1)) ![b](https://example.com/x.png) <https://example.com>\n\n```html\n{HOSTILE}\n```"
    holdfast.store.enqueue_turn(
        made, NewTurn(HOSTILE, "claude", TurnRequest(work_dir=f"/srv/{HOSTILE[:40]}"))
    )
    claim = holdfast.store.claim_turn(a_claim(session_id=made))
    assert claim is not None
    call = {"call_id": "c", "tool": HOSTILE, "arguments": {"command": HOSTILE, HOSTILE: HOSTILE}}
    holdfast.store.record_events(
        claim.lease,
        [
            an_event(1, kind=EventKind.TOOL_CALL, data=call),
            an_event(
                2,
                kind=EventKind.TOOL_RESULT,
                data={"call_id": "c", "output": "x" * 30_000 + HOSTILE, "is_error": True},
            ),
            an_event(3, kind=EventKind.NOTICE, data={"text": HOSTILE}),
        ],
    )
    holdfast.store.finish_turn(claim.lease, done(markdown))
    holdfast.request_approval(made, HOSTILE, {"file_path": HOSTILE, "old_string": HOSTILE, "new_string": "b"})
    return str(made)


def test_times_are_in_the_zone_of_the_reader(site: Site, visit: Open) -> None:
    page = visit(f"{site.url}/s/buckets", timezone_id="Asia/Tokyo", locale="en-GB")
    shown = page.locator("#turn-1 time")
    told: Callable[[Page], str] = lambda at: at.evaluate(  # noqa: E731 - it is asked in the page's own zone
        "new Intl.DateTimeFormat(undefined, {day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit'})"
        ".format(new Date(document.querySelector('#turn-1 time').dateTime))"
    )

    expect(shown).to_have_text(told(page))


def test_ten_tabs_of_one_browser_are_all_live(site: Site, visit: Open) -> None:
    first = visit(site.url)
    tabs = [first, *(first.context.new_page() for _ in range(9))]
    for tab in tabs[1:]:
        tab.goto(site.url)

    made = site.holdfast.create("claude", "Seen by all", kind=SessionKind.CONVERSATION)

    for tab in tabs:
        expect(tab.locator(f"#row-{made.id}")).to_be_visible()
    assert site.holdfast.status(made.id) is SessionStatus.IDLE
