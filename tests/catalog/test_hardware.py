"""What a card adds: cuBLAS workspaces by generation, attention kernels by PyTorch's conditions; without CUDA none."""

import pytest

from helpers.catalog import DEVICES, WorkbookError, device
from helpers.catalog.devices import OFFERED, build_device, describe
from helpers.catalog.fused_attention import Heads, efficient_backward
from helpers.catalog.hardware import (
    AttentionCall,
    AttentionKernel,
    Cuda,
    cuda_of,
    lacks_bf16,
    library_bytes,
    require_cuda,
    without_bf16,
    without_cuda,
)
from tests.catalog.test_devices import ENTRIES, copy

FLASH, EFFICIENT, FORMULA = AttentionKernel.FLASH, AttentionKernel.EFFICIENT, AttentionKernel.FORMULA
WITHOUT = ("mi300x-192gb", "mi355x-288gb", "m2-ultra-192gb", "m3-ultra-512gb", "m4-max-128gb", "arc-b580-12gb")


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("v100-16gb", (7, 0)),
        ("t4", (7, 5)),
        ("a100-40gb", (8, 0)),
        ("a10", (8, 6)),
        ("3090", (8, 6)),
        ("l4", (8, 9)),
        ("l40s", (8, 9)),
        ("4090", (8, 9)),
        ("h100-pcie", (9, 0)),
        ("h200", (9, 0)),
        ("b200", (10, 0)),
        ("b300", (10, 3)),
        ("p40", (6, 1)),
        ("2080ti", (7, 5)),
        ("gb10", (12, 1)),
        ("rtx-pro-6000", (12, 0)),
        ("5090", (12, 0)),
    ],
)
def test_compute_capability(name, capability):
    assert device(name).capability == capability == cuda_of(name).capability


def test_every_nvidia_card_has_a_compute_capability_and_no_other():
    others = {name for name, card in DEVICES.items() if card.vendor != "nvidia"}
    assert others == {name for name, card in DEVICES.items() if card.capability is None} > set(WITHOUT)


def test_the_workspace_of_cublas_grows_with_hopper():
    """ ":4096:2:16:8" is 2 x 4096 KiB and 8 x 16 KiB; 32 MiB from Hopper on."""
    sizes = {card.name: cuda_of(card).cublas_workspace_bytes for card in OFFERED if card.capability}
    large = {name for name, size in sizes.items() if size == 33_554_432}
    hopper, blackwell = {"h100-80gb", "h100-pcie-80gb", "h200-141gb"}, {"b200-180gb", "b300-288gb"}
    assert large == hopper | blackwell | {"rtx-pro-6000-96gb", "rtx-5090-32gb"}
    assert {size for name, size in sizes.items() if name not in large} == {8_519_680}


def test_the_libraries_of_a_training_step_are_those_of_two_threads():
    assert (library_bytes("h100"), library_bytes("a100", cublaslt_threads=2)) == (2 * 2**25, 2 * (8_519_680 + 2**20))
    assert [library_bytes(gpu) for gpu in (None, "mi300x", "m4-max")] == [0, 0, 0]


@pytest.mark.parametrize(
    ("gpu", "call", "kernels"),
    [
        ("a100", AttentionCall("bf16", 128), (FLASH, EFFICIENT, FORMULA)),
        ("a100", AttentionCall("bf16", 128, heads=32, kv_heads=8), (FLASH, FORMULA)),
        ("a100", AttentionCall("fp32", 128), (EFFICIENT, FORMULA)),
        ("a100", AttentionCall("fp32", 128, heads=32, kv_heads=8), (FORMULA,)),
        ("t4", AttentionCall("bf16", 128), (FORMULA,)),
        ("t4", AttentionCall("fp16", 128), (EFFICIENT, FORMULA)),
        ("t4", AttentionCall("fp32", 18), (EFFICIENT, FORMULA)),
        ("a100", AttentionCall("fp32", 18), (FORMULA,)),
        ("a100", AttentionCall("bf16", 128, masked=True), (EFFICIENT, FORMULA)),
        ("a100", AttentionCall("bf16", 192, value_width=128), (EFFICIENT, FORMULA)),
        ("4090", AttentionCall("bf16", 208), (EFFICIENT, FORMULA)),
        ("5090", AttentionCall("bf16", 208), (EFFICIENT, FORMULA)),
        ("h100", AttentionCall("bf16", 208), (FLASH, EFFICIENT, FORMULA)),
    ],
)
def test_attention_kernels_in_the_order_of_pytorch(gpu, call, kernels):
    assert cuda_of(gpu).attention_kernels(call) == kernels
    assert cuda_of(gpu).attention_kernel(call) is kernels[0]


@pytest.mark.parametrize("name", WITHOUT)
def test_a_card_without_cuda_gets_no_figure_of_cuda(name):
    assert cuda_of(name) is None
    with pytest.raises(WorkbookError) as raised:
        require_cuda(name, "a trace")
    assert device(name).title in raised.value.what
    (sentence,) = without_cuda(device(name))
    assert "has no CUDA" in sentence


def test_pascal_works_on_blocks_of_64_rows():
    """128 queries and keys of width 128: 4 blocks of 4,096 + 4 floats, and 2 splits of 64 x 256 for K and V."""
    call = Heads(1, 1, 1, 128, 128, 128, 128, 2)
    assert efficient_backward((6, 0), call) == [(4 * 128, 4 * (4 * 4100 + 2 * 64 * 256))]
    assert efficient_backward((6, 0), call) != efficient_backward((7, 0), call)


def test_nobody_named_is_an_a100_and_a_stranger_is_not():
    assert require_cuda(None, "a trace") == Cuda((8, 0))
    stranger = describe("NVIDIA A10G", 23_800_000_000, (8, 6))
    assert cuda_of(stranger) == Cuda((8, 6))
    assert without_cuda(stranger) == without_cuda(device("h100")) == without_cuda(None) == ()
    unknown = describe("NVIDIA A10G", 23_800_000_000)
    with pytest.raises(WorkbookError, match="no compute capability"):
        require_cuda(unknown, "a trace")


def test_generations_before_ampere_have_no_units_for_bf16():
    lacking = {card.name for card in OFFERED if lacks_bf16(card, "bf16")}
    assert lacking == {"v100-16gb", "v100-32gb", "t4-16gb"}
    assert lacking == {card.name for card in OFFERED if cuda_of(card) and "bf16" not in card.peak_flops}
    assert all(lacks_bf16(device(name), "bf16") for name in ("2080ti", "2060", "p100", "p40"))
    assert not any(lacks_bf16(card, "fp32") for card in DEVICES.values())
    (sentence,) = without_bf16(device("t4"), "bf16")
    assert sentence.startswith("The NVIDIA T4 16 GB has no units for products in BF16")
    assert without_bf16(device("t4"), "fp32") == without_bf16(device("l4"), "bf16") == without_bf16(None, "bf16") == ()


@pytest.mark.parametrize(("part", "wrong"), [("vendor", "matrox"), ("compute_capability", "eight")])
def test_an_entry_with_a_vendor_or_version_that_nobody_knows_is_refused(part, wrong):
    entry = copy(ENTRIES["h100-80gb"])
    build_device("h100-80gb", entry)
    if part == "vendor":
        entry["vendor"] = wrong
    else:
        entry["figures"][part]["value"] = wrong
    with pytest.raises(WorkbookError, match=wrong):
        build_device("h100-80gb", entry)
