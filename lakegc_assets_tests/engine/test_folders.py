"""A folder for temporary files that cannot be written is told in one sentence."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from lakegc_assets.engine.folders import SpillFolder
from lakegc_assets.engine.processes import stop_file
from lakegc_assets.errors import ConfigurationError


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))


def test_a_spill_folder_that_cannot_be_made_is_told() -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere.*Let TMPDIR name a folder"):
        SpillFolder()


def test_a_stop_file_that_cannot_be_made_is_told() -> None:
    with pytest.raises(ConfigurationError, match="Let TMPDIR name"), stop_file():
        pytest.fail("there is none")


def test_an_error_beside_a_stop_file_is_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(OSError, match=r"^another$"), stop_file():
        raise OSError("another")
