"""The roofline calculator: worked values, sums that are the numbers they explain, claims that hold when tried."""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest

from helpers.catalog import DEVICES, NUMBER_FORMATS, WorkbookError, device
from helpers.cli import main
from helpers.lesson.calculators import roofline, roofline_answer
from helpers.lesson.calculators.operators import DEFAULTS, LARGEST, OPERATORS, SIZES
from helpers.lesson.units import si
from helpers.memory.work import Roof, Work
from tests.lesson.calculators.live import live

CALCULATOR = roofline()
# By hand, from the H100's 3.35 TB/s, 989.4 TFLOP/s in BF16 and 66.9 in FP32: bytes, FLOPs, microseconds.
WORKED = [
    ("linear", {"tokens": 1, "width": 4096, "outputs": 4096}, 2 * (4096**2 + 2 * 4096), 2 * 4096**2, 10.02, "memory"),
    ("linear", {"tokens": 4096, "width": 4096, "outputs": 4096}, 6 * 4096**2, 2 * 4096**3, 138.9, "compute"),
    ("attention-decode", {"context": 8192}, 2 * (2 * 4096 + 2 * 8192 * 1024), 4 * 8192 * 4096, 10.02, "memory"),
    ("attention-prefill", {"tokens": 8192}, 2 * 8192 * (4096 + 2 * 1024 + 4096), 4 * 8192**2 * 4096, 1111.3, "compute"),
    ("softmax", {"tokens": 4096}, 2 * 2 * 4096**2, 5 * 4096**2, 20.03, "memory"),
    ("layernorm", {"tokens": 4096}, 2 * (2 * 4096**2 + 4 * 4096), 8 * 4096**2, 20.04, "memory"),
    ("copy", {"tokens": 4096}, 2 * 2 * 4096**2, 0, 20.03, "memory"),
]


@pytest.mark.parametrize(("op", "sizes", "size_bytes", "flops", "microseconds", "bound"), WORKED)
def test_values_worked_by_hand(op, sizes, size_bytes, flops, microseconds, bound):
    answer = roofline_answer("h100", op, "bf16", **sizes)
    assert (answer.work.bytes, answer.work.flops) == (size_bytes, flops)
    assert answer.figures["seconds"] * 1e6 == pytest.approx(microseconds, rel=1e-3)
    assert answer.figures["bound"] == bound
    assert answer.title.endswith(f"{si(answer.figures['seconds'], 's')} at least, {bound}-bound")


ODD_SIZES = {"tokens": 12, "width": 768, "outputs": 3072, "context": 2048, "heads": 12, "kv_heads": 4}


@pytest.mark.parametrize("op", OPERATORS)
def test_the_sums_of_the_formula_are_the_work(op):
    rule = OPERATORS[op]
    for number, sizes in product(rule.formats, (DEFAULTS, ODD_SIZES)):
        full = {size: sizes[size] for size in rule.sizes}
        work = rule.work(number, **full)
        sums = [
            text.partition(", ")[0].replace(",", "").replace("×", "*").replace(" B", "")
            for text in rule.terms(number, **full)
        ]
        assert [eval(text) for text in sums] == [work.flops, work.read_bytes, work.written_bytes]


@pytest.mark.parametrize(("gpu", "number"), [("h100", "bf16"), ("t4", "fp16"), ("rtx-4090", "fp32"), ("a100", "tf32")])
@pytest.mark.parametrize(("width", "outputs"), [(4096, 4096), (4096, 14336), (1024, 1024), (512, 512), (16384, 128256)])
def test_the_crossing_of_a_linear_layer_is_exact(gpu, number, width, outputs):
    """m is past the ridge where 2mnk/F > s(mk + kn + mn)/B, so m > sknF / (2nkB - sF(k + n))."""
    answer = roofline_answer(gpu, "linear", number, width=width, outputs=outputs)
    size, rate, bandwidth = NUMBER_FORMATS[number].value_bytes, answer.roof.flops_per_s, answer.roof.bytes_per_s
    below = 2 * width * outputs * bandwidth - size * rate * (width + outputs)
    expected = size * width * outputs * rate // below + 1 if below > 0 else None
    assert answer.tokens_at_ridge == expected
    if expected:
        told = f"From {expected:,} tokens at once compute is the limit."
        assert told in answer.sentence
        bounds = [
            roofline_answer(gpu, "linear", number, tokens=at, width=width, outputs=outputs).figures["bound"]
            for at in (expected - 1, expected)
        ]
        assert bounds == ["memory", "compute"]
    else:
        assert f"No number of tokens up to {LARGEST:,} reaches the ridge" in answer.sentence


def test_the_crossing_of_fp8_counts_its_wider_output():
    answer = roofline_answer("h100", "linear", "fp8-e4m3", width=4096, outputs=4096)
    m, ridge = answer.tokens_at_ridge, Fraction(1_978_900, 3350)
    intensity = [Fraction(2 * t * 4096, t + 4096 + 2 * t) for t in (m - 1, m)]  # both over 4096
    assert intensity[0] <= ridge < intensity[1]


@pytest.mark.parametrize("op", [op for op in OPERATORS if op not in ("linear", "attention-prefill")])
def test_more_tokens_do_not_lift_the_others_to_the_ridge(op):
    answers = [roofline_answer("h100", op, tokens=tokens) for tokens in (1, 65536)]
    assert [answer.tokens_at_ridge for answer in answers] == [None, None]
    assert OPERATORS[op].cure in answers[0].sentence
    assert [answer.figures["bound"] for answer in answers] == ["memory", "memory"]


CASES = [*product(("h100", "t4"), OPERATORS, (1, 256, 512, 65536)), ("m2-ultra-192gb", "linear", 64)]


@pytest.mark.parametrize(("gpu", "op", "tokens"), CASES)
def test_what_the_sentence_says_of_other_cards_is_true(gpu, op, tokens):
    answer = roofline_answer(gpu, op, "fp16", tokens=tokens)
    work, roof = answer.work, answer.roof
    wider = replace(roof, bytes_per_s=2 * roof.bytes_per_s)
    faster = replace(roof, flops_per_s=2 * roof.flops_per_s)
    useless, useful = (faster, wider) if roof.bound(work) == "memory" else (wider, faster)
    assert useless.seconds(work) == roof.seconds(work)
    assert useful.seconds(work) < roof.seconds(work)
    assert f"makes it {si(useful.seconds(work), 's')}." in answer.sentence
    assert answer.sentence.startswith(f"{roof.bound(work).title()} is the limit: ")


def test_what_no_roof_counts_is_told_where_it_matters():
    tiny, usual = (roofline_answer("h100", "copy", tokens=tokens).sentence for tokens in (1, 65536))
    huge = roofline_answer("t4", "attention-decode", "fp16", tokens=65536, context=131072).sentence
    assert ["Starting the kernel" in text for text in (tiny, usual, huge)] == [True, False, False]
    assert ["larger than the device's memory" in text for text in (tiny, usual, huge)] == [False, False, True]


def test_rows_compute_in_fp32_whatever_they_store():
    for number in ("fp32", "bf16", "fp16"):
        assert roofline_answer("t4", "softmax", number).roof == Roof.of("t4", "fp32")
    assert roofline_answer("t4", "linear", "fp16").roof == Roof.of("t4", "fp16")


RATED = [name for name, entry in DEVICES.items() if entry.peak_flops]


@pytest.mark.parametrize("gpu", sorted(set(DEVICES) - set(RATED)))
def test_a_device_of_unknown_rate_is_not_offered_and_says_so(gpu):
    assert gpu not in CALCULATOR.options["gpu"][1]
    for op in OPERATORS:
        with pytest.raises(WorkbookError, match="is not in the catalogue"):
            roofline_answer(gpu, op)


@pytest.mark.parametrize("gpu", RATED)
def test_every_device_operator_and_format_answers_or_says_what_does(gpu):
    for (op, rule), number in product(OPERATORS.items(), NUMBER_FORMATS):
        runs = number in rule.formats and (not rule.matrix or number in device(gpu).peak_flops)
        if runs:
            assert roofline_answer(gpu, op, number).figures["seconds"] > 0
            continue
        with pytest.raises(WorkbookError) as refused:
            roofline_answer(gpu, op, number)
        if number in rule.formats:
            able = refused.value.expected.removeprefix("on this device: ").split(", ")
            assert able == [known for known in rule.formats if known in device(gpu).peak_flops]
            others = refused.value.do.partition(f"with {number}: ")[2].removesuffix(" …").split(", ")
            assert all(number in device(other).peak_flops for other in others)
        else:
            assert refused.value.expected == ", ".join(rule.formats)


BAD = [
    ({"gpu": "h1000"}, "as 12GiB"),
    ({"gpu": None}, "unknown device None"),
    ({"op": "layer-norm"}, "did you mean 'layernorm'?"),
    ({"op": ["copy"]}, "unknown operator"),
    ({"number_format": "bf17"}, "did you mean 'bf16'?"),
    ({"number_format": 16}, "unknown number format 16"),
    ({"number_format": "int8"}, "linear in int8 is not counted here"),
    ({"gpu": "t4"}, "no rate for matrix products in bf16"),
    ({"op": "softmax", "number_format": "tf32"}, "fp32, bf16, fp16"),
    ({"tokens": 0}, "from 1 to 16,777,216"),
    ({"tokens": 2**24 + 1}, "from 1 to 16,777,216"),
    ({"tokens": 1.0}, "tokens is 1.0"),
    ({"tokens": True}, "tokens is True"),
    ({"outputs": -1}, "outputs is -1"),
    ({"context": 8192}, "linear takes no context"),
    ({"colour": 1}, "linear takes no colour"),
    ({"op": "attention-decode", "heads": 5}, "width 4,096 is not divided by 5 heads"),
    ({"op": "attention-decode", "kv_heads": 64}, "32 heads share 64"),
]


@pytest.mark.parametrize(("change", "phrase"), BAD, ids=str)
def test_bad_input_is_refused(change, phrase):
    assert roofline_answer("h100", "linear", "bf16", tokens=LARGEST).figures["seconds"] > 0  # the good one beside
    with pytest.raises(WorkbookError) as refused:
        roofline_answer(**{"gpu": "h100", "op": "linear", "number_format": "bf16", **change})
    assert phrase in str(refused.value)


CHOICES = [
    {},
    {"tokens": 512},
    {"op": "copy"},
    {"op": "softmax", "gpu": "t4-16gb", "tokens": 4096},
    {"op": "attention-decode", "tokens": 64, "kv_heads": 1},
    {"op": "attention-prefill", "tokens": 8192},
]


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_the_calculator_and_the_command_give_one_answer(choices, capsys):
    chosen, answer = {**CALCULATOR.start, **choices}, CALCULATOR.answer(**choices)
    flags = {
        "gpu": "--gpu",
        "op": "--op",
        "number_format": "--format",
        **{size: f"--{size.replace('_', '-')}" for size in OPERATORS[chosen["op"]].sizes},
    }
    argv = ["estimate", "op", *(word for name, flag in flags.items() for word in (flag, str(chosen[name])))]
    assert main([*argv, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == answer.figures
    assert Work(said["flops"], said["read_bytes"], said["written_bytes"]) == answer.work
    assert (said["intensity"], said["ridge"]) == (answer.work.intensity, answer.roof.ridge)
    assert (said["seconds"], said["bound"]) == (answer.roof.seconds(answer.work), answer.roof.bound(answer.work))
    assert main(argv) == 0
    assert capsys.readouterr().out == f"{answer}\n"


def test_every_line_of_the_formula_fits_the_card():
    """A letter of a monospaced font is 0.602 of its 12.5 px: 96 of them and the padding are 755 px of 760."""
    largest = {name: max(options) for name, (_, options) in CALCULATOR.options.items() if name in SIZES}
    for op, rule in OPERATORS.items():
        sizes = {size: largest[size] for size in rule.sizes}
        assert max(map(len, roofline_answer("h100", op, "bf16", **sizes).formula)) <= 96


def test_controls_that_do_not_matter_are_hidden_and_keep_their_place():
    controls, *_, output = live(CALCULATOR)
    for op in (*OPERATORS, "linear"):
        controls["op"].value = op
        shown = {name for name, control in controls.items() if control.layout.visibility != "hidden"}
        assert shown == {"gpu", "op", "number_format", *OPERATORS[op].sizes}
        assert output.value == CALCULATOR.render({**CALCULATOR.start, "op": op})
    controls["op"].value, controls["context"].value = "softmax", 131072
    assert output.value == CALCULATOR.render({**CALCULATOR.start, "op": "softmax"})
