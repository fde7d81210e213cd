"""What a task raises reaches the user as the sentence that was written for them."""

from __future__ import annotations

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from lakegc_assets.defs.failures import errors_of_tasks
from lakegc_assets.errors import ConfigurationError, IntegrityError, LakegcError, RefusedError
from lakegc_assets.graveler.errors import FormatError
from lakegc_assets.lakefs.errors import AuthenticationError
from lakegc_assets.storage.errors import AccessDeniedError


def _raising(spark: SparkSession, error: Exception) -> DataFrame:
    def fail(_batches: object) -> object:
        raise error from RefusedError("this one is not the last")

    return spark.range(1).mapInArrow(fail, "id long")  # type: ignore[arg-type] # it only raises


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
    spark: SparkSession, error: Exception, kind: type[LakegcError], message: str
) -> None:
    with pytest.raises(LakegcError) as raised, errors_of_tasks():
        _raising(spark, error).collect()
    assert type(raised.value) is kind
    assert str(raised.value) == message


def test_errors_while_rows_are_written_keep_them_too(spark: SparkSession, tmp_path: object) -> None:
    with pytest.raises(IntegrityError, match=r"^damaged$"), errors_of_tasks():
        _raising(spark, IntegrityError("damaged")).write.parquet(f"{tmp_path}/rows")


def test_other_errors_stay_as_they_are(spark: SparkSession) -> None:
    with pytest.raises(PythonException, match="KeyError"), errors_of_tasks():
        _raising(spark, KeyError("x")).collect()


def test_subclasses_are_told_by_their_kind() -> None:
    assert issubclass(FormatError, IntegrityError)
    assert not issubclass(AuthenticationError, (RefusedError, ConfigurationError, IntegrityError))
