"""The HTML report: one file, whole or as before, in which no text of others is HTML."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.attribution.usage import Use
from lakegc_assets.cli import html
from lakegc_assets.cli.jobs import open_instance
from lakegc_assets.cli.pages import (
    forecast_section,
    last_leftovers,
    page_of_estate,
    page_of_run,
    storage_sections,
)
from lakegc_assets.defs.estate import COLUMNS, overview
from lakegc_assets.defs.names import PLAIN
from lakegc_assets.defs.policy import Policies
from lakegc_assets.estate.tables import MarkFigures, Table
from lakegc_assets.forecast.forecast import Amount, Forecast
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.retention.retain_rules import Retain
from lakegc_assets.retention.rules import Rules
from lakegc_assets.wording import escaped, price_note
from lakegc_assets_tests.cli.calling import lakegc
from lakegc_assets_tests.left import BEGAN, checked, root_at, swept

_HOSTILE = (
    "\"><script>alert('1')</script><img src=https://evil.example/x onerror=alert(1)>&amp;\u202e\0"
)
_SERVER = LakeFSConfig(endpoint="https://lakefs.example.com")
_KNOWN = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "table", "thead"),
    *("tbody", "tr", "th", "td", "span", "br", "a", "section", "figure", "figcaption", "ul", "li"),
    *("i", "svg", "line", "text", "rect"),
}


class Read(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def require_harmless(page: str) -> Read:
    """Nothing in it is fetched or run, whoever named what it shows."""
    read = Read(page)
    assert {name for name, _ in read.elements} <= _KNOWN
    for name, attributes in read.elements:
        assert not [key for key in attributes if key.startswith("on")]
        assert not {"src", "style", "xlink:href"} & set(attributes)
        if name == "a":
            assert str(attributes["href"]).startswith("https://lakefs.example.com/")
    assert "default-src 'none'" in str(dict(read.elements[3][1])["content"])
    return read


@pytest.fixture(autouse=True)
def _credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lakectl.yaml").write_text("credentials: {access_key_id: k, secret_access_key: s}")
    monkeypatch.setenv("LAKECTL_CONFIG_FILE", str(tmp_path / "lakectl.yaml"))


def outcome(text: str) -> dict[str, Any]:
    """What is known of a run in which every word is somebody else's."""
    return {
        "repository": text,
        "run": "m1",
        "mode": "unified",
        "cutoff": BEGAN.isoformat(),
        "mark_url": f"s3://{text}/mark",
        "digest": text,
        "artifacts": f"/{text}",
        "engine": "embedded (so says a test)",
        "backup": f"s3://{text}",
        "undo": f"from {text}",
        "listed": 10,
        "listed_bytes": 1000,
        "spared": {text: 1},
        "too_young": 2,
        "outside_data": 0,
        "adopted": {"mark": text, "not_named": {"objects": 3}},
        "state": "swept",
        "because": text,
        "to_delete": None,
        "swept": True,
        "objects": 4,
        "bytes": 400,
        "breakdown": [
            ["reason", text, 4, 400],
            ["branch rule", f"{text}, 20 days", 4, 400],
            ["slice age", "8 days", 4, 400],
            ["age in days", "40", 4, 400],
        ],
        "largest": [[f"data/{text}", 400, text]],
        "checks": {"candidate_share": text},
        "warnings": [text],
        "swept_on": "swept on 2026-03-01 at 02:00 UTC",
        "outcomes": {"deleted": {"objects": 3, "bytes": 300}, "spared": {"objects": 1, "bytes": 9}},
        "space": {
            "freed": {"objects": 1, "bytes": 100},
            "held": {"objects": 2, "bytes": 200},
            "not_known": {"objects": 0, "bytes": 0},
            "until": "2026-04-01 at least",
            "notice": text,
        },
        "spared_by_sweep": {text: 1},
        "deleted_or_missing": 0,
        "restored": None,
    }


def stopped(text: str) -> dict[str, Any]:
    """The same of a run whose sweep has stopped."""
    return {
        **outcome(text),
        "state": "stopped in its sweep",
        "to_delete": f"lakegc sweep {text} --run m1",
        "swept": False,
        "swept_on": None,
        "outcomes": {**outcome(text)["outcomes"], "already_missing": {"objects": 2, "bytes": 8}},
        "deleted_or_missing": 2,
        "restored": None,
    }


def insights(text: str, price: float | None) -> list[html.Section]:
    """What is known beside a report, in which every word is somebody else's."""
    rules = Rules(30)
    amount = Amount(4, 4 * 10**11)
    found = Forecast(
        text, "m1", BEGAN, rules, rules, Retain(), Retain(), (), amount, amount, Amount(0, 0),
        {1: Amount(9, 9 * 10**11), 2: amount}, {7: Amount(5, 5 * 10**11, "at least")}, (text,),
    )  # fmt: skip
    stored = storage_sections(
        (("garbage", text, 4, 3 * 10**12), ("live and committed", None, 6, 10**12)),
        (Use(text, 6, 10**12, (3, 6 * 10**11), (2, 5 * 10**11)), Use("not attributed", 1, 2)),
        (Use(text, 6, 10**12),),
        price,
        [text, *price_note(price), text],
    )
    return [*stored, forecast_section(found, price)]


def test_the_page_of_a_run_escapes_all_that_it_shows() -> None:
    marks = [MarkFigures(BEGAN, 400, 300)]
    page = page_of_run(stopped(_HOSTILE), _SERVER, marks, insights(_HOSTILE, 23.0), 23.0)
    read = require_harmless(page)
    shown = "".join(read.text)
    assert shown.count("<script>alert('1')</script>") == 27
    assert "\0" not in shown
    assert "\u202e" not in shown
    assert "\\u202e\\x00" in shown
    # Classes, forecast, ages and history.
    assert [name for name, _ in read.elements].count("svg") == 4


def test_the_page_of_a_run_says_whose_storage_it_is_and_what_it_costs() -> None:
    shown = " ".join(
        Read(page_of_run(outcome("repo"), _SERVER, (), insights("mine", 23.0), 23.0)).text
    ).split()
    text = " ".join(shown)
    for words in ("garbage: mine: 2.7 TiB, 75.0 %", "garbage: mine 4 2.7 TiB 69.00 a month",
                  "mine 558.8 GiB 372.5 GiB 465.7 GiB 11.50 a month",
                  "today, default 30 days 4 372.5 GiB exact 9.20 a month",
                  "in 7 days, if nobody writes 5 465.7 GiB at least 11.50 a month",
                  "a month at 23.00 for a TB (10^12 bytes)"):  # fmt: skip
        assert words in text
    free = " ".join(Read(page_of_run(outcome("repo"), _SERVER, (), insights("mine", None))).text)
    assert "a month" not in free


def test_the_page_of_a_run_says_what_the_command_says() -> None:
    shown = " ".join(Read(page_of_run(outcome("repo"), _SERVER)).text)
    for words in ("Garbage collection of repo", "Mark m1, swept on 2026-03-01 at 02:00 UTC",
                  "kept 600 B 6 objects", "garbage 400 B 4 objects", "repo, 20 days 4 400 B",
                  "up to 30 days 4",
                  "not older than 2026-03-01 02:00 UTC 2 repo 1 not named by mark repo 3",
                  "deleted 3 300 B", "of the deleted: space freed 1 100 B",
                  "of the deleted: space held, until 2026-04-01 at least 2 200 B",
                  "space freed so far 100 B 1 object", "data/repo", "candidate_share",
                  "s3://repo/mark"):  # fmt: skip
        assert words in " ".join(shown.split())
    assert "lakegc sweep" not in shown
    # Of the store itself nothing is listed in this mode.
    by_name = outcome("repo") | {"mode": "committed"}
    shown = " ".join(" ".join(Read(page_of_run(by_name, _SERVER)).text).split())
    assert "looked at 1,000 B 10 objects" in shown


def test_the_page_of_a_stopped_sweep_says_so_first_and_what_goes_on() -> None:
    shown = " ".join(" ".join(Read(page_of_run(stopped("repo"), _SERVER)).text).split())
    for words in ("Mark m1, stopped in its sweep", "stopped in its sweep: repo",
                  "the try before was killed while it deleted 2",
                  "to go on lakegc sweep repo --run m1",
                  "to undo lakegc restore repo --run m1 --all"):  # fmt: skip
        assert words in shown
    marked = {**stopped("repo"), "state": "marked", "outcomes": {}, "deleted_or_missing": 0}
    shown = " ".join(" ".join(Read(page_of_run(marked, _SERVER)).text).split())
    assert "to delete lakegc sweep repo --run m1" in shown
    assert "restore" not in shown


@given(st.text())
def test_any_text_is_shown_as_text(text: str) -> None:
    table = Table((text,), [(text,), (html.Link(text, text),), (html.State(text, text, True),)])
    read = require_harmless(html.page("title", "about", [html.Section(text, table)]))
    shown = "".join(read.text)
    assert escaped(text) in shown
    printed = escaped(text).replace("\n", "")
    assert printed.isprintable() or not printed


def test_a_link_leads_to_a_web_server_or_nowhere() -> None:
    links = html.Lines((html.Link("x", "javascript:alert(1)"), html.Link("<y>", "https://a/?b='")))
    page = html.page("title", "about", [html.Section("links", Table(("",), [(links,)]))])
    found = [attributes["href"] for name, attributes in Read(page).elements if name == "a"]
    assert found == ["https://a/?b='"]


def test_the_page_of_all_repositories_has_their_rows(tmp_path: Path) -> None:
    root = root_at(tmp_path)
    swept(root, "good", "m1")
    checked(root, "refused", "m1", refused=_HOSTILE)
    found = overview(root, ["new", _HOSTILE], Policies(), {}, PLAIN, BEGAN)
    left = {"bytes in leftover namespaces": 2 << 30, "unfinished uploads": 1234}
    read = require_harmless(page_of_estate(found, _SERVER, {"good": 23.0}, left))
    shown = "".join(read.text)
    words = " ".join(" ".join(read.text).split())
    assert (
        "stored 15.6 KiB less than 0.01 a month garbage 0 B 0.00 a month deleted by all "
        "sweeps 3.9 KiB less than 0.01 a month" in words
    )
    assert "bytes in leftover namespaces 2.0 GiB unfinished uploads 1,234" in words
    for words in (*COLUMNS[:8], "good", "swept on 2026-03-01", "never run", "gc_schedule is off"):
        assert words in shown
    assert shown.count("<script>alert('1')</script>") >= 2
    states = [str(a["class"]) for name, a in read.elements if "state" in str(a.get("class"))]
    assert sorted(states) == ["state"] * 2 + ["state person"] * 2
    assert [name for name, _ in read.elements].count("svg") == 1
    assert "Left over" not in page_of_estate(found, _SERVER)


def test_the_command_writes_all_repositories_although_lakefs_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = root_at(tmp_path)
    swept(root, "good", "m1")
    monkeypatch.setenv("LAKEGC_ARTIFACT_ROOT", root.url)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    monkeypatch.setenv("LAKECTL_SERVER_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("lakegc_assets.lakefs.transport.sleep", lambda _: None)
    file = tmp_path / "estate.html"
    done = lakegc("report", "--html", str(file), "--json")
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)
    assert (row["repository"], row["state"], row["size"]) == ("good", "swept", 6000)
    assert row["freed"][0]["size"] == 4000
    shown = "".join(Read(file.read_text()).text)
    assert "lakeFS does not list its repositories" in shown
    assert "swept on 2026-03-01" in shown
    reported = lakegc("report", "--html", str(file))
    assert reported.stdout == f"1 repository: {file}\n"


def test_the_figures_of_the_last_look_for_leftovers_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    assert last_leftovers() == {}
    for count in (3, 4):
        made = dg.AssetMaterialization(
            "estate_leftovers", metadata={"unfinished uploads": count, "notes": "none"}
        )
        with open_instance() as instance:
            instance.report_runless_asset_event(made)
    assert last_leftovers() == {"unfinished uploads": 4}


@pytest.mark.parametrize(
    "asked",
    [[], ["repo"], ["--run", "m1"], ["repo", "--html", "x"], ["--run", "m1", "--html", "x"]],
)
def test_a_report_about_half_of_a_run_is_wrong_usage(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = lakegc("report", *asked)
    assert done.exit_code == 2
    assert "a report of a run needs REPOSITORY and --run ID" in done.output
    assert not (tmp_path / "x").exists()
