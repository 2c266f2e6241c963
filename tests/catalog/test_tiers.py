"""Tiers: every figure has provenance and a direction, kinds state what they must, and known values are anchors."""

import json
from pathlib import Path

import pytest

from helpers.catalog import tiers
from helpers.catalog.devices import KINDS, Figure, device
from helpers.catalog.errors import WorkbookError
from helpers.catalog.tiers import STATED, TIERS, build_tier, tier

ENTRIES = json.loads((Path(tiers.__file__).parent / "data" / "tiers.json").read_text())["tiers"]
DRAM, DISK, NETWORK = "dgx-h100-dram", "samsung-990-pro-2tb", "infiniband-ndr"  # one of each kind
PARTS = [(name, key) for name in (DRAM, DISK, NETWORK) for key in ENTRIES[name]["figures"]]


def changed(name, **changes):
    """A copy of the entry `name` with another kind or other figures; None takes a figure away."""
    entry = json.loads(json.dumps(ENTRIES[name]))
    entry["kind"] = changes.pop("kind", entry["kind"])
    entry["figures"].update(changes)
    entry["figures"] = {key: figure for key, figure in entry["figures"].items() if figure is not None}
    return entry


@pytest.mark.parametrize("missing", ["value", "unit", "kind", "source", "date"])
@pytest.mark.parametrize(("name", "key"), PARTS)
def test_an_entry_without_provenance_cannot_be_built(name, key, missing):
    build_tier(name, ENTRIES[name])  # whole, it can
    figure = {part: value for part, value in ENTRIES[name]["figures"][key].items() if part != missing}
    with pytest.raises(WorkbookError) as raised:
        build_tier(name, changed(name, **{key: figure}))
    for word in (name, key, missing):
        assert word in raised.value.what
    assert "tiers.json" in raised.value.do


@pytest.mark.parametrize(
    ("name", "changes", "phrase"),
    [
        (DISK, {"kind": "tape"}, "unknown kind of samsung-990-pro-2tb 'tape'"),
        (DISK, {"kind": None}, "unknown kind of samsung-990-pro-2tb None"),
        (DISK, {"write": None}, "has no figure write"),
        (DISK, {"capacity": None}, "has no figure capacity"),
        (DISK, {"rate": ENTRIES[DRAM]["figures"]["rate"]}, "a tier of kind nvme, 'rate'"),
        (DISK, {"read": ENTRIES[DISK]["figures"]["write"]}, "read is in bytes/s writes"),
        (DISK, {"write": ENTRIES[NETWORK]["figures"]["rate"]}, "write is in bytes/s per direction"),
        (DISK, {"capacity": ENTRIES[DISK]["figures"]["read"]}, "capacity is in bytes/s reads"),
        (DISK, {"read": ENTRIES[DISK]["figures"]["capacity"]}, "read is in bytes"),
        (DISK, {"read": {**ENTRIES[DISK]["figures"]["read"], "direction": ""}}, "direction=''"),
        (DISK, {"read": {**ENTRIES[DISK]["figures"]["read"], "value": 7450.5}}, "value=7450.5"),
        (DRAM, {"kind": "network"}, "a tier of kind network, 'capacity'"),
        (DRAM, {"rate": ENTRIES[NETWORK]["figures"]["rate"]}, "rate is in bytes/s per direction"),
        (NETWORK, {"capacity": ENTRIES[DRAM]["figures"]["capacity"]}, "a tier of kind network, 'capacity'"),
        (NETWORK, {"rate": ENTRIES[DRAM]["figures"]["rate"]}, "rate is in bytes/s reads and writes together"),
    ],
)
def test_bad_entries(name, changes, phrase):
    with pytest.raises(WorkbookError) as raised:
        build_tier(name, changed(name, **changes))
    assert phrase in raised.value.what
    assert all((raised.value.expected, raised.value.do))


@pytest.mark.parametrize(
    ("name", "phrase"),
    [
        ("990", "did you mean '990-pro'?"),
        ("dgx-h100", "did you mean 'dgx-h100-dram'?"),
        ("infiniband", "did you mean 'infiniband-ndr'?"),
        ("", "unknown tier ''"),
        (None, "unknown tier None"),
        (7, "unknown tier 7"),
        (["sata"], "unknown tier ['sata']"),
        ("s3", "unknown tier 's3'"),  # nobody tells the rate of an object store
    ],
)
def test_bad_names(name, phrase):
    with pytest.raises(WorkbookError) as raised:
        tier(name)
    assert phrase in str(raised.value)


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_every_tier_is_whole(name):
    entry = tier(name)
    assert len(entry.figures()) == len(ENTRIES[name]["figures"]) == len(STATED[entry.kind])
    for figure in entry.figures():
        assert isinstance(figure, Figure)
        assert figure.kind in KINDS
        assert figure.source
        assert figure.date
    assert entry.write_bytes_per_s <= entry.read_bytes_per_s
    assert (entry.read is entry.write) == (entry.kind != "nvme")
    assert (entry.capacity is None) == (entry.kind == "network")


def test_a_network_holds_nothing():
    with pytest.raises(WorkbookError) as raised:
        _ = tier("100gbe").capacity_bytes
    assert "100 Gigabit Ethernet has no capacity" in raised.value.what
    assert repr(tier("100gbe")) == "<ethernet-100g: 100 Gigabit Ethernet>"


@pytest.mark.parametrize(
    ("name", "read_gb_per_s", "write_gb_per_s"),
    [
        ("dgx-h100-dram", 614.4, 614.4),
        ("dgx-a100-dram", 409.6, 409.6),
        ("dgx-2-dram", 255.936, 255.936),
        ("desktop-dram", 89.6, 89.6),
        ("990-pro", 7.45, 6.9),
        ("t705", 14.5, 12.7),
        ("pm9a3", 6.5, 3.5),
        ("dgx-2-nvme", 28, 28),
        ("nd-h200-v5-nvme", 48, 26),
        ("sata", 0.56, 0.53),
        ("ndr", 50, 50),
        ("dgx-h100-network", 400, 400),
        ("100gbe", 12.5, 12.5),
        ("10gbe", 1.25, 1.25),
    ],
)
def test_rates(name, read_gb_per_s, write_gb_per_s):
    """Of DRAM the total of reads and writes; of a network each way, an eighth of the bits that its name tells."""
    assert tier(name).read_bytes_per_s == round(read_gb_per_s * 10**9)
    assert tier(name).write_bytes_per_s == round(write_gb_per_s * 10**9)


@pytest.mark.parametrize(
    ("name", "capacity_bytes"),
    [
        ("dgx-h100-dram", 2**41),  # modules hold powers of two
        ("dgx-a100-dram", 2**41),
        ("dgx-2-dram", 3 * 2**39),
        ("desktop-dram", 2**36),
        ("990-pro", 2 * 10**12),  # disks powers of ten
        ("pm9a3", 3_840_000_000_000),
        ("dgx-2-nvme", 30 * 10**12),
        ("nd-h200-v5-nvme", 28_000 * 2**30),
    ],
)
def test_capacities(name, capacity_bytes):
    assert tier(name).capacity_bytes == capacity_bytes


def test_each_kind_is_where_it_is_in_the_hierarchy():
    """A host's DRAM is slower than the memory of one of its GPUs, and faster than its disks; eight ports are eight."""
    for host, gpu in (("dgx-h100-dram", "h100"), ("dgx-a100-dram", "a100-80gb"), ("dgx-2-dram", "v100-32gb")):
        assert tier(host).read_bytes_per_s < device(gpu).memory_bytes_per_s
        assert tier(host).capacity_bytes > 16 * device(gpu).capacity_bytes
    slowest_dram = min(entry.read_bytes_per_s for entry in TIERS.values() if entry.kind == "dram")
    assert all(entry.read_bytes_per_s < slowest_dram for entry in TIERS.values() if entry.kind == "nvme")
    assert tier("dgx-h100-network").read_bytes_per_s == 8 * tier("ndr").read_bytes_per_s


def test_names_aliases_and_case():
    assert repr(tier("dgx-h100-host")) == "<dgx-h100-dram: DRAM of an NVIDIA DGX H100, 2,048 GiB>"
    names = [name for entry in TIERS.values() for name in (entry.name, *entry.aliases)]
    assert len(names) == len(set(names))
    for entry in TIERS.values():
        for name in (entry.name, *entry.aliases):
            assert tier(name) is tier(f" {name.upper()} ") is tier(entry) is entry
