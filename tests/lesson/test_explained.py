"""An explanation as HTML."""

from __future__ import annotations

import json

import pytest

from helpers.lesson import explained
from helpers.lesson.explained import as_html, explained_as_json
from helpers.memory.oom import explain
from tests.memory.oom.oom_messages import REAL

TEXTS = [case[0] for case in REAL.values()]


@pytest.mark.parametrize("text", TEXTS)
def test_everything_that_the_terminal_says_is_on_the_page(text: str) -> None:
    found = explain(text)
    html = as_html(found).replace("&#x27;", "'").replace("&quot;", '"').replace("&gt;", ">").replace("&lt;", "<")
    html = html.replace("&amp;", "&")
    assert found.title in html
    assert found.why.sentence in html
    assert all(note in html for note in found.why.notes)
    assert all(change.do in html and change.costs in html for change in found.changes)
    assert json.loads(explained_as_json(text))["text"] == str(found)


def test_a_log_cannot_put_markup_into_the_page() -> None:
    traceback = (
        'Traceback (most recent call last):\n  File "<img src=x>.py", line 3, in <module>\n    y = x < "<script>"\n'
    )
    text = f"{traceback}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    html = json.loads(explained_as_json(text))["html"]
    assert "<script" not in html
    assert "<img" not in html


def test_a_text_without_an_error_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "expected" in json.loads(explained_as_json("all is well"))["error"]
    monkeypatch.setattr(explained, "LONGEST", 10)
    assert "10 at most" in json.loads(explained_as_json("x" * 11))["error"]
