"""The search index: calculators, and all sections of the book with their words, in one file fetched if asked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from ...lesson.calculators.from_address import OFFERED
from .book import BookPage

LONGEST = 3000  # letters of a section that can be found


def search_index(chapters: Iterable[BookPage]) -> bytes:
    """Calculators and sections as {title, page, address, text}."""
    entries = [
        {"title": one.title, "page": "Calculators", "address": f"calculators/{name}.html", "text": one.asks}
        for name, one in OFFERED.items()
    ]
    entries += [entry for chapter in chapters for entry in _entries(chapter)]
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
