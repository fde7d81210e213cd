"""HTML reports in headless Chromium: on a telephone, in the dark, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakegc_assets.cli.pages import page_of_estate, page_of_run
from lakegc_assets.defs.estate import overview
from lakegc_assets.defs.names import PLAIN
from lakegc_assets.defs.policy import Policies
from lakegc_assets.estate.tables import MarkFigures
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets_tests.cli.test_html import insights, outcome
from lakegc_assets_tests.left import BEGAN, checked, root_at, swept
from lakegc_assets_tests.ui.browser import screen

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.ui

_SERVER = LakeFSConfig(endpoint="https://lakefs.example.com")
_LONG = "experiment/of-somebody-who-gives-his-branches-names-that-never-seem-to-come-to-an-end"
_DARKNESS = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
_OVER = """() => [...document.querySelectorAll("body *")].filter(
  one => !one.closest("div.wide") && one.getBoundingClientRect().right > innerWidth + 1
).map(one => one.outerHTML.slice(0, 200))"""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with screen("", tmp_path) as found:
        yield found.page


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_reports_are_read_on_a_telephone(page: Page, tmp_path: Path, scheme: str) -> None:
    root = root_at(tmp_path)
    swept(root, "good", "m1")
    checked(root, "refused", "m1", refused=f"80 of 100 objects of {_LONG} are candidates")
    found = overview(root, ["new"], Policies(), {}, PLAIN, BEGAN + timedelta(days=3))
    marks = [MarkFigures(BEGAN + timedelta(days=7 * n), 900 + n, 400) for n in range(30)]
    pages = {
        "estate": page_of_estate(found, _SERVER, {"good": 23.0}),
        "run": page_of_run(outcome("sales"), _SERVER, marks, insights(_LONG, 23.0), 23.0),
    }
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    for width in (375, 1200):
        page.set_viewport_size({"width": width, "height": 800})
        for name, text in pages.items():
            file = tmp_path / f"{name}.html"
            file.write_text(text, encoding="utf-8")
            page.goto(file.as_uri())
            page.screenshot(path=tmp_path / f"{name}-{width}-{scheme}.png", full_page=True)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            assert page.evaluate(_OVER) == []
            is_dark = max(page.evaluate(_DARKNESS)) < 64
            assert is_dark == (scheme == "dark")
            assert page.locator("svg").count() >= 1
    assert {url.partition(":")[0] for url in asked} == {"file"}
    assert complaints == []
