"""Measures the active commits of a large repository: 30 K commits on 1 K branches.

Run ``python -m bench.active_commits``.
"""

from __future__ import annotations

import random
import time
from datetime import datetime, timezone

from lakegc_assets.retention.active_commits import active_commits
from lakegc_assets.retention.commits import Commit
from lakegc_assets.retention.naive_active_commits import naive_active_commits
from lakegc_assets.retention.rules import Rules

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
MINUTES_BETWEEN_COMMITS = 17


def history(n_commits: int, n_branches: int) -> tuple[dict[str, Commit], dict[str, str]]:
    """Return commits and HEADs: a long main, branches from it, merges into it, deleted branches."""
    rng = random.Random(1)
    start = int(NOW.timestamp()) - n_commits * MINUTES_BETWEEN_COMMITS * 60
    first = Commit(f"{0:064x}", (), start)
    commits = {first.id: first}
    tips = {"main": first.id}
    for number in range(1, n_commits):
        branch = "main"
        if rng.random() < 0.6:
            branch = f"b{rng.randrange(n_branches * 2):05}"
        parents = [tips.get(branch, tips["main"])]
        if branch == "main" and rng.random() < 0.3:
            parents.append(rng.choice(list(tips.values())))
        date = start + number * MINUTES_BETWEEN_COMMITS * 60 + rng.randrange(-7200, 7200)
        commit = Commit(f"{number:064x}", tuple(parents), date, f"{number:064x}")
        commits[commit.id] = commit
        tips[branch] = commit.id
    names = ["main", *sorted(set(tips) - {"main"})]
    return commits, {name: tips[name] for name in names[:n_branches]}


def main() -> None:
    commits, heads = history(30_000, 1_000)
    days = {branch: 1 + index % 365 for index, branch in enumerate(heads)}
    rules = Rules(30, days)
    print(f"{len(commits):,} commits, {len(heads):,} branches")
    began = time.perf_counter()
    fast = active_commits(commits, heads, rules, NOW)
    print(f"active_commits        {time.perf_counter() - began:8.2f} s")
    began = time.perf_counter()
    slow = naive_active_commits(commits, heads, rules, NOW)
    print(f"naive_active_commits  {time.perf_counter() - began:8.2f} s")
    same = "the same" if slow == fast.active.keys() else "NOT THE SAME"
    print(f"{len(fast.active):,} active, {len(fast.expired):,} expired; both agree: {same}")


if __name__ == "__main__":
    main()
