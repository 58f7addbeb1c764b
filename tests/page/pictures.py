"""Owns the pictures of the page in the documentation: real pages of sample sessions, as Chromium shows them.

``make pictures`` draws them.
"""

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import holdfast
from tests.page.browser import FLAGS, chromium
from tests.page.conftest import serving
from tests.page.sample import fill

DOCS = Path(__file__).parents[2] / "docs"
#: file, path, width, height, colours
PICTURES = (
    ("page-session.png", "/s/buckets", 1280, 760, "light"),
    ("page-inbox.png", "/inbox", 390, 600, "dark"),
)


def main() -> int:
    path = chromium()
    if path is None:
        print("pictures: no Chromium here; it is installed by: python -m tests.page.browser", file=sys.stderr)
        return 1
    with (
        tempfile.TemporaryDirectory() as folder,
        holdfast.open(f"sqlite:///{folder}/sessions.db") as opened,
        serving(opened) as url,
        sync_playwright() as driver,
        driver.chromium.launch(executable_path=path, args=list(FLAGS)) as browser,
    ):
        fill(opened)
        for name, page_path, width, height, scheme in PICTURES:
            page = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme="light" if scheme == "light" else "dark",
            )
            page.goto(url + page_path)
            page.screenshot(path=DOCS / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
