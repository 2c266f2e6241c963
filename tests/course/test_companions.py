"""A chapter's companion and the appendix: built, linted, released, copied, published and shown as chapters are."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbformat import NotebookNode, v4

from helpers.course import notebook as nb
from helpers.course import topics
from helpers.course.address import FOLDED, SETUP, Address
from helpers.course.build import build
from helpers.course.lint import findings
from helpers.course.progress import chapters as chapters_in_progress
from helpers.course.publish import check, publish
from helpers.course.release import release
from helpers.course.site.book import book_pages, chapters
from helpers.course.workspace import workspace
from tests.course.example_lab import code, markdown, save

NAME, APPENDIX = "05_numbers.ipynb", "A_why_trust_these_numbers.ipynb"
CHAPTER, COMPANION = f"notebooks/{NAME}", f"notebooks/deeper/{NAME}"
NEEDS = {"memory_gib": 1, "disk_gib": 0, "gpu": "unused", "packages": []}
HEAD = "# 05 · Numbers\n\n**The promise:** x\n\n| time | needs |\n|---|---|\n| 5 minutes | CPU |"
TO_CHAPTER = f"Back to [the chapter](../{NAME}#one), [the lab](../../labs/{NAME}), [the appendix](../{APPENDIX})."


def notebook(*cells: NotebookNode, needs: dict | None = None) -> NotebookNode:
    """With the setup cell below its title."""
    setup = code(SETUP, "setup", "nbval-ignore-output")
    setup.metadata.update(FOLDED)
    metadata = {"workbook": {"needs": needs}} if needs else {}
    return v4.new_notebook(cells=[cells[0], setup, *cells[1:]], metadata=metadata)


@pytest.fixture
def root(course: Path) -> Path:
    """A clone with a lab, its chapter, the chapter's companion and the appendix."""
    lab = nb.read(course / f"solutions/{NAME}")
    lab.cells[1:1] = notebook(markdown("# Lab", "t")).cells[1:]
    lab.cells[2].id = "find-helpers"
    lab.cells[0].source += f"\n\n[More](../{COMPANION}), and [why](../notebooks/{APPENDIX})."
    save(lab, course / f"solutions/{NAME}")
    links = f"[The lab](../labs/{NAME}), [deeper](deeper/{NAME}#two), [why]({APPENDIX})."
    save(notebook(markdown(HEAD, "title"), markdown(links, "links"), needs=NEEDS), course / CHAPTER)
    deeper = [code("print(1 + 1)", "sum"), code("g = predict('x', guess=None)", "guess")]
    deeper += [code("compare(2, you=g)", "told"), markdown("## Two\n\nA mantissa; ____", "two")]
    save(notebook(markdown(f"# 05 · Numbers, deeper\n\n{TO_CHAPTER}", "title"), *deeper), course / COMPANION)
    back = f"# Why you may trust\n\nOf [05]({NAME}) and [deeper](deeper/{NAME})."
    save(notebook(markdown(back, "title")), course / "notebooks" / APPENDIX)
    (course / "pyproject.toml").write_text('[tool.workbook]\nrepository = ""\nref = ""\n')
    (course / "README.md").write_text("# T\n")
    return course


def text(path: Path) -> str:
    return "\n".join(cell.source for cell in nb.read(path).cells if cell.cell_type == "markdown")


def broken(root: Path, name: str, rule: str) -> list[str]:
    return [one.message for one in findings(nb.read(root / name), root / name) if one.rule == rule]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("05", [CHAPTER, COMPANION, f"solutions/{NAME}"]),
        ("05_numbers", [CHAPTER, COMPANION, f"solutions/{NAME}"]),
        ("A", [f"notebooks/{APPENDIX}"]),
        (COMPANION, [COMPANION]),
    ],
)
def test_a_chapters_number_names_its_companion_too_and_a_the_appendix(root, name, found):
    paths = nb.find(name, root, [*nb.BOOK, "solutions"])
    assert [path.relative_to(root).as_posix() for path in paths] == found


def test_they_are_built_where_they_lie_and_keep_the_rules(root, capsys):
    release(root)
    for path in (COMPANION, f"notebooks/{APPENDIX}"):
        given = nb.read(root / path)
        given.cells = [cell for cell in given.cells if cell.id not in ("guess", "told")]  # this clone has no package
        given.cells[1].source = "print('setup')"
        save(given, root / path)
    assert build(["A", COMPANION], root) == 1, "without a setup cell"
    said = capsys.readouterr().out
    assert said.count("published") == 2
    assert said.count(": published: ") == said.count("  cell ")
    assert nb.read(root / COMPANION).cells[2].outputs[0].text == "2\n"


def test_the_lint_asks_of_them_what_it_asks_of_chapters_but_for_header_and_leading_on(root):
    release(root)
    for name in (CHAPTER, COMPANION, f"notebooks/{APPENDIX}"):
        notebook = nb.read(root / name)
        for cell in notebook.cells:
            cell.update({"execution_count": 1} if cell.cell_type == "code" else {})
        found = {one.rule for one in findings(notebook, root / name)}
        assert found <= {"shows"}, name
    edit(root, COMPANION, TO_CHAPTER, f"[gone](../06_gone.ipynb), [back](../{NAME}).")
    assert broken(root, COMPANION, "dead-reference") == ["a link to ../06_gone.ipynb, which is not there"]
    edit(root, COMPANION, "compare(2, you=g)", "print(2)")
    assert len(broken(root, COMPANION, "predict-compared")) == 1


def edit(root: Path, name: str, old: str, new: str) -> None:
    notebook = nb.read(root / name)
    assert any(old in cell.source for cell in notebook.cells)
    for cell in notebook.cells:
        cell.source = cell.source.replace(old, new)
    save(notebook, root / name)


def test_nobody_is_left_without_a_way_there_and_back(root):
    appendix = f"notebooks/{APPENDIX}"
    assert not [*broken(root, COMPANION, "linked"), *broken(root, appendix, "linked")]
    edit(root, COMPANION, f"(../{NAME}#one)", "(#one)")
    assert broken(root, COMPANION, "linked") == [f"no link back to ../{NAME}"]
    edit(root, CHAPTER, f"deeper/{NAME}#two", "#two")
    assert f"its chapter, {CHAPTER}, has no link to deeper/{NAME}" in broken(root, COMPANION, "linked")
    edit(root, CHAPTER, APPENDIX, "#why")
    assert broken(root, appendix, "linked") == [f"no chapter has a link to {APPENDIX}"]
    (root / CHAPTER).unlink()
    assert f"its chapter, {CHAPTER}, has no link to deeper/{NAME}" in broken(root, COMPANION, "linked")


def test_their_copies_for_learners_lead_to_one_another(root, capsys):
    assert release(root) == 0
    assert release(root, check=True) == 0
    copies = root / "labs/chapters"
    assert f"[The lab](../{NAME}), [deeper](deeper/{NAME}#two), [why]({APPENDIX})." in text(copies / NAME)
    to_chapter = f"[the chapter](../{NAME}#one), [the lab](../../{NAME}), [the appendix](../{APPENDIX})."
    assert to_chapter in text(copies / "deeper" / NAME)
    assert nb.read(copies / "deeper" / NAME).metadata.workbook.source == COMPANION
    assert f"[05]({NAME}) and [deeper](deeper/{NAME})" in text(copies / APPENDIX)
    assert f"[More](chapters/deeper/{NAME}), and [why](chapters/{APPENDIX})" in text(root / f"labs/{NAME}")
    for name in (COMPANION, f"notebooks/{APPENDIX}"):
        (root / name).unlink()
    assert release(root, check=True) == 1
    said = capsys.readouterr().err
    assert f"labs/chapters/deeper/{NAME} has no source" in said
    assert f"labs/chapters/{APPENDIX} has no source" in said


def test_published_they_open_in_colab(root):
    assert publish(root, Address("https://github.com/ada/gpu-workbook", "v1")) == 0
    assert check(root) == 0
    at = "https://colab.research.google.com/github/ada/gpu-workbook/blob/v1/labs"
    for name in (COMPANION, f"labs/chapters/deeper/{NAME}"):
        assert f"({at}/chapters/deeper/{NAME})" in nb.read(root / name).cells[0].source.splitlines()[2]
        assert 'REPOSITORY, REF = "https://github.com/ada/gpu-workbook", "v1"' in nb.read(root / name).cells[1].source
    assert f"[the chapter]({at}/chapters/{NAME}#one), [the lab]({at}/{NAME})" in text(
        root / f"labs/chapters/deeper/{NAME}"
    )
    assert f"[deeper]({at}/chapters/deeper/{NAME}#two), [why]({at}/chapters/{APPENDIX})" in text(
        root / "labs/chapters" / NAME
    )


def test_a_workspace_has_them_and_follows_the_repository_until_somebody_writes_in_them(root, capsys):
    release(root)
    workspace(root)
    mine = root / "workspace/chapters"
    assert "4 notebooks (4 new" in capsys.readouterr().out
    assert f"[the chapter](../{NAME}#one), [the lab](../../labs/{NAME}), [the" in text(mine / "deeper" / NAME)
    assert f"[More](../chapters/deeper/{NAME}), and [why](../chapters/{APPENDIX})" in text(
        root / f"workspace/labs/{NAME}"
    )
    assert f"[Why you may trust](chapters/{APPENDIX})" in (root / "workspace/START.md").read_text()
    edit(root, f"workspace/chapters/deeper/{NAME}", "guess=None", "guess=3")
    for name in (COMPANION, f"notebooks/{APPENDIX}"):
        edit(root, name, "# ", "# New: ")
    release(root)
    workspace(root)
    said = capsys.readouterr().out
    assert f"! workspace/chapters/deeper/{NAME} holds your changes" in said
    assert "workbook workspace --fresh chapters/deeper/05\n" in said
    assert "New:" in text(mine / APPENDIX)
    workspace(root, ["chapters/deeper/05"])
    assert (mine / "deeper/05_numbers-mine-1.ipynb").exists()
    assert "New:" in text(mine / "deeper" / NAME)


def test_progress_counts_chapters_alone(root):
    assert [one.name for one in chapters_in_progress(root, {"chapters": {}, "labs": {}})] == [NAME]


def test_the_site_shows_a_companion_under_its_chapter_and_the_appendix_last(root):
    release(root)
    edit(root, COMPANION, "print(1 + 1)", 'claims.trial("adam-3x", {}, you=v)')
    found = chapters(root)
    pages = {page.address: page.html for page in book_pages(found)}
    stem, appendix = NAME.removesuffix(".ipynb"), APPENDIX.removesuffix(".ipynb")
    assert pages.keys() == {
        *("book/index.html", f"book/{stem}.html", f"book/{appendix}.html"),
        *(f"book/deeper/{stem}.html", f"labs/{stem}.html"),
    }
    index, deeper = pages["book/index.html"], pages[f"book/deeper/{stem}.html"]
    assert f'<a href="../book/deeper/{stem}.html">05, deeper</a>' in index
    assert index.index(f"{stem}.html") < index.index(f"{appendix}.html")
    for link in (f"../{stem}.html#one", f"../../labs/{stem}.html", f"../{appendix}.html"):
        assert f'href="{link}"' in deeper
    assert f'<a rel="prev" href="../{stem}.html">' in deeper
    assert f'href="deeper/{stem}.html#two"' in pages[f"book/{stem}.html"]
    assert f'href="../book/deeper/{stem}.html"' in pages[f"labs/{stem}.html"]
    (companion,) = [one for one in found if one.folder == "book/deeper"]
    assert companion.claims == ["adam-3x"]


def test_a_topic_is_found_in_the_companion_where_the_chapter_has_it_not(root):
    (topic,) = topics._in_chapter(root, "05", [["Mantissas", "two", "mantissa", topics.HERE]])
    assert (topic.companion, topic.cell_id) == (COMPANION, "two")
    assert f"| [Two](../{COMPANION}), deeper | 5 (`two`) |" in topic.row
