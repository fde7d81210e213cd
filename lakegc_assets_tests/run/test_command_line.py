"""A command that a message prints does, pasted into a shell, what the message is about."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise
from types import SimpleNamespace

import pytest

from lakegc_assets.cli.jobs import checked
from lakegc_assets.cli.options import settings_of
from lakegc_assets.defs.resources import CollectorResource
from lakegc_assets.retention.retain_rules import OfBranches, Retain
from lakegc_assets.run import command_line as module
from lakegc_assets.run.command_line import (
    Source,
    command_line,
    given_settings,
    own_command,
    printing,
)
from lakegc_assets.run.settings import Settings
from lakegc_assets.storage.config import S3Access, StoreConfig

_CHANGED = Settings(
    mode="unified",
    min_age_hours=30 + 5 / 60,
    clock_skew_seconds=90,
    max_candidate_share=0.8,
    protect_tags=True,
    retain=Retain(("v*",), {"it's": OfBranches(3, 2)}, {"hold": ("true", "*")}).to_json(),
    accept_missing="12:ab",
    skip_new_slices=False,
    clean=True,
    clean_every_hours=30,
    range_num_partitions=2,
    lease_duration_seconds=150,
    lease_wait_seconds=600,
    pin_days=1 / 24,
    trash_days=1 / 86_400,
    restore_revived=False,
    ignored_repositories=["a", "b"],
    engine="spark",
    sweep_keys_per_second=0.1,
    backup_url="s3://kept/back ups; rm -rf '$HOME'",
    backup_bandwidth=0.5,
)


def _given(line: str) -> Settings:
    """The settings that the arguments of a command make."""
    words = shlex.split(line)
    sets = tuple(v for flag, v in pairwise(words) if flag == "--set")
    return CollectorResource(**checked(settings_of(sets))).settings()


def test_a_mark_is_made_again_with_every_setting() -> None:
    line = command_line("mark", "repo", settings=given_settings(_CHANGED, StoreConfig()))
    assert _given(line) == _CHANGED


def test_a_sweep_takes_all_but_what_its_mark_says() -> None:
    line = command_line("sweep", "repo", settings=given_settings(_CHANGED, StoreConfig()))
    usual = Settings()
    of_mark = ("min_age_hours", "clean", "clean_every_hours", "skip_new_slices")
    assert _given(line) == _CHANGED.changed(**{name: getattr(usual, name) for name in of_mark})


def test_the_way_to_the_bucket_of_the_backups_is_given() -> None:
    way = S3Access(endpoint_url="http://other:9000", profile="a b")
    stores = StoreConfig(elsewhere=(("kept", way),))
    settings = given_settings(Settings(backup_url="s3://kept/x"), stores)
    assert command_line("restore", "repo", "--run", "m", "--all", settings=settings) == (
        "lakegc restore repo --run m --all --set backup_url=s3://kept/x "
        "--set backup_endpoint_url=http://other:9000 --set 'backup_profile=a b'"
    )


@pytest.mark.parametrize("address", ["data/a b", "data/it's", "data/$(x)", "data/\n|", "data/ü"])
def test_a_shell_reads_each_argument_as_it_is(address: str) -> None:
    line = command_line("why", "repo", address, "--run", "m")
    assert shlex.split(line) == ["lakegc", "why", "repo", address, "--run", "m"]


def test_a_command_that_takes_no_settings_gets_none() -> None:
    settings = given_settings(_CHANGED, StoreConfig())
    assert command_line("approve", "repo", "--run", "m", settings=settings) == (
        "lakegc approve repo --run m"
    )


def test_a_command_switches_nothing_off_that_keeps_more() -> None:
    """What a component has since a mark was made."""
    now = Settings(protect_tags=True, retain={"tags": ["v*"], "metadata": {"hold": ["true"]}})
    usual = given_settings(now, StoreConfig())
    of_mark = given_settings(Settings(retain={"tags": ["old*"]}), StoreConfig())
    with printing(Source(usual=lambda _: usual)):
        plain = command_line("sweep", "repo", settings=given_settings(Settings(), StoreConfig()))
        both = command_line("sweep", "repo", settings=of_mark)
    assert plain == "lakegc sweep repo"
    assert "protect_tags" not in both
    assert json.loads(shlex.split(both)[-1].removeprefix("retain=")) == {
        "tags": ["old*", "v*"],
        "metadata": {"hold": ["true"]},
    }


@pytest.mark.parametrize(
    "words",
    [
        # As Dagster starts runs and steps in containers, and its code servers.
        ["dagster", "api", "execute_run", '{"instance_ref": {"password": "hunter2"}}'],
        ["dagster", "api", "execute_step", "--compressed-input-json", "hunter2" * 100],
        ["dagster", "api", "grpc", "--instance-ref", '{"password": "hunter2"}'],
    ],
)
def test_the_own_command_tells_no_configuration(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "sys", SimpleNamespace(argv=words))
    assert own_command() == " ".join([*words[:-1], "…"])
    monkeypatch.setattr(module, "sys", SimpleNamespace(argv=["lakegc", "sweep", "repo", *"1234"]))
    assert own_command() == "lakegc sweep repo 1 2 3"
