"""Where the published workbook lies: one repository and one ref, kept in pyproject.toml and nowhere else.

    [tool.workbook]
    repository = "https://github.com/OWNER/NAME"
    ref = "v1.0"

Both are empty until `workbook publish` fills them in. Badges and setup cells are stamped with them (`stamp`).
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from helpers.catalog.errors import WorkbookError

COLAB = "https://colab.research.google.com/github/"
TABLE = "[tool.workbook]\n"
_URL = re.compile(r"[A-Za-z0-9._~%+/:-]+")
_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")  # narrower than git: it stands in addresses, where / divides
_COMMIT = re.compile(r"[0-9a-f]{40}")


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
