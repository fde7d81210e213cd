"""The errors of object stores, in one tree for all kinds of them.

A bucket, container or directory that does not exist is a ``ConfigurationError``.
"""

from __future__ import annotations

from lakegc_assets.errors import LakegcError


class StorageError(LakegcError):
    """An object store did not do what it was asked for."""


class ObjectNotFoundError(StorageError):
    """The object does not exist."""


class InvalidKeyError(StorageError):
    """This store cannot hold, or cannot safely be sent, such a key."""


class PreconditionFailedError(StorageError):
    """A conditional put found another state than the one it was made for; nothing was written."""


class ChangedError(StorageError):
    """The object is another than the one that was asked for."""


class ObjectLockedError(StorageError):
    """A lock, a hold or a retention policy keeps the object as it is."""


class AccessDeniedError(StorageError):
    """The credentials are wrong, expired, or not allowed to do this."""


class StoreFullError(StorageError):
    """There is no space left, or a quota is used up."""


class StoreThrottledError(StorageError):
    """The store asks for fewer requests."""

    transient = True


class StoreUnavailableError(StorageError):
    """No answer, or one that does not say whether the request was carried out."""

    transient = True
