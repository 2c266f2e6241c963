"""The repository as a contributor sees it: every file that git tracks or would track."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOT_OURS = {".git", ".venv", ".colab-venv", "__pycache__", ".ruff_cache", ".pytest_cache", ".hypothesis"}


@cache
def files() -> tuple[Path, ...]:
    """Paths relative to the root, sorted; git's answer, or a walk where the tree is not a git checkout."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        names = (Path(name) for name in done.stdout.split("\0") if name)
        return tuple(sorted(name for name in names if (ROOT / name).is_file()))
    walked = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return tuple(sorted(path for path in walked if not NOT_OURS & set(path.parts)))


def text_of(path: Path) -> str:
    """A file's text; empty for a binary one, which has no lines to judge."""
    data = (ROOT / path).read_bytes()
    return "" if b"\0" in data else data.decode("utf-8", "replace")
