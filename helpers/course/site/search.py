"""The search index: every section of the book with its words, in one JSON file that the page fetches when asked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from .book import BookPage

LONGEST = 3000  # letters of a section that can be found


def search_index(chapters: Iterable[BookPage]) -> bytes:
    """Sections as {title, page, address, text}."""
    entries = [entry for chapter in chapters for entry in _entries(chapter)]
    return json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()


def _entries(chapter: BookPage) -> Iterator[dict[str, str]]:
    name = f"Lab {chapter.number}" if chapter.folder == "labs" else chapter.full_title
    for section in chapter.sections:
        title = section.title or name
        anchor = f"#{section.anchor}" if section.level > 1 else ""
        yield {
            "title": name if section.level == 1 else title,
            "page": name,
            "address": chapter.address + anchor,
            "text": section.text[:LONGEST],
        }
