"""The archive with which Spark starts fast: made once, used where it fits, and never needed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lakegc_assets.engine import __main__ as making
from lakegc_assets.engine import class_archive
from lakegc_assets.engine.class_archive import FAST, archive_options, archive_path
from lakegc_assets.engine.spark_session import FILE_VARIABLE, LOCAL, OPTIONS, session_settings
from lakegc_assets_tests.sessions import Session


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches"


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=os.environ
    )


def place() -> Path:
    path = archive_path()
    assert path is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def use_spark(_script: Path, options: str, *_arguments: str) -> None:
    Path(options.split("-XX:ArchiveClassesAtExit=")[1].split(maxsplit=1)[0]).write_bytes(b"classes")


def test_it_is_made_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(making, "use_spark", use_spark)
    monkeypatch.setenv(FILE_VARIABLE, "/nowhere/spark.conf")
    for said in (True, False):
        making.main()
        assert capsys.readouterr().err.startswith("Making an archive") == said
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    assert [path.name for path in place().parent.iterdir()] == [place().name]
    assert place().read_bytes() == b"classes"
    assert f"-XX:SharedArchiveFile={place()}" in session_settings()[OPTIONS]


def test_those_of_installations_that_are_gone_do_not_pile_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = place().parent
    for days in range(10):
        other = folder / f"spark-{days}.jsa"
        other.touch()
        os.utime(other, (0, days * 86_400))
    monkeypatch.setattr(making, "use_spark", use_spark)
    making.main()
    kept = {"spark-7.jsa", "spark-8.jsa", "spark-9.jsa", place().name}
    assert {path.name for path in folder.iterdir()} == kept


def test_one_that_is_in_use_stays_however_old_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    used, folder = place(), place().parent
    used.write_bytes(b"classes")
    os.utime(used, (0, 0))
    for name in range(4):
        (folder / f"spark-{name}.jsa").touch()
        os.utime(folder / f"spark-{name}.jsa", (0, 1 + name))
    assert str(used) in archive_options()
    monkeypatch.setattr(making, "use_spark", use_spark)
    monkeypatch.setattr(making, "archive_path", lambda: folder / "spark-new.jsa")
    making.main()
    assert used.exists()


@pytest.mark.conformance
def test_what_setup_has_made_is_used_on_spark(
    spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JVM that does not take an archive goes on without: it has not mapped the file."""
    monkeypatch.undo()
    options = spark().sparkContext.getConf().get(OPTIONS) or ""
    found = re.search(r"-XX:SharedArchiveFile=(\S+)", options)
    assert found, f"`make setup` has made no archive: {options}"
    jvm = spark().sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    assert found[1] in Path(f"/proc/{jvm}/maps").read_text()


def test_without_one_nothing_is_said_of_it() -> None:
    assert session_settings()[OPTIONS] == LOCAL[OPTIONS]
    place().touch()
    assert session_settings()[OPTIONS] == LOCAL[OPTIONS], "none can be made"


def test_options_of_a_user_are_taken_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place().write_bytes(b"x")
    (tmp_path / "spark.conf").write_text(f"{OPTIONS} -XX:+UseG1GC\n")
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "spark.conf"))
    assert session_settings()[OPTIONS] == "-XX:+UseG1GC"


def test_a_jvm_of_ours_does_not_live_on_without_memory() -> None:
    """PySpark might wait for ever for the rows of a thread that has died."""
    assert "-XX:+ExitOnOutOfMemoryError" in LOCAL[OPTIONS].split()


def test_a_jvm_says_nothing_of_an_archive_that_it_cannot_use() -> None:
    place().write_bytes(b"no archive at all" * 1000)
    java = Path(
        os.environ.get("JAVA_HOME") or Path(shutil.which("java") or "").resolve().parents[1]
    )
    done = subprocess.run(
        [java / "bin/java", *FAST.split(), *archive_options().split(), "-version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout == ""
    assert "archive" not in done.stderr.lower()
    assert "version" in done.stderr


def test_another_java_has_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = archive_path()
    (tmp_path / "java/bin").mkdir(parents=True)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    assert archive_path() is None, "it does not say what it is"
    (tmp_path / "java/release").write_text('JAVA_VERSION="99"\n')
    assert archive_path() not in {None, here}


def test_other_files_of_spark_have_another_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = archive_path()
    (tmp_path / "jars").mkdir()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    there = archive_path()
    os.utime(tmp_path / "jars", (1, 1))
    assert len({here, there, archive_path(), None}) == 4
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "nowhere"))
    assert archive_path() is None


@pytest.mark.parametrize("name", ["a folder", "one:two", 'qu"ote'])
def test_a_path_that_options_cannot_name_is_not_used(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
    assert archive_path() is None
    assert archive_options() == ""


def test_what_others_may_have_put_there_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "spark.jsa"
    archive.write_text("classes")
    archive.chmod(0o664)
    monkeypatch.setattr(class_archive, "archive_path", lambda: archive)
    assert str(archive) in archive_options()
    archive.chmod(0o666)
    assert archive_options() == ""
    archive.chmod(0o644)
    monkeypatch.setattr(
        class_archive,
        "os",
        SimpleNamespace(access=os.access, R_OK=os.R_OK, geteuid=lambda: os.geteuid() + 1),
    )
    assert bool(archive_options()) == (os.geteuid() == 0)


def test_where_it_cannot_be_kept_it_is_not_made(caches: Path) -> None:
    caches.write_text("a file")
    done = python("-m", "lakegc_assets.engine")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_where_spark_does_not_start_nothing_is_kept(
    tmp_path: Path, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "java").mkdir()
    (tmp_path / "java/release").write_text('JAVA_VERSION="99"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    done = python("-m", "lakegc_assets.engine")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert list((caches / "lakegc").iterdir()) == []
