"""Calls of the command."""

from __future__ import annotations

from click.testing import CliRunner, Result

from lakegc_assets.cli.main import main


def lakegc(*arguments: str, answer: str | None = None) -> Result:
    """Call the command; ``answer`` is typed where it asks."""
    return CliRunner().invoke(main, arguments, input=answer)


def say(result: Result, status: int, *words: str) -> None:
    """The command ended with this status, and said to people why without a trace."""
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.output
    assert isinstance(result.exception, SystemExit | None)
    for word in words:
        assert word in result.output, result.output
