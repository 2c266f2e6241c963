"""Shared by the lesson's tests."""

import pytest


@pytest.fixture
def printed(capsys):
    """`printed(call, *args, **kwargs)` gives what the call printed."""

    def run(call, *args, **kwargs):
        call(*args, **kwargs)
        return capsys.readouterr().out

    return run
