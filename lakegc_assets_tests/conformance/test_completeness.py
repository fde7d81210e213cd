"""Every operation of lakefs-sdk has a row of the table, or a reason why the server has it not."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from functools import cache
from typing import Any, NamedTuple

from lakegc_assets.embedded import app
from lakegc_assets_tests.conformance.recorder import REST, declared, left_out
from lakegc_assets_tests.conformance.world import sdk

left_out(
    REST,
    ["get_run", "get_run_hook_output", "list_run_hooks"],
    "actions and hooks do not bear on what is garbage",
)
left_out(
    REST,
    [
        "create_pull_request",
        "get_pull_request",
        "list_pull_requests",
        "merge_pull_request",
        "update_pull_request",
    ],
    "a pull request ends in a merge, which the server has",
)
left_out(
    REST,
    [
        "abort_presign_multipart_upload",
        "complete_presign_multipart_upload",
        "create_presign_multipart_upload",
        "upload_part",
        "upload_part_copy",
    ],
    "the S3 gateway has multipart uploads; pre_sign_multipart_upload tells clients not to try",
)
left_out(
    REST,
    ["restore_refs", "restore_status", "restore_submit", "create_commit_record"],
    "they fill a bare repository, which the server has not",
)
left_out(
    REST,
    ["delete_repository_metadata", "set_repository_metadata"],
    "nothing reads the metadata of a repository",
)
left_out(
    REST,
    ["create_symlink_file", "get_underlying_properties", "update_object_user_metadata"],
    "they concern readers of the content, and move no object",
)
left_out(
    REST,
    ["upload_object_preflight", "get_usage_report_summary", "setup_comm_prefs"],
    "the web interface alone asks for them, and the server has none",
)


class Operation(NamedTuple):
    """A method of one of the SDK's API classes, and the request that it sends."""

    api: str
    name: str
    request: tuple[str, str]


@cache
def operations() -> list[Operation]:
    found = []
    api: Any = importlib.import_module("lakefs_sdk.api")
    for module in pkgutil.iter_modules(api.__path__, f"{api.__name__}."):
        for name, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if not name.endswith("Api"):
                continue
            for method, function in inspect.getmembers(kind, inspect.isfunction):
                if not method.endswith("_with_http_info"):
                    continue
                sent = re.search(r"call_api\(\s*'([^']+)', '([A-Z]+)'", inspect.getsource(function))
                assert sent, method
                path, verb = sent.groups()
                operation = method.removesuffix("_with_http_info")
                found.append(Operation(name, operation, (verb, nameless(path))))
    return found


def nameless(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", path)


# Users, groups, policies and other identity providers; what the server has of them has rows.
IDENTITY = ("AuthApi", "ExternalApi")
_OF_THE_ONE_USER = {"login", "get_current_user", "list_users"}


def _of_other_users() -> set[str]:
    found = {each.name for each in operations() if each.api in IDENTITY}
    return found - _OF_THE_ONE_USER | {"sts_login"}


left_out(REST, _of_other_users, "there is one user")


def test_every_operation_of_the_sdk_has_a_row_or_a_reason() -> None:
    served = {(each.method, nameless(each.path)) for each in app.ENDPOINTS}
    rows, omitted = declared()
    shown = {row.operation for row in rows if (row.section, row.client) == (REST, "lakefs-sdk")}
    reasons = {name for line in omitted if line.section == REST for name in line.operations}
    found = operations()
    assert len(found) > 140, sdk.__version__
    # An operation may be a method of several API classes.
    assert {each.name for each in found if each.request in served} == shown
    assert {each.name for each in found if each.request not in served} == reasons
    assert served == {each.request for each in found if each.request in served}
