"""Whatever sequence of calls comes, the server does what plain dictionaries do."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import (
    invariant,
    run_state_machine_as_test,
)

from lakegc_assets_tests.embedded.machine_gc import Collector
from lakegc_assets_tests.embedded.machine_history import History
from lakegc_assets_tests.embedded.machine_refs import Objects, Refs


class Machine(Refs, Objects, History, Collector):
    """All calls, each made of the server and of the model."""

    @invariant()
    def the_branch_shows_what_the_model_has(self) -> None:
        if not self.models:
            return
        branch = self.touched
        found = {
            i["path"]: i["physical_address"] for i in self.all_pages(f"/refs/{branch}/objects/ls")
        }
        assert found == {path: o.address for path, o in self.model.visible(branch).items()}
        kinds = {i["path"]: i["type"] for i in self.all_pages(f"/branches/{branch}/diff")}
        assert kinds == self.model.staged_kinds(branch)
        assert self.get(f"/branches/{branch}")["commit_id"] == self.model.branches[branch].head


def test_calls_do_what_dictionaries_do() -> None:
    run_state_machine_as_test(Machine, settings=settings(max_examples=12, stateful_step_count=40))


@pytest.mark.conformance
def test_many_calls_do_what_dictionaries_do() -> None:
    run_state_machine_as_test(Machine, settings=settings(max_examples=40, stateful_step_count=60))
