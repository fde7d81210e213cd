"""A file that a command writes: whole or as before, and readable for others."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.storage import files
from lakegc_assets.storage.files import write_file


def test_a_file_is_replaced_as_a_whole_and_others_may_read_it(tmp_path: Path) -> None:
    file, usual = tmp_path / "report.html", tmp_path / "usual"
    usual.touch()
    write_file(file, b"first")
    file.chmod(0o600)
    write_file(file, "second \u00e9".encode())
    assert file.read_text(encoding="utf-8") == "second \u00e9"
    assert file.stat().st_mode == usual.stat().st_mode
    assert [path.name for path in tmp_path.glob("*report*")] == ["report.html"]


def test_a_file_that_cannot_be_replaced_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "report.html"
    file.write_text("before")

    def fail(_descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(files, "fsync", fail)
    with pytest.raises(ConfigurationError, match="cannot be written: no space left"):
        write_file(file, b"after")
    assert file.read_text() == "before"
    assert [path.name for path in tmp_path.glob("*report*")] == ["report.html"]


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is no file that could be replaced"):
        write_file(tmp_path, b"after")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_file(tmp_path / "no/such/folder.html", b"after")
    linked = tmp_path / "linked.html"
    linked.symlink_to(tmp_path / "target.html")
    write_file(linked, b"after")
    assert (tmp_path / "target.html").read_text() == "after"
    assert linked.is_symlink()
