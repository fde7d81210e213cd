"""Spark for every stage where it is configured; without it as long as one machine is enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakegc_assets.engine.choice import choose_engine, has_java


@pytest.mark.parametrize(
    ("setting", "configured_by", "rows", "kind", "reason"),
    [
        ("auto", "", 10, "embedded", "nothing configures Spark, and 10 rows are known"),
        ("auto", "", 11, "spark", "11 rows are more than embedded_rows, 10"),
        ("auto", "SPARK_REMOTE", 0, "spark", "SPARK_REMOTE configures it"),
        ("spark", "", 0, "spark", "engine is set to spark"),
        ("embedded", "SPARK_REMOTE", 99, "embedded", "engine is set to embedded"),
    ],
)
def test_the_engine_and_why(
    setting: str,
    configured_by: str,
    rows: int,
    kind: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    java(tmp_path, monkeypatch)
    engine = choose_engine(setting, configured_by, rows, 10)  # type: ignore[arg-type]
    assert (engine.kind, engine.reason) == (kind, reason)
    assert str(engine) == f"{kind} ({reason})"


def java(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.touch(0o755)
    monkeypatch.setenv("JAVA_HOME", str(folder))


def test_without_java_the_embedded_engine_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert not has_java()
    engine = choose_engine("auto", "", 11, 10)
    assert engine.kind == "embedded"
    assert engine.reason == (
        "11 rows are more than embedded_rows, 10, and there is no Java for Spark"
    )
