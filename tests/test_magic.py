"""`%%peak` in a notebook's shell: the bytes of a cell, its names and its display, a budget that fails."""

import re

import pytest

from helpers.catalog import WorkbookError
from helpers.magic import asked_of

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
    assert re.findall(r"262144 +(.*)", printed) == ["kept = torch.ones(2**18)", "more = (kept + 1).sum()"]
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


@pytest.mark.parametrize(
    "line",
    ["--budget", "--budget 20", "--budget GiB", "--budget 0GiB", "20GiB", "--budgt 2GiB", "--gpu h100", "--traced"],
)
def test_what_is_no_size_is_refused(line):
    with pytest.raises(WorkbookError, match="%%peak") as error:
        asked_of(line)
    assert "20GiB" in error.value.do


@pytest.mark.parametrize(("line", "size"), [("--budget 2GB", 2 * 10**9), ("--budget=1.5 mib", 3 * 2**19), ("", None)])
def test_sizes(line, size):
    assert asked_of(line).budget_bytes == size


MODEL = """import torch
from torch import nn
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
optimizer = torch.optim.AdamW(model.parameters())
x, losses = torch.randn(512, 256), []
device = "cuda"
def loss_of(batch):
    return model(batch.to(device)).square().mean()
"""
STEP = "loss = loss_of(x)\nloss.backward()\noptimizer.step()\noptimizer.zero_grad()\nlosses.append(loss.detach())"


def peak_in(printed):
    return re.search(r"peak.*?: ([\d.]+ \w+) beyond", printed)[1]


def test_a_cell_is_predicted_as_it_is_measured_and_nothing_has_happened(shell):
    assert ran(shell, MODEL.replace('"cuda"', '"cpu"'))[0].success
    result, predicted = ran(shell, f"%%peak --trace\n{STEP}")
    assert result.success, result.error_in_exec
    assert "nothing was computed" in predicted
    names = shell.user_ns
    assert "loss" not in names
    assert names["losses"] == []
    assert not names["optimizer"].state
    assert all(p.grad is None for p in names["model"].parameters())
    _, measured = ran(shell, f"%%peak\n{STEP}")
    assert peak_in(predicted) == peak_in(measured)
    assert names["optimizer"].state


def test_a_step_that_has_run_before_is_predicted_with_its_states(shell):
    assert ran(shell, MODEL.replace('"cuda"', '"cpu"') + STEP)[0].success
    predicted, measured = (ran(shell, f"%%peak {how}\n{STEP}")[1] for how in ("--trace", ""))
    assert peak_in(predicted) == peak_in(measured)


def test_a_card_that_is_not_here_is_predicted_for_code_that_moves_to_it(shell):
    assert ran(shell, MODEL)[0].success
    step = STEP.replace("loss_of(x)", 'loss_of(x.cuda().to("cuda:0"))')
    result, printed = ran(shell, f"%%peak --trace --gpu h100\n{step}")
    assert result.success, result.error_in_exec
    assert "predicted peak on the NVIDIA H100 SXM 80 GB" in printed
    assert "gradients: 2.weight" in printed


def test_a_prediction_above_the_budget_fails_before_anything_is_allocated(shell):
    assert ran(shell, MODEL)[0].success
    result, _ = ran(shell, "%%peak --trace --budget 1GiB\nhuge = torch.empty(2**40)")
    assert isinstance(result.error_in_exec, AssertionError)
    assert "more than the budget of 1.00 GiB" in str(result.error_in_exec)


def test_a_cell_that_asks_for_a_value_is_told_so(shell):
    assert ran(shell, MODEL.replace('"cuda"', '"cpu"'))[0].success
    result, _ = ran(shell, "%%peak --trace\nloss = loss_of(x).item()")
    assert isinstance(result.error_in_exec, WorkbookError)
    assert "needs the value of a tensor" in str(result.error_in_exec) or ".item()" in str(result.error_in_exec)
    assert ran(shell, f"%%peak --trace\n{STEP}")[0].success  # and nothing is left open
