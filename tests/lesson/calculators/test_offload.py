"""The offload calculator: the closed form's own numbers, a verdict for every memory, words that say what hides it."""

from dataclasses import replace

import pytest

from helpers.catalog import ServeSetup, TrainSetup, WorkbookError, device, tier
from helpers.catalog.split import Split
from helpers.catalog.tiers import TIERS
from helpers.lesson.calculators import offload, offload_serving_answer, offload_training_answer
from helpers.lesson.calculators.offload_places import HOST_RESERVE_BYTES, tier_sentence, tier_verdict
from helpers.lesson.drawing.marks import Box, Line, TextMark
from helpers.memory import budget
from helpers.memory import offload as closed_form
from helpers.memory.step.ranks.zero import held
from tests.lesson.calculators.live import boxes_of

CALCULATOR = offload()
LLAMA = ServeSetup("llama-3-70b", "fp8-e4m3")
PROMPTS = ServeSetup("llama-3-8b", users=16, context=1024)
STATES = TrainSetup(
    "llama-2-70b",
    "megatron-bf16",
    "adamw-fused",
    checkpointing="full",
    split=Split(8, zero=3),
    offload_optimizer="cpu",
    offload_parameters="cpu",
)
ON_DISK = replace(STATES, offload_optimizer="nvme")


def decode(source="host", **options):
    return offload_serving_answer(LLAMA, "rtx-4090", source=source, **options)


def lines_of(answer):
    return {line[:19].strip().partition("  ")[0]: line for line in answer.formula}


@pytest.mark.parametrize("source", ["host", *TIERS])
def test_the_slower_of_link_and_tier_counts(source):
    answer, pcie = decode(source), 32e9
    assert answer.link_bytes_per_s == (pcie if source == "host" else min(pcie, tier(source).read_bytes_per_s))
    assert answer.forward == closed_form.streamed(LLAMA, "rtx-4090", link_bytes_per_s=answer.link_bytes_per_s)
    assert answer.state == "exposed"


def test_a_decode_step_by_hand():
    answer = decode("990-pro")
    layer = answer.forward.layers_bytes[0]
    assert answer.forward.overlapped_s == pytest.approx(80 * layer / 7.45e9, rel=1e-3)
    assert answer.figures["tokens_per_s"] == pytest.approx(7.45e9 / (80 * layer), rel=1e-3)
    assert answer.parts["parameters"] + answer.parts["workspace"] == answer.forward.root_bytes + 2 * layer
    assert answer.parts["kv_cache"] == 2 * 80 * 8 * 128 * 2 * 2048
    assert answer.break_even_tokens == pytest.approx(330.3e12 / (2 * 7.45e9))
    assert answer.title == "llama-3-70b in fp8-e4m3, decode of 1 token: 9.19 s, copies exposed"


def test_a_large_prefill_is_hidden_and_its_card_would_hold_it_all():
    answer = offload_serving_answer(PROMPTS, "h100", "prefill")
    assert answer.state == "hidden"
    assert answer.forward.exposed_s == pytest.approx(answer.forward.copies_s[0])
    assert "Hidden: every copy but the first" in answer.sentence
    assert "nothing needs to be offloaded" in answer.sentence
    assert "a prefill's activations are not counted" in answer.sentence
    assert answer.users_that_hide == 15
    assert answer.resident_bytes == budget.serve(PROMPTS).held.total
    assert "nothing needs to be offloaded" not in decode().sentence


def test_one_buffer_overlaps_nothing():
    answer = offload_serving_answer(PROMPTS, "h100", "prefill", buffers=1)
    assert answer.state == "exposed"
    assert answer.forward.overlapped_s == pytest.approx(answer.forward.serial_s)
    assert "with one buffer nothing overlaps" in answer.sentence
    assert answer.parts["workspace"] == max(answer.forward.layers_bytes)


def test_the_batch_that_hides_is_told_with_the_room_for_it():
    few = offload_serving_answer(replace(PROMPTS, users=2), "h100", "prefill")
    assert "15 prompts of 1,024 tokens at once would hide it; with their 1.88 GiB of KV cache they fit" in few.sentence
    assert offload_serving_answer(replace(PROMPTS, users=15), "h100", "prefill").state == "hidden"
    assert offload_serving_answer(replace(PROMPTS, users=14), "h100", "prefill").state == "exposed"
    many = decode()
    assert many.users_that_hide > many.users_that_fit
    assert f"the card has room for {many.users_that_fit:,} beside the buffers" in many.sentence
    fits, more = (decode_of(users=many.users_that_fit + extra).verdicts[0] for extra in (0, 1))
    assert (fits, more) == ("fits", "tight")


def decode_of(**changes):
    return offload_serving_answer(replace(LLAMA, **changes), "rtx-4090")


def test_no_batch_hides_where_none_does():
    hopeless = offload_serving_answer(ServeSetup("deepseek-v3", context=1), "h100", source="ethernet-10g")
    assert hopeless.users_that_hide is None
    assert "No number of users hides the copies." in hopeless.sentence
    assert not any(line.startswith("hidden from") for line in hopeless.formula)


@pytest.mark.parametrize(
    ("weights", "source", "verdict", "told"),
    [
        (
            "fp8-e4m3",
            "desktop",
            "tight",
            "Tight in the DRAM of a desktop, 64 GB of DDR5-5600: 253.50 MiB left, and 4.00 GiB",
        ),
        (
            "bf16",
            "desktop",
            "does not fit",
            "Does not fit the DRAM of a desktop, 64 GB of DDR5-5600: 63.50 GiB too much.",
        ),
        ("nf4", "desktop", "fits", "Fits the DRAM of a desktop, 64 GB of DDR5-5600, with"),
        ("bf16", "990-pro", "fits", "What is read from a disk passes through the host's memory"),
        ("bf16", "100gbe", None, "The layers are in the memory of another machine"),
        ("bf16", "host", None, "Exposed"),
    ],
)
def test_every_place_has_its_verdict(weights, source, verdict, told):
    answer = offload_serving_answer(replace(LLAMA, weights=weights), "rtx-4090", source=source)
    assert answer.verdicts == ("fits", verdict)
    assert told in answer.sentence
    assert answer.figures["verdict"] == (verdict or "fits")
    missing = answer.forward.host_bytes - 2**36 if verdict == "does not fit" else 0
    assert answer.figures["missing_bytes"] == missing


def test_a_host_keeps_some_for_its_system_and_a_disk_does_not():
    desktop, disk = tier("desktop"), tier("990-pro")
    room = desktop.capacity_bytes - HOST_RESERVE_BYTES
    sizes = (room, room + 1, desktop.capacity_bytes, desktop.capacity_bytes + 1)
    assert [tier_verdict(desktop, size) for size in sizes] == ["fits", "tight", "tight", "does not fit"]
    assert [tier_verdict(disk, disk.capacity_bytes + more) for more in (0, 1)] == ["fits", "does not fit"]
    assert tier_sentence(tier("10gbe"), 2**60) == ""
    assert tier_sentence(tier("eight-gen5-nvme"), 2**30).startswith("Fits the eight local disks")


def test_experts_travel_and_few_are_met():
    dense, sparse = (offload_serving_answer(ServeSetup(name), "h100") for name in ("llama-3-8b", "mixtral-8x7b"))
    assert sparse.break_even_tokens / dense.break_even_tokens == pytest.approx(1 / 0.2717, rel=1e-3)
    prompts = offload_serving_answer(ServeSetup("mixtral-8x7b"), "h100", "prefill")
    assert "7.36 B × 989 TFLOP/s" in lines_of(prompts)["break-even"]
    uneven = offload_serving_answer(ServeSetup("deepseek-v3", "fp8-e4m3"), "h100")
    assert not uneven.is_uniform
    assert "each copy while the layer before it computes" in lines_of(uneven)["streamed"]


def test_experts_are_computed_on_the_host_and_no_crowd_is_called_for():
    setup = ServeSetup("gpt-oss-120b", weights="mxfp4", context=2048)
    answer = offload_serving_answer(setup, "rtx-4090")
    assert "24.5 ms with its experts computed on the host" in answer.title
    assert "21.2 ms to read 1.77 GiB of experts, desktop-dram, 89.6 GB/s" in lines_of(answer)["experts there"]
    told = " ".join(answer.sentences())
    assert "4.04 GiB of weights on the card; 202.50 KiB of hidden states go each way" in told
    assert "35,393" not in "\n".join([*answer.lines(), told])
    named = offload_serving_answer(setup, "rtx-4090", source="dgx-h100-dram").experts
    assert answer.experts.host_s / named.host_s == pytest.approx(614.4 / 89.6)
    assert (
        offload_serving_answer(setup, "h100").experts
        == offload_serving_answer(setup, "h100", source="dgx-h100-dram").experts
    )


@pytest.mark.parametrize(
    ("name", "more"),
    [("gpt-oss-120b", {"step": "prefill"}), ("gpt-oss-120b", {"source": "990-pro"}), ("llama-3-8b", {})],
)
def test_a_prompt_a_disk_and_a_dense_model_have_no_experts_on_a_host(name, more):
    answer = offload_serving_answer(ServeSetup(name, context=64), "rtx-4090", **more)
    assert answer.experts is None
    assert "break-even" in lines_of(answer)


def test_the_formula_is_the_answer():
    answer = decode()
    one = answer.forward
    copy, work = one.copies_s[0], one.computes_s[0]
    assert one.overlapped_s == pytest.approx(copy + 79 * max(copy, work) + work + one.root_s)
    assert "26.7 ms + 79 × max(26.7 ms, 857 µs) + 857 µs + 2.08 ms root" in lines_of(answer)["streamed"]


def test_training_by_hand():
    answer = offload_training_answer(STATES, "h100")
    n = STATES.model.parameters
    assert answer.host_parts["optimizer"] == pytest.approx(12 * n, rel=1e-4)
    assert answer.host_parts["gradients"] == pytest.approx(4 * n, rel=1e-4)
    assert answer.host_parts.total == 8 * held(STATES).host.total
    assert answer.peak.total == budget.train(STATES, "h100").peak_bytes
    assert (answer.longest.name, answer.state) == ("memory of the host", "exposed")
    assert answer.floor_s == answer.longest.seconds == pytest.approx(4.264, rel=1e-3)
    assert answer.serial_s == pytest.approx(sum(hop.seconds for hop in answer.hops) + answer.compute_s)
    assert answer.verdicts == {"device": "fits", "host": "fits", "disk": None}


def test_a_larger_micro_batch_hides_what_is_told():
    answer = offload_training_answer(STATES, "h100")
    assert (
        "From a micro-batch of 2 on compute is as long; it would take 15.76 GiB on the card, and fits."
        in answer.sentence
    )
    larger = offload_training_answer(replace(STATES, micro_batch=2), "h100")
    assert (larger.state, larger.peak.total) == ("hidden", answer.peak_that_hides_bytes)
    assert larger.floor_s == larger.compute_s
    assert "Hidden: the host's memory is the longest hop" in larger.sentence
    assert "From a micro-batch" not in larger.sentence
    disk = offload_training_answer(ON_DISK, "h100", disk="nd-h200-v5-nvme")
    assert (disk.longest.name, disk.micro_batch_that_hides) == ("disk, written", 20)
    assert "78.28 GiB on the card, which is tight" in disk.sentence
    slow = offload_training_answer(ON_DISK, "h100", disk="sata")
    assert "and does not fit" in slow.sentence


def test_a_disk_has_its_own_bytes_and_verdict():
    answer = offload_training_answer(ON_DISK, "h100", disk="990-pro")
    assert set(answer.disk_parts) == set(answer.host_parts)
    assert answer.disk_parts.total == 8 * held(ON_DISK).nvme.total
    assert answer.host_parts["parameters"] == 8 * held(ON_DISK).host["parameters"]
    assert answer.verdicts == {"device": "fits", "host": "fits", "disk": "fits"}
    assert "passes through the host's memory" in answer.sentence
    larger = offload_training_answer(replace(ON_DISK, model="llama-3.1-405b"), "h100", disk="990-pro")
    assert (larger.verdicts["disk"], larger.figures["verdict"]) == ("does not fit", "does not fit")


def test_only_an_update_elsewhere_waits_for_the_last_gradient():
    parameters = replace(STATES, offload_optimizer="none")
    assert "the update begins when" in offload_training_answer(STATES, "h100").sentence
    assert "the update begins when" not in offload_training_answer(parameters, "h100").sentence
    ranks = [offload_training_answer(STATES, "h100", ranks_per_host=count).host_parts.total for count in (1, 4, 8, 16)]
    assert ranks == [ranks[0], 4 * ranks[0], 8 * ranks[0], 8 * ranks[0]]


def test_a_schedule_and_two_memories_are_drawn():
    schedule, memories = decode("desktop").cards
    spans = [mark for mark in schedule.marks if isinstance(mark, Box) and mark.kind == "span"]
    assert len(spans) == 5 + 5 + 5  # copies, their layers, and the layers without a link
    assert "through 2 buffers" in schedule.alt
    assert len([mark for mark in memories.marks if isinstance(mark, Line) and mark.kind == "capacity"]) == 2
    assert "63.75 GiB of 64.00 GiB" in memories.alt


def test_hops_are_drawn_with_the_compute_line():
    times, _ = offload_training_answer(ON_DISK, "h100", disk="990-pro").cards
    assert [mark.part for mark in times.marks if isinstance(mark, Box) and mark.kind == "time"] == [
        "PCIe, down",
        "PCIe, up",
        "memory of the host",
        "disk, read",
        "disk, written",
    ]
    bold = [mark.text for mark in times.body if isinstance(mark, TextMark) and mark.bold]
    assert bold[0] == "disk, written"
    assert "Dashed: compute 2.22 s" in times.alt


def test_the_toggle_shows_the_controls_of_its_question():
    boxes = boxes_of(CALCULATOR)
    controls = {name: box.children[0] for name, box in boxes.items()}

    def shown():
        return {name for name, box in boxes.items() if box.layout.display != "none"}

    assert shown() == CALCULATOR.used(CALCULATOR.start)
    assert {"source", "users"} < shown()
    controls["question"].value = "train"
    assert {"ranks", "host"} < shown()
    assert not {"source", "disk"} & shown()
    controls["offload_optimizer"].value = "nvme"
    assert "disk" in shown()
    controls["question"].value = "serve"
    assert "disk" not in shown()


def test_the_controls_say_what_the_functions_are_given():
    assert str(CALCULATOR.answer(source="desktop-dram")) == str(decode("desktop"))
    training = {"question": "train", "model": "llama-2-70b", "gpu": "h100-80gb"}
    assert str(CALCULATOR.answer(**training)) == str(offload_training_answer(STATES, "h100"))
    half = CALCULATOR.answer(serve_percent=50, buffers=1, step="prefill")
    assert str(half) == str(decode(step="prefill", buffers=1, efficiency=0.5))
    disk = CALCULATOR.answer(**training, offload_optimizer="nvme", train_percent=30, ranks_per_host=4)
    assert str(disk) == str(offload_training_answer(ON_DISK, "h100", "dgx-h100-dram", "nd-h200-v5-nvme", 4, 0.3))


def test_what_offloads_nothing_is_told():
    values = {**CALCULATOR.start, "question": "train", "model": "gpt2", "offload_optimizer": "none"}
    assert "this setup offloads nothing" in CALCULATOR.render({**values, "offload_parameters": "none"})
    assert "choose zero=3" in CALCULATOR.render({**values, "zero": 2})


BAD = [
    (lambda: decode("nowhere"), "unknown tier 'nowhere'"),
    (lambda: decode("desktop-darm"), "did you mean 'desktop-dram'"),
    (lambda: decode(step="train"), "unknown step"),
    (lambda: decode(buffers=0), "buffers is 0"),
    (lambda: decode(buffers=3), "buffers is 3"),
    (lambda: decode(efficiency=0), "efficiency is 0"),
    (lambda: decode(efficiency=1.2), "efficiency is 1.2"),
    (lambda: decode(reserve_bytes=-1), "reserve is -1"),
    (lambda: offload_serving_answer(LLAMA, "a100-80gb"), "fp8-e4m3"),
    (lambda: offload_serving_answer(LLAMA, "m2-ultra-192gb", source="990-pro"), "CPU and GPU share one memory"),
    (lambda: offload_serving_answer(LLAMA, "h1000"), "unknown device"),
    (lambda: offload_training_answer(STATES, "m4-max-128gb"), "CPU and GPU share one memory"),
    (lambda: offload_training_answer(ON_DISK, "h100"), "none is named"),
    (lambda: offload_training_answer(ON_DISK, "h100", disk="desktop"), "is no disk"),
    (lambda: offload_training_answer(STATES, "h100", "sata"), "is no memory of a host"),
    (lambda: offload_training_answer(STATES, "h100", reserve_bytes=-1), "reserve is -1"),
    (lambda: offload_training_answer(STATES, "h100", efficiency=1.5), "efficiency is 1.5"),
    (lambda: offload_training_answer(STATES, "h100", ranks_per_host=0), "ranks_per_host is 0"),
]


@pytest.mark.parametrize(("call", "told"), BAD)
def test_bad_input(call, told):
    with pytest.raises(WorkbookError, match=told):
        str(call())


def test_a_card_with_fp16_alone_unpacks_to_it():
    answer = offload_serving_answer(ServeSetup("llama-3-8b", "nf4"), "t4")
    assert answer.flops_per_s == device("t4").flops_per_s("fp16")
