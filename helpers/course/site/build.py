"""The whole site: every file by its address, and the folder that holds them."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...catalog.errors import WorkbookError
from ..address import read_address
from .book import book_pages, chapters
from .calculators import calculator_pages
from .code import style_sheet
from .facts import accuracy_page, claims_page
from .packages import files_of
from .pages import FOLDER, Page, lies_at
from .runtime import runtime
from .search import search_index
from .tools import tool_pages

MATHJAX = "es5/tex-svg-full.js"
MINISEARCH = "dist/es/index.js"
MARK = ".workbook-site"  # lies in a folder that this command wrote, and may write again


def site(root: Path, out: Path, accuracy: Path | None = None) -> int:
    """Write the site into `out`: an empty folder, a new one, or one that this wrote before. Prints what was written.

    The same clone gives the same bytes. WorkbookError for another folder, and where pinned packages cannot be had.
    """
    _require_ours(out)
    files = site_files(root, accuracy)
    if out.exists():
        shutil.rmtree(out)
    for address, content in files.items():
        path = out / address
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (out / MARK).write_text("Written by `workbook site`, which writes this folder anew.\n", encoding="utf-8")
    size = compressed_bytes(files)
    pages = sum(address.endswith(".html") for address in files)
    print(f"{out}: {pages} pages, {len(files)} files, {size / 1e6:.2f} MB compressed")
    print(f"look at it: python -m http.server --directory {out}")
    return 0


def site_files(root: Path, accuracy: Path | None = None) -> dict[str, bytes]:
    """Every file of the site by its address, in the addresses' order."""
    lies_at(read_address(root).repository)
    book = chapters(root)
    files = {page.address: page.html.encode() for page in _pages(root, book, accuracy)}
    for chapter in book:
        files |= chapter.pictures
    files |= runtime(root) | _assets()
    files["assets/one_step.png"] = (root / "notebooks" / "one_step.png").read_bytes()
    files["mathjax/tex-svg-full.js"] = files_of(root, "mathjax", [MATHJAX])[MATHJAX]
    files["minisearch/index.js"] = files_of(root, "minisearch", [MINISEARCH])[MINISEARCH]
    files["search.json"] = search_index(book)
    return dict(sorted(files.items()))


def _pages(root: Path, book: list, accuracy: Path | None) -> Iterator[Page]:
    tried = {claim: chapter.address for chapter in book for claim in chapter.claims}
    yield from tool_pages(root)
    yield from calculator_pages()
    yield from book_pages(book)
    yield claims_page(tried)
    yield accuracy_page(accuracy)


def _assets() -> dict[str, bytes]:
    files = {f"assets/{path.name}": path.read_bytes() for path in (FOLDER / "assets").iterdir()}
    return files | {"assets/code.css": style_sheet().encode()}


def compressed_bytes(files: Mapping[str, bytes]) -> int:
    """What a server that compresses sends for all of them."""
    return sum(min(len(content), len(gzip.compress(content, mtime=0))) for content in files.values())


def _require_ours(out: Path) -> None:
    """A folder of somebody else's is never emptied."""
    if out.exists() and not (out.is_dir() and (not any(out.iterdir()) or (out / MARK).exists())):
        expected = "a new folder, an empty one, or one that `workbook site` wrote"
        raise WorkbookError(f"{out} holds other files", expected, "choose another --out")
