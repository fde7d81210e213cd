"""The server's part of garbage collection: rules, and the list of active commits."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from random import shuffle
from typing import Any

from lakegc_assets.embedded import errors
from lakegc_assets.embedded.faults import Fault
from lakegc_assets.embedded.gc.lakefs_walk import order_dependent_walk
from lakegc_assets.embedded.lake import Lake, catalog
from lakegc_assets.embedded.lake.catalog import Repository
from lakegc_assets.embedded.objects import presigning
from lakegc_assets.retention.active_commits import active_commits
from lakegc_assets.retention.commits import Commit
from lakegc_assets.retention.rules import Rules, RulesError

GC_FOLDER = "_lakefs/retention/gc"
TASK_PREFIX = "GCPC"


def rules(lake: Lake, repository: str) -> dict[str, Any]:
    """The rules as the API returns them; 404 without rules."""
    repo = lake.repository(repository)
    if repo.rules is None:
        raise errors.ApiError(404, "not found")
    found: dict[str, Any] = json.loads(repo.rules)
    return found


def set_rules(lake: Lake, repository: str, days: int, branches: dict[str, int]) -> None:
    """Replace the rules.

    As in lakeFS, a default of 0 without branches means no rules, and an empty list of branches is
    read as null.
    """
    text = None
    if days or branches:
        listed = [{"branch_id": b, "retention_days": d} for b, d in branches.items()]
        text = json.dumps({"default_retention_days": days, "branches": listed or None})
    with lake.writing(repository) as (db, repo):
        db.execute("UPDATE repositories SET rules = ? WHERE id = ?", (text, repo.id))


def prepare_commits(lake: Lake, repository: str) -> dict[str, str]:
    """Write the list of active commits, and return its location as the API does.

    The list is written as one object with a new name, so it is complete or does not exist.

    Raises:
        ApiError: 404 without rules, 403 for a read-only repository, 400 for rules that cannot be
            followed.
    """
    with lake.state.read() as db:
        repo = catalog.writable_repository(db, repository)
        commits = {
            c.id: Commit(c.id, c.parents, c.creation_date, c.metarange_id)
            for c in catalog.all_commits(db, repo)
        }
        heads = {b.name: b.commit_id for b in catalog.branches(db, repo)}
    now = datetime.fromtimestamp(lake.now(), tz=timezone.utc)
    active = list(_active(lake, commits, heads, _parsed_rules(repo), now))
    # Today's servers list them in the order of a Go map, which is random.
    shuffle(active)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("commit_id", "expired", "metarange_id"))
    writer.writerows((name, "false", commits[name].metarange_id) for name in active)
    run_id = lake.xids.new_slice(lake.now())
    path = f"{GC_FOLDER}/commits/run_id={run_id}/commits.csv"
    lake.stores.open(repo.namespace).put(path, text.getvalue().encode())
    answer = {
        "run_id": run_id,
        "gc_commits_location": repo.address(path),
        "gc_addresses_location": repo.address(f"{GC_FOLDER}/addresses/"),
    }
    if presigning.is_supported(lake):
        url = presigning.presigned_url(lake, "get_object", repo.namespace, path)
        answer["gc_commits_presigned_url"] = url.url
    return answer


def _parsed_rules(repo: Repository) -> Rules:
    if repo.rules is None:
        raise errors.ApiError(404, "get gc rules: not found")
    try:
        return Rules.parse(json.loads(repo.rules))
    except (RulesError, ValueError) as error:
        raise errors.bad_request(f"get gc rules: {error}; set the rules again") from None


def _active(
    lake: Lake,
    commits: Mapping[str, Commit],
    heads: Mapping[str, str],
    parsed: Rules,
    now: datetime,
) -> Iterable[str]:
    if Fault.ORDER_DEPENDENT_WALK in lake.settings.faults:
        return order_dependent_walk(commits, heads, parsed, now)
    return active_commits(commits, heads, parsed, now).active
