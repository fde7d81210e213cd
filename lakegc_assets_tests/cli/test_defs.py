"""Commands that Dagster shows do, pasted into a shell, what its component would do."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from click.testing import Result

from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets.defs.loading import load
from lakegc_assets.defs.names import add_partition
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.run.command_line import Source, command_line, printing
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.settings import Settings
from lakegc_assets.sweep import hold_report
from lakegc_assets_tests.cli.calling import lakegc
from lakegc_assets_tests.defs.running import instance_of, run
from lakegc_assets_tests.site import Site

pytestmark = [
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
    pytest.mark.filterwarnings("ignore::dagster.PreviewWarning"),
]

_PYPROJECT = """\
[project]
name = "platform"
version = "0.1.0"
[tool.dg]
directory_type = "project"
[tool.dg.project]
root_module = "ours"
"""
_DEFINITIONS = """\
from pathlib import Path
from dagster import definitions, load_from_defs_folder

@definitions
def defs():
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
"""


def paste(text: str) -> Result:
    """Run the one command that a message holds."""
    (line,) = set(re.findall(r"lakegc --defs [^`\n]+", text))
    return lakegc(*shlex.split(line)[1:])


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Path]:
    """A folder of definitions in a project, in a path that a shell would not take as it is."""
    package = tmp_path / "our platform #1" / "src" / "ours"
    folder = package / "defs" / "collection"
    folder.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "defs/__init__.py").touch()
    (package / "definitions.py").write_text(_DEFINITIONS)
    (package.parents[1] / "pyproject.toml").write_text(_PYPROJECT)
    before = list(sys.path)
    yield folder
    sys.path[:] = before
    for name in [one for one in sys.modules if one.partition(".")[0] == "ours"]:
        del sys.modules[name]
    load.cache_clear()


def write(folder: Path, *components: str) -> None:
    (folder / "defs.yaml").write_text(
        "---\n".join(
            f"type: lakegc_assets.GarbageCollection\nattributes:\n{text}" for text in components
        )
    )


def test_what_dagster_prints_works_where_it_is_pasted(
    site: Site, collection: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell that knows nothing of the server but the variables that the component names."""
    site.tell("alpha")
    write(
        collection,
        f"""
  name: eu
  lakefs:
    endpoint: {site.server.endpoint}
    access_key_id_variable: THE_KEY
    secret_access_key_variable: THE_SECRET
  stores: {{artifact_root: {site.folder / "eu"}, local_root: {site.server.objects_dir}}}
  max_candidate_share: 0.6
  approval_lifetime_days: 3
  exclude: [scratch]
""",
    )
    monkeypatch.setenv("THE_KEY", site.server.access_key)
    monkeypatch.setenv("THE_SECRET", site.server.secret_key)
    for name in ("ENDPOINT_URL", "CREDENTIALS_ACCESS_KEY_ID", "CREDENTIALS_SECRET_ACCESS_KEY"):
        variable = f"LAKECTL_{'SERVER_' if name == 'ENDPOINT_URL' else ''}{name}"
        monkeypatch.delenv(variable)
    monkeypatch.delenv("LAKEGC_LOCAL_ROOT")
    component = load(str(collection))
    definitions = importlib.import_module("ours.definitions").defs()
    with instance_of(site) as instance:
        key = add_partition(instance, "alpha", "wave", component.names())
        tags = {"dagster/schedule_name": "eu_gc_schedule"}
        done = run(definitions, "eu_gc", instance, key, tags=tags)
        found = instance.get_run_by_id(done.run_id)
    assert found is not None
    waits = found.tags["lakegc/waits"]
    place = shlex.quote(f"{collection}#eu")
    assert "run the job eu_gc_approve" in waits
    assert f"--defs {place} approve alpha --run wave" in waits
    approved = paste(waits)
    assert approved.exit_code == 0, approved.output
    swept = paste(approved.stdout)
    assert swept.exit_code == 0, swept.output
    assert "deleted" in swept.stdout
    # The pointer below DAGSTER_HOME names it as well.
    (site.folder / "dagster/lakegc-defs").write_text(f"{collection}\n")
    assert lakegc("report", "alpha", "--run", "wave").exit_code == 0
    with dg.DagsterInstance.get() as instance:
        assert "alpha" in instance.get_dynamic_partitions("eu_repository")
    (site.folder / "dagster/lakegc-defs").unlink()
    assert lakegc("report", "alpha", "--run", "wave").exit_code != 0


def test_what_a_component_backs_up_is_not_lost_for_a_dry_run_nor_for_a_hold(
    site: Site, tmp_path: Path
) -> None:
    """As the restore and the acceptance do that follow, in Dagster and from a shell."""
    site.tell("archived")
    stores = {"backup_url": tmp_path / "backups", "artifact_root": site.folder / "artifacts",
              "local_root": site.server.objects_dir}  # fmt: skip
    write(tmp_path, f"  stores: {json.dumps(stores, default=str)}\n")
    at = ("--defs", str(tmp_path))
    swept = lakegc(*at, "run", "archived", "--run", "m1", "--set", "trash_days=0")
    assert swept.exit_code == 0, swept.output
    dry = lakegc(*at, "restore", "archived", "--run", "m1", "--all", "--dry-run", "--json")
    assert json.loads(dry.stdout)["would_come_back"]["from"]["backup"] == 2, dry.output
    seen: list[RunContext] = []

    def no_hold(ctx: RunContext) -> dict[str, str]:
        seen.append(ctx)
        return {"repository": "archived", "state": "no hold"}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hold_report, "known_hold", no_hold)
        shown = lakegc(*at, "hold", "archived", "--set", "pin_days=3")
    assert shown.exit_code == 0, shown.output
    assert seen[0].settings.backup_url == str(stores["backup_url"])
    assert seen[0].settings.pin_days == 3


def test_a_file_is_enough_where_there_is_no_project(tmp_path: Path) -> None:
    write(tmp_path, "  min_age_hours: 48\n  running: true\n")
    for place in (tmp_path, tmp_path / "defs.yaml"):
        assert load(str(place)).min_age_hours == 48


def test_one_of_several_is_named_behind_the_path(collection: Path) -> None:
    write(collection, "  name: eu\n  min_age_hours: 48\n", "  name: us\n  min_age_hours: 72\n")
    for place in (collection, collection / "defs.yaml", collection.parents[3]):
        assert load(f"{place}#us").min_age_hours == 72
        with pytest.raises(
            ConfigurationError, match=r"2 components: choose one with --defs .*#eu, .*#us"
        ):
            load(str(place))
    us = load(f"{collection}#us")
    assert us.names().source.definitions == f"{collection}#us"


def test_components_that_no_names_tell_apart_are_refused_in_a_sentence(collection: Path) -> None:
    write(collection, "  min_age_hours: 48\n", "  min_age_hours: 72\n")
    with pytest.raises(ConfigurationError, match=r"2 components at .*give each of them a `name`"):
        load(str(collection))
    # Dagster itself would say that definitions have different resources with the same key.
    tree = dg.ComponentTree.for_project(collection.parents[3])
    with pytest.raises(Exception, match="Error while building definitions") as refused:
        tree.build_defs()
    cause = refused.value.__cause__
    assert isinstance(cause, ConfigurationError)
    assert "2 components of this project have no `name`" in str(cause)
    assert str(collection) in str(cause)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("type: somebody.Else\n", "there is no lakegc_assets.GarbageCollection"),
        ("type: [\n", "cannot be loaded: expected the node content, but found"),
        (
            "type: lakegc_assets.GarbageCollection\nattributes: {sweep: atuo}\n",
            "loaded: sweep: 'atuo' is not one of",
        ),
        (
            "type: lakegc_assets.GarbageCollection\nattributes: {max_candidate_share: 7, foo: 1}\n",
            "loaded: max_candidate_share: 7.0 is not from 0 to 1; foo: there is no such field\n",
        ),
        (
            "type: lakegc_assets.GarbageCollection\nattributes: {lakefs: {endpoint: nohost}}\n",
            "loaded: lakefs.endpoint: 'nohost' is not a URL: write it with its scheme",
        ),
        (
            "type: lakegc_assets.GarbageCollection\nattributes: {min_age_hours: '{{ foo.x }}'}\n",
            "loaded: min_age_hours: 'foo' not found in scope",
        ),
        (
            "type: lakegc_assets.GarbageCollection\nattributes: {include: a*, min_age_hours: 2d}\n",
            "as a number; include: it must be a list: write it as [a, b]\n",
        ),
        (
            "type: lakegc_assets.GarbageCollection\nattributes: {min_age_hours: 2d}\n",
            "loaded: min_age_hours: Input should be a valid number",
        ),
        (
            "type: lakegc_assets.GarbageCollection\nattributes: {sweep: yes, tags: {a: 1}}\n",
            "loaded: sweep: it must be text: write it in quotes; tags.a: it must be text",
        ),
        (
            "type: lakegc_assets.GarbageCollection\nattributes: {retain: {tag: [v]}}\n",
            "loaded: retain: unknown key 'tag'",
        ),
        (
            "type: lakegc_assets.GarbageCollection\nattributes: {translation: {group: a}}\n",
            "loaded: translation.group: there is no such field\n",
        ),
        (
            "type: lakegc_assets.GarbageCollection\nattributes: {notices: {url_variable: NOT}}\n",
            "loaded: notices: it names a variable that is not set: NOT. Set it\n",
        ),
        (
            "type: lakegc_assets.GarbageCollection\nattributes: {translation: {key: x}}\n",
            "have the same key, x: write {{ asset }} into it\n",
        ),
        (None, "there is no file or folder"),
    ],
)
def test_a_place_without_a_component_is_refused_in_a_sentence(
    text: str | None, said: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "defs.yaml").write_text(text)
    refused = lakegc("--defs", str(tmp_path / "defs.yaml"), "repositories")
    assert refused.exit_code == 2
    assert refused.stderr.startswith("configuration: ")
    assert said in refused.stderr
    assert refused.stderr.count("\n") == 1
    for word in ("Traceback", "pydantic", "https://errors", "<string>"):
        assert word not in refused.output


def test_a_variable_that_is_not_set_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("THE_KEY", raising=False)
    monkeypatch.setenv("THE_SECRET", "word")
    write(
        tmp_path,
        "  lakefs: {endpoint: 'http://x', access_key_id_variable: THE_KEY, "
        "secret_access_key_variable: THE_SECRET}\n",
    )
    refused = lakegc("--defs", str(tmp_path), "repositories")
    assert (refused.exit_code, "THE_KEY" in refused.stderr) == (2, True)
    assert "Traceback" not in refused.output


def test_a_printed_command_has_what_differs_from_the_component_and_not_from_the_default() -> None:
    component = GarbageCollection(max_candidate_share=0.8, min_age_hours=48)
    source = Source("/defs", component.usual_settings)
    with printing(source):
        strict = Settings().to_json()
        usual = component.usual_settings("alpha")
        assert command_line("sweep", "alpha", settings=usual) == "lakegc --defs /defs sweep alpha"
        assert command_line("sweep", "alpha", settings=strict) == (
            "lakegc --defs /defs sweep alpha --set max_candidate_share=0.5"
        )
    assert command_line("sweep", "alpha", settings=strict) == "lakegc sweep alpha"
