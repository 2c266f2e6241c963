"""The setup cell, run as a notebook runs it: above, alone, alone and stamped, again, and where git fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from nbformat import v4

from helpers.catalog.errors import WorkbookError
from helpers.course.address import FOLDED, SETUP, Address, is_setup, setup_source, stamp

SHOW = "\nimport helpers\nprint(helpers.__file__)"


def run(source: str, folder: Path) -> subprocess.CompletedProcess:
    """Run `source` in `folder` by a Python that has no packages, so no `helpers` either."""
    command = [sys.executable, "-I", "-S", "-c", source]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def git(folder: Path, *words: str) -> None:
    settings = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *settings, *words], cwd=folder, check=True, capture_output=True)


def write_helpers(folder: Path, text: str) -> None:
    (folder / "helpers/cli").mkdir(parents=True, exist_ok=True)
    (folder / "helpers/cli/__init__.py").write_text("")
    (folder / "helpers/lesson.py").write_text("def machine():\n    return 'cpu'")
    (folder / "helpers/__init__.py").write_text(text)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a tag v1, and a newer commit behind it."""
    root = tmp_path / "a repository"
    root.mkdir()
    git(root, "init", "--quiet")
    for text in ("version = 1", "version = 2"):
        write_helpers(root, text)
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "-m", text)
        if text == "version = 1":
            git(root, "tag", "v1")
    return root


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    (tmp_path / "content").mkdir()
    return tmp_path / "content"


def stamped(repository: Path, ref: str = "v1") -> str:
    return setup_source(Address(repository.as_uri(), ref))


def test_helpers_above_the_notebook_are_taken_and_nothing_is_fetched(repository, alone):
    inside = repository / "notebooks" / "deep"
    inside.mkdir(parents=True)
    for source in (SETUP, stamped(alone / "nowhere")):
        done = run(source + SHOW, inside)
        assert done.stdout.strip() == str(repository / "helpers/__init__.py"), done.stderr
    assert list(inside.iterdir()) == []


def test_a_notebook_on_its_own_is_told_what_to_do(alone):
    done = run(SETUP + SHOW, alone)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: no helpers: did git fail above? Else open this in a clone of the workbook"
    )
    assert list(alone.iterdir()) == []


def test_stamped_it_fetches_the_ref_once_and_without_a_word(repository, alone):
    for _ in range(2):  # the second time git would refuse to clone into the folder
        done = run(stamped(repository) + SHOW + "\nprint(helpers.version)", alone)
        assert done.stdout.splitlines() == [str(alone / "gpu-memory-workbook/helpers/__init__.py"), "1"], done.stderr
        assert done.stderr == ""


def test_where_git_fails_its_words_are_shown_and_the_cell_can_run_again(repository, alone):
    missing = stamped(repository, "v9")
    done = run(missing, alone)
    assert "v9" in done.stderr
    assert "did git fail above?" in done.stderr.splitlines()[-1]
    again = (
        f"try:\n    exec({missing!r})\nexcept ModuleNotFoundError as error:\n    print(error)\n"
        f"import subprocess; subprocess.run(['git', 'tag', 'v9', 'v1'], cwd={str(repository)!r}, check=True)\n"
        f"exec({missing!r})\nimport helpers\nprint(helpers.version)"
    )
    assert run(again, alone).stdout.splitlines()[-1] == "1"


def test_installed_helpers_will_do(repository, alone):
    installed = f"import sys\nsys.path.insert(0, {str(repository)!r})\n"
    done = run(installed + stamped(alone / "nowhere") + SHOW, alone)
    assert done.stdout.strip() == str(repository / "helpers/__init__.py"), done.stderr
    assert done.stderr == ""
    assert list(alone.iterdir()) == []


def test_it_prints_nothing_itself_and_fits_a_narrow_page():
    assert max(map(len, SETUP.splitlines())) <= 108
    assert len(SETUP.splitlines()) <= 20
    assert "print" not in SETUP
    assert "pip" not in SETUP


def test_it_is_known_wherever_it_was_stamped_for_and_unknown_when_changed(repository):
    assert is_setup(SETUP)
    assert is_setup(stamped(repository))
    assert not is_setup(SETUP + "\nimport torch")
    assert not is_setup(SETUP.replace("depth 1", "depth 2"))


def test_an_older_text_is_made_new_and_folded_and_a_changed_one_is_nobodys(repository):
    older = "\n".join(line for line in stamped(repository).splitlines() if "machine" not in line)
    notebook = v4.new_notebook(cells=[v4.new_markdown_cell("# T"), v4.new_code_cell(older)])
    stamp(notebook, "notebooks/05_x.ipynb", Address(repository.as_uri(), "v2"))
    assert notebook.cells[1].source == stamped(repository, "v2")
    assert notebook.cells[1].metadata == FOLDED
    notebook.cells[1].source = older + "\nimport torch"
    with pytest.raises(WorkbookError, match="not the setup cell"):
        stamp(notebook, "notebooks/05_x.ipynb", Address())
