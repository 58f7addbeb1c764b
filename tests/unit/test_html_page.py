"""Nothing that an agent writes becomes more than text, whatever Markdown, HTML or entities it is made of."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.html_page import ATTRIBUTES, LONGEST_MARKDOWN, TAGS, markdown_html

UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
#: what makes trouble elsewhere
PIECES = st.sampled_from(
    (
        "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<svg/onload=alert(1)>", "</div>", "<!--", "]]>",
        "[a](javascript:alert(1))", "[a](JaVaScRiPt:alert(1))", "[a](java&#x0a;script:alert(1))",
        "[a](data:text/html;base64,PHNjcmlwdD4=)", "[a](//evil.example)", "[a](https://ok.example \"t\" onclick=x)",
        "<javascript:alert(1)>", "<https://ok.example/'onmouseover='x>", "![i](https://tracker.example/x.png)",
        "[a]: javascript:alert(1)", "[a]", "&lt;script&gt;", "&#60;script&#62;", "&#x202e;", "\x1b[2J", "\u202e", "`",
        "```html\n", "```\"><script>\n", "\n\n", "> ", "- ", "1. ", "99999999. ", "# ", "|a|b|\n|-|-:|\n", "**", "_",
        "~~", "\\", "\t", "\r", "'", '"', "&", "<", ">", "<style>*{display:none}</style>", "<a href=x style=y>",
        "<iframe src=https://evil.example>", "<base href=//evil>", "<meta http-equiv=refresh content=0>",
    )
)  # fmt: skip


class Seen(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str]] = set()
        self.links: list[str] = []
        self.text = ""
        self.other: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {(tag, name) for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.other.append(data)

    def handle_decl(self, decl: str) -> None:
        self.other.append(decl)

    def handle_pi(self, data: str) -> None:
        self.other.append(data)

    def unknown_decl(self, data: str) -> None:
        self.other.append(data)


def check(page: str) -> None:
    seen = Seen(page)
    allowed = {(tag, name) for tag, names in ATTRIBUTES.items() for name in names} | {("a", "rel")}
    assert seen.tags <= TAGS
    assert seen.attributes <= allowed
    assert seen.other == []
    assert all(link.startswith(("http://", "https://", "mailto:")) for link in seen.links), seen.links
    assert not UNSAFE.search(page)
    assert not UNSAFE.search(seen.text)


@given(st.lists(PIECES | st.text(max_size=8), max_size=12))
def test_no_text_brings_a_tag_a_link_or_a_character_that_is_not_allowed(pieces: list[str]) -> None:
    check(markdown_html("".join(pieces)))


@given(st.text(max_size=200))
def test_no_text_at_all_gets_through_as_more_than_text(text: str) -> None:
    check(markdown_html(text))


def test_markdown_is_laid_out_and_html_is_shown() -> None:
    page = markdown_html(
        "# Title\n\n*a* **b** `c` [d](https://e.x/?a=1&b=2)\n\n<b>x</b>\n\n|e|f|\n|-|-|\n|1|2|"
    )
    assert Seen(page).tags == {
        "h1", "p", "em", "strong", "code", "a", "table", "thead", "tbody", "tr", "th", "td",
    }  # fmt: skip
    assert "&lt;b&gt;x&lt;/b&gt;" in page
    assert '<a href="https://e.x/?a=1&amp;b=2" rel="noopener noreferrer">d</a>' in page


def test_an_image_is_a_link_and_loads_nothing() -> None:
    seen = Seen(markdown_html("![a picture](https://tracker.example/x.png)"))
    assert (seen.tags, seen.links) == ({"p", "a"}, ["https://tracker.example/x.png"])


@pytest.mark.parametrize(
    "link", ["javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "//evil", "x.md"]
)
def test_a_link_to_anything_but_the_web_stays_as_it_was_written(link: str) -> None:
    seen = Seen(markdown_html(f"[a]({link})"))
    assert (seen.links, seen.text.strip()) == ([], f"[a]({link})")


def test_characters_that_reorder_a_line_are_written_out_also_as_entities() -> None:
    assert markdown_html("a&#x202e;b\u202ec\x1b[2J") == "<p>a\\u202eb\\u202ec\\x1b[2J</p>\n"


def test_a_text_of_megabytes_is_shown_as_it_is() -> None:
    page = markdown_html("**x** <b>" + "y" * LONGEST_MARKDOWN)
    assert page.startswith('<div class="plain">**x** &lt;b&gt;yyy')
