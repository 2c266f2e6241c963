"""An out-of-memory explanation as HTML: what the site shows under a pasted error."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from html import escape

from ..catalog.errors import WorkbookError
from ..memory.breakdown import format_bytes
from ..memory.oom.explain import CardRow, Explanation, explain

LONGEST = 2**22  # letters of a pasted log


def explained_as_json(text: str) -> str:
    """The explanation of a pasted log as {"html", "text"}, or what is wrong with the log under "error"."""
    try:
        if len(text) > LONGEST:
            do = "paste the lines around the message, or run `workbook explain-oom FILE`"
            raise WorkbookError(f"a text of {len(text):,} letters", f"{LONGEST:,} at most", do)
        found = explain(text)
    except WorkbookError as error:
        return json.dumps({"error": str(error)})
    return json.dumps({"html": as_html(found), "text": str(found)})


def as_html(found: Explanation) -> str:
    """What failed, why, what the card holds, and what to change."""
    return "\n".join(_parts(found))


def _parts(found: Explanation) -> Iterator[str]:
    yield f"<h3>{escape(found.title)}</h3>"
    if found.frame:
        code = f'<pre tabindex="0">{escape(found.frame.code)}</pre>' if found.frame.code else ""
        yield f"<p>{escape(str(found.frame))}</p>{code}"
    yield f'<p class="reason"><strong>{escape(found.reason.capitalize())}.</strong> {escape(found.why.sentence)}</p>'
    if found.why.possible:
        yield f"<p>Left by what is known: {escape(', '.join(found.why.possible))}.</p>"
    yield from (f"<p>{escape(note)}</p>" for note in found.why.notes)
    if found.changes:
        yield "<h4>What to change, cheapest first</h4>"
        changes = (f"<li>{escape(change.do)}{_costs(change.costs)}</li>" for change in found.changes)
        yield f"<ol>{''.join(changes)}</ol>"
    if found.rows:
        yield "<h4>What the message accounts for</h4>"
        yield _table(found.rows)
    if found.following:
        yield f"<p>{found.following} more such in this text; this is the first.</p>"


def _costs(costs: str) -> str:
    return f'<br><span class="costs">costs {escape(costs)}</span>' if costs else ""


def _table(rows: Iterable[CardRow]) -> str:
    cells = (
        f'<tr><th scope="row">{escape(row.name)}</th><td class="number">{format_bytes(row.size_bytes)}</td>'
        f"<td>{escape(row.note)}</td></tr>"
        for row in rows
    )
    head = '<thead><tr><th scope="col">what</th><th scope="col">bytes</th><th scope="col">note</th></tr></thead>'
    return f'<div class="scrolls" tabindex="0"><table>{head}<tbody>{"".join(cells)}</tbody></table></div>'
