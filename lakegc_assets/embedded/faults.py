"""Faults of today's real lakeFS that endanger data, as switches of the server.

Without these faults the server keeps the promises of the uncommitted GC design. Each fault was read
in lakeFS's source or reproduced on a real server. A collector has to handle all of them.
"""

from __future__ import annotations

from enum import Enum


class Fault(Enum):
    """A faulty behaviour of a real lakeFS; the value is its name on the command line."""

    PAGES_WITHOUT_LOCATION = "pages-without-location"
    """The last page of ``prepare_uncommited`` has an empty location although earlier pages wrote
    files: a collector that reads the last answer alone finds nothing staged."""

    ROWS_LOST_ON_BRANCH_DELETE = "rows-lost-on-branch-delete"
    """When a branch is deleted while a page scans it, the rows that the page had already found on
    the branches before are gone from its file too; the token goes on behind them."""

    SCAN_ENDS_EARLY = "scan-ends-early"
    """A throttled key-value store ends the scan of a branch with no error: of each branch
    ``prepare_uncommited`` lists only the first half of what is staged there, rounded down, and each
    answer to the diff of a branch has only the first half of what it should have, rounded down. A
    comparison of two references reports such an error, so it is never cut."""

    ORDER_DEPENDENT_WALK = "order-dependent-walk"
    """``prepare_commits`` stops at a parent that a branch with an equal threshold has visited,
    before it looks at the age of the commit that it comes from: which commits are active then
    depends on the order of commit ids."""

    SHADOWED_UPLOADS = "shadowed-uploads"
    """A staged entry that equals HEAD's in all but its address is served from its new address, yet
    neither ``diff`` nor ``prepare_uncommited`` names it."""

    OLD_SERVER = "old-server"
    """lakeFS 0.100: it does not have the call that prepares commits in the background, nor that for
    its whole configuration, and has rules at another path. Servers before 1.75 say so by 500."""

    STATELESS_LINK_TOKENS = "stateless-link-tokens"
    """An address from ``GetPhysicalAddress`` can be linked any number of times until it expires."""

    STAGE_INSIDE_NAMESPACE = "stage-inside-namespace"
    """``StageObject`` takes any address, one inside the storage namespace too."""

    RESET_KEEPS_STAGED = "reset-keeps-staged"
    """A hard reset moves a branch under what is staged there, without a word: what differed from
    HEAD may equal the new one."""
