"""A shell completes repositories and runs, and offers nothing where nothing is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lakegc_assets.cli.main import main
from lakegc_assets_tests.site import Site


def completions(words: str) -> list[str]:
    """What bash offers behind some words; the last of them is not complete."""
    typed = words.split(" ")
    result = CliRunner().invoke(
        main,
        env={
            "_LAKEGC_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(typed) - 1),
        },
        prog_name="lakegc",
    )
    assert result.exit_code == 0, result.output
    return [line.partition(",")[2] for line in result.output.splitlines() if line]


@pytest.fixture(scope="module")
def known(site: Site) -> Site:
    """Two repositories of a server, and runs of one of them and of one that is gone."""
    for name in ("sales", "sales-eu"):
        site.client.create_repository(name, f"local://{name}")
    for repository, run in (("sales", "first"), ("sales", "second"), ("removed", "old")):
        content = json.dumps({"attempt": "20260301T000000Z-00000000", "earlier": []}).encode()
        site.root.open(repository, run).put("attempt.json", content)
    return site


@pytest.mark.usefixtures("known")
def test_repositories_and_runs_are_completed() -> None:
    assert completions("lakegc mark s") == ["sales", "sales-eu"]
    assert completions("lakegc report ") == ["removed", "sales", "sales-eu"]
    assert completions("lakegc prune sales sales-") == ["sales-eu"]
    assert completions("lakegc restore sales --run ") == ["first", "second"]
    assert completions("lakegc sweep sales --run s") == ["second"]
    assert completions("lakegc why sales-eu --run ") == []


@pytest.mark.usefixtures("known")
def test_without_a_server_or_artifacts_nothing_is_offered_and_nothing_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LAKECTL_SERVER_ENDPOINT_URL", "http://127.0.0.1:9")
    assert completions("lakegc mark s") == ["sales"]
    monkeypatch.setenv("LAKEGC_ARTIFACT_ROOT", str(tmp_path / "none"))
    assert completions("lakegc mark s") == []
    assert completions("lakegc sweep sales --run s") == []


def test_a_component_says_where_repositories_and_runs_are(
    known: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server, folder = known.server, tmp_path / "project/defs/eu"
    folder.mkdir(parents=True)
    (folder / "defs.yaml").write_text(f"""
type: lakegc_assets.GarbageCollection
attributes:
  name: eu
  lakefs:
    endpoint: "{{{{ env.THE_SERVER }}}}"
    access_key_id_variable: THE_KEY
    secret_access_key_variable: THE_SECRET
  stores: {{artifact_root: {known.folder / "artifacts"}}}
""")
    for name, value in (
        ("THE_SERVER", server.endpoint),
        ("THE_KEY", server.access_key),
        ("THE_SECRET", server.secret_key),
        ("LAKECTL_SERVER_ENDPOINT_URL", "http://127.0.0.1:9"),
        ("LAKECTL_CREDENTIALS_ACCESS_KEY_ID", "another"),
        ("LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY", "another"),
        ("LAKEGC_ARTIFACT_ROOT", str(tmp_path / "none")),
    ):
        monkeypatch.setenv(name, value)
    for place in (tmp_path / "project", folder / "defs.yaml", f"{folder}#eu"):
        assert completions(f"lakegc --defs {place} mark sales-") == ["sales-eu"]
        assert completions(f"lakegc --defs {place} sweep sales --run s") == ["second"]
    assert completions(f"lakegc --defs {folder}#us mark s") == []
    assert completions(f"lakegc --defs {tmp_path / 'no'} sweep sales --run s") == []
    monkeypatch.delenv("THE_SERVER")
    assert completions(f"lakegc --defs {folder} mark s") == ["sales"]


def test_the_readme_says_how_it_is_turned_on() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for shell in ("bash", "zsh", "fish"):
        assert f"{shell}_source" in readme
