"""Which extra of ours brings a package that is missing here, and what else it brings."""

from __future__ import annotations

import re

DISTRIBUTION = "gpu-memory-workbook"
_LINE = re.compile(r"""([\w.-]+)[^;]*; extra == ['"]([\w-]+)['"]""")  # torch<3,>=2.11; extra == "trace"


def extra_with(package: str) -> tuple[str, list[str]]:
    """The first extra that asks for what is imported as `package`, and its packages; ("", [package]) where none does.

    An extra that is made of others is none of these: they bring what it brings.
    """
    from importlib import metadata

    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        lines = []
    by_extra: dict[str, list[str]] = {}
    for name, extra in (match.groups() for match in map(_LINE.match, lines) if match):
        by_extra.setdefault(extra, []).append(name)
    wanted = package.lower().replace("_", "-")
    found = ((extra, names) for extra, names in by_extra.items() if wanted in names)
    return next(found, ("", [package]))
