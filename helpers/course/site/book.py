"""The book and its labs as pages: prose, code, stored outputs, pictures with their words; setup cells folded."""

from __future__ import annotations

import ast
import base64
import io
import posixpath
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from urllib.parse import urlencode

from nbformat import NotebookNode

from ...catalog.errors import WorkbookError
from ...lesson.calculators.from_address import OFFERED
from ..address import with_badge
from ..notebook import APPENDIX, CHAPTERS, COMPANIONS, LABS, find_all, read
from .code import highlighted
from .markdown import Rendered, Section, rendered
from .pages import Page

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PNG_SIZE = slice(16, 24)
BOOK = {CHAPTERS: "book", APPENDIX: "book", COMPANIONS: "book/deeper", LABS: "labs"}  # from the clone to the site
_TRIAL = re.compile(r"claims\.trial\(\s*[\"']([\w.-]+)")


@dataclass
class BookPage:
    """A notebook of the book, or a lab, on its way to a page: what of it has been rendered, its pictures by address.

    `claims` are the ids of those that it tries; `lab` and `deeper` the addresses of a chapter's lab and companion.
    """

    path: Path
    folder: str
    head: str = ""
    body: list[str] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    pictures: dict[str, bytes] = field(default_factory=dict)
    claims: list[str] = field(default_factory=list)
    has_math: bool = False
    lab: str = ""
    deeper: str = ""

    @property
    def number(self) -> str:
        return self.path.stem.partition("_")[0]

    @property
    def address(self) -> str:
        return f"{self.folder}/{self.path.stem}.html"

    @property
    def full_title(self) -> str:
        return self.sections[0].title

    @property
    def title(self) -> str:
        """Without its number."""
        return self.full_title.rpartition(" · ")[2]

    @property
    def promise(self) -> str:
        """The sentence after "The promise:", as HTML; empty where there is none."""
        found = re.search(r"<strong>The promise:</strong>\s*(.*?)</p>", self.head, re.DOTALL)
        return found[1] if found else ""

    def add(self, text: Rendered) -> None:
        self.sections += text.sections
        self.has_math |= text.has_math


def chapters(root: Path) -> list[BookPage]:
    """All of BOOK in its order, rendered. WorkbookError for a picture without words or a missing title."""
    found = [_chapter(path, folder) for source, folder in BOOK.items() for path in find_all(root, [source])]
    there = {(chapter.folder, chapter.number): chapter.address for chapter in found}
    for chapter in (chapter for chapter in found if chapter.folder == "book"):
        chapter.lab, chapter.deeper = (there.get((folder, chapter.number), "") for folder in ("labs", "book/deeper"))
    return found


def book_pages(found: Sequence[BookPage]) -> Iterator[Page]:
    """The list of chapters, and a page for each of `found` with links to its neighbours, or to its chapter."""
    book = [chapter for chapter in found if chapter.folder == "book"]
    about = "The chapters of the GPU Memory Workbook, executed"
    yield Page("book/index.html", "The book", "book", about, {"chapters": book})
    for row in (book, [chapter for chapter in found if chapter.folder == "labs"]):
        for before, chapter, after in zip([None, *row], row, [*row[1:], None], strict=False):
            yield _page(chapter, before, after)
    of = {chapter.deeper: chapter for chapter in book}
    yield from (_page(one, of.get(one.address), None) for one in found if one.folder == "book/deeper")


def _page(chapter: BookPage, before: BookPage | None, after: BookPage | None) -> Page:
    around = (("before", before), ("after", after))
    near = {name: one and (posixpath.relpath(one.address, chapter.folder), one.full_title) for name, one in around}
    values = {
        "head": chapter.head,
        "body": "\n".join(chapter.body),
        "contents": [(section.anchor, section.title) for section in chapter.sections if section.level == 2],
        **near,
    }
    about = f"{chapter.full_title}: a chapter of the GPU Memory Workbook"
    return Page(chapter.address, chapter.full_title, "chapter", about, values, (), True, chapter.has_math)


def _chapter(path: Path, folder: str) -> BookPage:
    chapter = BookPage(path, folder)
    first, *rest = read(path).cells
    head = rendered(with_badge(first.source, ""), folder)
    chapter.add(head)
    chapter.head = head.html
    if not chapter.sections or chapter.sections[0].level != 1:
        raise WorkbookError(f"{path} has no title", "a first cell that begins with '# '", "give it one")
    for cell in rest:
        chapter.claims += _TRIAL.findall(cell.source)
        chapter.body.append(f'<div class="cell">{"".join(_cell(chapter, cell))}</div>')
    return chapter


def _cell(chapter: BookPage, cell: NotebookNode) -> Iterator[str]:
    if cell.cell_type == "markdown":
        text = rendered(cell.source, chapter.folder)
        chapter.add(text)
        yield text.html
        return
    if cell.cell_type != "code" or not cell.source.strip():
        return
    code = highlighted(cell.source)
    hidden = cell.metadata.get("jupyter", {}).get("source_hidden")
    yield f"<details><summary>Setup</summary>{code}</details>" if hidden else code
    outputs = "".join(shown for output in cell.outputs for shown in _output(chapter, output))
    if outputs:
        yield f'<div class="out">{outputs}</div>'
    yield from _live(cell.source, chapter.folder)


def _output(chapter: BookPage, output: NotebookNode) -> Iterator[str]:
    """The richest form that needs no script, as a notebook would show it."""
    if output.output_type == "stream":
        yield f'<pre tabindex="0">{escape(ANSI.sub("", output.text))}</pre>'
        return
    if output.output_type == "error":
        yield f'<pre class="error" tabindex="0">{escape(ANSI.sub("", chr(10).join(output.traceback)))}</pre>'
        return
    data = output.get("data", {})
    if "image/png" in data:
        yield _picture(chapter, data["image/png"], output.metadata.get("image/png", {}).get("alt", ""))
    elif "text/markdown" in data:
        text = rendered(data["text/markdown"], chapter.folder)
        chapter.has_math |= text.has_math
        yield text.html
    elif "text/plain" in data:
        yield f'<pre tabindex="0">{escape(ANSI.sub("", data["text/plain"]))}</pre>'


def _picture(chapter: BookPage, encoded: str, words: str) -> str:
    """A picture as a file of its own, with its size, so that the text below does not move when it comes."""
    if not words:
        do = "draw it with helpers.lesson.drawing, whose pictures have words, and run `workbook build`"
        raise WorkbookError(f"{chapter.path.name} has a picture without words", "an alternative text", do)
    content = in_few_colours(base64.b64decode(encoded))
    name = f"{chapter.path.stem}-{len(chapter.pictures) + 1:02}.png"
    chapter.pictures[f"{chapter.folder}/{name}"] = content
    width, height = png_size(content)
    return f'<img src="{name}" width="{width}" height="{height}" alt="{escape(words)}" loading="lazy">'


def in_few_colours(content: bytes) -> bytes:
    """The picture with 256 colours, which is a third of the bytes: it has few, and shades of the edges of letters."""
    from PIL import Image  # comes with matplotlib

    smaller = io.BytesIO()
    flat = Image.open(io.BytesIO(content)).convert("RGB")
    flat.quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(smaller, "png", optimize=True)
    return min(content, smaller.getvalue(), key=len)


def png_size(content: bytes) -> tuple[int, int]:
    """Width and height in pixels, as the file's head tells them."""
    width, height = struct.unpack(">II", content[_PNG_SIZE])
    return width, height


def _live(source: str, folder: str = "book") -> Iterator[str]:
    """Under a cell that shows a calculator: the link to its page, with the cell's settings."""
    try:
        *_, last = ast.parse(source).body
    except (SyntaxError, ValueError):
        return
    call = last.value if isinstance(last, ast.Expr) else None
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in OFFERED):
        return
    settings = {one.arg: one.value.value for one in call.keywords if isinstance(one.value, ast.Constant) and one.arg}
    if len(settings) == len(call.keywords) and not call.args:
        page = posixpath.relpath(f"calculators/{call.func.id}.html", folder)
        address = f"{page}{'#' if settings else ''}{urlencode(settings)}"
        yield f'<p><a href="{address}">Move this calculator\'s controls in your browser</a></p>'
