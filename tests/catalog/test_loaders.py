"""Which releases of Transformers read weights ahead of the quantizer."""

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.catalog.loaders import loader


@pytest.mark.parametrize(("version", "ahead"), [("5.0", True), ("5.3.0", True), ("5.4.0", False), ("5.23.0", False)])
def test_a_release_reads_ahead_until_5_3(version: str, ahead: bool) -> None:
    assert loader(version).reads_ahead is ahead


def test_the_installed_release_is_the_one_that_counts_where_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "5.1.0")
    assert loader().reads_ahead


@pytest.mark.parametrize("version", ["4.57", "new", "5", ""])
def test_what_is_no_known_release_is_refused(version: str) -> None:
    with pytest.raises(WorkbookError):
        loader(version)
