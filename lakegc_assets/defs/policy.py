"""Policies of repositories: one for all, and changes of it for single ones.

The fields are those of the component's file. A repository gets the values for all repositories;
each entry that names it replaces some of them, in order.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal

import dagster as dg
from pydantic import AfterValidator, BaseModel, Field, model_validator

from lakegc_assets.defs.connections import LakeFSResource, ObjectStoreResource, Timeouts
from lakegc_assets.defs.fields import (
    Cron,
    Owners,
    Patterns,
    RetainRules,
    Tags,
    Texts,
    Url,
    Zone,
    filled_in,
    one_of,
    some,
)
from lakegc_assets.estate.notices import FORMS, MailServer
from lakegc_assets.forecast.proposed_rules import Change
from lakegc_assets.retention.rules import Rules
from lakegc_assets.run.bounds import Bounds
from lakegc_assets.run.settings import (
    MAX_DAYS,
    CollectorSettings,
    RepositorySettings,
    SharedSettings,
)
from lakegc_assets.sweep.approval import MODES, REQUIRED, Limits


class AutoLimits(dg.Model, dg.Resolvable):
    """Limits of ``sweep: auto``; a mark beyond one of them waits for approval."""

    share: Annotated[float | None, Bounds(0, 1)] = Field(
        default=0.2,
        description="the largest share of the listed objects that a mark may name; null: any",
    )
    objects: Annotated[int | None, Bounds(0)] = Field(
        default=None, description="the most objects that a mark may name; null: any"
    )
    bytes: Annotated[int | None, Bounds(0)] = Field(
        default=None, description="the most bytes of the objects that a mark names; null: any"
    )
    growth: Annotated[float | None, Bounds(0, above=True)] = Field(
        default=None,
        description="the largest factor by which objects and bytes may grow since the last mark "
        "that was swept; 2 is twice as much",
    )
    required: Annotated[str, one_of(REQUIRED)] = Field(
        default="nothing",
        json_schema_extra={"enum": list(REQUIRED)},
        description="what must exist to bring objects back: nothing, backup, undo (versions or "
        "the like in the store), or backup or undo",
    )

    def limits(self) -> Limits:
        """The same limits for the core."""
        return Limits(**self.model_dump())


def _shared(name: str, model: type[BaseModel] = RepositorySettings) -> Any:  # noqa: ANN401 - of the type that the field says
    """A field of another model, with its default and help. The file may need another type."""
    field = model.model_fields[name]
    default = field.get_default(call_default_factory=True)
    return Field(default=default, description=field.description)


_BranchDays = Annotated[
    dict[str, int],
    # A value that is still text is a template, which is checked after it is rendered.
    filled_in(lambda days: Rules(0, {n: d for n, d in days.items() if not isinstance(d, str)})),
    dg.Resolver(
        lambda context, branches: {n: context.resolve_value(d) for n, d in branches.items()},
        model_field_type=dict[str, int | str],
    ),
]


class ForecastSection(dg.Model, dg.Resolvable):
    """Other retention rules, as changes of the rules in lakeFS."""

    default_retention_days: Annotated[int | None, Bounds(0, 2**31 - 1)] = Field(
        default=None, description="default days; null: unchanged"
    )
    branches: _BranchDays = Field(
        default_factory=dict, description="days of single branches, by their names"
    )
    without_branches: Texts = Field(
        default_factory=list, description="branches to treat as deleted"
    )

    def change(self) -> Change:
        """The same change for the core."""
        return Change(
            default=self.default_retention_days,
            branches=self.branches,
            without=tuple(self.without_branches),
        )


class Policy(RepositorySettings, dg.Model, dg.Resolvable):
    """The policy of a repository: its schedule, the settings of its runs, and when they sweep."""

    cron: Cron = Field(
        default="0 2 * * 0",
        description="the time of waves, as five cron fields; default: Sundays at 2:00",
    )
    time_zone: Zone = Field(
        default="UTC", description="the time zone of `cron`, such as Europe/Berlin"
    )
    min_age_hours: Annotated[float, Bounds(24, MAX_DAYS * 24, unit="hours")] = _shared(
        "min_age_hours"
    )
    retain: RetainRules = _shared("retain")
    ignored_repositories: Texts = _shared("ignored_repositories")
    sweep: Annotated[str, one_of(MODES)] = Field(
        default="approved",
        json_schema_extra={"enum": list(MODES)},
        description="what follows a mark of a schedule or sensor: never a sweep; a sweep after a "
        "person has approved the mark; or a sweep at once if the limits of `auto` hold",
    )
    auto: AutoLimits = Field(
        default_factory=AutoLimits, description="limits under which `sweep: auto` holds"
    )
    approval_lifetime_days: Annotated[float, Bounds(0, 365, above=True)] = Field(
        default=7.0, description="for how many days an approval is valid; at most 365"
    )
    stale_after_days: Annotated[float, Bounds(0, 3650, above=True)] = Field(
        default=14.0, description="a repository without a mark for more days is stale"
    )
    keep_runs_days: Annotated[float, Bounds(2, 36_500)] = Field(
        default=30.0,
        description="older runs may be pruned, except the last three marks and runs that are "
        "needed; at least 2",
    )
    prune: bool = Field(
        default=False,
        description="true: gc_prune_schedule removes the runs that may be pruned; else it only "
        "reports them",
    )
    forecast: ForecastSection | None = Field(
        default=None,
        description="other retention rules; policy_forecast shows what they would free",
    )
    price_per_tb_month: Annotated[float | None, Bounds(0)] = Field(
        default=None,
        description="the price of a TB (10^12 bytes) for a month, in any currency; null: reports "
        "show no money",
    )
    owners: Owners = Field(
        default_factory=list,
        description="e-mail addresses or team:NAME that get notices of failures",
    )
    tags: Tags = Field(default_factory=dict, description="tags that are added to each run")


class Override(Policy):
    """Changes of the policy for some repositories."""

    include: Patterns = Field(description="names or patterns (*, ?, [ab]) of repositories")
    exclude: Patterns = Field(
        default_factory=list,
        description="names or patterns of included repositories that are left out",
    )


#: Characters that make a name a pattern.
_PATTERN: Final = frozenset("*?[")


def is_named(repository: str, include: Iterable[str], exclude: Iterable[str]) -> bool:
    """True if ``include`` matches the name of a repository and ``exclude`` does not."""
    return any(fnmatchcase(repository, p) for p in include) and not any(
        fnmatchcase(repository, p) for p in exclude
    )


#: Dagster+ sets it to 1 in the deployment of a branch, which has the server and stores of others.
_OF_BRANCH: Final = "DAGSTER_CLOUD_IS_BRANCH_DEPLOYMENT"


class Policies(dg.Model):
    """The policies of all repositories: the collected ones, the policy for all, and overrides.

    ``running``: schedules and sensors are on from the start. Of ``overrides``, later ones win.
    """

    include: Sequence[str] = ("*",)
    exclude: Sequence[str] = ()
    running: bool = False
    for_all: Policy = Field(default_factory=Policy)
    overrides: Sequence[Override] = ()

    @property
    def schedule_status(self) -> dg.DefaultScheduleStatus:
        """The default status of schedules."""
        return dg.DefaultScheduleStatus["RUNNING" if self.are_on() else "STOPPED"]

    def are_on(self, *, always: bool = False) -> bool:
        """True if schedules and sensors are on from the start.

        In the deployment of a branch none is: the policies of the branch may lack protections that
        the others have, and its runs would collect the same repositories.

        ``always``: the sensor is on even if the component's file does not turn it on.
        """
        return (always or self.running) and os.environ.get(_OF_BRANCH) != "1"

    def collects(self, repository: str) -> bool:
        """True if schedules and sensors start runs on a repository."""
        return is_named(repository, self.include, self.exclude)

    def named(self) -> dict[str, str]:
        """The repositories that are named without a pattern, with the field that names each."""
        of_overrides = [name for one in self.overrides for name in (*one.include, *one.exclude)]
        fields = {
            **dict.fromkeys(of_overrides, "repositories"),
            **dict.fromkeys(self.exclude, "exclude"),
            **dict.fromkeys(self.include, "include"),
        }
        return {name: field for name, field in fields.items() if not _PATTERN.intersection(name)}

    def changed(self, repository: str) -> dict[str, Any]:
        """The changes of the policy for a repository, by field."""
        changed: dict[str, Any] = {}
        for one in self.overrides:
            if is_named(repository, one.include, one.exclude):
                said = _said(one, Policy)
                if "auto" in said:
                    # An override of single limits keeps the other limits.
                    before: AutoLimits = changed.get("auto", self.for_all.auto)
                    said["auto"] = before.model_copy(update=_said(one.auto, AutoLimits))
                changed |= said
        return changed

    def of(self, repository: str) -> Policy:
        """The policy of a repository, also if it is not collected."""
        return self.for_all.model_copy(update=self.changed(repository))

    def crons(self) -> dict[str, list[str]]:
        """Every cron schedule that a repository may have, by time zone.

        Several entries may name one repository, so each may change the result of all before it.
        """
        pairs = [(self.for_all.cron, self.for_all.time_zone)]
        for said in (_said(one, Policy) for one in self.overrides):
            more = [(said.get("cron", cron), said.get("time_zone", zone)) for cron, zone in pairs]
            pairs = list(dict.fromkeys([*pairs, *more]))
        found: dict[str, list[str]] = {}
        for cron, zone in pairs:
            found.setdefault(zone, []).append(cron)
        return found

    def dump(self) -> dict[str, Any]:
        """JSON values from which ``Policies(**values)`` makes the same policies again."""
        for_all = self.for_all.model_dump(mode="json")
        return self.model_dump(mode="json", exclude_unset=True) | {"for_all": for_all}


def _said(values: BaseModel, kind: type[BaseModel]) -> dict[str, Any]:
    """The fields of a class that were set."""
    return {
        name: getattr(values, name) for name in values.model_fields_set & kind.model_fields.keys()
    }


class Places(BaseModel):
    """Places of artifacts, backups and namespaces, in addition to the stores of repositories."""

    artifact_root: str | None = Field(
        default=None,
        description="URL or path of artifacts and caches; else `LAKEGC_ARTIFACT_ROOT`, else "
        "`.lakegc/artifacts`. The command takes it from the variable only",
    )
    backup_endpoint_url: str | None = Field(
        default=None,
        description="S3 server of the bucket of `backup_url`, if it differs from that of the "
        "namespaces; else `LAKEGC_BACKUP_ENDPOINT_URL`. The bucket must have another name than "
        "the bucket of any repository",
    )
    backup_region: str | None = Field(
        default=None, description="region of that server; else `LAKEGC_BACKUP_REGION`"
    )
    backup_profile: str | None = Field(
        default=None,
        description="profile in `~/.aws` with credentials for that bucket; else "
        "`LAKEGC_BACKUP_PROFILE`",
    )
    namespace_roots: list[str] = Field(
        default_factory=list,
        description="URLs below which the server keeps namespaces: `lakegc leftovers` looks there "
        "for namespaces without a repository; else `LAKEGC_NAMESPACE_ROOTS`, separated by commas. "
        "To remove one, the credentials need lakeFS's permission `fs:ListRepositories` on `*`: "
        "lakeFS lists only the repositories that the credentials may list, and a hidden one looks "
        "deleted",
    )


class ServerSection(Timeouts, dg.Model, dg.Resolvable):
    """The lakeFS server. Fields that are not set come from the sources that ``lakectl`` uses."""

    endpoint: Url | None = _shared("endpoint", LakeFSResource)
    access_key_id_variable: str | None = Field(
        default=None, description="name of the environment variable that holds the access key"
    )
    secret_access_key_variable: str | None = Field(
        default=None, description="name of the environment variable that holds the secret key"
    )
    credentials_file: str | None = _shared("credentials_file", LakeFSResource)
    max_attempts: Annotated[int, Bounds(1)] = _shared("max_attempts", LakeFSResource)

    @model_validator(mode="after")
    def _require_both(self) -> ServerSection:
        if bool(self.access_key_id_variable) != bool(self.secret_access_key_variable):
            raise ValueError(
                "access_key_id_variable and secret_access_key_variable go together: set both, or "
                "neither"
            )
        return self


class StoresSection(Places, Timeouts, dg.Model, dg.Resolvable):
    """The object stores. Keys come from the sources that the stores' own tools use."""

    backup_url: str | None = _shared("backup_url", CollectorSettings)
    namespace_roots: Texts = _shared("namespace_roots", Places)
    s3_endpoint_url: str | None = Field(
        default=None, description="endpoint of an S3 store other than AWS"
    )
    s3_region: str | None = Field(default=None, description="else AWS_REGION")
    s3_profile: str | None = Field(default=None, description="a profile of ~/.aws")
    s3_addressing: Literal["auto", "path", "virtual"] = _shared("addressing", ObjectStoreResource)
    gcs_endpoint: str | None = _shared("gcs_endpoint", ObjectStoreResource)
    gcs_credentials_file: str | None = _shared("gcs_credentials_file", ObjectStoreResource)
    local_root: str | None = _shared("local_root", ObjectStoreResource)


class CollectorSection(SharedSettings, dg.Model, dg.Resolvable):
    """Settings of every run, for all repositories."""


class MailSection(MailServer, dg.Model, dg.Resolvable):
    """The mail server and its recipients."""

    to: Annotated[Texts, AfterValidator(some)] = _shared("to", MailServer)


class NoticeSection(dg.Model, dg.Resolvable):
    """Receivers of notices about failed runs, waiting marks, stale repositories and lost waves."""

    url: Url | None = Field(
        default=None,
        description="the URL to which one JSON document is posted for each notice",
    )
    url_variable: str | None = Field(
        default=None, description="name of the environment variable that holds the URL"
    )
    form: Annotated[str, one_of(FORMS)] = Field(
        default="auto",
        json_schema_extra={"enum": list(FORMS)},
        description="the form of the document: json, slack, teams; auto chooses by the host of "
        "the URL",
    )
    dagster_url: Url | None = Field(
        default=None, description="URL of Dagster's interface, for the links in notices"
    )
    mail: MailSection | None = Field(default=None, description="one mail for each notice")

    def unset(self) -> list[str]:
        """The environment variables that this section names and that are not set."""
        named = [self.url_variable, self.mail.password_variable if self.mail else None]
        return [name for name in named if name and not os.environ.get(name)]
