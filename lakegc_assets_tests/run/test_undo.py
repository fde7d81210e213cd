"""Until when the objects that a sweep deleted can be restored, in words."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from lakegc_assets.run.undo import recovery_facts, undoable, whether_undone, with_trash
from lakegc_assets.storage.values import Recovery

SINCE = datetime(2026, 11, 22, 7, 30, tzinfo=timezone.utc)
TRASH = Recovery("trash", 7, "moved")
VERSIONS = Recovery("versions", None, "versions are kept")
SOFT = Recovery("soft_delete", 14, "soft delete is on")
NOTHING = Recovery("nothing", None, "nothing is kept")
UNKNOWN = Recovery("unknown", None, "no answer")
BACKUP = "s3://backups/repo/m1"


@pytest.mark.parametrize(
    ("recovery", "backup", "words"),
    [
        (TRASH, None, "can be restored until 2026-11-29 07:30 UTC (trash)"),
        (SOFT, None, "can be restored until 2026-12-06 07:30 UTC (soft delete)"),
        (VERSIONS, None, "can be restored (versions); the end is not known"),
        (NOTHING, None, "cannot be restored: nothing is kept"),
        (NOTHING, BACKUP, f"can be restored from the backup {BACKUP} until that is pruned"),
        (UNKNOWN, BACKUP, f"can be restored from the backup {BACKUP} until that is pruned"),
    ],
)
def test_the_sentence(recovery: Recovery, backup: str | None, words: str) -> None:
    facts = {"recovery": recovery_facts(recovery, SINCE), "backup": backup}
    assert undoable(facts, SINCE) == f"the deleted objects {words}"


def test_a_backup_outlasts_the_store_and_what_is_over_is_said_to_be() -> None:
    facts = {"recovery": recovery_facts(TRASH, SINCE), "backup": BACKUP}
    assert undoable(facts, SINCE + timedelta(days=8)) == (
        "the deleted objects could be restored until 2026-11-29 07:30 UTC (trash); and from the "
        f"backup {BACKUP} until that is pruned"
    )


@pytest.mark.parametrize(
    ("deleted", "words"),
    [
        (6, "the deleted objects cannot be restored: an earlier try deleted them without trash"),
        (7, "the deleted objects can be restored until 2026-11-29 07:30 UTC (trash), except for 6"),
    ],
)
def test_trash_that_began_after_the_deletes_brings_nothing_back(deleted: int, words: str) -> None:
    outcomes = {"deleted": {"objects": deleted, "bytes": 0}}
    facts = {
        "recovery": recovery_facts(TRASH, SINCE), "backup": None, "not_kept": 6,
        "outcomes": outcomes,
    }  # fmt: skip
    assert undoable(facts, SINCE).startswith(words)


@pytest.mark.parametrize(
    ("recovery", "backup", "days", "words"),
    [
        (TRASH, None, 3, "this sweep can be undone for 3 days: moved"),
        (TRASH, None, 0, "this sweep cannot be undone: set backup_url, or turn versions on (trash"),
        (TRASH, BACKUP, 0, "this sweep can be undone from its backup only (trash_days is 0, so"),
        (SOFT, None, 3, "this sweep can be undone for 14 days: soft delete is on"),
        (VERSIONS, BACKUP, 3, "this sweep can be undone: versions are kept"),
        (NOTHING, None, 3, "this sweep cannot be undone: set backup_url, or turn versions on (not"),
        (NOTHING, BACKUP, 3, "this sweep can be undone from its backup only (nothing is kept)"),
        (UNKNOWN, None, 3, "it is not known if this sweep can be undone: no answer"),
        (UNKNOWN, BACKUP, 3, "it is not known if this sweep can be undone from the store, be"),
    ],
)
def test_the_sentence_before_a_sweep(
    recovery: Recovery, backup: str | None, days: int, words: str
) -> None:
    found = whether_undone(with_trash(recovery, timedelta(days=days)), backup)
    assert found.startswith(words)


def test_what_nobody_knows() -> None:
    facts = {"recovery": recovery_facts(UNKNOWN, SINCE), "backup": None}
    assert undoable(facts, SINCE) == (
        "it is not known if the deleted objects can be restored: no answer"
    )


@pytest.mark.parametrize("days", [1e7, 2**31 - 1])
def test_more_days_than_the_calendar_has(days: float) -> None:
    """As ``NoncurrentDays`` of S3 may be, or ``trash_days``: the sweep would fail at its end."""
    kept = Recovery("versions", days, "for ever")
    facts = {"recovery": recovery_facts(kept, SINCE), "backup": None}
    assert (
        undoable(facts, SINCE)
        == "the deleted objects can be restored until 2126-10-29 07:30 UTC (versions)"
    )
