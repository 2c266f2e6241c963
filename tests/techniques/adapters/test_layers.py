"""LoRA and DoRA equal peft's layers: values, gradients, merged weights; on FP32, BF16, and NF4 of bitsandbytes."""

import logging

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.techniques.adapters import DoRALinear, FrozenNF4Linear, LoRALinear, dense_weight
from helpers.techniques.quantization import NF4Linear

KINDS = {"lora": LoRALinear, "dora": DoRALinear}
EACH = pytest.mark.parametrize("kind", KINDS)
RANK, ALPHA = 4, 12
CLOSE = {torch.float32: {"rtol": 1e-4, "atol": 1e-5}, torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2}}


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def dense(dtype=torch.float32, bias=True):
    torch.manual_seed(0)
    return torch.nn.Linear(128, 64, bias=bias).to(dtype)


def inputs(dtype=torch.float32):
    return torch.randn(3, 5, 128, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()


def peft_layer(base, kind, dropout):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=RANK, lora_alpha=ALPHA, lora_dropout=dropout, use_dora=kind == "dora", target_modules=["0"]
    )
    return peft.get_peft_model(torch.nn.Sequential(base), config).base_model.model[0].train()


def of_peft(layer):
    """The trained tensors of peft's layer, under our names."""
    found = {"lora_a": layer.lora_A["default"].weight, "lora_b": layer.lora_B["default"].weight}
    if layer.lora_magnitude_vector:
        found["magnitude"] = layer.lora_magnitude_vector["default"].weight
    return found


def pair(ours_on, theirs_on, kind, dropout=0.0):
    """Both layers, with the same weights, not those of the beginning."""
    ours, theirs = KINDS[kind](ours_on, RANK, ALPHA, dropout=dropout), peft_layer(theirs_on, kind, dropout)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, reference in of_peft(theirs).items():
            assert getattr(ours, name).shape == reference.shape
            assert getattr(ours, name).dtype == reference.dtype == torch.float32
            if name == "magnitude":
                rtol = 2**-8 if ours.base_weight().dtype != dense_weight(ours.base).dtype else 1e-6
                torch.testing.assert_close(
                    ours.magnitude, reference, rtol=rtol, atol=0
                )  # peft's began in the base's type
            moved = reference + 0.1 * torch.randn(reference.shape, generator=generator)
            reference.copy_(moved)
            getattr(ours, name).copy_(moved)
    return ours, theirs


def passed(layer, dtype):
    """Output and the gradient of the input; those of the layer are left on it."""
    x = inputs(dtype)
    torch.manual_seed(3)  # of the dropout
    y = layer(x)
    (y * torch.arange(64).to(dtype)).sum().backward()
    return y.detach(), x.grad


def assert_equal_to_peft(ours, theirs, dtype):
    (y, back), (reference, reference_back) = passed(ours, dtype), passed(theirs, dtype)
    assert y.dtype == reference.dtype == dtype
    torch.testing.assert_close(y, reference, **CLOSE[dtype])
    torch.testing.assert_close(back, reference_back, rtol=CLOSE[dtype]["rtol"], atol=CLOSE[dtype]["atol"] * 100)
    for name, parameter in of_peft(theirs).items():
        size = parameter.grad.abs().max()
        torch.testing.assert_close(getattr(ours, name).grad / size, parameter.grad / size, **CLOSE[dtype])


@EACH
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize(("bias", "dropout"), [(True, 0.0), (False, 0.0), (False, 0.3)])
def test_a_dense_base(kind, dtype, bias, dropout):
    ours, theirs = pair(dense(dtype, bias), dense(dtype, bias), kind, dropout)
    assert_equal_to_peft(ours, theirs, dtype)


@EACH
def test_a_base_in_nf4_of_bitsandbytes(kind):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    how = {"quant_type": "nf4", "compress_statistics": False}
    base = bitsandbytes.nn.Linear4bit(128, 64, compute_dtype=torch.float32, **how)
    base.weight = bitsandbytes.nn.Params4bit(dense().weight.detach(), requires_grad=False, module=base, **how)
    base.bias = torch.nn.Parameter(dense().bias.detach())
    ours, theirs = pair(FrozenNF4Linear.of(dense(), double_quant=False), base.to("cpu"), kind)
    assert_equal_to_peft(ours, theirs, torch.float32)


@EACH
@pytest.mark.parametrize("dtype", CLOSE)
def test_merged_and_unmerged_as_peft_does(kind, dtype):
    ours, theirs = pair(dense(dtype), dense(dtype), kind)
    before, beside = ours.base.weight.clone(), ours(inputs(dtype)).detach()
    ours.merge()
    theirs.merge()
    torch.testing.assert_close(ours.base.weight, theirs.base_layer.weight.data, **CLOSE[dtype])
    torch.testing.assert_close(ours(inputs(dtype)), beside, rtol=5e-2, atol=5e-2 if dtype == torch.bfloat16 else 1e-4)
    ours.merge()  # a second time changes nothing
    torch.testing.assert_close(ours.base.weight, theirs.base_layer.weight.data, **CLOSE[dtype])
    ours.unmerge()
    torch.testing.assert_close(ours.base.weight, before, **CLOSE[dtype])
    torch.testing.assert_close(ours(inputs(dtype)), beside, rtol=5e-2, atol=5e-2 if dtype == torch.bfloat16 else 1e-4)


def test_merging_into_bf16_is_not_undone_to_the_bit():
    ours, _ = pair(dense(torch.bfloat16), dense(torch.bfloat16), "lora")
    before = ours.base.weight.clone()
    ours.merge()
    ours.unmerge()
    assert 0 < (ours.base.weight != before).float().mean() < 1


@EACH
@pytest.mark.parametrize("double_quant", [False, True])
def test_merging_into_nf4_rounds_and_says_by_how_much(kind, double_quant):
    """A base on its levels, plus a small change, rounds back: merging forgets what beside the base was exact."""
    ours = KINDS[kind](FrozenNF4Linear.of(dense(), double_quant), RANK, ALPHA)
    torch.manual_seed(0)
    torch.nn.init.normal_(ours.lora_b, std=0.01)
    wanted, base_bytes = ours.with_adapter(ours.base_weight()).detach(), ours.base.stored.nbytes
    ours.merge()
    error = (dense_weight(ours.base) - wanted).norm() / wanted.norm()
    assert ours.base.stored.nbytes == base_bytes
    assert 0.01 < error < 0.12  # NF4 costs a fresh weight 0.09


def test_a_change_smaller_than_a_level_is_lost_in_nf4():
    ours = LoRALinear(FrozenNF4Linear.of(dense(), False), RANK, ALPHA)
    torch.nn.init.constant_(ours.lora_b, 1e-4)
    wanted = ours.with_adapter(ours.base_weight()).detach()
    ours.merge()
    assert (ours.base.stored.packed == NF4Linear.of(dense(), False).packed).float().mean() > 0.99
    assert (dense_weight(ours.base) - wanted).norm() > 0.8 * ours.delta().norm()


@EACH
def test_in_evaluation_nothing_is_dropped(kind):
    ours, theirs = (layer.eval() for layer in pair(dense(), dense(), kind, dropout=0.5))
    torch.testing.assert_close(ours(inputs()), theirs(inputs()), **CLOSE[torch.float32])


@EACH
def test_it_begins_as_the_base(kind):
    layer, x = KINDS[kind](dense(), RANK), inputs()
    torch.testing.assert_close(layer(x), layer.base(x), rtol=1e-5, atol=1e-6)
    assert [name for name, p in layer.named_parameters() if p.requires_grad] == [
        "lora_a",
        "lora_b",
        *(["magnitude"] if kind == "dora" else []),
    ]


def test_nf4_for_training_is_nf4_and_saves_nothing_dense():
    """Dequantize-then-multiply keeps the dense weight for the backward pass: 32,768 bytes that 4 bits had saved."""
    plain, frozen = NF4Linear.of(dense()), FrozenNF4Linear.of(dense())
    saved = {}
    for layer in (plain, frozen):
        sizes, x = [], inputs()
        with torch.autograd.graph.saved_tensors_hooks(lambda t, into=sizes: into.append(t.nbytes) or t, lambda t: t):
            y = layer(x)
        y.square().sum().backward()
        saved[layer] = sum(sizes), y, x.grad
    (naive, y, back), (bytes_saved, frozen_y, frozen_back) = saved[plain], saved[frozen]
    assert torch.equal(y, frozen_y)
    torch.testing.assert_close(back, frozen_back)
    assert naive >= 128 * 64 * 4
    assert bytes_saved < 128 * 64 / 2


def test_a_frozen_base_alone_saves_no_input_and_lora_does():
    """Why 1 % of trained parameters is not 1 % of memory: A's gradient needs the layer's input."""

    def saved(layer):
        sizes, x = {}, inputs()
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: sizes.update({t.untyped_storage()._cdata: t.untyped_storage().nbytes()}) or t, lambda t: t
        ):
            layer(x)
        weights = {p.untyped_storage()._cdata for p in layer.parameters()}
        return sum(size for storage, size in sizes.items() if storage not in weights)

    tokens = 3 * 5
    assert saved(dense(bias=False).requires_grad_(False)) == 0
    assert saved(LoRALinear(dense(bias=False), RANK)) == tokens * 4 * (128 + RANK)
    bf16 = LoRALinear(dense(torch.bfloat16, bias=False), RANK)
    x = inputs(torch.bfloat16)
    assert bf16(x).dtype == torch.bfloat16  # the FP32 cast of the input is what A saves: twice the bytes


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: LoRALinear(torch.nn.Embedding(4, 4), 2), "Embedding"),
        (lambda: LoRALinear(dense(), 65), "rank is 65"),
        (lambda: LoRALinear(dense(), 0), "rank is 0"),
        (lambda: DoRALinear(dense(), 4, 0), "alpha is 0"),
        (lambda: LoRALinear(dense(), 4, dropout=1.0), "dropout is 1.0"),
    ],
)
def test_bad_input_is_told(call, says):
    with pytest.raises(WorkbookError, match=says):
        call()
