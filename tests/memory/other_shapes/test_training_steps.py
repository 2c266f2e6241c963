"""U-Net, DiT and ViT: closed form, trace and measurement of one step agree within a percent."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

from helpers.catalog import WorkbookError
from helpers.memory import measure, trace
from helpers.memory.meter.timeline import Measurement
from helpers.memory.other_shapes import DiTShape, UNetShape, ViTShape, dit_step, unet_step, vit_step
from helpers.memory.other_shapes.layers import StepBytes
from helpers.techniques.diffusion import DiT, UNet

UNETS = (
    UNetShape(side=16, widths=(16, 32, 64)),
    UNetShape(side=32, channels=4, widths=(16, 32), blocks=1, heads=2, attention_levels=(0, 1)),
    UNetShape(side=16, widths=(24, 48, 72, 96), groups=4, heads=3, attention_levels=()),
)
DITS = (DiTShape(), DiTShape(side=32, patch=4, hidden=96, layers=2, heads=6, ffn_factor=3))
VITS = (ViTShape(32, 4, 3, 64, 3, 4, 256, 10), ViTShape(48, 16, 1, 96, 2, 3, 200, 7))
Case = tuple[StepBytes, Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]


class ViT(nn.Module):
    """Transformers' own, returning its logits."""

    def __init__(self, shape: ViTShape) -> None:
        super().__init__()
        config = ViTConfig(
            image_size=shape.side,
            patch_size=shape.patch,
            num_channels=shape.channels,
            hidden_size=shape.hidden,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            intermediate_size=shape.ffn,
            num_labels=shape.classes,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        self.model = ViTForImageClassification(config)

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images).logits


def images(shape: UNetShape | DiTShape, batch: int) -> tuple[Tensor, Tensor]:
    return torch.ones(batch, shape.channels, shape.side, shape.side), torch.arange(batch)


CASES: dict[str, Case] = {}
for _n, _shape in enumerate(UNETS):
    CASES[f"U-Net {_n}"] = (unet_step(_shape, 3), lambda s=_shape: UNet(s), lambda s=_shape: images(s, 3))
for _n, _shape in enumerate(DITS):
    CASES[f"DiT {_n}"] = (dit_step(_shape, 4), lambda s=_shape: DiT(s), lambda s=_shape: images(s, 4))
for _n, _shape in enumerate(VITS):
    CASES[f"ViT {_n}"] = (
        vit_step(_shape, 5),
        lambda s=_shape: ViT(s),
        lambda s=_shape: (torch.ones(5, s.channels, s.side, s.side),),
    )


def step_of(model: nn.Module, given: Callable[[], tuple[Tensor, ...]]) -> Callable[[], None]:
    def run() -> None:
        inputs = given()
        out = model(*inputs)
        out.backward(torch.ones_like(out))
        model.zero_grad()

    return run


def measured_and_traced(case: Case) -> tuple[Measurement, Measurement]:
    _, make, given = case
    model = make()
    measured = measure.step(step_of(model, given), model)
    with trace.fake(device="cpu"):
        model = make()
        traced = trace.record(step_of(model, given), model)
    return measured, traced.measured


@pytest.mark.parametrize("name", CASES)
def test_formula_trace_and_measurement_agree_within_a_percent(name: str) -> None:
    predicted = CASES[name][0]
    for found in measured_and_traced(CASES[name]):
        assert predicted.peak_bytes == pytest.approx(found.peak_bytes, rel=0.002)
        assert predicted.saved_bytes == pytest.approx(found.saved_bytes, rel=0.002)
        assert predicted.parameter_bytes == found.moments[0].parts["parameters"]
        if "U-Net" in name:  # autograd orders a transformer's broadcast sums as it likes: one small tensor more or less
            assert (predicted.peak_bytes, predicted.saved_bytes) == (found.peak_bytes, found.saved_bytes)
    assert sum(predicted.by_part.values()) <= predicted.saved_bytes


def test_what_a_unet_saves_is_told_by_resolution() -> None:
    """A module's name says its level: stages of the way down and up, and what stands between two levels."""
    shape = UNETS[0]
    measured, _ = measured_and_traced(CASES["U-Net 0"])
    found = dict.fromkeys(unet_step(shape, 3).by_part, 0)
    stages = {"down": shape.down, "up": shape.up}
    for module, size in measured.saved_by_module.items():
        first, _, rest = module.partition(".")
        at = rest.partition(".")[0]
        if first in stages and at:
            side = shape.side // 2 ** stages[first][int(at)].level
            found[f"{side} x {side}"] += size
    predicted = unet_step(shape, 3).by_part
    assert list(predicted) == ["time", "16 x 16", "8 x 8", "4 x 4"]
    assert 0.7 * predicted["16 x 16"] < found["16 x 16"] < predicted["16 x 16"]
    assert predicted["16 x 16"] > 1.5 * predicted["8 x 8"] > 1.5 * predicted["4 x 4"]


def test_twice_the_side_saves_four_times_as_much_in_a_unet() -> None:
    small, large = (unet_step(UNetShape(side=side, attention_levels=()), 2) for side in (32, 64))
    assert large.saved_bytes == pytest.approx(4 * small.saved_bytes, rel=0.01)
    assert large.parameter_bytes == small.parameter_bytes


def test_vit_b16_has_its_published_number_of_parameters() -> None:
    """86,567,656 with the classifier of ImageNet, as torchvision's vit_b_16 lists it; rounding adds a few KiB."""
    assert vit_step(ViTShape(), 1).parameter_bytes == pytest.approx(4 * 86_567_656, rel=1e-4)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: unet_step(UNetShape(), 0), "batch is 0"),
        (lambda: dit_step(DiTShape(), True), "batch is True"),
        (lambda: vit_step(ViTShape(), 1.5), "batch is 1.5"),
        (lambda: UNetShape(side=33), "side 33 for widths"),
        (lambda: UNetShape(widths=()), "widths ()"),
        (lambda: UNetShape(widths=(30,)), "a width of 30"),
        (lambda: UNetShape(widths=(32,), groups=5), "a width of 32 for 5 groups"),
        (lambda: DiTShape(patch=3), "side 16 in patches of 3"),
        (lambda: DiTShape(heads=5), "hidden 128 of 5 heads"),
        (lambda: ViTShape(patch=15), "side 224 in patches of 15"),
        (lambda: ViTShape(heads=7), "hidden 768 of 7 heads"),
    ],
)
def test_shapes_that_are_none(call: Callable[[], object], told: str) -> None:
    with pytest.raises(WorkbookError) as caught:
        call()
    assert told in caught.value.what
