"""The memory budget as a fixture, tried as a project would: in a pytest run of its own."""

import json

import pytest
import torch
import torch._dynamo  # torch imports it late, and a run inside this process must not be the first to do so

from helpers.catalog import WorkbookError
from helpers.memory.meter.memory_budget import memory_budget
from helpers.memory.meter.peak_baseline import growth, read_baseline, write_baseline

pytest_plugins = ["pytester"]
USE = ("-p", "helpers.memory.meter.pytest_plugin", "-p", "no:cacheprovider")
NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))
        self.kept = []

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
            {regression}
        return x

def step(net):
    net(torch.zeros(1024, 256)).sum().backward()

def test_step(memory_budget):
    net = Net()
    with memory_budget(mib=10):
        step(net)
        step(net)
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """`run(source, *options)` runs the source as a test file under the plugin, with no other plugin installed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def call(source, *options):
        pytester.makepyfile(source)
        return pytester.runpytest_inprocess(*USE, *options)

    return call


def test_it_passes_within_the_budget(run):
    run(NET.format(regression="pass")).assert_outcomes(passed=1)


def test_it_fails_on_a_cached_activation_and_names_it(run):
    result = run(NET.format(regression="self.kept.append(x)"))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*memory budget: peak 12.26 MiB, budget 10.00 MiB, 2.26 MiB too much",
            "*largest live tensors at the peak:",
            "*8.00 MiB  8 of 1024 × 256 *Net *.py:12",
        ]
    )
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")  # no frames of ours between the reader and the message


def test_the_budget_is_kept_to_the_byte(run):
    source = """
import pytest, torch

@pytest.mark.parametrize("floats", [2**18, 2**18 + 1])
def test_it(memory_budget, floats):
    with memory_budget(mib=1) as spent:
        torch.empty(floats)
    assert spent.peak_bytes == 2**20
"""
    result = run(source)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*peak 1.00 MiB, budget 1.00 MiB, 512 B too much"])


def test_a_model_that_is_held_counts_from_the_start(run):
    source = """
import torch

def test_it(memory_budget):
    net = torch.nn.Linear(512, 512)
    with memory_budget(mib=1.5, holding=net):
        torch.empty(2**18)
"""
    result = run(source)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*512 × 512*weight (held)"])


def test_an_exception_in_the_block_is_what_the_reader_sees(run):
    source = """
import torch

def test_it(memory_budget):
    with memory_budget(mib=0.001):
        torch.empty(2**20)
        raise KeyError("mine")
"""
    result = run(source)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*KeyError: 'mine'"])
    result.stdout.no_fnmatch_line("*memory budget:*")


def test_blocks_nest_and_the_outer_counts_what_the_inner_needs(run):
    source = """
import torch

def test_it(memory_budget):
    with memory_budget(mib=4) as outer:
        kept = torch.empty(2**18)
        with memory_budget(mib=2) as inner:
            torch.empty(2**19)
    assert (inner.peak_bytes, outer.peak_bytes) == (2 * 2**20, 3 * 2**20)

def test_over(memory_budget):
    with memory_budget(mib=4):
        with memory_budget(mib=1):
            torch.empty(2**19)
"""
    result = run(source)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*peak 2.00 MiB, budget 1.00 MiB*"])


def test_views_of_what_was_there_are_not_counted_and_new_storages_at_their_old_place_are():
    there, gone = torch.ones(512, 512), [torch.ones(128) for _ in range(50)]
    with memory_budget(10) as spent:
        there.t().add_(1)
        there.view(-1)[:7].mul_(2)
    assert spent.peak_bytes == 0
    with memory_budget(10) as spent:
        for tensor in gone:
            tensor.view(2, 64)
        del tensor
        gone.clear()
        fresh = [torch.empty(128) for _ in range(50)]
    assert spent.peak_bytes == 512 * len(fresh)


MARKED = """
import pytest, torch

@pytest.mark.memory_budget({given})
def test_it():
    torch.empty(2**19)
"""


@pytest.mark.parametrize(
    ("given", "outcome", "says"),
    [
        ("mib=3", "passed", ""),
        ("2", "passed", ""),
        ("mib=1", "failed", "peak 2.00 MiB, budget 1.00 MiB"),
        ("", "failed", "write @pytest.mark.memory_budget(mib=120)"),
        ("gib=1", "failed", "one size in MiB"),
        ("1, mib=2", "failed", "one size in MiB"),
        ("mib=-1", "failed", "the memory budget is -1"),
    ],
)
def test_the_marker_guards_a_whole_test(run, given, outcome, says):
    result = run(MARKED.format(given=given), "--strict-markers")
    result.assert_outcomes(**{outcome: 1})
    assert says in result.stdout.str()


@pytest.mark.parametrize("mib", [0, -1, True, "120", None, float("nan"), float("inf"), 2**31])
def test_a_budget_that_is_none(mib):
    with pytest.raises(WorkbookError, match="memory budget is"), memory_budget(mib):
        pass


REPORTED = """
import pytest, torch

def test_slack(memory_budget):
    with memory_budget(mib=3):
        torch.empty(2**18)

def test_over(memory_budget):
    with memory_budget(mib=1):
        torch.empty(2**19)

@pytest.mark.memory_budget(mib=2)
def test_right():
    torch.empty(2**19)

def test_without():
    pass
"""


XDIST = pytest.param(("-p", "xdist", "-n", "1"), marks=pytest.mark.slow, id="xdist")


@pytest.mark.parametrize("workers", [pytest.param((), id="alone"), XDIST])
def test_the_report_is_a_table_of_peaks_and_budgets(run, workers):
    result = run(REPORTED, "--memory-report", *workers)
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*memory budgets*",
            "test *peak *budget",
            "*::test_over *2.00 MiB *1.00 MiB  over",
            "*::test_right *2.00 MiB *2.00 MiB",
            "*::test_slack *1.00 MiB *3.00 MiB  slack: over twice the peak",
        ],
        consecutive=True,
    )


def test_a_peak_that_has_grown_since_the_baseline_fails_the_run(run, pytester):
    flags = ("--memory-baseline", "peaks.json")
    source = "import torch\ndef test_it(memory_budget):\n    with memory_budget(mib=9):\n        torch.empty(2**{})"
    assert run(source.format(18), *flags, "--memory-baseline-update").ret == 0
    name = "test_a_peak_that_has_grown_since_the_baseline_fails_the_run.py::test_it"
    assert json.loads((pytester.path / "peaks.json").read_text()) == {name: 2**20}
    assert run(source.format(18), *flags).ret == 0
    grown = run(source.format(19), *flags)
    grown.assert_outcomes(passed=1)
    assert grown.ret == 1
    grown.stdout.fnmatch_lines(["*memory baseline*", f"{name}: 2.00 MiB, 1.00 MiB before (+100.0 %)"])
    assert run(source.format(19)).ret == 0
    assert run(source.format(19), *flags, "--memory-baseline-update").ret == 0
    assert run(source.format(19), *flags).ret == 0


@pytest.mark.parametrize("text", [None, "", "[]", '{"a": "1"}', '{"a": -1}', '{"a": true}'])
def test_a_baseline_that_is_none_fails_the_run_and_says_what_to_do(run, pytester, text):
    if text is not None:
        (pytester.path / "peaks.json").write_text(text)
    result = run("def test_it(): pass", "--memory-baseline", "peaks.json")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*run once with --memory-baseline-update, and commit the file"])


def test_a_baseline_forgives_two_percent_and_knows_nothing_of_new_tests():
    old = {"a": 1000, "gone": 5}
    assert growth(old, {"a": 1020, "new": 10**9}) == []
    assert growth(old, {"a": 1021}) == ["a: 1021 B, 1000 B before (+2.1 %)"]


def test_an_update_of_some_tests_keeps_the_others(tmp_path):
    path = tmp_path / "peaks.json"
    write_baseline(path, {"a": 1, "b": 2}, {"b": 3})
    assert read_baseline(path) == {"a": 1, "b": 3}
    with pytest.raises(WorkbookError, match="a file that can be written"):
        write_baseline(tmp_path / "none" / "peaks.json", {}, {})


def test_the_report_when_nobody_used_it(run):
    result = run("def test_it(): pass", "--memory-report")
    result.stdout.fnmatch_lines(["no test used memory_budget"])
    run("def test_it(): pass").stdout.no_fnmatch_line("*memory budgets*")


def test_the_peak_is_recorded_in_the_junit_file(run, pytester):
    run(REPORTED, "--junit-xml=report.xml")
    assert 'name="memory_budget" value="[1048576, 3145728]"' in (pytester.path / "report.xml").read_text()


class Card:
    """A GPU's counters as torch.cuda shows them: one peak for everybody."""

    def __init__(self):
        self.allocated = self.peak = 0

    def is_available(self):
        return True

    is_initialized = is_available

    def memory_allocated(self):
        return self.allocated

    def max_memory_allocated(self):
        return self.peak

    def reset_peak_memory_stats(self):
        self.peak = self.allocated

    def use(self, size):
        self.allocated += size
        self.peak = max(self.peak, self.allocated)


def test_on_a_gpu_the_allocators_peak_counts_and_inner_blocks_leave_the_outer_ones_theirs(monkeypatch):
    card = Card()
    counters = ("memory_allocated", "max_memory_allocated", "reset_peak_memory_stats")
    for name in ("is_available", "is_initialized", *counters):
        monkeypatch.setattr(f"torch.cuda.{name}", getattr(card, name))
    card.use(1000)
    with memory_budget(1) as outer:
        card.use(5000)
        card.use(-5000)
        with memory_budget(1) as inner:
            card.use(300)
    assert (outer.peak_bytes, inner.peak_bytes) == (5000, 300)
    assert outer.unseen_bytes == 5000
    assert "that no operator returned" in str(outer)
