"""What anybody may put into paths, messages and addresses controls no terminal."""

from __future__ import annotations

import csv
import io
import logging

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.cli import usage
from lakegc_assets.cli.jobs import progress_printed
from lakegc_assets.cli.output import echo, exit_status, say
from lakegc_assets.defs.failures import Stopped, shown
from lakegc_assets.engine.progress import PROGRESS
from lakegc_assets.errors import RefusedError

#: Clears the screen, sets the title of the window in two ways, and writes from right to left.
_HOSTILE = "a\x1b[2Jb\x1b]0;t\x07c\x9b2Jd\u202ee\rf"
_ESCAPED = r"a\x1b[2Jb\x1b]0;t\x07c\x9b2Jd\u202ee\rf"


def test_lines_and_errors_control_nothing() -> None:
    @click.command()
    def command() -> None:
        with exit_status():
            echo(_HOSTILE, False, lambda text: [f"first\t{text}", "second"])
            echo("", False, lambda _: [], _HOSTILE)
            raise RefusedError(_HOSTILE)

    result = CliRunner().invoke(command, color=True)
    assert result.stdout == f"first\t{_ESCAPED}\nsecond\n"
    assert result.stderr == f"{_ESCAPED}\nrefused: {_ESCAPED}\n"


def test_who_gets_no_memory_is_told_what_to_set() -> None:
    @click.command()
    def command() -> None:
        with exit_status():
            raise pa.ArrowMemoryError("malloc of size 64 failed")

    result = CliRunner().invoke(command)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("failed: this process got no more memory: give the machine")
    with pytest.raises(Stopped, match="embedded_memory"), shown():
        raise MemoryError


@given(st.text())
def test_any_text_is_shown(text: str) -> None:
    @click.command()
    def command() -> None:
        say(text)

    shown = CliRunner().invoke(command, color=True).stdout
    assert shown.replace("\n", "").replace("\t", "").isprintable()
    assert text in shown or not text.isprintable()


def test_progress_controls_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_printed():
        PROGRESS.log(logging.INFO, "%s", _HOSTILE)
    assert capsys.readouterr().err == f"    {_ESCAPED}\n"


@pytest.mark.parametrize("key", ["=cmd|'/C calc'!A0", "+1", "-1", "@SUM(A1)"])
def test_a_spreadsheet_computes_nothing(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    usage.write_csv([{"key": key, "bytes": -1}, {"key": "a=b\r\x1bc", "bytes": 1}], "path")
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out, newline="")))
    assert rows == [["path", "bytes"], [f"'{key}", "-1"], [r"a=b\r\x1bc", "1"]]
