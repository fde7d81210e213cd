"""Commands in any order, with settings at random, beside users: nothing that lives ever goes.

Each command goes the whole way of an operator, through the job in Dagster, on one of two
repositories that name each other's objects.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.embedded.lake import catalog
from lakegc_assets.lakefs.errors import LakeFSError
from lakegc_assets.retention.commits import Commit
from lakegc_assets.retention.naive_active_commits import naive_active_commits
from lakegc_assets.retention.rules import Rules
from lakegc_assets.run.settings import MODES
from lakegc_assets_tests.cli.calling import lakegc
from lakegc_assets_tests.site import Site

REPOSITORIES = ("one", "two")
#: Parts of ``retain``, of which a run has some.
RETAIN: dict[str, Any] = {
    "tags": ["v*"],
    "branches": {"x*": {"days": 30}, "main": {"last_commits": 2}},
    "metadata": {"hold": "*"},
    "paths": {"p/10/**": 40, "q/**": "forever"},
}
PATHS = [f"{folder}/{name}" for folder in ("p/10", "q", "é ü") for name in ("1", "a|b", "%41", "#")]


@dataclass
class Mixes:
    """What users and an operator do.

    Attributes:
        site: the server, artifacts and Dagster.
        chance: decides.
        folder: of files that commands read and write.
        runs: ids of the runs of each repository.
        deleted: what the command deleted, and its content, by full address.
    """

    site: Site
    chance: random.Random
    folder: Path
    runs: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in REPOSITORIES})
    deleted: dict[str, bytes] = field(default_factory=dict)

    # Users

    def user(self) -> None:
        """One of them does something; what contradicts what is there is refused."""
        self.site.calendar.days_ago -= 0.3
        kinds = [self.upload] * 6 + [self.commit] * 4 + [self.remove, self.remove, self.merge]
        kinds += [self.make, self.drop, self.tag, self.name, self.name, self.reset, self.rule]
        with suppress(LakeFSError):
            self.chance.choice(kinds)(self.chance.choice(REPOSITORIES))

    def branch(self, repository: str) -> str:
        return self.chance.choice([b.id for b in self.site.client.branches(repository)])

    def upload(self, repository: str) -> None:
        content = f"content {self.chance.random()}".encode()[: self.chance.choice([0, 9, 99])]
        where = self.branch(repository), self.chance.choice(PATHS)
        self.site.client.upload_object(repository, *where, content)

    def remove(self, repository: str) -> None:
        self.site.client.delete_object(
            repository, self.branch(repository), self.chance.choice(PATHS)
        )

    def commit(self, repository: str) -> None:
        self.site.client.commit_branch(repository, self.branch(repository), "m", allow_empty=True)

    def merge(self, repository: str) -> None:
        self.site.client.merge(repository, self.branch(repository), "main")

    def make(self, repository: str) -> None:
        name = f"x{self.chance.randrange(100)}"
        self.site.client.create_branch(repository, name, self.branch(repository))

    def drop(self, repository: str) -> None:
        if (name := self.branch(repository)) != "main":
            self.site.client.delete_branch(repository, name)

    def tag(self, repository: str) -> None:
        name = f"{self.chance.choice('vt')}{self.chance.randrange(1000)}"
        self.site.client.create_tag(repository, name, self.branch(repository))

    def name(self, repository: str) -> None:
        """Stage an object of the other repository by its full address."""
        (other,) = {*REPOSITORIES} - {repository}
        address = self.chance.choice(sorted(self.contents(other)) or ["local://elsewhere/x"])
        body = {"physical_address": address, "checksum": "0" * 32, "size_bytes": 1}
        where = ("repositories", repository, "branches", self.branch(repository), "objects")
        path = {"path": self.chance.choice(PATHS)}
        self.site.client.call("PUT", *where, params=path, json=body)

    def reset(self, repository: str) -> None:
        self.site.client.reset_branch(repository, self.branch(repository))

    def rule(self, repository: str) -> None:
        days = self.chance.choice([1, 5, 20])
        self.site.client.set_gc_rules(repository, days, {"main": self.chance.choice([2, 10])})

    # What there is, and what must stay

    def contents(self, *repositories: str) -> dict[str, bytes]:
        """What the store holds of repositories, by full address."""
        return {
            f"local://{name}/{path.relative_to(self.site.namespace(name)).as_posix()}": (
                path.read_bytes()
            )
            for name in repositories or REPOSITORIES
            for path in self.site.namespace(name).glob("data/*/*")
        }

    def live(self) -> set[str]:
        """The full addresses that HEADs, branches and active commits of any repository hold."""
        found: set[str] = set()
        for name in REPOSITORIES:
            with self.site.server.lake.state.read() as db:
                repository = catalog.repository(db, name)
                commits = {
                    c.id: Commit(c.id, c.parents, c.creation_date, c.metarange_id)
                    for c in catalog.all_commits(db, repository)
                }
                heads = {b.name: b.commit_id for b in catalog.branches(db, repository)}
            rules = self.site.client.gc_rules(name)
            assert rules is not None
            active = naive_active_commits(
                commits, heads, Rules.parse(rules), datetime.now(timezone.utc)
            )
            for ref in (*heads, *active):
                found |= {one.physical_address for one in self.site.client.objects(name, ref)}
        return found

    # The operator

    def operate(self) -> None:
        """Give a command, and look what it did."""
        day, self.site.calendar.days_ago = self.site.calendar.days_ago, 0
        repository = self.chance.choice(REPOSITORIES)
        kinds: list[Callable[[str], list[str]]] = [self.mark, self.mark, self.look]
        if self.runs[repository]:
            kinds += [self.sweep, self.sweep, self.restore]
        arguments = self.chance.choice(kinds)(repository)
        before = self.contents()
        result = lakegc(*arguments)
        after, live = self.contents(), self.live()
        assert isinstance(result.exception, SystemExit | None), (arguments, result.output)
        assert result.exit_code in {0, 1, 3}, (arguments, result.output)
        gone = before.keys() - after.keys()
        assert not gone & live, arguments
        assert not gone or arguments[0] in {"run", "sweep"}, arguments
        # Nothing is changed in place, and what comes back is what it was.
        known = self.deleted | before
        assert after.items() <= known.items(), arguments
        self.deleted |= {address: before[address] for address in gone}
        if result.exit_code == 0 and arguments[0] == "run":
            run = arguments[arguments.index("--run") + 1]
            told = json.loads(lakegc("report", repository, "--run", run, "--json").stdout)
            assert told["outcomes"].get("deleted", {"objects": 0})["objects"] == len(gone)
        self.site.calendar.days_ago = day

    def kept_more(self) -> list[str]:
        """Options of rules that keep more."""
        sections = self.chance.sample(sorted(RETAIN), self.chance.randrange(3))
        if not sections:
            return self.chance.choice([[], ["--protect-tags"]])
        file = self.folder / f"retain-{'-'.join(sections)}.json"
        file.write_text(json.dumps({name: RETAIN[name] for name in sections}))
        return ["--retain", str(file)]

    def mark(self, repository: str) -> list[str]:
        run = f"run-{sum(map(len, self.runs.values()))}"
        self.runs[repository].append(run)
        command = self.chance.choice(["mark", "run"])
        options = ["--max-candidate-share", "1", *self.kept_more()]
        options += self.chance.choice([[], ["--clean"], ["--set", "skip_new_slices=false"]])
        options += self.chance.choice([[], ["--publish", "sgc"], ["--set", "attribution=false"]])
        if command == "run":
            options += self.chance.choice([[], ["--set", f"backup_url={self.folder / 'backups'}"]])
        return [command, repository, "--run", run, "--mode", self.chance.choice(MODES), *options]

    def sweep(self, repository: str) -> list[str]:
        run = self.chance.choice(self.runs[repository])
        return ["sweep", repository, "--run", run, "--max-candidate-share", "1", *self.kept_more()]

    def restore(self, repository: str) -> list[str]:
        run = self.chance.choice(self.runs[repository])
        pins = ["--set", f"pin_days={self.chance.choice([0, 1])}"]
        return ["restore", repository, "--run", run, "--all", *pins]

    def look(self, repository: str) -> list[str]:
        looks = [["usage", repository], ["forecast", repository, "--set-default", "3"]]
        looks += [["prune", repository, "--dry-run"], ["hold", repository], ["pins", repository]]
        looks += [
            ["pending"],
            ["repositories"],
            ["report", "--html", str(self.folder / "all.html")],
        ]
        for run in self.runs[repository][-3:]:
            of_run = [repository, "--run", run]
            page = ["--html", str(self.folder / "run.html")]
            looks += [["report", *of_run], ["report", *of_run, *page]]
            looks += [["restore", *of_run, "--all", "--dry-run"]]
            looks += [["compare", repository, run, self.chance.choice(self.runs[repository])]]
            looks += [["why", *of_run, one] for one in sorted(self.contents(repository))[:1]]
        return self.chance.choice(looks)


@pytest.mark.conformance
@pytest.mark.long
@pytest.mark.parametrize("seed", [4])
def test_whatever_commands_are_mixed_nothing_live_goes(
    site: Site, tmp_path: Path, seed: int
) -> None:
    mixes = Mixes(site, random.Random(seed), tmp_path)
    site.calendar.days_ago = 90
    for name in REPOSITORIES:
        site.client.create_repository(name, f"local://{name}")
        mixes.rule(name)
    for _ in range(25):
        for _ in range(mixes.chance.randrange(1, 15)):
            mixes.user()
        mixes.operate()
    assert mixes.deleted
