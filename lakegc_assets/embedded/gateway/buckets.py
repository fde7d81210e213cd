"""The gateway's operations on repositories as buckets, except listings of their contents."""

from __future__ import annotations

from starlette.responses import Response

from lakegc_assets.embedded.errors import ApiError
from lakegc_assets.embedded.gateway import errors
from lakegc_assets.embedded.gateway.calls import Call, Key, check_target, require_bucket
from lakegc_assets.embedded.gateway.documents import Element, Value, document, parse, time_of
from lakegc_assets.embedded.gateway.errors import S3Error
from lakegc_assets.embedded.lake import catalog
from lakegc_assets.embedded.objects import objects

_REGION = "us-east-1"
_MOST_DELETES = 1000
_CONDITIONS = ("ETag", "LastModifiedTime", "Size")


def list_buckets(call: Call) -> Response:
    """All repositories."""
    with call.lake.state.read() as db:
        found = catalog.repositories(db, "", "", -1)
    buckets: list[tuple[str, Value]] = [
        ("Bucket", [("Name", repo.id), ("CreationDate", time_of(repo.creation_date))])
        for repo in found
    ]
    owner: list[tuple[str, Value]] = [("ID", "lakefs"), ("DisplayName", "lakefs")]
    return document("ListAllMyBucketsResult", [("Owner", owner), ("Buckets", buckets)])


def head(call: Call) -> Response:
    """Answer that the repository exists."""
    require_bucket(call.lake, call.bucket)
    return Response(headers={"x-amz-bucket-region": _REGION})


def location(call: Call) -> Response:
    """The default region, which has no name in S3."""
    require_bucket(call.lake, call.bucket)
    return document("LocationConstraint", [])


def versioning(call: Call) -> Response:
    """Answer that objects have no versions."""
    require_bucket(call.lake, call.bucket)
    return document("VersioningConfiguration", [])


def delete_objects(call: Call) -> Response:
    """Delete up to 1,000 keys, with an answer for each, or only for errors on request."""
    require_bucket(call.lake, call.bucket)
    wanted = parse(call.body, "Delete")
    listed = wanted.all("Object")
    if not 0 < len(listed) <= _MOST_DELETES:
        raise errors.malformed_xml()
    quiet = wanted.text("Quiet", "false").strip().lower() == "true"
    names = [item.text("Key") for item in listed]
    refused = {
        name: error
        for name, item in zip(names, listed, strict=True)
        if (error := _unsupported(item)) is not None
    }
    by_ref: dict[str, list[str]] = {}
    for name in names:
        if name not in refused:
            by_ref.setdefault(Key.of(name).ref, []).append(name)
    for ref, deleted in by_ref.items():
        if error := _delete(call, ref, deleted):
            refused.update(dict.fromkeys(deleted, error))
    answers: list[tuple[str, Value]] = []
    for name in names:
        if name in refused:
            error = refused[name]
            answers.append(
                ("Error", [("Key", name), ("Code", error.code), ("Message", error.message)])
            )
        elif not quiet:
            answers.append(("Deleted", [("Key", name)]))
    return document("DeleteResult", answers)


def _unsupported(item: Element) -> S3Error | None:
    """The error for a key to delete with a version or a condition; None for a plain key."""
    if item.all("VersionId"):
        return errors.not_implemented("versions of objects")
    if any(item.all(name) for name in _CONDITIONS):
        return errors.not_implemented("conditions on deletes")
    return None


def _delete(call: Call, ref: str, names: list[str]) -> S3Error | None:
    """Delete keys of one branch in one transaction; its error applies to each of them."""
    try:
        check_target(call.lake, call.bucket, ref)
        paths = [path for path in (Key.of(name).path for name in names) if path]
        objects.delete(call.lake, call.bucket, ref, paths)
    except S3Error as error:
        return error
    except ApiError as error:
        return errors.of_api(error)
    return None
