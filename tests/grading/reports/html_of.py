"""A page as a parser sees it: its elements, its attributes and its text."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input"}


@dataclass
class Seen:
    """Elements in order as (tag, names of attributes), every attribute's value, and the pieces of text between."""

    elements: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    values: list[tuple[str, str, str]] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    unbalanced: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text as it stands."""
        return "".join(self.pieces)

    @property
    def words(self) -> str:
        """The text on one line, a space wherever an element begins or ends."""
        return " ".join(" ".join(self.pieces).split())

    def of(self, tag: str, attribute: str) -> list[str]:
        """The values of one attribute of one kind of element."""
        return [value for element, name, value in self.values if (element, name) == (tag, attribute)]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen, self.stack = Seen(), []

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.seen.elements.append((tag, tuple(name for name, _ in attributes)))
        self.seen.values += [(tag, name, value or "") for name, value in attributes]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attributes: list) -> None:
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.stack or self.stack.pop() != tag:
            self.seen.unbalanced.append(tag)

    def handle_data(self, text: str) -> None:
        if self.stack[-1:] != ["style"]:
            self.seen.pieces.append(text)


def seen(html: str) -> Seen:
    """`html`, parsed; `unbalanced` names each end tag that closes nothing, and each element never closed."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    reader.seen.unbalanced += reader.stack
    return reader.seen
