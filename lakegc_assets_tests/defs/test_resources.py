"""Resources: keys stay private, settings reach the core, and what is absent has its default."""

from __future__ import annotations

import pickle
import stat
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pydantic
import pytest
from dagster_aws.s3 import S3Resource
from dagster_azure.blob import (
    AzureBlobStorageAnonymousCredential,
    AzureBlobStorageDefaultCredential,
    AzureBlobStorageKeyCredential,
    AzureBlobStorageResource,
    AzureBlobStorageSASTokenCredential,
)

from lakegc_assets.defs.connections import LakeFSResource, ObjectStoreResource
from lakegc_assets.defs.resources import CollectorResource, configurable
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.run.settings import Settings
from lakegc_assets.storage.config import AzureAccess, GcsAccess

_SECRET = "a-secret-that-nobody-may-see"
_KEY = "YS1rZXktdGhhdC1ub2JvZHktbWF5LXNlZQ=="


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SERVER_ENDPOINT_URL", "CREDENTIALS_ACCESS_KEY_ID"):
        monkeypatch.delenv(f"LAKECTL_{name}", raising=False)
    monkeypatch.delenv("LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY", raising=False)
    monkeypatch.delenv("LAKEGC_ARTIFACT_ROOT", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def _lakefs(**given: Any) -> LakeFSResource:
    return LakeFSResource(
        **{
            "endpoint": "http://127.0.0.1:1",
            "access_key_id": "an-access-key",
            "secret_access_key": _SECRET,
        }
        | given
    )


def _is_private(path: str | None) -> bool:
    assert path is not None
    mode = Path(path).stat().st_mode
    folder = Path(path).parent.stat().st_mode
    return stat.S_IMODE(mode) == 0o600 and stat.S_IMODE(folder) == 0o700


def test_keys_of_lakefs_go_to_a_private_file() -> None:
    resource = _lakefs()
    config = resource.config()
    assert _is_private(config.credentials_file)
    assert config.credentials_file == resource.config().credentials_file
    client = config.connect()
    assert _SECRET in Path(str(config.credentials_file)).read_text()
    for seen in (repr(config), repr(resource), str(resource), repr(client)):
        assert _SECRET not in seen
    assert _SECRET.encode() not in pickle.dumps(config)


def test_a_process_has_one_private_file_of_the_same_keys_however_often_it_is_asked() -> None:
    """A tick makes its resources anew, each minute for weeks."""

    def file(secret: str) -> Path:
        resource = LakeFSResource(access_key_id="AKIA", secret_access_key=secret)
        return Path(str(resource.config().credentials_file))

    (only,) = {file("one") for _ in range(3)}
    assert file("two") != only
    # A cleaner of temporary files.
    only.unlink()
    assert _is_private(str(file("one")))


def test_keys_of_the_store_go_to_a_private_file() -> None:
    resource = ObjectStoreResource(
        s3=S3Resource(
            aws_access_key_id="an-access-key",
            aws_secret_access_key=_SECRET,
            endpoint_url="http://127.0.0.1:1",
            region_name="eu-south-1",
        ),
        addressing="path",
    )
    config = resource.config()
    assert _is_private(config.credentials_file)
    assert (config.endpoint_url, config.region) == ("http://127.0.0.1:1", "eu-south-1")
    assert config.addressing == "path"
    assert _SECRET not in repr(config)
    assert _SECRET.encode() not in pickle.dumps(config)


@pytest.mark.parametrize(
    "credential",
    [AzureBlobStorageKeyCredential(key=_KEY), AzureBlobStorageSASTokenCredential(token=_KEY)],
)
def test_keys_of_azure_go_to_a_private_file(credential: Any) -> None:
    resource = ObjectStoreResource(
        s3=S3Resource(),
        azure=AzureBlobStorageResource(
            account_url="https://acc.blob.core.windows.net", credential=credential
        ),
    )
    config = resource.config()
    assert _is_private(config.azure.credentials_file)
    assert config == resource.config()
    assert config.azure.account_url == "https://acc.blob.core.windows.net"
    assert _KEY in Path(str(config.azure.credentials_file)).read_text()
    assert _KEY not in repr(config) + str(pickle.dumps(config))


def test_identities_of_azure_and_accounts_of_google_need_no_secret() -> None:
    credential = AzureBlobStorageDefaultCredential(
        kwargs={"managed_identity_client_id": "id", "additionally_allowed_tenants": ["a"]}
    )
    config = ObjectStoreResource(
        s3=S3Resource(),
        azure=AzureBlobStorageResource(account_url="", credential=credential),
        gcs_credentials_file="/etc/key.json",
        gcs_endpoint="https://gcs.example",
    ).config()
    tenants = ("additionally_allowed_tenants", ("a",))
    assert config.azure == AzureAccess(identity=(tenants, ("managed_identity_client_id", "id")))
    assert config.gcs == GcsAccess("https://gcs.example", "/etc/key.json")
    assert hash(config)


def test_azure_without_credentials_is_refused() -> None:
    anonymous = AzureBlobStorageResource(
        account_url="", credential=AzureBlobStorageAnonymousCredential()
    )
    with pytest.raises(ConfigurationError, match="anonymous"):
        ObjectStoreResource(s3=S3Resource(), azure=anonymous).config()
    unset = AzureBlobStorageResource(account_url="", credential=AzureBlobStorageKeyCredential())
    with pytest.raises(ConfigurationError, match="account_key"):
        ObjectStoreResource(s3=S3Resource(), azure=unset).config()


def test_a_key_may_be_a_variable_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_LAKEFS_SECRET", _SECRET)
    resource = _lakefs(secret_access_key=dg.EnvVar("MY_LAKEFS_SECRET"))
    seen: list[Any] = []

    @dg.asset
    def user(lakefs: LakeFSResource) -> None:
        seen.append(lakefs.config())

    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([user], resources={"lakefs": resource}, instance=instance)
        logs = "".join(str(entry) for entry in instance.all_logs(result.run_id))
        run = instance.get_run_by_id(result.run_id)
    assert _SECRET in Path(seen[0].credentials_file).read_text()
    assert _SECRET not in repr(resource)
    assert _SECRET not in logs
    assert _SECRET not in str(run)


class _Probe(dg.ConfigurableResource[Any]):
    """Remembers the instance that it was set up with."""

    plain: str = "as it is"
    changed: str = "as it is"
    variable: str | None = None
    s3: S3Resource

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        _SEEN.append(context.instance)


_SEEN: list[dg.DagsterInstance | None] = []


def test_a_run_changes_single_fields_and_variables_are_looked_up_with_its_instance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_SECRET", _SECRET)
    monkeypatch.setenv("MY_REGION", "eu-south-1")
    probe = _Probe(
        plain="of the component",
        variable=dg.EnvVar("MY_SECRET"),
        s3=S3Resource(region_name=dg.EnvVar("MY_REGION"), profile_name="mine"),
    )
    with (
        dg.DagsterInstance.ephemeral() as instance,
        dg.build_resources(
            {"probe": configurable(probe)},
            instance,
            resource_config={"probe": {"config": {"changed": "by the run", "plain": None}}},
        ) as found,
    ):
        made = found.probe
    assert (made.plain, made.changed, made.variable) == ("of the component", "by the run", _SECRET)
    assert (made.s3.region_name, made.s3.profile_name) == ("eu-south-1", "mine")
    # One that Dagster makes for itself costs a database in memory for each resource.
    assert [instance] == _SEEN


@pytest.mark.parametrize("absent", ["access_key_id", "secret_access_key"])
def test_one_key_without_the_other_is_refused(absent: str) -> None:
    with pytest.raises(ConfigurationError, match="go together"):
        _lakefs(**{absent: None}).config()


def test_without_keys_no_file_is_made() -> None:
    assert LakeFSResource().config().credentials_file is None
    assert ObjectStoreResource(s3=S3Resource()).config().credentials_file is None


def test_the_defaults_of_the_resource_are_those_of_the_core() -> None:
    assert CollectorResource().settings() == Settings()


def test_every_setting_reaches_the_core() -> None:
    given: dict[str, Any] = {
        "min_age_hours": 1.5,
        "allow_unsafe_min_age": True,
        "clock_skew_seconds": 7.0,
        "max_candidate_share": 0.25,
        "protect_tags": True,
        "mode": "uncommitted",
        "accept_missing": "3-abc",
        "range_num_partitions": 3,
        "address_num_partitions": 4,
        "listing_num_partitions": 5,
        "sweep_num_partitions": 6,
        "max_served_lookups": 7,
    }
    settings = CollectorResource(**given).settings()
    assert settings.min_age == timedelta(hours=1.5)
    assert settings.clock_skew == timedelta(seconds=7)
    for name in set(given) - {"min_age_hours", "clock_skew_seconds"}:
        assert getattr(settings, name) == given[name]
    assert CollectorResource(adopt="a-mark").settings().adopt == "a-mark"
    ignoring = CollectorResource(ignored_repositories=["one", "two"])
    assert ignoring.settings().ignored_repositories == ["one", "two"]


def test_a_setting_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="allow_unsafe_min_age"):
        CollectorResource(min_age_hours=1.0).settings()


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_age_hours": -1.0},
        {"min_age_hours": float("nan")},
        {"clock_skew_seconds": -1.0},
        {"max_candidate_share": 2.0},
        {"max_candidate_share": -0.1},
        {"max_candidate_share": float("nan")},
        {"clean_every_hours": -1.0},
        {"embedded_rows": -1},
        {"embedded_memory": 127},
        {"range_num_partitions": 0},
        {"address_num_partitions": 0},
        {"listing_num_partitions": 0},
        {"sweep_num_partitions": -1},
        {"sweep_batch": 0},
        {"sweep_batch": 1001},
        {"sweep_keys_per_second": 0.0},
        {"sweep_keys_per_second": float("inf")},
        {"sweep_requests_per_second": 0.0},
        {"lease_duration_seconds": 119.0},
        {"lease_wait_seconds": -1.0},
        {"lease_wait_seconds": 1e300},
        {"trash_days": -1.0},
        {"pin_days": -1.0},
        {"pin_days": 1e9},
        {"max_served_lookups": -1},
        {"backup_num_partitions": 0},
        {"backup_bandwidth": 0.0},
        {"backup_list_threads": 41},
        {"mode": "all"},
    ],
    ids=str,
)
def test_values_out_of_their_bounds_are_refused_by_the_schema(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(pydantic.ValidationError, match=name):
        CollectorResource(**wrong)


@pytest.mark.parametrize(
    ("given", "variable", "found"),
    [
        ("s3://bucket/root", "/elsewhere", "s3://bucket/root"),
        ("", "s3://bucket/root", "s3://bucket/root"),
        ("", "", "{cwd}/.lakegc/artifacts"),
        ("below", "", "{cwd}/below"),
    ],
)
def test_where_the_artifacts_live(
    given: str, variable: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEGC_ARTIFACT_ROOT", variable)
    root = CollectorResource(artifact_root=given).root(ObjectStoreResource(s3=S3Resource()))
    assert root.url == found.format(cwd=Path.cwd())


@pytest.mark.parametrize("from_variables", [False, True])
def test_the_bucket_of_the_backups_may_be_on_another_server(
    monkeypatch: pytest.MonkeyPatch, *, from_variables: bool
) -> None:
    given: dict[str, Any] = {
        "backup_url": "s3a://copies/of/lakes",
        "backup_endpoint_url": "http://127.0.0.1:1",
        "backup_profile": "copies",
    }
    if from_variables:
        for name, value in given.items():
            monkeypatch.setenv(f"LAKEGC_{name.upper()}", value)
        given = {}
    s3 = S3Resource(endpoint_url="http://127.0.0.1:2", region_name="eu-west-1")
    stores = CollectorResource(**given).root(ObjectStoreResource(s3=s3)).stores
    assert stores.at("s3://copies/elsewhere") == replace(
        stores, endpoint_url="http://127.0.0.1:1", region=None, profile="copies", elsewhere=()
    )
    for url in ("s3://copies2/of", "gs://copies/of", "/copies"):
        assert stores.at(url) == stores
    assert stores.endpoint_url == "http://127.0.0.1:2"


@pytest.mark.parametrize("url", ["", "/mnt/backups", "gs://bucket"])
def test_another_server_for_backups_that_are_in_no_s3_bucket_is_refused(url: str) -> None:
    collector = CollectorResource(backup_url=url, backup_region="eu-west-1")
    with pytest.raises(ConfigurationError, match="backup_region is set, and backup_url is"):
        collector.root(ObjectStoreResource(s3=S3Resource()))


def test_every_field_says_what_it_is() -> None:
    for resource in (CollectorResource, LakeFSResource, ObjectStoreResource):
        fields = resource.model_fields
        assert [n for n, f in fields.items() if not f.description and n != "s3"] == []
