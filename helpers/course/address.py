"""Where the published workbook lies, kept in pyproject.toml, and what each notebook says of it: setup cell and badge.

    [tool.workbook]
    repository = "https://github.com/OWNER/NAME"
    ref = "v1.0"

Both are empty until `workbook publish` fills them in. The setup cell is one text in all notebooks but for these two
constants. Where `helpers` stands above the notebook, or is installed, it fetches nothing; it never installs a package.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from nbformat import NotebookNode

from ..catalog.errors import WorkbookError
from .notebook import home

COLAB = "https://colab.research.google.com/github/"
TABLE = "[tool.workbook]\n"
_URL = re.compile(r"[A-Za-z0-9._~%+/:-]+")
_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")  # narrower than git: it stands in addresses, where / divides
_COMMIT = re.compile(r"[0-9a-f]{40}")
SETUP = """\
# @title Setup: finds the workbook's package, and says what this notebook runs on
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # before torch: waiting threads give up their core
REPOSITORY, REF = "", ""  # filled in by `workbook publish`
clone = Path.cwd() / "gpu-memory-workbook"
sys.path[:0] = [str(p) for p in (*clone.parents, clone) if (p / "helpers" / "cli").exists()]
if REPOSITORY and not find_spec("helpers"):  # a notebook on its own, as on Colab: fetch the rest
    fetch = f"git -c advice.detachedHead=false clone -q --depth 1 -b {REF} {REPOSITORY} {clone.name}"
    sys.path[:0] = [] if subprocess.run(fetch.split()).returncode else [str(clone)]
if not find_spec("helpers"):
    raise ModuleNotFoundError("no helpers: did git fail above? Else open this in a clone of the workbook")

from helpers.lesson import machine

DEVICE = machine()"""
FOLDED = {"jupyter": {"source_hidden": True}, "cellView": "form"}  # in JupyterLab, in Colab
IMAGE = "https://colab.research.google.com/assets/colab-badge.svg"
_CONSTANTS = re.compile(r'(?m)^REPOSITORY, REF = "([^"\n]*)", "([^"\n]*)"')
_BADGE = re.compile(r"\n\n(\[!\[Open in Colab\]\([^)]*\)\]\([^)]*\))(?=\n|\Z)")
_LINK = re.compile(re.escape(COLAB) + r"[^\s)\]\"'<>\\]*")


@dataclass(frozen=True)
class Address:
    """A repository that `git clone` can read without a password, and a tag or branch of it; both empty: nowhere.

    WorkbookError for an address that learners could not clone from, or that tells a secret.

    >>> Address("https://github.com/ada/workbook", "v1").colab("notebooks/00_start_here.ipynb")
    'https://colab.research.google.com/github/ada/workbook/blob/v1/notebooks/00_start_here.ipynb'
    >>> Address("https://gitlab.com/ada/workbook", "v1").colab("notebooks/00_start_here.ipynb")
    ''
    """

    repository: str = ""
    ref: str = ""

    def __post_init__(self) -> None:
        if self.repository or self.ref:
            _require_url(self.repository)
            _require_ref(self.ref)

    def __bool__(self) -> bool:
        return bool(self.repository)

    def __str__(self) -> str:
        return f"{self.repository} at {self.ref}" if self else "nowhere"

    @property
    def github(self) -> str:
        """OWNER/NAME on GitHub, the one host whose notebooks Colab opens by a link; else empty."""
        url = urlsplit(self.repository)
        return url.path.strip("/").removesuffix(".git") if _is_github(url) else ""

    def colab(self, path: str = "") -> str:
        """The link that opens the notebook at `path`, like 'labs/02_x.ipynb', in Colab; empty where there is none."""
        return f"{COLAB}{self.github}/blob/{self.ref}/{path}" if self.github else ""


def read_address(root: Path) -> Address:
    """What `root`/pyproject.toml states; nowhere when it states nothing."""
    path = root / "pyproject.toml"
    project = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    stated = project.get("tool", {}).get("workbook", {})
    return Address(stated.get("repository", ""), stated.get("ref", ""))


def write_address(root: Path, address: Address) -> None:
    """State `address` in `root`/pyproject.toml; every other byte of it stays."""
    path = root / "pyproject.toml"
    before, _, after = path.read_text(encoding="utf-8").partition(TABLE)
    for key, value in (("repository", address.repository), ("ref", address.ref)):
        after, found = re.subn(rf'(?m)^{key} = ".*"', f'{key} = "{value}"', after, count=1)
        if not found:
            raise WorkbookError(f"{path} has no {key} to fill in", f'{TABLE}repository = ""\nref = ""', "add the table")
    path.write_text(before + TABLE + after, encoding="utf-8", newline="\n")


def setup_source(address: Address) -> str:
    """The setup cell's text for a workbook that lies at `address`."""
    return _CONSTANTS.sub(f'REPOSITORY, REF = "{address.repository}", "{address.ref}"', SETUP)


def is_setup(source: str) -> bool:
    """Whether it is the setup cell's text, wherever it was stamped for."""
    return _unstamped(source) == SETUP


def stamped_with(notebook: NotebookNode) -> Address:
    """The address that the notebook's setup cell fetches from; nowhere where it has none."""
    cell = _setup_cell(notebook)
    return Address(*_CONSTANTS.findall(cell.source)[0]) if cell else Address()


def badge(address: Address, path: str) -> str:
    """The badge of the notebook at `path`, in Markdown: a chapter's opens the copy for learners; '' without a link."""
    link = address.colab(home(path))
    return link and f"[![Open in Colab]({IMAGE})]({link})"


def with_badge(text: str, shown: str) -> str:
    """Markdown whose first line is its title, with `shown` right under it in place of any badge; empty takes it away.

    >>> with_badge("# Title\\n\\nText", "[![Open in Colab](i)](a)")
    '# Title\\n\\n[![Open in Colab](i)](a)\\n\\nText'
    """
    title, newline, rest = _BADGE.sub("", text).partition("\n")
    return f"{title}\n\n{shown}{newline}{rest}" if shown else f"{title}{newline}{rest}"


_ENV = re.compile(r"(?m)^make env\b")
_STAMPED = re.compile(r"(?m)^(?:uvx --from git\+|git clone ).*\n(?=(?:git clone .*\n)?make env\b)")


def with_commands(text: str, address: Address) -> str:
    """Markdown with what needs the address above its first `make env`: one run without a clone, and the clone.

    >>> print(with_commands("make env && x", Address("https://github.com/ada/workbook", "v1")))
    uvx --from git+https://github.com/ada/workbook@v1 workbook can-i-run llama-3.1-8b --gpu rtx-4090
    git clone -b v1 https://github.com/ada/workbook gpu-memory-workbook && cd gpu-memory-workbook
    make env && x
    """
    plain = _STAMPED.sub("", text)
    if not address:
        return plain
    where = f"{address.repository}@{address.ref}"
    tried = f"uvx --from git+{where} workbook can-i-run llama-3.1-8b --gpu rtx-4090"
    clone = f"git clone -b {address.ref} {address.repository} gpu-memory-workbook && cd gpu-memory-workbook"
    return _ENV.sub(lambda found: f"{tried}\n{clone}\n{found[0]}", plain, count=1)


def for_lab(text: str, name: str) -> str:
    """A solution's first cell as its lab has it: the badge leads to the lab, not to the answers."""
    return _BADGE.sub(lambda found: found[0].replace(f"/solutions/{name})", f"/labs/{name})"), text)


def stamp(notebook: NotebookNode, path: str, address: Address) -> None:
    """Stamp the setup cell and the badge, in place, and fold the cell.

    A cell with lines of the setup cell and no others is an older one, and made new. WorkbookError where the first code
    cell is neither.
    """
    cell = _setup_cell(notebook) or _older_setup_cell(notebook)
    if cell is None:
        expected = "the same text in all notebooks, and nothing else in the cell"
        do = "copy the cell from notebooks/00_start_here.ipynb"
        raise WorkbookError(f"{path}: its first code cell is not the setup cell", expected, do)
    cell.source = setup_source(address)
    cell.metadata.update(FOLDED)
    notebook.cells[0].source = with_badge(notebook.cells[0].source, badge(address, path))


def disagreements(notebook: NotebookNode, path: str, address: Address) -> Iterator[str]:
    """How the notebook at `path`, like 'labs/02_x.ipynb', differs from one that is stamped with `address`."""
    cell = _setup_cell(notebook)
    if cell is None:
        yield "the first code cell is not the setup cell that notebooks/00_start_here.ipynb has"
    elif cell.source != setup_source(address):
        repository, ref = _CONSTANTS.findall(cell.source)[0]
        yield f"the setup cell fetches from {f'{repository} at {ref}' if repository else 'nowhere'}, not {address}"
    elif any(cell.metadata.get(key) != value for key, value in FOLDED.items()):
        yield "the setup cell is not folded: run workbook publish with the same address"
    head = notebook.cells[0].source if notebook.cells else ""
    if with_badge(head, badge(address, path)) != head:
        link = address.colab(home(path))
        yield f"no badge under the title that leads to {link}" if link else "a badge, and Colab has no link to it"
    yield from strays("\n".join(cell.source for cell in notebook.cells), address)


def strays(text: str, address: Address) -> Iterator[str]:
    """The links to Colab in `text` that lead to another repository or ref."""
    mine = address.colab()
    yield from (f"a link to {link}" for link in _LINK.findall(text) if not (mine and link.startswith(mine)))


def _is_github(url: SplitResult) -> bool:
    return url.hostname in ("github.com", "www.github.com")


def _require_url(text: str) -> None:
    if "@" in text:
        raise _bad_url("the repository's address holds a user name or a token", "one that tells no secret")
    url = urlsplit(text if _URL.fullmatch(text) else "")
    if url.scheme not in ("https", "file") or not url.path.strip("/"):
        raise _bad_url(f"{text!r} is no address to clone from", "https://HOST/OWNER/NAME")
    if url.scheme == "https" and not url.hostname:
        raise _bad_url(f"{text!r} names no host", "https://HOST/OWNER/NAME")
    if _is_github(url) and len(url.path.strip("/").split("/")) != 2:
        raise _bad_url(f"{text!r} is not a repository on GitHub", "https://github.com/OWNER/NAME")


def _bad_url(what: str, expected: str) -> WorkbookError:
    return WorkbookError(what, expected, "give the address of the repository's own page, as --repository")


def _require_ref(text: str) -> None:
    bad = ".." in text or text.endswith((".", ".lock")) or not _REF.fullmatch(text)
    if bad or _COMMIT.fullmatch(text):
        what = f"{text!r} is a commit" if _COMMIT.fullmatch(text) else f"{text!r} is no tag or branch"
        raise WorkbookError(what, "a tag like v1.0, of letters, digits and . _ + -", "make one: git tag v1.0")


def _unstamped(source: str) -> str:
    return _CONSTANTS.sub('REPOSITORY, REF = "", ""', source)


def _first_code(notebook: NotebookNode) -> NotebookNode | None:
    return next((cell for cell in notebook.cells if cell.cell_type == "code"), None)


def _setup_cell(notebook: NotebookNode) -> NotebookNode | None:
    """The first code cell, where it is the setup cell."""
    cell = _first_code(notebook)
    return cell if cell is not None and is_setup(cell.source) else None


def _older_setup_cell(notebook: NotebookNode) -> NotebookNode | None:
    """The first code cell, where it states the address and has lines of the setup cell alone."""
    cell = _first_code(notebook)
    lines = set(_unstamped(cell.source).splitlines()) if cell is not None else set()
    known = set(SETUP.splitlines())
    return cell if lines <= known and any(line.startswith("REPOSITORY, REF") for line in lines) else None
