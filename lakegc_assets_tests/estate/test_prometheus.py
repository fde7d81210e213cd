"""A real Prometheus reads what `lakegc metrics` serves, with the alerts and dashboard of docs/."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets_tests.cli.calling import lakegc, say
from lakegc_assets_tests.left import checked, finish, marked, root_at, swept
from lakegc_assets_tests.storage.servers import ROOT, prometheus, promtool

pytestmark = pytest.mark.stores

_MONITORING = ROOT / "docs" / "monitoring"
_PATIENCE_S = 120


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArtifactRoot:
    """The artifacts of the command, where lakeFS is away: metrics need it only for new names."""
    found = root_at(tmp_path)
    (tmp_path / "lakectl.yaml").write_text("credentials: {access_key_id: k, secret_access_key: s}")
    monkeypatch.setenv("LAKEGC_ARTIFACT_ROOT", found.url)
    monkeypatch.setenv("LAKECTL_CONFIG_FILE", str(tmp_path / "lakectl.yaml"))
    monkeypatch.setenv("LAKECTL_SERVER_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    return found


@contextmanager
def serving() -> Iterator[str]:
    """Where the command serves, until it is ended as a service is."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lakegc_assets.cli", "metrics", "--port", "0", "--every", "1s"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if found := re.search(r"metrics at http://(127\.0\.0\.1:\d+)/metrics", line):
            break
    else:
        raise AssertionError(said)
    try:
        yield found[1]
    finally:
        process.terminate()
        process.communicate(timeout=_PATIENCE_S)
        assert process.returncode == 0


def check(*arguments: str | Path, stdin: str = "") -> str:
    done = subprocess.run(
        [promtool(), *arguments], input=stdin, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_finds_nothing_wrong(root: ArtifactRoot, tmp_path: Path) -> None:
    swept(root, "good", "m1")
    marked(root, "good", "m2", 7)
    found = lakegc("metrics")
    assert 'lakegc_deleted_bytes_total{repository="good"} 4000.0' in found.stdout
    assert "lakeFS does not list its repositories" in found.stderr
    assert check("check", "metrics", "--extended", stdin=found.stdout)
    assert "10 rules found" in check("check", "rules", "--lint-fatal", _MONITORING / "alerts.yml")
    file = tmp_path / "lakegc.prom"
    lakegc("metrics", "--textfile", str(file))
    assert file.read_text().count("lakegc_repository_state{") == 12
    say(lakegc("metrics", "--textfile", str(tmp_path / "lakegc.txt")), 2, "must end in .prom")


class Asked:
    """The interface of a Prometheus."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **params: str) -> Any:
        answer = requests.get(f"{self.url}/api/v1/{path}", params=params, timeout=30).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def until(self, expression: str) -> list[dict[str, Any]]:
        """What an expression finds, as soon as it finds something."""
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            if found := self.query(expression):
                return found
            time.sleep(0.2)
        raise AssertionError(f"{expression} finds nothing: {self.get('targets')}")


def test_prometheus_scrapes_alerts_and_fills_the_dashboard(
    root: ArtifactRoot, tmp_path: Path
) -> None:
    swept(root, "good", "m1")
    waits = checked(root, "waits", "m1")
    finish(waits, "store_listing", 0, {"requests_by_kind": {"store GET": 7}})
    finish(waits, "gc_report", 0, {"objects": 40, "bytes": 4000, "engine": "embedded (a test)"})
    checked(root, "refused", "m1", refused="80 of 100 listed objects are candidates")
    rules = yaml.safe_load((_MONITORING / "alerts.yml").read_text())
    for rule in rules["groups"][0]["rules"]:
        # Nobody waits for days here.
        rule.pop("for", None)
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(rules))
    with serving() as address:
        configuration = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["alerts.yml"],
            "scrape_configs": [{"job_name": "lakegc", "static_configs": [{"targets": [address]}]}],
        }
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        with prometheus(tmp_path, tmp_path / "prometheus.yml") as server:
            asked = Asked(server.endpoint)
            (deleted,) = asked.until('lakegc_deleted_bytes_total{repository="good"}')
            assert deleted["value"][1] == "4000"
            fired = {
                (one["metric"]["alertname"], one["metric"]["repository"])
                for name in ("LakegcRefused", "LakegcAwaitingApproval", "LakegcMarkStale")
                for one in asked.until(f'ALERTS{{alertname="{name}",alertstate="firing"}}')
            }
            assert fired == {
                ("LakegcRefused", "refused"),
                ("LakegcAwaitingApproval", "waits"),
                # The artifacts are of a day long ago.
                ("LakegcMarkStale", "good"),
                ("LakegcMarkStale", "waits"),
            }
            swept(root, "good", "m2", 7)
            asked.until("lakegc_deleted_bytes_total > 4000")
            for expression in expressions():
                assert asked.query(expression), expression


def expressions() -> list[str]:
    """What the panels of the dashboard ask for."""
    board = json.loads((_MONITORING / "dashboard.json").read_text())
    found = [one["expr"] for panel in board["panels"] for one in panel["targets"]]
    assert len(found) == 14
    return [one.replace("$repository", ".*").replace("$__range", "1h") for one in found]
