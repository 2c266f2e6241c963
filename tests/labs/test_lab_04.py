"""What lab 04 says in words is what its code does; its formats and its rules are those of others."""

from __future__ import annotations

import math
import random
import re

import pytest
import torch

from helpers.catalog.floats import FloatFormat
from helpers.course import notebook as nb
from helpers.course.mutants import find_mutants, load_mutants
from helpers.lesson import draw
from tests.labs.common import lab_path, printed, source
from tests.labs.conftest import defined_by
from tests.labs.honest import honest, table

LAB = lab_path("04")
E3M4 = FloatFormat("e3m4", 3, 4, 3, "ieee", "")


@pytest.mark.parametrize(
    ("question", "check", "figures"),
    [
        ("q1", "e3m4-nearest", ["26"]),
        ("q1", "e3m4-subnormal", ["00"]),
        ("q1", "e3m4-special", ["15.75", "70"]),
        ("q1", "e3m4-memory", ["64 bytes a value"]),
        ("q2", "loss-scale-falls", ["256"]),
        ("q4", "blocks-bytes", ["13,000", "4.33"]),
        ("q4", "blocks-error", ["13 %"]),
    ],
)
def test_the_figures_of_a_target_are_printed_by_its_check(lab, question, check, figures):
    target = re.search(r"\*\*Target:\*\*.*", source(lab, question))[0]
    assert [figure for figure in figures if figure not in target or figure not in printed(lab, check)] == []


def every_encoder(names):
    tried = with_honest(names)
    return {name: tried[name] for name in ("encode_e3m4", *honest("04")) if name.startswith("encode")}


def test_every_encoder_is_the_catalogues_on_drawn_bits(names):
    rng = random.Random(3)
    bits = [rng.getrandbits(32) for _ in range(2000)]
    bits += [(rng.randrange(2) << 31) + (rng.randint(118, 132) << 23) + rng.getrandbits(23) for _ in range(6000)]
    words = [bit - (bit >> 31 << 32) for bit in bits]
    values = torch.tensor(words, dtype=torch.int32).view(torch.float32)
    values = values[~values.isnan()]
    right = torch.tensor([E3M4.encode(value) for value in values.tolist()], dtype=torch.uint8)
    off = {name: int((encode(values) != right).sum()) for name, encode in every_encoder(names).items()}
    assert off == dict.fromkeys(off, 0)


def test_every_code_comes_back_as_itself(names):
    codes = torch.arange(256, dtype=torch.uint8)
    numbers = [code for code in range(256) if code & 127 <= 0x70]
    for name, encode in every_encoder(names).items():
        again = encode(names["decode_e3m4"](codes))
        assert again[numbers].tolist() == numbers, name
        assert all(code & 127 > 0x70 for code in again[names["decode_e3m4"](codes).isnan()].tolist()), name


def test_the_numbers_of_the_reference_are_the_catalogues(names):
    assert names["NUMBERS"][:-1] == [E3M4.decode(code) for code in range(0x70)]
    mine = names["decode_e3m4"](torch.arange(256, dtype=torch.uint8)).tolist()
    assert [f"{one:g}" for one in mine] == [f"{E3M4.decode(code):g}" for code in range(256)]


def test_ml_dtypes_agrees():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    numpy = pytest.importorskip("numpy")
    values = [random.Random(5).uniform(-17, 17) for _ in range(1000)]
    theirs = numpy.array(values, dtype=numpy.float32).astype(ml_dtypes.float8_e3m4).view(numpy.uint8).tolist()
    assert theirs == [E3M4.encode(float(numpy.float32(value))) for value in values]


def test_with_patience_of_one_the_rule_is_pytorchs(names):
    slopes = names["draw_levels"](draw("test-lab-04"), [3, 7, 0, 5], 20)
    for interval in (2, 5):
        theirs, scaler = [], torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=interval)
        weight = torch.ones(5, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=1e-3)
        for row in slopes:
            optimizer.zero_grad()
            scaler.scale((weight.half().float() * torch.tensor(row)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            theirs.append(scaler.get_scale())
        assert names["scales_of"](slopes, (2.0**14, interval, 1, 0.0)) == theirs


def test_nine_skipped_steps_bring_the_scale_down_as_the_target_says(names, lab):
    scales = names["scales_of"]([[2.0**7] * 5] * 12, (2.0**16, 10**6, 2, 1.0))
    assert scales[7:] == [512.0, 256.0, 256.0, 256.0, 256.0]
    assert "256 in 9 skipped steps" in source(lab, "q2")


def test_plain_bf16_goes_no_part_of_the_way(names, monkeypatch):
    plain = next(one for one in load_mutants(find_mutants(LAB)) if "PyTorch's own SGD" in one.source)
    tried = dict(names)
    exec(plain.source, tried)
    monkeypatch.setitem(names, "TightSGD", tried["TightSGD"])
    assert names["after_many_steps"]([1.5], [1.0], 2**-11, 0.0, 240, 1) == ([0.0], [0.0])


@pytest.mark.parametrize("name", ["TightSGD", *(name for name in honest("04") if name.startswith("TightSGD"))])
def test_an_honest_optimizer_is_far_from_every_bound(names, monkeypatch, name):
    """Chance may not decide about a point: about half of each bound is room enough for twelve seeds."""
    monkeypatch.setitem(names, "TightSGD", with_honest(names)[name])
    for seed in range(12):
        (mean,) = names["after_one_step"]([1.25], [1.5], 2**-10, seed)
        assert abs(mean - (1.25 - 1.5 * 2**-10)) * 128 <= 0.01
        for momentum in (0.0, 0.875):
            gradient = 1.25 * (1 - momentum)
            way = names["gone"](gradient, 2**-11, momentum, 240)
            (went,), (spread,) = names["after_many_steps"]([-1.5], [gradient], 2**-11, momentum, 240, seed)
            assert abs(went / way - 1) <= 0.06
            assert spread <= 0.3 * abs(way)
        assert names["toward"]([1.5], [-0.25], 2**-6, 320, seed)[0] <= 0.05
    kept, moved, apart, _ = weighed(name)
    assert kept <= 2
    assert apart <= 1
    assert [one for some in moved for one in some] == [pytest.approx(right, rel=0.03) for right in (-1.5, -1.5, -1, -1)]


def test_the_exponent_is_the_smallest_that_reaches_the_largest_value(names):
    rng = random.Random(2)
    for _ in range(200):
        largest = rng.choice([7.0, 3.5, 4.0, rng.uniform(1, 9)]) * 2.0 ** rng.randint(-40, 40)
        weight = torch.tensor([largest, -largest / 2])
        (e,) = names["exponents"](weight)
        assert 7 * 2.0 ** (e - 1) < weight[0].item() <= 7 * 2.0**e * (1 + 1e-7)


def test_what_is_stored_and_loaded_is_within_half_a_step(names):
    weight = names["draw_weight"](random.Random(1), 7, 31)
    loaded = names["load_blocks"](*names["store_blocks"](weight), weight.shape)
    assert max(names["steps_off"](weight, loaded.flatten().tolist())) <= 0.5
    assert names["opened"]("", *names["store_blocks"](weight), weight.numel()) == loaded.flatten().tolist()


def test_a_format_of_helpers_says_nothing_while_it_is_locked(names):
    with names["on_its_own"](), pytest.raises(names["WorkbookError"], match="knows the answer"):
        E3M4.encode(1.0)
    assert E3M4.encode(1.0) == 0x30
    assert math.isinf(E3M4.decode(0x70))


def weighed(name):
    defined = defined_by(nb.read(LAB))
    defined["TightSGD"] = with_honest(defined)[name]
    return defined["kept_beside"]((1300, 1300), 2**-9, 0.5, 3)


def with_honest(names):
    tried = dict(names)
    exec(table("04"), tried)
    return tried
