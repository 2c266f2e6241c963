"""`workbook publish`: stamp every notebook, the README, CITATION.cff and pyproject.toml with where the workbook lies.

    workbook publish --repository https://github.com/OWNER/NAME --ref v1.0
    workbook publish --check            # what disagrees with pyproject.toml

Then commit, tag and push: a badge opens the notebook as it is *at the ref*, so the ref must hold what was stamped.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from . import notebook as nb
from .address import (
    Address,
    badge,
    disagreements,
    read_address,
    stamp,
    strays,
    with_badge,
    with_commands,
    write_address,
)
from .notebook import BOOK, CLEARED, CLEARED_BOOK, LABS
from .release import release

WRITTEN = (*BOOK, "solutions")
FOLDERS = (*WRITTEN, LABS, *CLEARED_BOOK)
CITATION, REPOSITORY = "CITATION.cff", "repository-code:"
FIRST = f"{CLEARED}/00_start_here.ipynb"  # where the README's badge leads


def publish(root: Path, address: Address) -> int:
    """Stamp everything under `root` with `address`; 0 when everything then agrees.

    Again with another address replaces the first; `Address()` takes all of it away. WorkbookError, and nothing
    written, where a notebook has no setup cell.
    """
    stamped = {path: nb.read(path) for path in nb.find_all(root, WRITTEN)}
    if not stamped:
        raise nb.none_there(root, WRITTEN)
    for path, notebook in stamped.items():
        stamp(notebook, _name(path, root), address)
    readme = root / "README.md"
    front = stamped_front(readme.read_text("utf-8"), address)
    cited = root / CITATION
    write_address(root, address)
    count = sum(nb.write(path, notebook) for path, notebook in stamped.items())
    readme.write_text(front, "utf-8", newline="\n")
    if cited.exists():
        cited.write_text(citing(cited.read_text("utf-8"), address), "utf-8", newline="\n")
    kept = release(root)
    print(f"{count} of {len(stamped)} notebooks stamped; the workbook lies {address or 'nowhere'}")
    for line in advice(root, address):
        print(line)
    return kept


def check(root: Path) -> int:
    """Print each file that disagrees with pyproject.toml, and how; 1 when there is one, else 0."""
    address = read_address(root)
    found = list(_disagreements(root, address))
    for line in found:
        print(f"✗ {line}", file=sys.stderr)
    if found:
        print("to repair: workbook publish, with --repository and --ref", file=sys.stderr)
        return 1
    print(f"✓ every notebook and page agrees with pyproject.toml: {address}")
    for line in advice(root, address):
        print(line)
    return 0


def _disagreements(root: Path, address: Address) -> Iterator[str]:
    for path in nb.find_all(root, FOLDERS):
        name = _name(path, root)
        yield from (f"{name}: {how}" for how in disagreements(nb.read(path), name, address))
    readme = (root / "README.md").read_text("utf-8")
    if with_badge(readme, badge(address, FIRST)) != readme:
        yield "README.md: its badge is not pyproject.toml's"
    if with_commands(readme, address) != readme:
        yield "README.md: its commands do not say pyproject.toml's address"
    cited = root / CITATION
    if cited.exists() and citing(text := cited.read_text("utf-8"), address) != text:
        yield f"{CITATION}: its repository is not pyproject.toml's"
    for page in sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")]):
        yield from (f"{_name(page, root)}: {how}" for how in strays(page.read_text("utf-8"), address))


def stamped_front(text: str, address: Address) -> str:
    """The README's text with the badge under its title, and the commands that need the address."""
    return with_commands(with_badge(text, badge(address, FIRST)), address)


def citing(text: str, address: Address) -> str:
    """CITATION.cff's text with the repository of `address`; without one where it lies nowhere.

    >>> citing("type: software\\n", Address("https://github.com/ada/workbook", "v1"))
    'type: software\\nrepository-code: https://github.com/ada/workbook\\n'
    """
    lines = [line for line in text.splitlines() if not line.startswith(REPOSITORY)]
    return "\n".join([*lines, f"{REPOSITORY} {address.repository}"] if address else lines) + "\n"


def advice(root: Path, address: Address) -> Iterator[str]:
    """What is left to do before the links work, as far as this clone can tell."""
    if not address:
        return
    if not address.github:
        yield "note: Colab opens notebooks from GitHub alone, so there is no badge; the setup cells fetch from here."
    stated = _at(root, address.ref, "pyproject.toml")
    if stated is None:
        yield f"next: commit, then `git tag {address.ref}` (unless it is a branch), and push both."
    elif stated != (root / "pyproject.toml").read_text("utf-8"):
        yield f"warning: {address.ref} is an older state, without what is stamped here: commit, move it there, push."


def _at(root: Path, ref: str, path: str) -> str | None:
    """A file as it is at a tag or branch; None where git does not know the ref, or there is no git."""
    command = ["git", "-C", str(root), "show", f"{ref}:{path}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()
