"""The figures themselves: known values as anchors, and relations that a slip of the finger would break."""

import pytest

from helpers.catalog.devices import BOTH_WAYS, OFFERED, ON_CHIP, describe, device
from helpers.catalog.errors import WorkbookError
from helpers.catalog.formats import NUMBER_FORMATS

GPUS = sorted(entry.name for entry in OFFERED if not entry.unified)
RATED = sorted(entry.name for entry in OFFERED if entry.peak_flops)


@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    [
        ("b200", 8000),
        ("b300", 8000),
        ("h200", 4800),
        ("h100", 3350),
        ("h100-pcie", 2000),
        ("a100-80gb", 2039),
        ("a100-40gb", 1555),
        ("v100-16gb", 900),
        ("v100-32gb", 900),
        ("l40s", 864),
        ("l4", 300),
        ("a10", 600),
        ("t4", 320),
        ("5090", 1792),
        ("rtx-pro-6000", 1792),
        ("4090", 1008),
        ("3090", 936),
        ("mi300x", 5300),
        ("mi355x", 8000),
        ("m2-ultra", 800),
        ("m3-ultra", 819),
        ("m4-max", 546),
    ],
)
def test_memory_bandwidth(name, gb_per_s):
    assert device(name).memory_bytes_per_s == gb_per_s * 10**9


@pytest.mark.parametrize(
    ("name", "number_format", "tflops"),
    [
        ("h100", "bf16", 989.4),  # 1,979 with sparsity
        ("a100", "bf16", 312),
        ("b200", "bf16", 2250),  # 4,500 with sparsity
        ("b200", "mxfp4", 9000),
        ("b300", "mxfp4", 13125),  # the sparse rate is not twice this one
        ("v100", "fp16", 125),
        ("l4", "fp16", 121),  # 242 with sparsity
        ("a10", "bf16", 125),
        ("3090", "fp16", 71),  # 142 with FP16 accumulation
        ("4090", "fp16", 165.2),  # 330.3 with FP16 accumulation
        ("5090", "fp16", 209.5),  # 419 with FP16 accumulation
        ("5090", "fp8-e4m3", 419),
        ("rtx-pro-6000", "fp16", 503.8),  # the same with FP16 accumulation
        ("mi300x", "bf16", 1307.4),
        ("mi300x", "fp8-e5m2", 2614.9),
    ],
)
def test_rates_are_dense_with_fp32_accumulation(name, number_format, tflops):
    assert device(name).flops_per_s(number_format) == round(tflops * 10) * 10**11


@pytest.mark.parametrize(
    ("name", "link", "one_way_gb_per_s"),
    [
        ("h100", "nvlink", 450),  # the 900 GB/s are both ways
        ("b200", "nvlink", 900),
        ("v100", "nvlink", 150),
        ("3090", "nvlink", 56.25),
        ("b300", "nvlink", 900),
        ("mi300x", "infinity-fabric", 448),  # to seven neighbours together
        ("mi355x", "infinity-fabric", 537.6),
        ("v100", "pcie", 16),
        ("a100-40gb", "pcie", 32),
        ("5090", "pcie", 64),
    ],
)
def test_links_are_told_one_way(name, link, one_way_gb_per_s):
    assert device(name).link_bytes_per_s(link) == one_way_gb_per_s * 10**9


@pytest.mark.parametrize("name", GPUS)
def test_links_are_stored_as_datasheets_tell_them_and_slower_than_memory(name):
    entry = device(name)
    assert {figure.direction for figure in entry.links.values()} == {BOTH_WAYS}
    assert set(entry.links) <= {"pcie", "nvlink", "infinity-fabric"}
    assert entry.memory_bytes_per_s >= 4 * entry.link_bytes_per_s("pcie")
    assert all(entry.memory_bytes_per_s > entry.link_bytes_per_s(link) for link in entry.links)
    assert entry.link_bytes_per_s("pcie") in (16 * 10**9, 32 * 10**9, 64 * 10**9)


@pytest.mark.parametrize("name", RATED)
def test_rates_in_fewer_bits_are_not_lower(name):
    rates = {known: device(name).flops_per_s(known) for known in device(name).peak_flops}
    assert set(rates) <= set(NUMBER_FORMATS)
    assert rates["fp16"] >= rates["fp32"]
    assert rates.get("bf16", rates["fp16"]) == rates["fp16"]
    if "tf32" in rates:
        assert rates["tf32"] >= rates["fp32"]
        assert rates["fp16"] == pytest.approx(2 * rates["tf32"], rel=0.02)
    for eight_bits in ("fp8-e4m3", "fp8-e5m2"):
        if eight_bits in rates:
            assert rates[eight_bits] == pytest.approx(2 * rates["fp16"], rel=0.02)
    if "int8" in rates:
        halved = device(name).title.startswith("NVIDIA GeForce")  # in FP16 with FP32 accumulation
        assert rates["int8"] / rates["fp16"] == pytest.approx(4 if halved else 2, rel=0.02)
    if "mxfp4" in rates:
        assert rates["mxfp4"] >= 2 * rates["fp8-e4m3"]


@pytest.mark.parametrize("name", [name for name in GPUS if device(name).vendor == "nvidia"])
def test_units_clock_and_rate_belong_together(name):
    """FP32 = units x lanes x 2 x boost clock: the clock that follows is one that such a GPU can run at."""
    entry = device(name)
    lanes = 64 if name.startswith(("v100", "t4", "a100")) else 128
    clock_hz = entry.flops_per_s("fp32") / (entry.units.value * lanes * 2)
    assert 1.40e9 < clock_hz < 2.62e9
    if "l1" in entry.bandwidths:
        per_clock = entry.bandwidths["l1"].value / entry.units.value / clock_hz
        assert min(abs(per_clock - 64), abs(per_clock - 128)) < 0.5


@pytest.mark.parametrize("name", GPUS)
def test_each_level_is_slower_than_the_one_before(name):
    levels = device(name).levels()
    order = [level.name for level in levels]
    assert order == [known for known in (*ON_CHIP, "memory") if known in order]
    assert order[:3] == ["registers", "l1", "memory" if name == "b300-288gb" else "l2"]  # whose L2 no source gives
    rates = [level.bytes_per_s for level in levels if level.bytes_per_s]
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == len(rates)
    assert levels[-1].size_bytes > 100 * sum(level.size_bytes for level in levels[:-1])
    assert set(device(name).bandwidths) <= set(device(name).sizes)


@pytest.mark.parametrize("name", GPUS)
def test_private_memories_are_a_whole_number_of_kib_per_unit(name):
    entry = device(name)
    each = {level: entry.sizes[level].value / entry.units.value / 2**10 for level in ("registers", "l1")}
    assert each["registers"] == (512 if entry.vendor == "amd" else 256)
    assert each["l1"] in (32, 96, 128, 192, 256)
    assert all(entry.sizes[level].number % 2**19 == 0 for level in {"l2", "l3"} & set(entry.sizes))


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("h100", {"registers": 33, "l1": 33, "l2": 50}),
        ("a100", {"registers": 27, "l1": 20.25, "l2": 40}),
        ("v100", {"registers": 20, "l1": 10, "l2": 6}),
        ("b200", {"registers": 37, "l1": 37, "l2": 126.5}),
        ("4090", {"registers": 32, "l1": 16, "l2": 72}),
        ("b300", {"registers": 37, "l1": 37}),
        ("rtx-pro-6000", {"registers": 47, "l1": 23.5, "l2": 128}),
        ("mi300x", {"registers": 152, "l1": 9.5, "l2": 32, "l3": 256}),
        ("mi355x", {"registers": 128, "l1": 8, "l2": 32, "l3": 256}),
        ("m2-ultra", {}),  # Apple publishes no cache sizes
    ],
)
def test_sizes_over_the_whole_device(name, mib):
    assert {level.name: level.size_bytes / 2**20 for level in device(name).levels()[:-1]} == mib


def test_what_is_not_known_is_an_error_that_says_so():
    stranger = describe("NVIDIA A10G", 23_800_000_000)
    for ask in (
        lambda: stranger.memory_bytes_per_s,
        lambda: stranger.flops_per_s("fp16"),
        lambda: stranger.link_bytes_per_s("pcie"),
        lambda: device("m4-max").flops_per_s("fp16"),
    ):
        with pytest.raises(WorkbookError, match="not in the catalogue"):
            ask()


def test_unified_memory_has_no_link_to_a_host():
    for name in ("m2-ultra", "m3-ultra", "m4-max"):
        with pytest.raises(WorkbookError) as raised:
            device(name).link_bytes_per_s("pcie")
        assert "share one memory" in raised.value.what
        assert "memory_bytes_per_s" in raised.value.do


def test_a_level_without_a_measured_rate_has_none_and_not_zero():
    by_name = {level.name: level for level in device("h100").levels()}
    assert by_name["registers"].bytes_per_s is by_name["l2"].bytes_per_s is None
    assert by_name["l1"].bytes_per_s == device("h100").bandwidths["l1"].value
    assert by_name["memory"].bytes_per_s == device("h100").memory_bytes_per_s
