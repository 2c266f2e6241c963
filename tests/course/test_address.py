"""Where the workbook lies: what is no address is refused before anything is written, and a secret is not repeated."""

from __future__ import annotations

import subprocess

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.course.address import Address, read_address, write_address

URL = "https://github.com/ada/gpu-workbook"
BAD_URLS = [
    ("", "no address"),
    ("github.com/ada/workbook", "no address"),
    ("git@github.com:ada/workbook.git", "a user name or a token"),
    ("https://me:hunter2@github.com/ada/workbook", "a user name or a token"),
    ("https://ghp_hunter2@github.com/ada/workbook", "a user name or a token"),
    ("https://github.com/ada/my workbook", "no address"),
    ("https://github.com/ada/work\nbook", "no address"),
    ('https://github.com/ada/"workbook', "no address"),
    ("https://github.com/ada/workbook;ls", "no address"),
    ("https://github.com/ada/workbook?tab=readme", "no address"),
    ("https://github.com/ada/workbook/tree/main", "not a repository on GitHub"),
    ("https://github.com/ada", "not a repository on GitHub"),
    ("https://example.org", "no address"),
    ("https:///ada/workbook", "names no host"),
    ("http://github.com/ada/workbook", "no address"),
    ("ssh://example.org/ada/workbook", "no address"),
    ("--upload-pack=ls", "no address"),
    ("https://[github.com/ada/workbook", "no address"),
]
BAD_REFS = ["", "v 1", "-v1", "v1..2", "v1.", "v1.lock", "v1~2", "v1^", "v1:2", "v1\n", 'v"1', "a/b", "é", "a" * 40]
GOOD_REFS = ["v1", "v1.0", "main", "2026-11", "v1.0+cpu", "release_3", "A" * 41]


@pytest.mark.parametrize(("url", "words"), BAD_URLS)
def test_what_nobody_could_clone_from_is_refused(url, words):
    with pytest.raises(WorkbookError, match=words) as caught:
        Address(url, "v1")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("ref", BAD_REFS)
def test_what_is_no_tag_is_refused(ref):
    with pytest.raises(WorkbookError, match=r"is no tag or branch|is a commit"):
        Address(URL, ref)


@pytest.mark.parametrize("ref", GOOD_REFS)
def test_every_ref_that_passes_is_one_to_git_too(ref):
    assert Address(URL, ref).ref == ref
    assert subprocess.run(["git", "check-ref-format", f"refs/tags/{ref}"], check=False).returncode == 0


@pytest.mark.parametrize(
    ("url", "github"),
    [
        (URL, "ada/gpu-workbook"),
        (URL + ".git", "ada/gpu-workbook"),
        ("https://www.GitHub.com/ada/gpu.workbook_2/", "ada/gpu.workbook_2"),
        ("https://gitlab.com/ada/gpu-workbook", ""),
        ("https://github.com.example.org/ada/gpu-workbook", ""),
        ("file:///srv/workbook.git", ""),
    ],
)
def test_only_what_lies_on_github_has_a_link(url, github):
    link = Address(url, "v1").colab("labs/02_x.ipynb")
    assert link == (github and f"https://colab.research.google.com/github/{github}/blob/v1/labs/02_x.ipynb")


def test_it_is_written_where_it_is_read_and_nothing_else_moves(tmp_path):
    empty = 'repository = ""\nref = ""\n'
    text = f'[project.urls]\nrepository = "x"\n\n# comment\n[tool.workbook]\n{empty}\n[tool.other]\n{empty}'
    (tmp_path / "pyproject.toml").write_text(text)
    assert read_address(tmp_path) == Address()
    write_address(tmp_path, Address(URL, "v1"))
    assert read_address(tmp_path) == Address(URL, "v1")
    write_address(tmp_path, Address())
    assert (tmp_path / "pyproject.toml").read_text() == text


@pytest.mark.parametrize("text", ["", "[tool.workbook]\n", '[tool.workbook]\nref = ""\n'])
def test_a_project_without_the_table_is_told_to_have_one(tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(WorkbookError, match="to fill in"):
        write_address(tmp_path, Address(URL, "v1"))
    assert (tmp_path / "pyproject.toml").read_text() == text
