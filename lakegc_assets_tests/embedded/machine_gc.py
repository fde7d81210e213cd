"""Rules of the comparison with the model: what a collector asks for."""

from __future__ import annotations

import io
from datetime import datetime, timezone

import pyarrow.parquet as pq
from hypothesis import strategies as st
from hypothesis.stateful import (
    rule,
)

from lakegc_assets.retention.commits import Commit as RetainedCommit
from lakegc_assets.retention.naive_active_commits import naive_active_commits
from lakegc_assets.retention.rules import Rules
from lakegc_assets_tests.embedded.machine import (
    BRANCHES,
    DAY,
    Driven,
)


class Collector(Driven):
    """What a collector asks for, as time passes."""

    @rule(days=st.sampled_from([0.01, 0.5, 1, 3]))
    def time_passes(self, days: float) -> None:
        self.clock.now += days * DAY

    @rule()
    def uncommitted_is_what_is_staged(self) -> None:
        found: set[str] = set()
        body: dict[str, str] = {}
        runs = set()
        while True:
            response = self.send("POST", "/gc/prepare_uncommited", json=body)
            assert response.status_code == 201, response.text
            page = response.json()
            runs.add(page["run_id"])
            if page["gc_uncommitted_location"]:
                found |= self.addresses(page["gc_uncommitted_location"])
            if "continuation_token" not in page:
                break
            body = {"continuation_token": page["continuation_token"]}
        assert len(runs) == 1
        base = self.get("")["storage_namespace"] + "/"
        staged = self.model.staged_addresses()
        tracked = self.copied[self.name]
        recent = {address for address, copied in tracked.items() if copied == self.clock()}
        assert staged | recent <= {base + a for a in found} <= staged | tracked.keys()

    def addresses(self, location: str) -> set[str]:
        folder = self.api.lake.settings.objects_dir / location.removeprefix("local://")
        files = [path.read_bytes() for path in folder.iterdir()]
        tables = [pq.read_table(io.BytesIO(file)) for file in files]
        return {address for table in tables for address in table["physical_address"].to_pylist()}

    @rule(
        default=st.sampled_from([1, 3]),
        days=st.dictionaries(st.sampled_from(BRANCHES), st.sampled_from([0, 2, 5]), max_size=2),
    )
    def active_commits_are_those_of_the_definition(
        self, default: int, days: dict[str, int]
    ) -> None:
        rules = [{"branch_id": name, "retention_days": d} for name, d in days.items()]
        body = {"default_retention_days": default, "branches": rules}
        assert self.send("PUT", "/settings/gc_rules", json=body).status_code == 204
        response = self.send("POST", "/gc/prepare_commits", json={})
        assert response.status_code == 201, response.text
        location = response.json()["gc_commits_location"].removeprefix("local://")
        text = (self.api.lake.settings.objects_dir / location).read_text()
        commits = {
            c.id: RetainedCommit(c.id, c.parents, c.date, "") for c in self.model.commits.values()
        }
        heads = {name: b.head for name, b in self.model.branches.items()}
        now = datetime.fromtimestamp(self.clock(), tz=timezone.utc)
        expected = naive_active_commits(commits, heads, Rules(default, days), now)
        header, *rows = [line.split(",") for line in text.splitlines()]
        assert header == ["commit_id", "expired", "metarange_id"]
        assert {row[0] for row in rows} == expected
        assert len(rows) == len(expected)
