"""Each setting is declared once: limits, help and documentation are the same everywhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, get_args

import pydantic
import pytest

from lakegc_assets.cli.jobs import checked
from lakegc_assets.cli.options import settings_of
from lakegc_assets.defs.policy import Places, Policy, StoresSection
from lakegc_assets.defs.resources import CollectorResource
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.run.bounds import Bounds
from lakegc_assets.run.settings import RepositorySettings, Settings
from lakegc_assets_tests.defs import settings_table


def test_every_number_has_bounds_and_every_setting_a_description() -> None:
    fields = CollectorResource.model_fields
    numbers = [
        n for n, one in fields.items() if {int, float} & {one.annotation, *get_args(one.annotation)}
    ]
    assert len(numbers) > 15
    assert [n for n in numbers if not any(isinstance(x, Bounds) for x in fields[n].metadata)] == []
    assert [n for n, one in fields.items() if not one.description] == []


def test_the_documentation_has_the_settings_as_they_are() -> None:
    assert settings_table.written()[1] == settings_table.table(), settings_table.COMMAND


def test_a_place_is_described_once() -> None:
    for name in ("backup_url", *Places.model_fields):
        described = {m.model_fields[name].description for m in (CollectorResource, StoresSection)}
        assert len(described) == 1, name


def test_the_documentation_names_the_settings_of_single_repositories() -> None:
    page = (settings_table.FILE.parent / "automation.md").read_text(encoding="utf-8")
    named = page.partition("The settings of a repository (")[2].partition(")")[0]
    assert set(re.findall(r"`(\w+)`", named)) == set(RepositorySettings.model_fields)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("max_candidate_share", 7.0, "from 0 to 1"),
        ("clean_every_hours", -1.0, "from 0 to 876,000 hours"),
        ("listing", "all", "'store' or 'inventory'"),
    ],
)
def test_each_way_to_set_refuses_the_same_values(name: str, value: Any, said: str) -> None:
    ways: list[tuple[Callable[[], object], type[Exception]]] = [
        (lambda: Settings(**dict[str, Any]({name: value})), ConfigurationError),
        (lambda: CollectorResource(**{name: value}), pydantic.ValidationError),
        (lambda: Policy(**{name: value}), pydantic.ValidationError),
        (lambda: checked(settings_of((f"{name}={value}",))), ConfigurationError),
    ]
    for way, error in ways:
        with pytest.raises(error, match=rf"(?s){name}.*{said}"):
            way()
