"""Devices: every figure has provenance, directions are explicit, and the live GPU is recognised."""

import json
from pathlib import Path

import pytest

from helpers.catalog import devices
from helpers.catalog.devices import DEVICES, SAME_CARD, Figure, build_device, describe, detect, device
from helpers.catalog.errors import WorkbookError

ENTRIES = json.loads((Path(devices.__file__).parent / "data" / "devices.json").read_text())["devices"]
GOOD = {"value": 5, "unit": "bytes", "kind": "datasheet", "source": "a datasheet", "date": "2024-01"}
MARKETED = {name: int(name.rsplit("-", 1)[1].removesuffix("gb")) for name in ENTRIES}  # the GB in the name


def copy(entry):
    return json.loads(json.dumps(entry))


def paths(entry):
    """Every figure of an entry, as the keys that lead to it."""
    for key, value in entry["figures"].items():
        yield from [(key,)] if "unit" in value else [(key, inner) for inner in value]


@pytest.mark.parametrize("missing", ["value", "unit", "kind", "source", "date"])
@pytest.mark.parametrize("path", list(paths(ENTRIES["mi300x-192gb"])), ids="/".join)
def test_an_entry_without_provenance_cannot_be_built(path, missing):
    entry = copy(ENTRIES["mi300x-192gb"])
    build_device("mi300x-192gb", entry)  # whole, it can
    figure = entry["figures"]
    for key in path:
        figure = figure[key]
    del figure[missing]
    with pytest.raises(WorkbookError) as raised:
        build_device("mi300x-192gb", entry)
    assert missing in str(raised.value)
    assert path[-1] in str(raised.value)


@pytest.mark.parametrize(
    ("group", "written", "meant"),
    [(None, "size", "sizes"), (None, "l2", "links"), ("sizes", "L2", "l2"), ("bandwidths", "register", "registers")],
)
def test_a_figure_under_a_name_that_nobody_reads_is_refused(group, written, meant):
    entry = copy(ENTRIES["h100-80gb"])
    there = entry["figures"][group] if group else entry["figures"]
    there[written] = dict(GOOD)
    with pytest.raises(WorkbookError) as raised:
        build_device("h100-80gb", entry)
    assert repr(written) in raised.value.what
    assert meant in raised.value.expected


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
    assert entry.memory_bandwidth
    assert entry.units.value < 1000
    assert entry.memory_type.value.startswith("LPDDR" if entry.unified else ("HBM", "GDDR"))
    assert entry.price_class.value in ("lowest", "low", "middle", "high", "top")
    assert len(entry.figures()) == len(list(paths(ENTRIES[name])))
    assert bool(entry.links) != entry.unified
    assert bool(entry.sizes) != entry.unified


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_capacity_is_below_the_marketed_figure_where_it_was_measured(name):
    capacity = device(name).capacity
    marketed_bytes = MARKETED[name] * 2**30
    if capacity.kind == "measured":
        assert 0.90 < capacity.value / marketed_bytes < 1.0
    else:
        assert capacity.value == marketed_bytes
        assert "nominal" in capacity.source


def test_names_aliases_and_case():
    assert repr(device("h100")) == "<h100-80gb: NVIDIA H100 SXM 80 GB, 79.22 GiB>"
    for entry in DEVICES.values():
        for name in (entry.name, *entry.aliases):
            assert device(name) is device(name.upper()) is device(entry) is entry
    for said, meant in {"v100": "v100-16gb", "3090": "rtx-3090-24gb", "m4-max": "m4-max-128gb"}.items():
        assert device(said).name == meant


def test_no_name_means_two_devices():
    names = [name for entry in DEVICES.values() for name in (entry.name, *entry.aliases)]
    assert len(names) == len(set(names))
    reported = [(name, entry.capacity_bytes) for entry in DEVICES.values() for name in entry.cuda_names]
    for name, size in reported:  # those of one name are told apart by their memory
        others = [other for known, other in reported if known == name and other != size]
        assert all(abs(other - size) > 2 * SAME_CARD * min(size, other) for other in others), name
    assert len(reported) == len(set(reported))


@pytest.mark.parametrize(
    ("cuda_name", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("NVIDIA B200", "b200-180gb"),
        ("NVIDIA B300 SXM6 AC", "b300-288gb"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-96gb"),
        ("NVIDIA L4", "l4-24gb"),
        ("NVIDIA A10", "a10-24gb"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090-32gb"),
        ("NVIDIA GeForce RTX 4060 Ti", "rtx-4060-ti-16gb"),
        ("NVIDIA GeForce RTX 4060 Ti", "rtx-4060-ti-8gb"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "rtx-4070-ti-super-16gb"),
        ("AMD Instinct MI300X VF", "mi300x-192gb"),  # ROCm answers through torch.cuda, too
    ],
)
def test_a_live_gpu_is_matched_by_name_and_keeps_its_own_capacity(cuda_name, name):
    total_bytes = device(name).capacity_bytes - 10_000_000
    live = describe(cuda_name, total_bytes)
    assert (live.name, live.capacity_bytes, live.capacity.kind) == (name, total_bytes, "measured")
    assert live.memory_bytes_per_s == device(name).memory_bytes_per_s


@pytest.mark.parametrize(
    ("cuda_name", "total_bytes"),
    [
        ("NVIDIA A10G", 23_800_000_000),  # another card than the A10, with other rates
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97_250 * 2**20),  # slower memory and a lower clock
        ("NVIDIA H100 80GB HBM3", 20 * 2**30),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 10**10),
        ("AMD Instinct MI300X", 24 * 2**30),  # one of eight partitions
    ],
)
def test_an_unknown_or_partial_gpu_has_its_capacity_and_nothing_else(cuda_name, total_bytes):
    live = describe(cuda_name, total_bytes)
    assert (live.title, live.figures()) == (cuda_name, (live.capacity,))
    assert [(level.name, level.size_bytes, level.bytes_per_s) for level in live.levels()] == [
        ("memory", total_bytes, None)
    ]


def test_detect_agrees_with_torch():
    import torch

    found = detect()
    if not torch.cuda.is_available():
        assert found is None
    else:
        assert found.capacity_bytes == torch.cuda.get_device_properties(0).total_memory


@pytest.mark.parametrize(
    ("size", "capacity"),
    [("12GiB", 12 * 2**30), ("24gb", 24 * 10**9), ("7.5 GiB", 15 * 2**29), ("80g", 80 * 2**30), (" 16GiB ", 2**34)],
)
def test_a_size_is_a_card_of_which_nothing_else_is_known(size, capacity):
    card = device(size)
    assert card.capacity_bytes == capacity
    assert device(card.name) == card, "what a command shows can be typed again"
    assert card.capability == (8, 0)
    with pytest.raises(WorkbookError, match="memory bandwidth of card of"):
        _ = card.memory_bytes_per_s


@pytest.mark.parametrize("size", ["0GiB", "0.1GiB", "99999GiB", "-5GiB", "12", "12TB", "GiB", "1e3GiB"])
def test_what_is_no_size_of_a_card_is_refused(size):
    with pytest.raises(WorkbookError):
        device(size)
