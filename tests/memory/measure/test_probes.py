"""The measured roofline and the copies: what is measured, on what, and what is refused. No speeds are asserted."""

import os
import resource
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.memory import measure, work
from helpers.memory.measure import links, probes

SMALL = probes.ProbeSizes(values=2**16, width=64, heads=2, tokens=32, side=32)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(probes.SIZES, "cpu", SMALL)


def test_all_operators_are_measured_under_a_roof(small):
    found = measure.roofline(device="cpu", format_name="fp32")
    assert list(found.points) == ["copy", "softmax", "GEMV", "attention", "GEMM"]
    assert found.roof.name == "this CPU, fp32"
    assert all(point.seconds > 0 for point in found.points.values())
    assert found.points["copy"].flops_per_s == 0


@pytest.mark.parametrize("name", probes.PROBES)
@pytest.mark.parametrize("number", ["fp32", "bf16"])
def test_each_probe_does_the_work_that_its_rule_counts(small, name, number):
    rule, run = probes.PROBES[name](probes._probe_setup("cpu", number))
    with measure.Traffic() as seen:
        run()
    assert seen.bytes == pytest.approx(rule.bytes, rel=0.06)  # statistics of a row, in FP32 where the rule has BF16
    if name in ("GEMV", "GEMM", "attention"):
        assert seen.flops == rule.flops


@pytest.mark.parametrize("name", probes.probes_on("cpu"))
def test_what_a_cpu_is_timed_with_asks_the_system_for_no_fresh_pages(name):
    """At full size, where an output that is made anew is 16,384 pages: a run would be timed with their faults."""
    _, run = probes.PROBES[name](probes._probe_setup("cpu", "fp32"))
    with torch.inference_mode():
        for _ in range(2):
            run()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        run()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 1000


def test_streams_do_the_work_that_their_rule_counts(small):
    bench = probes._probe_setup("cpu", "fp32")
    for rule, run in {**probes._streams(bench), **probes._products(bench)}.values():
        with measure.Traffic() as seen:
            run()
        assert seen.bytes == pytest.approx(rule.bytes, rel=0.001)


def test_a_point_is_as_far_under_the_roof_as_in_the_same_passes(small, monkeypatch):
    """Every run takes a second, GEMM four; in one pass the machine is ten times slower for all of them."""

    def passes(runs, device):
        usual = {name: 4.0 if name == "GEMM" else 1.0 for name in runs}
        return [usual, {name: 10 * seconds for name, seconds in usual.items()}, usual]

    monkeypatch.setattr(probes, "in_turns", passes)
    found = measure.roofline(["GEMM"], "cpu", "fp32")
    gemm = found.points["GEMM"]
    assert gemm.seconds == pytest.approx(4.0)
    assert gemm.share_of(found.roof) == pytest.approx(found.roof.seconds(gemm.work) / 4)


def test_a_roof_can_be_measured_alone(small):
    assert measure.roofline([], "cpu", "fp32").points == {}


def test_share_of_the_roof():
    roof = work.Roof(1000, 10)
    assert probes.ProbePoint("half", work.Work(10, 50, 50), seconds=20).share_of(roof) == 0.5


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        ((["gemm"], "cpu", "fp32"), "probe"),
        ((["layernorm"], "cpu", "fp32"), "probe"),
        ((None, "cpu", "fp64"), "number format"),
        ((None, "cpu", "fp16"), "CPUs do not compute in FP16"),
        ((None, "tpu", "fp32"), "device"),
    ],
)
def test_bad_input_is_refused_before_anything_is_timed(arguments, phrase):
    with pytest.raises(WorkbookError, match=phrase):
        measure.roofline(*arguments)


def test_formats_that_a_cpu_is_measured_in():
    assert measure.default_format("cpu") == "fp32"
    assert measure.matrix_format("cpu") in ("fp32", "bf16")


def test_units_that_may_not_be_used_are_none():
    """A processor with AVX-512 for BF16, of which oneDNN may use AVX2 alone: a hundred times as long as FP32."""
    asked = "from helpers.memory import measure; print(measure.matrix_format('cpu'))"
    env = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == "fp32"


def test_without_a_gpu_a_copy_stays_in_host_memory():
    (only,) = measure.copies("cpu", size_bytes=2**20)
    assert (only.way, only.memory) == (links.ON_HOST, links.PAGEABLE)
    assert only.bytes_per_s > 0
    assert str(replace(only, bytes_per_s=25e9)) == "host to host    pageable      25.0 GB/s"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_with_a_gpu_every_way_is_measured_and_pinned_is_not_slower():
    found = {(one.way, one.memory): one.bytes_per_s for one in measure.copies("cuda", size_bytes=2**26)}
    assert len(found) == 5
    assert found[links.TO_DEVICE, links.PINNED] > 0.9 * found[links.TO_DEVICE, links.PAGEABLE]


@pytest.mark.parametrize("size", [0, 2**20 - 1, 1.5, True, "1 GiB"])
def test_a_bad_size_of_copy_is_refused(size):
    with pytest.raises(WorkbookError, match="size_bytes"):
        measure.copies("cpu", size_bytes=size)
