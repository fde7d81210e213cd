"""Makes one HTML file that needs nothing else: no network, no scripts, and all text escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Final

#: Whatever got into a page by mistake, a browser fetches nothing and runs nothing.
_POLICY: Final = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'"
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; margin: 2rem auto; padding: 0 1.5rem;
  max-width: 90rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p.about { color: #52606d; margin: 0; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { text-align: left; vertical-align: top; padding: .3rem .9rem .3rem 0;
  border-bottom: 1px solid #e4e7eb; overflow-wrap: anywhere; }
th { font-weight: 600; color: #52606d; white-space: nowrap; }
td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.short, .line, td a { white-space: nowrap; }
.long { min-width: 20rem; white-space: pre-line; }
.state { font-weight: 600; }
.person { color: #a61b1b; }
.warning { border-left: 4px solid #d98e4a; padding: .1rem .8rem; margin: .4rem 0;
  overflow-wrap: anywhere; white-space: pre-line; }
img { max-width: 100%; }
"""


#: A cell of up to so many letters is one line, and one of so many gets room.
_SHORT: Final = 16
_LONG: Final = 60


class Markup(str):
    """HTML that was made here; all other text is escaped."""

    __slots__ = ()


def escaped(value: object) -> Markup:
    """Text as HTML shows it; what cannot be printed as Python would write it."""
    if isinstance(value, Markup):
        return value
    text = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in str(value))
    return Markup(html.escape(text, quote=True))


def element(name: str, *content: object, **attributes: str) -> Markup:
    """An element with text or other elements in it; ``class_`` is its class."""
    told = "".join(
        f' {key.rstrip("_")}="{escaped(value)}"' for key, value in attributes.items() if value
    )
    return Markup(f"<{name}{told}>{''.join(escaped(one) for one in content)}</{name}>")


def link(what: str, url: str) -> Markup:
    """A link to a page; text alone where it would lead anywhere but to a web server."""
    if not url.startswith(("http://", "https://")):
        return escaped(what)
    return element("a", what, href=url, rel="noreferrer noopener")


def lines(*parts: object) -> Markup:
    """Text or elements, each on a line of its own."""
    return Markup("<br>".join(escaped(part) for part in parts))


def image(what: str, data_url: str) -> Markup:
    """A picture that the page itself holds."""
    return Markup(f'<img alt="{escaped(what)}" src="{escaped(data_url)}">')


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Markup:
    """A table; whole numbers stand to the right."""
    head = element("tr", *(element("th", name) for name in columns))
    body = [element("tr", *map(_cell, row)) for row in rows]
    return element("div", element("table", element("thead", head), element("tbody", *body)),
                   class_="wide")  # fmt: skip


def _cell(value: object) -> Markup:
    if isinstance(value, int):
        return element("td", f"{value:,}", class_="number")
    if isinstance(value, Markup):
        return element("td", value)
    text = str(value)
    kind = "short" if len(text) <= _SHORT else "long" if len(text) >= _LONG else ""
    return element("td", text, class_=kind)


def page(title: str, about: str, *sections: Markup) -> str:
    """A whole page.

    Args:
        title: what it is about.
        about: a sentence below it.
        sections: of HTML.
    """
    meta = Markup(
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escaped(_POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
    )
    head = element("head", meta, element("title", title), element("style", Markup(_STYLE)))
    body = element("body", element("h1", title), element("p", about, class_="about"), *sections)
    whole = element("html", head, body, lang="en")
    return f"<!DOCTYPE html>\n{whole}\n"
