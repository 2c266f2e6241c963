"""What every command does with bad input."""

from __future__ import annotations

from collections.abc import Sequence

from helpers.cli import main


def require_told(argv: Sequence[str], told: str, capsys) -> None:
    """Exit status 2, the reason on stderr, nothing on stdout, and no traceback."""
    assert main(list(argv)) == 2
    printed = capsys.readouterr()
    assert told in printed.err
    assert printed.out == ""
    assert "Traceback" not in printed.err
