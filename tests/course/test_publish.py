"""`workbook publish`: one address stamps everything, and whatever disagrees with it is found."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from nbformat import NotebookNode, v4

from helpers.catalog.errors import WorkbookError
from helpers.cli import main
from helpers.course import notebook as nb
from helpers.course.address import FOLDED, SETUP, Address, for_lab, read_address, setup_source, stamp, with_badge
from helpers.course.publish import advice, check, publish
from helpers.course.release import release
from tests.course.example_lab import code, example_lab, markdown, save

ROOT = Path(__file__).resolve().parents[2]
HERE = Address("https://github.com/ada/gpu-workbook", "v1")
THERE = Address("https://github.com/grace/fork.git", "v2")
ELSEWHERE = Address("https://gitlab.com/ada/gpu-workbook", "v1")
PROJECT = '[project]\nname = "x"\n\n[tool.workbook]\nrepository = ""\nref = ""\n\n[tool.ruff]\nline-length = 120\n'
README = "# The Workbook\n\nA course.\n\n```bash\nmake env\n```\n"
CHAPTER, SOLUTION, LAB = "notebooks/00_start_here.ipynb", "solutions/05_numbers.ipynb", "labs/05_numbers.ipynb"
COPY = "labs/chapters/00_start_here.ipynb"  # of the chapter, for learners
COLAB = "https://colab.research.google.com/github/ada/gpu-workbook/blob/v1/"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workbook with one chapter and one lab, released, not published."""
    head = markdown("# 00 · Start here\n\n**The promise:** x", "title")
    save(v4.new_notebook(cells=[head, folded(code(SETUP, "setup"))]), tmp_path / CHAPTER)
    lab = example_lab()
    lab.cells.insert(1, folded(code(SETUP, "find-helpers")))
    save(lab, tmp_path / SOLUTION)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "README.md").write_text(README)
    release(tmp_path)
    return tmp_path


def folded(cell: NotebookNode) -> NotebookNode:
    cell.metadata.update(FOLDED)
    return cell


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def head(root: Path, name: str) -> str:
    return nb.read(root / name).cells[0].source


def test_the_repository_agrees_with_itself(capsys):
    assert check(ROOT) == 0, capsys.readouterr().err


def test_every_badge_leads_to_what_a_learner_opens(root, capsys):
    assert publish(root, HERE) == 0
    for name in (CHAPTER, COPY, SOLUTION, LAB):
        title, blank, badge, *_ = head(root, name).splitlines()
        assert title.startswith("# ")
        assert not blank
        assert badge.endswith(f"({COLAB}{COPY if name == CHAPTER else name})")
        assert nb.read(root / name).cells[1].source == setup_source(HERE)
    lines = (root / "README.md").read_text().splitlines()
    assert lines[2].endswith(f"({COLAB}{COPY})")
    stamped = [line for line in lines[3:] if line not in README.splitlines()]
    assert [line.split()[0] for line in stamped] == ["uvx", "git"]
    assert all(HERE.repository in line and HERE.ref in line for line in stamped)
    assert [line for line in lines[3:] if line not in stamped] == README.splitlines()[1:]
    assert read_address(root) == HERE
    assert check(root) == 0, capsys.readouterr().err
    assert release(root, check=True) == 0


def test_again_changes_nothing_another_address_replaces_and_none_restores(root):
    release(root)
    before = contents(root)
    publish(root, HERE)
    stamped = contents(root)
    publish(root, HERE)
    assert contents(root) == stamped
    publish(root, THERE)
    assert check(root) == 0
    assert not any(b"ada/gpu-workbook" in data for data in contents(root).values())
    publish(root, Address())
    assert contents(root) == before


def test_beside_github_there_is_no_badge_but_the_setup_cells_fetch(root, capsys):
    publish(root, ELSEWHERE)
    assert "Colab opens notebooks from GitHub alone" in capsys.readouterr().out
    assert not any(b"colab.research" in data for data in contents(root).values())
    assert nb.read(root / LAB).cells[1].source == setup_source(ELSEWHERE)
    assert check(root) == 0


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_what_disagrees_is_found_and_named(root, capsys):
    publish(root, HERE)
    good = contents(root)
    vandals = {
        f"{CHAPTER}: no badge": lambda: edited(root / CHAPTER, "/blob/v1/labs/chapters/00", "/blob/v1/notebooks/00"),
        f"{LAB}: no badge": lambda: edited(root / LAB, "/blob/v1/labs", "/blob/v1/solutions"),
        f"{SOLUTION}: the setup cell fetches from": lambda: edited(root / SOLUTION, '\\"v1\\"', '\\"v0\\"'),
        f"{SOLUTION}: the setup cell is not folded": lambda: edited(
            root / SOLUTION, '"source_hidden": true', '"source_hidden": false'
        ),
        f"{LAB}: the first code cell is not": lambda: edited(
            root / LAB, "subprocess.run(fetch.split())", "fetch.run()"
        ),
        f"{CHAPTER}: a link to {COLAB.replace('v1', 'v0')}x": lambda: edited(
            root / CHAPTER, "**The promise:**", f"see {COLAB.replace('v1', 'v0')}x "
        ),
        "README.md: its badge": lambda: edited(root / "README.md", "[![Open", "[![Try"),
        "README.md: its commands": lambda: edited(root / "README.md", "git clone -b v1", "git clone -b v0"),
        "README.md: a link to": lambda: edited(root / "README.md", "A course", f"<{COLAB.replace('ada', 'eve')}>"),
        "docs/grading.md: a link to": lambda: (
            (root / "docs").mkdir() or (root / "docs/grading.md").write_text(COLAB.replace("ada", "eve"))
        ),
    }
    for words, vandal in vandals.items():
        vandal()
        capsys.readouterr()
        assert check(root) == 1, words
        assert f"✗ {words}" in capsys.readouterr().err
        shutil.rmtree(root / "docs", ignore_errors=True)
        for name, data in good.items():
            (root / name).write_bytes(data)
    assert check(root) == 0
    edited(root / "pyproject.toml", '"v1"', '"v2"')
    assert check(root) == 1
    found = capsys.readouterr().err
    assert [name for name in (CHAPTER, COPY, SOLUTION, LAB, "README.md") if f"✗ {name}" not in found] == []


def test_an_unpublished_workbook_has_no_links(root, capsys):
    assert check(root) == 0
    edited(root / CHAPTER, "# 00 · Start here", f"# 00 · Start here\\n\\n[![Open in Colab](x.svg)]({COLAB}{CHAPTER})")
    assert check(root) == 1
    assert "a badge, and Colab has no link to it" in capsys.readouterr().err


def test_without_a_setup_cell_nothing_is_written(root):
    edited(root / SOLUTION, "from pathlib import Path", "from pathlib import PurePath as Path")
    before = contents(root)
    with pytest.raises(WorkbookError, match=r"05_numbers.ipynb: its first code cell is not the setup cell"):
        publish(root, HERE)
    assert contents(root) == before


def test_a_folder_without_notebooks_is_no_workbook(tmp_path):
    with pytest.raises(WorkbookError, match="holds no notebooks"):
        publish(tmp_path, HERE)


def test_a_lab_that_holds_answers_is_kept_and_named(root, capsys):
    edited(root / LAB, 'raise NotImplementedError(\\"write half here\\")', "return x / 2")
    before = (root / LAB).read_bytes()
    assert publish(root, HERE) == 1
    assert "labs/05_numbers.ipynb holds answers" in capsys.readouterr().err
    assert (root / LAB).read_bytes() == before
    assert check(root) == 1


def git(root: Path, *words: str) -> None:
    command = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@example.org", *words]
    subprocess.run(command, check=True, capture_output=True)


def test_it_says_what_is_left_to_do(root):
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "unpublished")
    publish(root, HERE)
    assert [line.partition(":")[0] for line in advice(root, HERE)] == ["next"]
    git(root, "tag", "v1")
    assert [line.partition(":")[0] for line in advice(root, HERE)] == ["warning"]
    git(root, "commit", "--all", "--quiet", "-m", "published")
    git(root, "tag", "--force", "v1")
    assert list(advice(root, HERE)) == []
    assert list(advice(root, Address())) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "both --repository and --ref"),
        (["--ref", "v1"], "both --repository and --ref"),
        (["--repository", HERE.repository], "both --repository and --ref"),
        (["--repository", HERE.repository, "--ref", ""], "no tag or branch"),
        (["--repository", "", "--ref", "v1"], "no address"),
        (["--repository", HERE.repository, "--ref", "a b"], "no tag or branch"),
        (["--check", "--ref", "v1"], "--check alone"),
    ],
)
def test_bad_input_is_told_and_nothing_written(root, words, said, monkeypatch, capsys):
    monkeypatch.chdir(root)
    before = contents(root)
    assert main(["publish", *words]) == 2
    assert said in capsys.readouterr().err
    assert contents(root) == before


def test_from_the_terminal(root, monkeypatch, capsys):
    monkeypatch.chdir(root)
    assert main(["publish", "--repository", HERE.repository + "/", "--ref", "v1"]) == 0
    assert main(["publish", "--check"]) == 0
    assert f"agrees with pyproject.toml: {HERE}" in capsys.readouterr().out
    assert main(["publish", "--repository", "", "--ref", ""]) == 0
    assert main(["publish", "--check"]) == 0
    assert capsys.readouterr().out.endswith("nowhere\n")


def test_a_title_keeps_what_stands_below_it():
    for text in ("# T", "# T\n", "# T\n\nText\n\nmore", "# T\nText", ""):
        badge = "[![Open in Colab](i.svg)](a)"
        assert with_badge(with_badge(text, badge), badge) == with_badge(text, badge)
        assert with_badge(with_badge(text, badge), "") == text
        assert with_badge(text, "") == text


def test_a_lab_is_not_led_to_its_answers():
    solution = v4.new_notebook(cells=[markdown("# T", "title"), code(SETUP, "setup")])
    stamp(solution, SOLUTION, HERE)
    text = for_lab(solution.cells[0].source, "05_numbers.ipynb")
    assert f"({COLAB}{LAB})" in text
    assert "/solutions/" not in text
    prose = "# T\n\nsee [it](x/solutions/05_numbers.ipynb)"
    assert for_lab(prose, "05_numbers.ipynb") == prose
