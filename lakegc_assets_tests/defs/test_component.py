"""The component: its file, what it refuses, and what the graph is made of by it."""

from __future__ import annotations

import re
import textwrap
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import jsonschema
import pydantic
import pytest
import yaml
from dagster._core.snap.snap_to_yaml import default_values_yaml_from_type_snap
from dagster.components.resolved.errors import ResolutionException

import lakegc_assets
from lakegc_assets.defs.collection import Collection
from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets.defs.connections import LakeFSResource, ObjectStoreResource
from lakegc_assets.defs.execution import collector_config
from lakegc_assets.defs.names import OTHER_JOBS, PLAIN, RUN_JOBS, add_partition
from lakegc_assets.defs.policy import ForecastSection, Override, Policies, Policy
from lakegc_assets.defs.resources import CollectorResource
from lakegc_assets.defs.scaffolding import CollectionScaffolder
from lakegc_assets.retention.retain_rules import OfBranches, Retain
from lakegc_assets.retention.rules import Rules
from lakegc_assets.sweep.approval import Limits

_PROJECT = Path(__file__).parents[2]


def test_the_package_shows_the_component_to_who_looks() -> None:
    assert "GarbageCollection" in dir(lakegc_assets)
    assert lakegc_assets.GarbageCollection is GarbageCollection
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = lakegc_assets.nothing_of_the_kind


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("min_age_hours: 3", "min_age_hours"),
        ("max_candidate_share: 1.5", "max_candidate_share"),
        ("cron: every sunday", "cron"),
        ("time_zone: Mars/Olympus", "time_zone"),
        ("sweep: always", "sweep"),
        ("auto: {share: 7}", "auto"),
        ("auto: {required: luck}", "auto"),
        ("repositories: [{include: [a], sweep: always}]", "repositories"),
        ("approval_lifetime_days: 0", "approval_lifetime_days"),
        ("retain: {branches: {main: {day: 7}}}", "retain"),
        ("repositories: [{include: [a], retain: {tag: [v1]}}]", "repositories"),
        ("keep_runs_days: 1", "keep_runs_days"),
        ("include: ['']", "include"),
        ("repositories: [{sweep: auto}]", "repositories"),
        ("notices: {url: 'ftp://example.com'}", "notices"),
        ("notices: {url_variable: NOT_SET}", "notices"),
        ("notices: {form: carrier pigeon}", "notices"),
        ("lakefs: {endpoint: lakefs.example.com}", "lakefs"),
        ("secret_access_key: abc", "secret_access_key"),
        ("lakefs: {access_key_id_variable: KEY}", "lakefs"),
        ("notices: {mail: {host: h, sender: a@b, to: []}}", "notices"),
        ("notices: {mail: {host: h, sender: a@b, to: [a@b], user: gc}}", "notices"),
        ("min_age_hours: a day", "min_age_hours"),
        ("auto: {objects: many}", "auto"),
        # These are text, which might be filled in to become something else.
        ("include: analytics", "include"),
        ("ignored_repositories: prod", "ignored_repositories"),
        ("running: perhaps", "running"),
        ("stores: {s3_addressing: guessed}", "stores"),
        ("owners: [somebody]", "owners"),
        ("tags: {cost centre: 'forty two'}", "tags"),
        ("tags: {lakegc/asked: 'yes'}", "tags"),
        ("repositories: [{include: [a], tags: {dagster/backfill: x}}]", "repositories"),
    ],
)
def test_a_wrong_value_is_refused_with_its_field_and_line(line: str, field: str) -> None:
    with pytest.raises((pydantic.ValidationError, ResolutionException)) as refused:
        GarbageCollection.resolve_from_yaml(f"clean_every_hours: 24\nprotect_tags: true\n{line}\n")
    said = str(refused.value)
    assert field in said
    assert "<string>:3" in said


@pytest.mark.parametrize(
    ("line", "field", "sentence"),
    [
        ("cron: every sunday", "cron", "'five cron fields, for example 0 2 * * 0' was expected"),
        ("include: ui-*", "include", "'ui-*' is not of type 'array'"),
        (
            "repositories: [{include: [a], sweep: atuo}]",
            "repositories.0.sweep",
            "'atuo' is not one of ['never', 'approved', 'auto']",
        ),
        (
            "repositories: [{include: [a], auto: {required: luck}}]",
            "repositories.0.auto.required",
            "'luck' is not one of ['nothing', 'backup', 'undo', 'backup or undo']",
        ),
        ('include: "{{ env.THE_NAMES }}"', "", ""),
        ('cron: "{{ env.THE_CRON }}"', "", ""),
    ],
)
def test_what_dg_checks_first_says_in_one_sentence_what_is_wrong(
    line: str, field: str, sentence: str
) -> None:
    schema = GarbageCollection.get_model_cls().model_json_schema()
    errors = list(jsonschema.Draft202012Validator(schema).iter_errors(yaml.safe_load(line)))
    found = [(".".join(map(str, one.path)), one.message) for one in errors]
    assert found == ([(field, sentence)] if sentence else [])


def test_a_variable_of_a_notice_that_is_not_set_is_reported_with_its_name() -> None:
    with pytest.raises(ResolutionException, match="a variable that is not set: NOT_SET"):
        GarbageCollection.resolve_from_yaml("notices: {url_variable: NOT_SET}")


@pytest.mark.parametrize(
    "line",
    [
        'stores: {backup_url: "{{ env.NOT_SET }}"}',
        'stores: {artifact_root: "{{env.NOT_SET}}/artifacts"}',
        'repositories: [{include: ["{{ env.NOT_SET }}"]}]',
    ],
)
def test_a_variable_that_is_not_set_is_no_none(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster would make one of it: no backups, a folder `None/artifacts`, and no word about it."""
    monkeypatch.delenv("NOT_SET", raising=False)
    said = r"(?s)<string>:2 - \w+\n.*a variable that is not set: NOT_SET"
    with pytest.raises(ResolutionException, match=said):
        GarbageCollection.resolve_from_yaml(f"running: true\n{line}\n")
    # Who wants none says so, as the error does.
    text = "stores: {backup_url: \"{{ env('NOT_SET', None) }}\"}"
    assert GarbageCollection.resolve_from_yaml(text).stores.backup_url is None


def test_what_is_scaffolded_is_a_commented_file_that_loads(tmp_path: Path) -> None:
    request: Any = dg.ScaffoldRequest(
        type_name="lakegc_assets.GarbageCollection",
        target_path=tmp_path,
        scaffold_format="yaml",
        project_root=None,
        params=None,
    )
    CollectionScaffolder().scaffold(request)
    text = (tmp_path / "defs.yaml").read_text()
    with_all = re.sub(r"(?m)^( +)# (?=[a-z_]+:|  )", r"\1", text)
    plain, whole = (yaml.safe_load(one)["attributes"] for one in (text, with_all))
    schema = GarbageCollection.get_model_cls().model_json_schema()
    for found in (plain, whole):
        assert list(jsonschema.Draft202012Validator(schema).iter_errors(found)) == []
    assert set(whole) > {"notices", "repositories", "stores", "auto", *plain}
    component = GarbageCollection.resolve_from_yaml(yaml.safe_dump(plain))
    assert component.policies().of("any") == Policy()


def _fields(model: type[pydantic.BaseModel]) -> list[tuple[str, str | None]]:
    found = []
    for name, field in model.model_fields.items():
        found.append((f"{model.__name__}.{name}", field.description))
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
                found += _fields(kind)
    return found


def test_every_field_has_a_description() -> None:
    fields = _fields(GarbageCollection)
    assert len(fields) > 40
    assert [name for name, description in fields if not description] == []


def test_later_entries_win_and_say_only_what_they_change() -> None:
    policies = GarbageCollection.resolve_from_yaml(
        """
        include: ["a*", "b"]
        exclude: ["abc"]
        protect_tags: true
        repositories:
          - {include: ["a*"], exclude: ["ax"], sweep: auto, max_candidate_share: 0.3}
          - {include: ["ab"], max_candidate_share: 0.1}
        """
    ).policies()
    assert [r for r in ("a", "ab", "abc", "b", "c") if policies.collects(r)] == ["a", "ab", "b"]
    shares = {r: policies.of(r).max_candidate_share for r in ("a", "ab", "ax", "b")}
    assert shares == {"a": 0.3, "ab": 0.1, "ax": 0.5, "b": 0.5}
    assert policies.of("ab").sweep == "auto"
    assert policies.of("ax").sweep == "approved"
    assert policies.of("ab").protect_tags
    assert Policies(**policies.dump()) == policies


def test_rules_that_keep_more_stay_as_they_are_written() -> None:
    """Those of a repository take the place of those for all, and text stays text."""
    found = GarbageCollection.resolve_from_yaml(
        """
        retain: {tags: ["v*", "1"], metadata: {legal-hold: "true"}}
        repositories:
          - include: [models]
            retain: {branches: {"release-*": {days: 365}}}
        """
    ).policies()
    settings = CollectorResource(policies=found.dump(), retain=found.for_all.retain)
    kept = {r: settings.of_repository(r, {}).settings().retained for r in ("models", "other")}
    assert kept["other"] == Retain(("v*", "1"), {}, {"legal-hold": ("true",)})
    assert kept["models"] == Retain((), {"release-*": OfBranches(365)})


def test_what_is_null_for_a_repository_is_not_set_in_its_runs() -> None:
    found = GarbageCollection.resolve_from_yaml(
        """
        inventory_place: s3://all/reports
        repositories: [{include: [own], inventory_place: null}]
        """
    )
    policies = found.policies()
    collector = CollectorResource(policies=policies.dump(), inventory_place=found.inventory_place)
    places = {}
    for repository in ("own", "other"):
        request = Collection(policies).request(repository, "r", run_key="k", job="gc")
        run = dg.DagsterRun(job_name="gc", run_config=request.run_config)
        given = collector_config(run, PLAIN)
        places[repository] = collector.of_repository(repository, given).settings().inventory_place
    assert places == {"own": None, "other": "s3://all/reports"}


def test_the_documented_file_says_what_holds_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but what it has to make up: names, places, and what is different for some."""
    text = (_PROJECT / "docs/automation.md").read_text()
    (example,) = re.findall(r"```yaml\ntype: .*?\nattributes:\n(.*?)```", text, re.DOTALL)
    shown = set(re.findall(r"^  (?:# )?(\w+):", example, re.MULTILINE))
    assert shown == set(GarbageCollection.get_model_cls().model_fields)
    monkeypatch.setenv("LAKEGC_HOOK", "https://hooks.example.com/x")
    found = GarbageCollection.resolve_from_yaml(textwrap.dedent(example))
    made_up = Policy(
        forecast=ForecastSection(default_retention_days=14, branches={"main": 90}),
        owners=["team:data"],
        tags={"cost-centre": "42"},
    )
    assert found.policies().for_all == made_up
    assert found.policies().of("analytics-eu").sweep == "auto"
    assert not found.policies().collects("scratch-1")
    dg.Definitions.validate_loadable(found.definitions())


def test_text_that_looks_like_a_number_is_a_name() -> None:
    found = GarbageCollection.resolve_from_yaml(
        """
        include: ["2024", "1e5", "[12]"]
        ignored_repositories: ["0x10"]
        repositories: [{include: ["1_000"], auto: {objects: null, bytes: null}}]
        """
    )
    assert [r for r in ("2024", "1e5", "1", "100000") if found.policies().collects(r)] == [
        "2024", "1e5", "1",
    ]  # fmt: skip
    assert found.ignored_repositories == ["0x10"]
    assert found.repositories[0].include == ["1_000"]


def test_a_limit_that_an_entry_does_not_say_is_not_lifted() -> None:
    policies = GarbageCollection.resolve_from_yaml(
        """
        auto: {objects: 1000, required: backup}
        repositories:
          - {include: ["a*"], sweep: auto, auto: {share: 0.1}}
          - {include: ["ab"], auto: {objects: null, growth: 2}}
        """
    ).policies()
    for known in (policies, Policies(**policies.dump())):
        assert known.of("b").auto.limits() == Limits(0.2, 1000, None, None, "backup")
        assert known.of("a").auto.limits() == Limits(0.1, 1000, None, None, "backup")
        assert known.of("ab").auto.limits() == Limits(0.1, None, None, 2, "backup")


def test_the_file_of_a_component_names_other_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'forecast: {branches: {main: 90, dev: "{{ env.THE_DAYS }}"}}'
    monkeypatch.setenv("THE_DAYS", "7")
    found = GarbageCollection.resolve_from_yaml(text).policies().of("any").forecast
    assert found is not None
    assert found.change().of(Rules(20)) == Rules(20, {"main": 90, "dev": 7})
    for days in ("-1", "many"):
        monkeypatch.setenv("THE_DAYS", days)
        with pytest.raises(ResolutionException, match="forecast"):
            GarbageCollection.resolve_from_yaml(text)


def test_what_the_environment_says_is_checked_when_it_is_filled_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = """
        cron: "{{ env.THE_CRON }}"
        time_zone: "{{ env.THE_ZONE }}"
        sweep: "{{ env.THE_SWEEP }}"
        owners: ["{{ env.THE_OWNER }}"]
        tags: {team: "{{ env.THE_TEAM }}"}
        min_age_hours: "{{ env.THE_HOURS }}"
        """
    right = {"CRON": "0 3 * * 6", "ZONE": "Europe/Berlin", "SWEEP": "never", "TEAM": "42"}
    right |= {"OWNER": "team:data", "HOURS": "48"}
    for name, value in right.items():
        monkeypatch.setenv(f"THE_{name}", value)
    found = GarbageCollection.resolve_from_yaml(text).policies().of("any")
    assert (found.cron, found.time_zone, found.sweep) == ("0 3 * * 6", "Europe/Berlin", "never")
    assert (found.owners, found.tags) == (["team:data"], {"team": "42"})
    assert found.min_age_hours == 48
    for name, field, line, value in (
        ("CRON", "cron", 2, "monthly"),
        ("ZONE", "time_zone", 3, "Mars"),
        ("SWEEP", "sweep", 4, "often"),
        ("HOURS", "min_age_hours", 7, "23"),
    ):
        monkeypatch.setenv(f"THE_{name}", value)
        with pytest.raises(ResolutionException, match=rf"(?s)<string>:{line} - {field}.*{value}"):
            GarbageCollection.resolve_from_yaml(text)
        monkeypatch.setenv(f"THE_{name}", right[name])


def test_a_file_says_what_the_resources_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_TIMEOUT", "20")
    component = GarbageCollection.resolve_from_yaml(
        """
        lakefs:
          endpoint: http://lakefs.example.com
          access_key_id_variable: THE_KEY
          secret_access_key_variable: THE_SECRET
          read_timeout_seconds: 60
          max_attempts: 3
        stores:
          artifact_root: /artifacts
          s3_endpoint_url: "http://s3.example.com"
          connect_timeout_seconds: "{{ env.THE_TIMEOUT }}"
        collector: {engine: embedded, sweep_keys_per_second: 500, lakefs_wait_seconds: 600}
        min_age_hours: 48
        mode: uncommitted
        owners: ["team:data"]
        repositories: [{include: [tagged], protect_tags: true, min_age_hours: 72, mode: committed}]
        """
    )
    monkeypatch.setenv("THE_KEY", "key")
    monkeypatch.setenv("THE_SECRET", "a secret word")
    definitions = component.definitions()
    found = definitions.resources or {}
    assert "a secret word" not in str(found)
    names = ("lakefs", "stores", "collector")
    with dg.build_resources({name: found[name] for name in names}) as resources:
        lakefs, stores, collector = (getattr(resources, name) for name in names)
        assert isinstance(lakefs, LakeFSResource)
        assert isinstance(stores, ObjectStoreResource)
        assert isinstance(collector, CollectorResource)
        assert lakefs.config().access().endpoint.startswith("http://lakefs.example.com")
        limits = lakefs.config()
        assert (limits.read_timeout_s, limits.connect_timeout_s, limits.max_attempts) == (60, 10, 3)
        assert stores.config().endpoint_url == "http://s3.example.com"
        assert (stores.config().connect_timeout_s, stores.config().read_timeout_s) == (20, 10)
        settings = collector.of_repository("any", {}).settings()
        assert (settings.engine, settings.mode) == ("embedded", "uncommitted")
        assert (settings.sweep_keys_per_second, settings.lakefs_wait_seconds) == (500, 600)
        assert component.usual_settings("tagged")["sweep_keys_per_second"] == 500
        assert collector.root(stores).url == "/artifacts"
        assert collector.settings().min_age.total_seconds() == 48 * 3600
        of_tagged = collector.of_repository("tagged", {}).settings()
        assert of_tagged.protect_tags
        assert of_tagged.mode == "committed"
        assert of_tagged.min_age.total_seconds() == 72 * 3600
        # What a person says in the launchpad holds for that run.
        by_hand = collector.of_repository("tagged", {"min_age_hours": 48.0}).settings()
        assert by_hand.min_age.total_seconds() == 48 * 3600
        assert by_hand.protect_tags
        assert not collector.of_repository("another", {}).settings().protect_tags
    swept = definitions.resolve_assets_def("swept_set")
    assert swept.specs_by_key[dg.AssetKey("swept_set")].owners == ["team:data"]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("collector: {sweep_keys_per_second: 0}", "0.* is not more than 0"),
        ("collector: {clean: true}", "clean"),
        ("collector: {engine: duckdb}", "engine"),
        ("lakefs: {read_timeout_seconds: 0}", "0.* is not more than 0 seconds"),
        ("stores: {read_timeout_seconds: soon}", "read_timeout_seconds"),
    ],
)
def test_a_file_refuses_what_no_run_could_have(section: str, said: str) -> None:
    with pytest.raises((pydantic.ValidationError, ResolutionException), match=f"(?s){said}"):
        GarbageCollection.resolve_from_yaml(section)


def test_what_a_run_configures_leaves_the_rest_as_the_file_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dagster would give all other fields the defaults of their classes."""
    monkeypatch.setenv("THE_KEY", "key")
    monkeypatch.setenv("THE_SECRET", "a secret word")
    resources = (
        GarbageCollection.resolve_from_yaml(
            """
            lakefs:
              endpoint: http://lakefs.example.com
              access_key_id_variable: THE_KEY
              secret_access_key_variable: THE_SECRET
            stores: {artifact_root: /artifacts, s3_endpoint_url: "http://s3", local_root: /objects}
            min_age_hours: 72
            sweep: never
            repositories: [{include: [some], sweep: auto, protect_tags: true}]
            """
        )
        .definitions()
        .resources
        or {}
    )
    seen: dict[str, Any] = {}

    @dg.op
    def look(
        lakefs: LakeFSResource, stores: ObjectStoreResource, collector: CollectorResource
    ) -> None:
        seen["server"] = lakefs.config().access()
        seen["stores"] = stores.config()
        seen["root"] = collector.root(stores).url
        seen["min age"] = collector.settings().min_age
        seen["clean"] = collector.settings().clean
        seen["some"] = (collector.policy("some").sweep, collector.policy("some").protect_tags)
        seen["other"] = collector.policy("other").sweep

    @dg.job(resource_defs={name: resources[name] for name in ("lakefs", "stores", "collector")})
    def looking() -> None:
        look()

    assert "a secret word" not in str(looking.run_config_schema.config_type.schema_snapshot)
    given = {
        "lakefs": {"config": {"max_attempts": 2}},
        "stores": {"config": {"addressing": "path"}},
        "collector": {"config": {"clean": True}},
    }
    quiet = {"console": {"config": {"log_level": "CRITICAL"}}}
    for name, wrong in {
        "sweep_batch": 5000, "max_candidate_share": 2, "backup_distribution": "other",
    }.items():  # fmt: skip
        config = {"resources": {"collector": {"config": {name: wrong}}}, "loggers": quiet}
        with pytest.raises(dg.DagsterError) as refused:
            looking.execute_in_process(run_config=config)
        cause = refused.value.__cause__
        if cause is None:
            assert name in str(refused.value)
            continue
        # As the page of the run shows it.
        assert type(cause).__name__ == "configuration"
        assert str(cause).startswith(f"{name}: {wrong}")
        assert "pydantic" not in str(cause)
    looking.execute_in_process(run_config={"resources": given, "loggers": quiet})
    assert seen["server"].endpoint.startswith("http://lakefs.example.com")
    assert seen["server"].secret_access_key == "a secret word"
    stores = seen["stores"]
    assert (stores.endpoint_url, stores.local_root) == ("http://s3", "/objects")
    assert stores.addressing == "path"
    assert (seen["root"], seen["clean"]) == ("/artifacts", True)
    assert seen["min age"] == timedelta(hours=72)
    assert (seen["some"], seen["other"]) == (("auto", True), "never")


def test_the_launchpad_begins_with_what_holds_for_the_repository() -> None:
    definitions = GarbageCollection(
        min_age_hours=48,
        repositories=[Override(include=["some"], protect_tags=True, max_candidate_share=0.3)],
    ).definitions()
    with dg.DagsterInstance.ephemeral() as instance:
        shown = {}
        for repository in ("some", "other"):
            key = add_partition(instance, repository, "run")
            job = definitions.resolve_job_def("gc")
            assert job.partitioned_config is not None
            config = job.partitioned_config.get_run_config_for_partition_key(key)
            assert dg.validate_run_config(job, config)
            shown[repository] = config["resources"]["collector"]["config"]
    common = {"mode": "unified", "min_age_hours": 48, "clean": False}
    assert shown == {
        "some": {**common, "max_candidate_share": 0.3, "protect_tags": True},
        "other": {**common, "max_candidate_share": 0.5, "protect_tags": False},
    }


@pytest.mark.parametrize(
    ("job", "shown"),
    [
        ("gc_mark", {"mode", "min_age_hours", "max_candidate_share", "protect_tags", "clean"}),
        ("gc_sweep", {"max_candidate_share", "protect_tags"}),
        ("gc_backup", set()),
        ("gc_restore", set()),
    ],
)
def test_a_launchpad_shows_what_its_job_takes(job: str, shown: set[str]) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        found = GarbageCollection().definitions().resolve_job_def(job)
        assert found.partitioned_config is not None
        key = add_partition(instance, "some", "run")
        config = found.partitioned_config.get_run_config_for_partition_key(key)
        assert dg.validate_run_config(found, config)
    settings = config.get("resources", {}).get("collector", {}).get("config", {})
    assert set(settings) == shown


def test_no_launchpad_begins_with_settings_before_its_partition_says_which() -> None:
    """Jobs that take none of them, ``gc_approve`` say, would show them, too."""
    definitions = GarbageCollection().definitions()
    for name in (*RUN_JOBS, *OTHER_JOBS):
        snapshot = definitions.resolve_job_def(name).get_job_snapshot()
        schema, (mode,) = snapshot.config_schema_snapshot, snapshot.mode_def_snaps
        assert mode.root_config_key is not None
        root = schema.get_config_snap(mode.root_config_key)
        shown = yaml.safe_load(default_values_yaml_from_type_snap(schema, root))
        assert "collector" not in (shown.get("resources") or {}), name


@pytest.mark.parametrize(("branch", "state"), [("", "RUNNING"), ("0", "RUNNING"), ("1", "STOPPED")])
def test_all_of_it_can_be_on_from_the_start_but_in_the_deployment_of_a_branch(
    monkeypatch: pytest.MonkeyPatch, branch: str, state: str
) -> None:
    monkeypatch.setenv("DAGSTER_CLOUD_IS_BRANCH_DEPLOYMENT", branch)
    definitions = GarbageCollection(running=True).definitions()
    states = {one.default_status.value for one in definitions.sensors or ()}
    states |= {one.default_status.value for one in definitions.schedules or ()}
    assert states == {state}


def test_there_is_a_schedule_for_each_time_zone() -> None:
    component = GarbageCollection.resolve_from_yaml(
        """
        cron: 0 2 * * 0
        repositories:
          - {include: [daily], cron: 0 1 * * *}
          - {include: [berlin], time_zone: Europe/Berlin}
        """
    )
    schedules = component.definitions().schedules or ()
    found = {s.name: (s.cron_schedule, s.execution_timezone) for s in schedules}
    assert found == {
        "gc_estate_schedule": ("0 6 * * *", "UTC"),
        "gc_leftovers_schedule": ("0 7 * * 0", "UTC"),
        "gc_schedule": (["0 2 * * 0", "0 1 * * *"], "UTC"),
        # What says the time and what says the zone may both name a repository.
        "gc_schedule_Europe_Berlin": (["0 2 * * 0", "0 1 * * *"], "Europe/Berlin"),
        "gc_prune_schedule": ("0 12 * * 0", "UTC"),
    }
    assert all(s.default_status is dg.DefaultScheduleStatus.STOPPED for s in schedules)


def test_entries_that_name_one_repository_together_have_their_schedule() -> None:
    """The one says when, the other in which time zone."""
    policies = GarbageCollection.resolve_from_yaml(
        """
        repositories:
          - {include: ["a*"], cron: 0 3 * * 1}
          - {include: ["*-eu"], time_zone: Europe/Berlin}
          - {include: [apia], time_zone: Pacific/Apia}
        """
    ).policies()
    crons = policies.crons()
    for repository in ("b", "a", "b-eu", "a-eu", "apia"):
        policy = policies.of(repository)
        assert policy.cron in crons[policy.time_zone]


def test_time_zones_that_differ_by_a_sign_have_schedules_of_their_own() -> None:
    definitions = GarbageCollection(
        repositories=[
            Override(include=["west"], time_zone="Etc/GMT+5"),
            Override(include=["east"], time_zone="Etc/GMT-5"),
        ]
    ).definitions()
    dg.Definitions.validate_loadable(definitions)
    names = {s.name for s in definitions.schedules or ()}
    assert names >= {"gc_schedule_Etc_GMTplus5", "gc_schedule_Etc_GMT_5"}


def test_without_a_file_everything_has_its_default() -> None:
    assert GarbageCollection().policies() == Policies(
        include=["*"], exclude=[], for_all=Policy(), overrides=[]
    )
    sensors = GarbageCollection().definitions().sensors or ()
    running = {s.name for s in sensors if s.default_status is dg.DefaultSensorStatus.RUNNING}
    assert running == {"gc_repositories", "gc_waiting", "gc_waves"}
