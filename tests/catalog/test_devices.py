"""Devices: every figure has provenance, directions are explicit, and the live GPU is recognised."""

import json
from pathlib import Path

import pytest

from helpers.catalog import devices
from helpers.catalog.devices import DEVICES, Figure, build_device, device
from helpers.catalog.errors import WorkbookError
from helpers.catalog.live import describe, detect

ENTRIES = json.loads((Path(devices.__file__).parent / "data" / "devices.json").read_text())["devices"]
GOOD = {"value": 5, "unit": "bytes", "kind": "datasheet", "source": "a datasheet", "date": "2024-01"}


def paths(entry):
    """Every figure of an entry, as the keys that lead to it."""
    for key, value in entry["figures"].items():
        yield from [(key,)] if "unit" in value else [(key, inner) for inner in value]


@pytest.mark.parametrize("missing", ["value", "unit", "kind", "source", "date"])
@pytest.mark.parametrize("path", list(paths(ENTRIES["h100-80gb"])), ids="/".join)
def test_an_entry_without_provenance_cannot_be_built(path, missing):
    entry = json.loads(json.dumps(ENTRIES["h100-80gb"]))
    build_device("h100-80gb", entry)  # whole, it can
    figure = entry["figures"]
    for key in path:
        figure = figure[key]
    del figure[missing]
    with pytest.raises(WorkbookError) as raised:
        build_device("h100-80gb", entry)
    assert missing in str(raised.value)
    assert path[-1] in str(raised.value)


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({"kind": "rumour"}, "kind='rumour'"),
        ({"source": "  "}, "source='  '"),
        ({"date": "last year"}, "date='last year'"),
        ({"value": 0}, "value=0"),
        ({"value": 1.5}, "value=1.5"),
        ({"value": True}, "value=True"),
        ({"unit": ""}, "unit=''"),
        ({"unit": "bytes/s"}, "direction=''"),
        ({"unit": "bytes/s", "direction": "both"}, "direction='both'"),
        ({"direction": "per direction"}, "direction='per direction'"),
    ],
)
def test_a_figure_states_its_provenance(change, phrase):
    Figure(**GOOD)
    with pytest.raises(WorkbookError) as raised:
        Figure(**{**GOOD, **change})
    assert phrase in raised.value.what


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_every_device_is_whole(name):
    entry = device(name)
    assert 10 * 2**30 < entry.capacity_bytes < 150 * 2**30
    assert entry.memory_bytes_per_s > entry.link_bytes_per_s("pcie")
    assert entry.l2_bytes % 2**20 == 0
    assert entry.flops_per_s("fp16") > entry.flops_per_s("fp32")
    assert entry.price_class
    assert entry.memory_type.value.startswith(("HBM", "GDDR"))
    assert len(entry.figures()) == len(list(paths(ENTRIES[name])))


def test_rates_are_dense_and_links_one_way():
    assert device("h100").flops_per_s("bf16") == 989_400_000_000_000  # 1,979 with sparsity
    assert device("a100").flops_per_s("bf16") == 312_000_000_000_000
    assert device("h100").link_bytes_per_s("nvlink") == 450_000_000_000  # the 900 GB/s are both ways
    assert device("a100-40gb").link_bytes_per_s("pcie") == 32_000_000_000
    assert device("h100-pcie").memory_bytes_per_s < device("h100").memory_bytes_per_s


def test_capacity_is_below_the_nominal_figure():
    nominal = {"h100-80gb": 80, "h100-pcie-80gb": 80, "h200-141gb": 141, "a100-40gb": 40, "a100-80gb": 80,
               "l40s-48gb": 48, "t4-16gb": 16, "rtx-4090-24gb": 24}  # fmt: skip
    assert set(nominal) == set(DEVICES)
    for name, gigabytes in nominal.items():
        assert 0.90 < device(name).capacity_bytes / 2**30 / gigabytes < 1.0, name


def test_names_aliases_and_case():
    assert repr(device("h100")) == "<h100-80gb: NVIDIA H100 SXM 80 GB, 79.22 GiB>"
    for entry in DEVICES.values():
        for name in (entry.name, *entry.aliases):
            assert device(name) is device(name.upper()) is device(entry) is entry
    names = [name for entry in DEVICES.values() for name in (entry.name, *entry.aliases)]
    assert len(names) == len(set(names))


def test_a_live_gpu_is_matched_by_name_and_keeps_its_own_capacity():
    live = describe("NVIDIA A100-SXM4-40GB", 42_000_000_000)
    assert (live.name, live.capacity_bytes, live.capacity.kind) == ("a100-40gb", 42_000_000_000, "measured")
    assert live.memory_bytes_per_s == device("a100-40gb").memory_bytes_per_s


@pytest.mark.parametrize(
    ("cuda_name", "total_bytes"),
    [
        ("NVIDIA B200", 190 * 10**9),
        ("NVIDIA H100 80GB HBM3", 20 * 2**30),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 10**10),
    ],
)
def test_an_unknown_or_partial_gpu_has_its_capacity_and_nothing_else(cuda_name, total_bytes):
    live = describe(cuda_name, total_bytes)
    assert (live.capacity_bytes, live.title, live.links) == (total_bytes, cuda_name, {})
    with pytest.raises(WorkbookError, match="not in the catalogue"):
        _ = live.memory_bytes_per_s


def test_detect_agrees_with_torch():
    import torch

    found = detect()
    if not torch.cuda.is_available():
        assert found is None
    else:
        assert found.capacity_bytes == torch.cuda.get_device_properties(0).total_memory
