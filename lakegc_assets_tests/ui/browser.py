"""A page of headless Chromium, and the pictures that docs/first-run.md shows of it."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PIL import Image

from lakegc_assets.errors import ConfigurationError

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

#: For a condition, on a machine that does other things, too.
PATIENCE_MS = 300_000
_WIDTH: Final = 1280
_HEIGHT: Final = 720
_COLOURS: Final = 64
#: Where the last words of their kind begin that can be seen.
_TOP: Final = """words => {
  const nodes = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let found = innerHeight;
  while (nodes.nextNode()) {
    const at = nodes.currentNode.data.indexOf(words);
    if (at < 0) continue;
    const range = document.createRange();
    range.setStart(nodes.currentNode, at);
    range.setEnd(nodes.currentNode, at + words.length);
    const top = range.getBoundingClientRect().top;
    if (top > 0 && top < innerHeight) found = top;
  }
  return found;
}"""
_NAMES = ("chromium", "chromium-browser", "google-chrome")
# It is root that runs it in containers, and nothing of it may ask the network.
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass(frozen=True)
class Screen:
    """One page, and where its pictures go.

    Attributes:
        page: of the browser.
        url: of the interface.
        pictures: folder of the pictures.
    """

    page: Page
    url: str
    pictures: Path

    def open(self, path: str) -> None:
        """Go to a page of the interface."""
        self.page.goto(f"{self.url}{path}")

    def picture(self, name: str, above: str | None = None) -> None:
        """Take a picture of what is shown.

        Args:
            name: of its file.
            above: words at which it ends; else with the page.
        """
        height = _HEIGHT if above is None else self.page.evaluate(_TOP, above)
        taken = self.page.screenshot(
            animations="disabled", clip={"x": 0, "y": 0, "width": _WIDTH, "height": height}
        )
        # A few colours are enough, and a third of the bytes.
        shown = Image.open(io.BytesIO(taken)).convert("RGB").quantize(_COLOURS)
        shown.save(self.pictures / f"{name}.png", optimize=True)

    def text(self, words: str) -> Locator:
        """What holds these words."""
        return self.page.get_by_text(words)


def _chromium() -> str:
    for name in (os.environ.get("CHROMIUM", ""), *_NAMES):
        found = shutil.which(name)
        if found:
            return found
    raise ConfigurationError("there is no Chromium: `tools/setup.sh browser` says what to install")


@contextmanager
def screen(url: str, pictures: Path) -> Iterator[Screen]:
    """Open the browser.

    Args:
        url: of the interface.
        pictures: folder of the pictures.
    """
    # Tests of the main suite are collected where playwright is not installed yet.
    from playwright.sync_api import expect, sync_playwright  # noqa: PLC0415

    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_chromium(), args=list(_ARGUMENTS))
        page = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT}, timezone_id="UTC")
        page.set_default_timeout(PATIENCE_MS)
        yield Screen(page, url, pictures)
        browser.close()
