"""A folder for temporary files that cannot be written is told in one sentence."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import pytest

from lakegc_assets.engine import folders, processes
from lakegc_assets.engine.folders import SpillFolder
from lakegc_assets.engine.processes import stop_file
from lakegc_assets.errors import ConfigurationError


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = str(tmp_path / "nowhere")
    monkeypatch.setattr(folders, "mkdtemp", partial(mkdtemp, dir=place))
    monkeypatch.setattr(processes, "TemporaryDirectory", partial(TemporaryDirectory, dir=place))


@pytest.mark.usefixtures("nowhere")
def test_a_spill_folder_that_cannot_be_made_is_told() -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere.*Set TMPDIR to a folder"):
        SpillFolder()


@pytest.mark.usefixtures("nowhere")
def test_a_stop_file_that_cannot_be_made_is_told() -> None:
    with pytest.raises(ConfigurationError, match="Set TMPDIR to"), stop_file():
        pytest.fail("there is none")


def test_an_error_beside_a_stop_file_is_none_of_it() -> None:
    with pytest.raises(OSError, match=r"^another$"), stop_file():
        raise OSError("another")
