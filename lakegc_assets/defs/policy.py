"""How repositories are collected: what holds for all, and what for single ones.

The fields are those of the component's file. A repository has the values for all, replaced by those
of each entry that names it, in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal

import dagster as dg
from dagster._utils.schedules import is_valid_cron_string
from pydantic import AfterValidator, Field

from lakegc_assets.sweep.unattended import MODES, REQUIRED, Limits


def _cron(value: str) -> str:
    if not is_valid_cron_string(value):
        raise ValueError(f"{value!r} is no cron schedule: write five fields, '0 2 * * 0' say")
    return value


def _zone(value: str) -> str:
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - few processes need it

    try:
        ZoneInfo(value)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"{value!r} is no time zone: write Europe/Berlin, say") from error
    return value


def _pattern(value: str) -> str:
    if not value:
        raise ValueError("a pattern that is empty names nothing")
    return value


def _one_of(values: Sequence[str]) -> AfterValidator:
    """Text that is one of a few; a Literal would let any text pass for one that is rendered."""

    def check(value: str) -> str:
        if value not in values:
            raise ValueError(f"{value!r} is none of {', '.join(values)}")
        return value

    return AfterValidator(check)


Patterns = list[Annotated[str, AfterValidator(_pattern)]]


class AutoLimits(dg.Model, dg.Resolvable):
    """Under which limits ``sweep: auto`` holds; a mark beyond one of them waits for approval."""

    share: float | None = Field(
        default=0.2, ge=0, le=1, description="of the listed objects that a mark names; null: any"
    )
    objects: int | None = Field(default=None, ge=0, description="that a mark names; null: any")
    bytes: int | None = Field(
        default=None, ge=0, description="of the objects that a mark names; null: any"
    )
    growth: float | None = Field(
        default=None,
        gt=0,
        description="how many times as much as the last mark, in objects and bytes; 2 is twice",
    )
    required: Annotated[str, _one_of(REQUIRED)] = Field(
        default="nothing",
        json_schema_extra={"enum": list(REQUIRED)},
        description="what must be there to bring objects back: nothing, backup, undo (versions or "
        "the like in the store), or backup or undo",
    )

    def limits(self) -> Limits:
        """As the core takes them."""
        return Limits(self.share, self.objects, self.bytes, self.growth, self.required)


class Policy(dg.Model, dg.Resolvable):
    """How a repository is collected."""

    cron: Annotated[str, AfterValidator(_cron)] = Field(
        default="0 2 * * 0", description="when a wave is due, as five cron fields; Sundays at 2:00"
    )
    time_zone: Annotated[str, AfterValidator(_zone)] = Field(
        default="UTC", description="of `cron`: Europe/Berlin, say"
    )
    min_age_hours: float = Field(
        default=24.0, ge=24, le=876_000, description="younger objects are never candidates"
    )
    max_candidate_share: float = Field(
        default=0.5, ge=0, le=1, description="a larger share of the listing refuses the mark"
    )
    protect_tags: bool = Field(default=False, description="tagged commits keep their objects")
    ignored_repositories: list[str] = Field(
        default_factory=list,
        description="other repositories of the server that are not read for what they name here",
    )
    clean_every_hours: float = Field(
        default=168.0, ge=0, le=876_000, description="how often the whole store is listed"
    )
    sweep: Annotated[str, _one_of(MODES)] = Field(
        default="approved",
        json_schema_extra={"enum": list(MODES)},
        description="what follows a mark that nobody asked for: never a sweep; one when a person "
        "has approved it; or one at once where the limits of `auto` hold",
    )
    auto: AutoLimits = Field(
        default_factory=AutoLimits, description="limits under which `sweep: auto` holds"
    )
    approval_lifetime_days: float = Field(
        default=7.0, gt=0, le=365, description="for how long an approval counts"
    )
    stale_after_days: float = Field(
        default=14.0, gt=0, le=3650, description="without a mark for longer, a repository is stale"
    )
    keep_runs_days: float = Field(
        default=30.0,
        ge=2,
        le=36_500,
        description="older runs may be pruned, but for the last three marks and what is needed",
    )
    prune: bool = Field(
        default=False,
        description="whether gc_prune_schedule removes what may go; else it only says what would",
    )
    owners: list[str] = Field(
        default_factory=list, description="e-mail addresses or team:NAME, told about failures"
    )
    tags: dict[str, str] = Field(default_factory=dict, description="added to each run")


class Override(Policy):
    """What is different for some repositories."""

    include: Patterns = Field(description="names or patterns (*, ?, [ab]) of repositories")
    exclude: Patterns = Field(default_factory=list, description="of these, those that are not")


#: Fields of a policy that are settings of the ``collector`` resource, under the same names.
SETTINGS: Final = (
    "min_age_hours",
    "max_candidate_share",
    "protect_tags",
    "ignored_repositories",
    "clean_every_hours",
)
_FOR_ALL: Final = "for_all"


def names(repository: str, include: Iterable[str], exclude: Iterable[str]) -> bool:
    """Whether patterns name a repository."""
    return any(fnmatchcase(repository, p) for p in include) and not any(
        fnmatchcase(repository, p) for p in exclude
    )


class Policies(dg.Model):
    """The policies of all repositories.

    Attributes:
        include: patterns of the repositories that are collected.
        exclude: of these, those that are not.
        running: whether schedules and sensors are on until somebody turns them off.
        for_all: what holds where nothing else is said.
        overrides: what is different, in their order.
    """

    include: Sequence[str] = ("*",)
    exclude: Sequence[str] = ()
    running: bool = False
    for_all: Policy = Field(default_factory=Policy)
    overrides: Sequence[Override] = ()

    @property
    def sensor_status(self) -> dg.DefaultSensorStatus:
        """Of sensors that nobody has turned on or off."""
        return dg.DefaultSensorStatus.RUNNING if self.running else dg.DefaultSensorStatus.STOPPED

    @property
    def schedule_status(self) -> dg.DefaultScheduleStatus:
        """Of schedules that nobody has turned on or off."""
        return (
            dg.DefaultScheduleStatus.RUNNING if self.running else dg.DefaultScheduleStatus.STOPPED
        )

    def collects(self, repository: str) -> bool:
        """Whether anything is started for a repository by itself."""
        return names(repository, self.include, self.exclude)

    def changed(self, repository: str) -> dict[str, Any]:
        """What is different for a repository, by field."""
        changed: dict[str, Any] = {}
        for one in self.overrides:
            if names(repository, one.include, one.exclude):
                changed |= _said(one)
        return changed

    def of(self, repository: str) -> Policy:
        """The policy of a repository, whether it is collected by itself or not."""
        return self.for_all.model_copy(update=self.changed(repository))

    def crons(self) -> dict[str, list[str]]:
        """Every cron schedule that a repository may have, by time zone."""
        found: dict[str, list[str]] = {}
        for said in ({}, *map(_said, self.overrides)):
            one = self.for_all.model_copy(update=said)
            crons = found.setdefault(one.time_zone, [])
            if one.cron not in crons:
                crons.append(one.cron)
        return found

    def dump(self) -> dict[str, Any]:
        """As JSON values, of which ``Policies(**values)`` makes the same again."""
        return self.model_dump(mode="json", exclude_unset=True) | {
            _FOR_ALL: self.for_all.model_dump(mode="json")
        }


def _said(override: Override) -> dict[str, Any]:
    fields = override.model_fields_set & Policy.model_fields.keys()
    return {field: getattr(override, field) for field in fields}


def settings_of(policy: Policy) -> dict[str, Any]:
    """The settings of the ``collector`` resource that a policy says."""
    return {name: getattr(policy, name) for name in SETTINGS}


class ServerSection(dg.Model, dg.Resolvable):
    """The lakeFS server. What is not said here is taken from where ``lakectl`` takes it."""

    endpoint: str | None = Field(
        default=None, description="URL of the server; else LAKECTL_SERVER_ENDPOINT_URL"
    )
    access_key_id_variable: str | None = Field(
        default=None, description="name of the environment variable that holds the access key"
    )
    secret_access_key_variable: str | None = Field(
        default=None, description="name of the environment variable that holds the secret key"
    )
    credentials_file: str | None = Field(
        default=None, description="a file in the form of ~/.lakectl.yaml"
    )


class StoresSection(dg.Model, dg.Resolvable):
    """The object stores. Keys are taken from where the stores' own tools take them."""

    backup_url: str | None = Field(
        default=None, description="URL or path of backups; else LAKEGC_BACKUP_URL"
    )
    backup_endpoint_url: str | None = Field(
        default=None,
        description="S3 server of the bucket of backup_url; else LAKEGC_BACKUP_ENDPOINT_URL, "
        "or that of the namespaces",
    )
    backup_region: str | None = Field(
        default=None, description="of that server; else LAKEGC_BACKUP_REGION"
    )
    backup_profile: str | None = Field(
        default=None,
        description="in ~/.aws, with credentials for that bucket; else LAKEGC_BACKUP_PROFILE",
    )
    artifact_root: str | None = Field(
        default=None, description="URL or path of the artifacts; else LAKEGC_ARTIFACT_ROOT"
    )
    s3_endpoint_url: str | None = Field(default=None, description="of a store beside AWS")
    s3_region: str | None = Field(default=None, description="else AWS_REGION")
    s3_profile: str | None = Field(default=None, description="a profile of ~/.aws")
    s3_addressing: Literal["auto", "path", "virtual"] = Field(
        default="auto", description="where the bucket's name goes in a URL"
    )
    gcs_endpoint: str | None = Field(
        default=None, description="in place of https://storage.googleapis.com"
    )
    gcs_credentials_file: str | None = Field(
        default=None, description="key file of a service account"
    )
    local_root: str | None = Field(
        default=None, description="where a lakeFS with local storage keeps local:// namespaces"
    )


class MailSection(dg.Model, dg.Resolvable):
    """Where mails about failures go."""

    host: str = Field(description="of the SMTP server")
    port: int = Field(default=25, ge=1, le=65_535, description="of the SMTP server")
    sender: str = Field(description="address that mails come from")
    to: list[str] = Field(min_length=1, description="addresses; owners that have one are added")
    starttls: bool = Field(default=False, description="encrypt the connection")
    user: str | None = Field(default=None, description="name to log in with")
    password_variable: str | None = Field(
        default=None, description="name of the environment variable that holds the password"
    )


class NoticeSection(dg.Model, dg.Resolvable):
    """Who is told about runs that failed: a URL, people, or both."""

    url: str | None = Field(
        default=None,
        pattern=r"^https?://",
        description="one JSON document is posted there for each failed run",
    )
    url_variable: str | None = Field(
        default=None, description="name of the environment variable that holds the URL"
    )
    mail: MailSection | None = Field(default=None, description="one mail for each failed run")
