"""Raises the errors of Spark tasks again in this process, with their kind and message."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from pyspark.errors import PythonException

from lakegc_assets.errors import ConfigurationError, IntegrityError, LakegcError, RefusedError

_OURS = re.compile(r"^(lakegc_assets(?:\.\w+)+)\.(\w+): ", re.MULTILINE)
_CHAINED = re.compile(
    r"^(?:The above exception was|During handling of the above).*:$", re.MULTILINE
)
_JAVA = "\n\nJVM stacktrace:\n"


@contextmanager
def errors_of_tasks() -> Iterator[None]:
    """Raise an error of this package from a Spark task as if it had been raised here.

    Raises:
        LakegcError: of the task's kind (configuration, refused, integrity) and with its message,
            which Spark wraps into traces of both languages.
    """
    try:
        yield
    except PythonException as error:
        text = str(error)
        # Causes come first. With some settings Java's stack trace comes last.
        text = _CHAINED.split(text.partition(_JAVA)[0])[-1]
        raised = list(_OURS.finditer(text))
        if not raised:
            raise
        last = raised[-1]
        raised_type = getattr(import_module(last[1]), last[2], None)
        if not (isinstance(raised_type, type) and issubclass(raised_type, LakegcError)):
            raise
        raise _kind(raised_type)(text[last.end() :].strip()) from error


def plain_error(error: LakegcError) -> LakegcError:
    """Return an error of the same kind and message that any process can unpickle."""
    return _kind(type(error))(str(error))


def _kind(raised: type[LakegcError]) -> type[LakegcError]:
    """Return the kind of an error of this package, a class that takes only a message."""
    for kind in (ConfigurationError, RefusedError, IntegrityError):
        if issubclass(raised, kind):
            return kind
    return LakegcError
