"""`%%peak` in a notebook's shell: the bytes of a cell, its names and its display, a budget that fails."""

import re

import pytest

from helpers.catalog import WorkbookError
from helpers.magic import budget_of

IPython = pytest.importorskip("IPython")


@pytest.fixture
def shell():
    shell = IPython.core.interactiveshell.InteractiveShell()
    assert shell.run_cell("%load_ext helpers.magic").success
    return shell


def ran(shell, cell):
    from IPython.utils.capture import capture_output

    with capture_output() as captured:
        result = shell.run_cell(cell)
    return result, captured.stdout


def test_a_cell_s_peak_is_what_it_allocates(shell):
    cell = "%%peak\nimport torch\nkept = torch.ones(2**18)\nmore = (kept + 1).sum()\nkept.shape"
    result, printed = ran(shell, cell)
    assert result.success
    assert "peak: 2.00 MiB beyond what was there before this cell" in printed
    assert re.findall(r"262144 +line (\d)", printed) == ["3", "4"]
    assert "torch.Size([262144])" in printed  # its last value, as without the magic
    assert shell.user_ns["kept"].numel() == 2**18


def test_what_was_there_before_does_not_count(shell):
    assert ran(shell, "import torch\nlarge = torch.ones(2**20)")[0].success
    assert "peak: 1.00 MiB" in ran(shell, "%%peak\nsmall = large[:2**18] + 1;")[1]


def test_a_last_line_with_a_semicolon_shows_nothing(shell):
    assert "12" not in ran(shell, "%%peak\n5 + 7;")[1].replace("512", "")


def test_a_budget_that_is_passed_fails_the_cell_and_one_that_holds_does_not(shell):
    cell = "%%peak --budget {}\nimport torch\nx = torch.ones(2**18)"
    assert ran(shell, cell.format("2MiB"))[0].success
    result, _ = ran(shell, cell.format("1000KB"))
    assert isinstance(result.error_in_exec, AssertionError)
    assert "more than the budget of 976.56 KiB" in str(result.error_in_exec)


def test_an_error_of_the_cell_is_the_cell_s(shell):
    result, printed = ran(shell, "%%peak\n1 / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert "peak:" not in printed
    assert "peak: 1.00 MiB" in ran(shell, "%%peak\nimport torch\nx = torch.ones(2**18)")[1]  # and the meter is closed


@pytest.mark.parametrize("line", ["--budget", "--budget 20", "--budget GiB", "--budget 0GiB", "20GiB", "--budgt 2GiB"])
def test_what_is_no_size_is_refused(line):
    with pytest.raises(WorkbookError, match="%%peak") as error:
        budget_of(line)
    assert "20GiB" in error.value.do


@pytest.mark.parametrize(("line", "size"), [("--budget 2GB", 2 * 10**9), ("--budget=1.5 mib", 3 * 2**19), ("", None)])
def test_sizes(line, size):
    assert budget_of(line) == size
