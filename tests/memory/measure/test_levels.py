"""The sweep: steps are found in curves of known shape, named after the caches, and told honestly where they are not."""

import itertools
import math

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.memory import measure
from helpers.memory.measure.levels import Sweep, _of_linux, _sizes, find_steps, reported

KIB, MIB = 2**10, 2**20
CACHES = {"L1": 32 * KIB, "L2": MIB, "L3": 32 * MIB}
SIZES = _sizes(256 * MIB)


def curve(caches, rates, width=0.4, noise=()):
    """Bytes per second over SIZES: plateaus of `rates`, falling over about `width` octaves at each cache."""
    values = []
    for size in SIZES:
        log_rate = math.log(rates[0])
        for cache, fast, slow in zip(caches, rates, rates[1:], strict=False):
            passed = 1 / (1 + math.exp(-math.log2(size / cache) / width * 4))
            log_rate += passed * math.log(slow / fast)
        values.append(math.exp(log_rate))
    return [value * noise[at % len(noise)] for at, value in enumerate(values)] if noise else values


def sweep_of(rates, caches=CACHES, told=CACHES, **how):
    return Sweep("cpu", tuple(SIZES), tuple(curve(list(caches.values()), rates, **how)), told)


@pytest.mark.parametrize(
    "how", [{}, {"width": 1.5}, {"noise": (1, 0.98, 1.01, 0.99, 0.985)}, {"width": 1, "noise": (0.99, 1.0, 0.975)}]
)
@pytest.mark.parametrize("rates", [(220e9, 117e9, 98e9, 30e9), (400e9, 200e9, 60e9, 12e9), (100e9, 80e9, 60e9, 5e9)])
def test_three_caches_are_found_and_named(rates, how):
    found = sweep_of(rates, **how)
    assert [level.name for level in found.levels] == ["L1", "L2", "L3", "DRAM"]
    for level, rate in zip(found.levels, rates, strict=True):
        assert level.bytes_per_s == pytest.approx(rate, rel=0.08)
    for level in found.levels[:3]:
        assert 0.5 <= level.size_bytes / CACHES[level.name] <= 2
    assert found.levels[3].size_bytes is None
    assert found.remark == ""


def test_a_flat_curve_has_one_level_and_says_what_it_misses():
    found = sweep_of((50e9, 50e9, 50e9, 50e9), noise=(1, 0.97, 0.99))
    assert [level.name for level in found.levels] == ["DRAM"]
    assert "No step near L1 (32.00 KiB), L2 (1.00 MiB), L3 (32.00 MiB)" in found.remark


def test_a_step_that_is_no_cache_is_called_a_step():
    found = sweep_of((200e9, 60e9, 20e9), caches={"a": 32 * KIB, "b": 160 * MIB}, told={"L1": 32 * KIB})
    assert [level.name for level in found.levels] == ["L1", "step", "DRAM"]
    assert "no reported cache" in found.remark


def test_without_a_report_the_steps_stand_for_themselves():
    found = sweep_of((200e9, 100e9, 50e9, 10e9), told={})
    assert [level.name for level in found.levels] == ["step", "step", "step", "DRAM"]
    assert "reports no cache sizes" in found.remark


def test_one_slow_point_makes_no_step():
    rates = [100.0] * len(SIZES)
    rates[7] = 40.0
    assert find_steps(SIZES, rates)[0] == []


def test_a_step_at_the_first_or_last_point_is_found():
    assert find_steps([1, 2, 4, 8], [100, 50, 50, 50])[0] == [1]
    assert len(find_steps([1, 2, 4, 8], [100, 100, 100, 20])[0]) == 1


def test_sizes_are_two_per_doubling_in_cache_lines():
    assert SIZES[0] == 4 * KIB
    assert SIZES[-1] == 256 * MIB
    assert all(size % 128 == 0 for size in SIZES)
    assert all(1.39 < b / a < 1.44 for a, b in itertools.pairwise(SIZES))


def test_a_real_sweep_runs_on_one_thread_and_leaves_the_others_alone():
    threads = torch.get_num_threads()
    found = measure.sweep("cpu", largest_bytes=MIB)
    assert torch.get_num_threads() == threads
    assert found.sizes[-1] == MIB
    assert min(found.bytes_per_s) > 0
    assert "GB/s" in str(found.levels[-1])


@pytest.mark.parametrize("largest", [0, 4096, -1, True, "1 GiB", 2**50])
def test_a_bad_largest_size_is_refused(largest):
    with pytest.raises(WorkbookError, match="largest_bytes"):
        measure.sweep("cpu", largest_bytes=largest)


def test_linux_caches_are_read_and_anything_odd_is_skipped(tmp_path):
    for at, (kind, level, size) in enumerate(
        [("Data", "1", "48K"), ("Instruction", "1", "32K"), ("Unified", "2", "2M"), ("Unified", "x", "?")]
    ):
        folder = tmp_path / f"index{at}"
        folder.mkdir()
        for name, text in (("type", kind), ("level", level), ("size", size)):
            (folder / name).write_text(text + "\n")
    (tmp_path / "index9").mkdir()
    assert _of_linux(tmp_path) == {"L1": 48 * KIB, "L2": 2 * MIB}
    assert _of_linux(tmp_path / "missing") == {}


def test_this_machine_reports_what_it_will():
    sizes = reported(torch.device("cpu"))
    assert all(size >= KIB for size in sizes.values())
