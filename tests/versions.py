"""Tests of bytes that a release of another package changed: below it they are skipped, and say what differs there."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest
from packaging.version import Version


def is_before(package: str, release: str) -> bool:
    """Whether `package` is installed in a release below `release`.

    >>> is_before("pytest", "1.0"), is_before("no-such-package", "1.0")
    (False, False)
    """
    try:
        return Version(Version(version(package)).base_version) < Version(release)
    except PackageNotFoundError:
        return False


def since(package: str, release: str, otherwise: str) -> pytest.MarkDecorator:
    """Skip below `release` of `package`, which before `otherwise`."""
    return pytest.mark.skipif(is_before(package, release), reason=f"before {release} {package} {otherwise}")


unmasked_opt = since("transformers", "5.18", "gives OPT a mask of T x T where none is needed")
divided_embedding = since("transformers", "5.21", "leaves an embedding of its own whole in its tensor-parallel plan")
