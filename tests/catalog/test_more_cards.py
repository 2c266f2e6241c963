"""The cards told in few words: figures by name, relations that a slip would break, and every way to spell a name."""

import pytest

from helpers.catalog import WorkbookError, device
from helpers.catalog.device_names import plain
from helpers.catalog.devices import BOTH_WAYS, DEVICES, OFFERED
from helpers.catalog.formats import NUMBER_FORMATS

CLOCKED = [card.name for card in DEVICES.values() if not card.price_class and card.units and card.peak_flops]
OTHERS = sorted(set(DEVICES) - {card.name for card in OFFERED})
TYPED = {
    "rtx-3060": "rtx-3060-12gb",
    "3060": "rtx-3060-12gb",
    "h20": "h20-96gb",
    "a6000": "rtx-a6000-48gb",
    "2080ti": "rtx-2080-ti-11gb",
    "rtx 4090": "rtx-4090-24gb",
    "RTX4090": "rtx-4090-24gb",
    "NVIDIA GeForce RTX 4090": "rtx-4090-24gb",
    "4060ti-16gb": "rtx-4060-ti-16gb",
    "4090 laptop": "rtx-4090-laptop-16gb",
    "rtx 6000 ada": "rtx-6000-ada-48gb",
    "a100 40gb": "a100-40gb",
    "NVIDIA A100-SXM4-80GB": "a100-80gb",
    "h100 nvl": "h100-nvl-94gb",
    "dgx spark": "gb10-128gb",
    "strix halo": "strix-halo-128gb",
    "7900xtx": "rx-7900-xtx-24gb",
    "arc b580": "arc-b580-12gb",
    "m3 max": "m3-max-128gb",
    "M3-Max-36GB": "m3-max-30core-36gb",
    "m4 max 64gb": "m4-max-64gb",
    "m2 ultra 64gb": "m2-ultra-64gb",
}


@pytest.mark.parametrize(("typed", "name"), TYPED.items())
def test_what_people_type(typed, name):
    assert device(typed).name == name
    assert device(name) == device(typed), "what a command shows can be typed again"


@pytest.mark.parametrize(
    "typed", ["rtx-9090", "rtx-4090d", "rtx 4090 16gb", "gtx 1080", "m5-ultra", "m3-max-72gb", "h1000", "rtx-490"]
)
def test_another_number_or_variant_is_another_card(typed):
    with pytest.raises(WorkbookError) as refused:
        device(typed)
    assert "did you mean" not in refused.value.do
    assert "as 12GiB" in refused.value.do


@pytest.mark.parametrize(("typed", "near"), [("htx-4090", "rtx-4090"), ("mi300", "mi300x"), ("hh100", "h100")])
def test_the_nearest_name_has_the_same_number(typed, near):
    with pytest.raises(WorkbookError, match=f"did you mean '{near}"):
        device(typed)


@pytest.mark.parametrize(
    ("typed", "sizes"), [("4060 ti", "16gb or rtx-4060-ti-8gb"), ("3080", "10gb or rtx-3080-12gb")]
)
def test_a_name_of_two_cards_is_refused_with_both(typed, sizes):
    with pytest.raises(WorkbookError) as refused:
        device(typed)
    assert sizes in refused.value.expected
    assert device(refused.value.do.rsplit(" ", 1)[1]).name in refused.value.expected


def test_no_name_or_alias_means_two_cards():
    spelled = [plain(name) for card in DEVICES.values() for name in {plain(n) for n in (card.name, *card.aliases)}]
    assert len(spelled) == len(set(spelled))


@pytest.mark.parametrize(
    ("name", "gib", "gb_per_s"),
    [
        ("2080ti", 10.76, 616),
        ("3060", 11.65, 360),
        ("3080-10gb", 9.77, 760),
        ("3090ti", 23.55, 1008),
        ("4070 ti super", 15.60, 672),
        ("4080", 15.67, 716.8),
        ("5080", 15.47, 960),
        ("a4000", 15.74, 448),
        ("a6000", 47.54, 768),
        ("l20", 44.99, 864),
        ("a40", 44.35, 696),
        ("a30", 23.60, 933),
        ("h20", 95.00, 4000),
        ("h100-nvl", 93.10, 3900),
        ("p100", 15.90, 732),
        ("gb200", 184.31, 8000),
        ("gb10", 121.69, 273),
        ("mi250x", 63.98, 1638.4),
        ("mi325x", 255.98, 6000),
        ("strix-halo", 128, 256),
        ("arc-a770", 15.11, 560),
        ("m1-pro", 32, 200),
        ("m3-max", 128, 400),
        ("m3-max-36gb", 36, 300),
        ("m5-max", 128, 614),
    ],
)
def test_memory_and_its_bandwidth(name, gib, gb_per_s):
    card = device(name)
    assert card.capacity_bytes / 2**30 == pytest.approx(gib, abs=0.006)
    assert card.memory_bytes_per_s == round(gb_per_s * 10**9)


@pytest.mark.parametrize(
    ("name", "number_format", "tflops"),
    [
        ("2080ti", "fp16", 53.8),  # NVIDIA's Turing whitepaper, summed up in FP32
        ("3080-10gb", "fp16", 59.5),  # NVIDIA's GA102 whitepaper
        ("4080", "fp8-e4m3", 194.9),  # NVIDIA's Ada whitepaper
        ("5080", "bf16", 112.6),  # NVIDIA's RTX Blackwell whitepaper
        ("5070ti", "mxfp4", 703.2),
        ("a6000", "bf16", 154.8),  # 309.7 with sparsity
        ("h20", "bf16", 148),
        ("gb200", "bf16", 2500),  # 5,000 with sparsity
        ("mi325x", "bf16", 1307.4),
        ("p100", "fp16", 18.7),
    ],
)
def test_rates_are_dense(name, number_format, tflops):
    assert device(name).flops_per_s(number_format) / 10**12 == pytest.approx(tflops, rel=0.001)


@pytest.mark.parametrize("name", OTHERS)
def test_figures_belong_together(name):
    card = device(name)
    assert card.price_class is None
    marketed = int(name.rsplit("-", 1)[1].removesuffix("gb")) * 2**30
    share = card.capacity_bytes / marketed
    assert 0.90 < share < 1 if card.capacity.kind == "measured" else share == 1
    assert (card.capability is None) == (card.vendor != "nvidia")
    assert {figure.direction for figure in card.links.values()} <= {BOTH_WAYS}
    if "pcie" in card.links:
        assert card.link_bytes_per_s("pcie") in (16 * 10**9, 32 * 10**9, 64 * 10**9)
    if card.memories:
        assert card.unified
        assert max(card.memories) * 2**30 == card.capacity_bytes


@pytest.mark.parametrize("name", [name for name in OTHERS if "fp16" in device(name).peak_flops])
def test_rates_in_fewer_bits_are_not_lower(name):
    rates = {known: figure.number for known, figure in device(name).peak_flops.items()}
    assert set(rates) <= set(NUMBER_FORMATS)
    assert rates.get("bf16", rates["fp16"]) == rates["fp16"] >= rates.get("fp32", 0)
    expected = {"tf32": 0.5, "fp8-e4m3": 2, "fp8-e5m2": 2, "int8": 4 if "GeForce" in device(name).title else 2}
    for number_format, times in expected.items():
        if number_format in rates:
            assert rates[number_format] == pytest.approx(times * rates["fp16"], rel=0.02)


@pytest.mark.parametrize("name", [name for name in CLOCKED if device(name).capability])
def test_units_clock_and_rate_belong_together(name):
    """FP32 = multiprocessors x lanes x 2 x clock, at a clock that such a GPU reaches."""
    card = device(name)
    lanes = 64 if card.capability in ((6, 0), (7, 5), (8, 0)) else 128
    clock_hz = card.flops_per_s("fp32") / (card.units.number * lanes * 2)
    assert 1.29e9 < clock_hz < 2.75e9


@pytest.mark.parametrize("ask", [lambda c: c.memory_bytes_per_s, lambda c: c.flops_per_s("bf16")])
def test_what_no_source_gives_is_refused(ask):
    with pytest.raises(WorkbookError, match="RTX 4090 Laptop 16 GB is not in the catalogue"):
        ask(device("rtx-4090-laptop"))
