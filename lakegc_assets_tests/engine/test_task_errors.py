"""What a task raises reaches the user as the sentence that was written for them."""

from __future__ import annotations

import pytest
from pyspark.errors import PythonException

from lakegc_assets.engine.answers import errors_of_tasks
from lakegc_assets.engine.choice import Engine
from lakegc_assets.engine.tasks import Tasks
from lakegc_assets.errors import ConfigurationError, IntegrityError, LakegcError, RefusedError
from lakegc_assets.graveler.errors import FormatError
from lakegc_assets.lakefs.errors import AuthenticationError
from lakegc_assets.storage.errors import AccessDeniedError
from lakegc_assets_tests.sessions import Session


def _raise(spark: Session, error: Exception) -> None:
    def fail(_input: object) -> object:
        raise error from RefusedError("this one is not the last")

    Tasks(Engine("spark", "a test says so"), spark).run("fail", fail, [1, 2], 1.0)


@pytest.mark.conformance
@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (RefusedError("refused: a\nand b"), RefusedError, "refused: a\nand b"),
        (ConfigurationError("set x: y"), ConfigurationError, "set x: y"),
        (AccessDeniedError("s3://b/k"), LakegcError, "s3://b/k"),
        (IntegrityError("cut"), IntegrityError, "cut"),
    ],
)
def test_errors_of_tasks_keep_kind_and_message(
    spark: Session, error: Exception, kind: type[LakegcError], message: str
) -> None:
    with pytest.raises(LakegcError) as raised:
        _raise(spark, error)
    assert type(raised.value) is kind
    assert str(raised.value) == message


def test_a_trace_of_java_is_no_part_of_a_message() -> None:
    """Spark appends it where ``spark.sql.pyspark.jvmStacktrace.enabled`` is set."""
    text = "Traceback\nlakegc_assets.errors.RefusedError: a: b"
    with pytest.raises(RefusedError) as raised, errors_of_tasks():
        raise PythonException(f"{text}\n\nJVM stacktrace:\n{text}\n\tat java.lang.Thread")
    assert str(raised.value) == "a: b"


@pytest.mark.conformance
def test_other_errors_stay_as_they_are(spark: Session) -> None:
    with pytest.raises(PythonException, match="KeyError"):
        _raise(spark, KeyError("x"))


def test_subclasses_are_told_by_their_kind() -> None:
    assert issubclass(FormatError, IntegrityError)
    assert not issubclass(AuthenticationError, (RefusedError, ConfigurationError, IntegrityError))
