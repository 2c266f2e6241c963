"""Each row is the answer of the question that it belongs to, at its own calculator and at its own command."""

import json
import re
import shlex
from dataclasses import replace

import pytest

from helpers.catalog import Split, WorkbookError, device
from helpers.catalog.setup_fields import flag_of
from helpers.cli import main
from helpers.course import notebook as nb
from helpers.lesson.calculators import can_i_run, can_i_run_answer, uses, would_fit
from helpers.lesson.calculators.from_address import OFFERED, drawn, drawn_as_json
from helpers.memory import budget
from helpers.memory.fit import Room
from tests.catalog.gguf_files import gguf, llama, llama_tensors
from tests.house.tree import ROOT

ASKED = [
    ("llama-3.1-8b", "rtx-4090", {}),
    ("llama-3.1-70b", "h100-80gb", {"users": 50}),
    ("mixtral-8x7b", "h200", {"sequence": 512}),
    ("gpt-oss-20b", "rtx-4090", {}),
    ("qwen3:8b", "12GiB", {"users": 3, "context": 2048}),
    ("gpt2", "t4", {}),
]
asked = pytest.mark.parametrize(
    ("model", "gpu", "more"), ASKED, ids=lambda value: value if isinstance(value, str) else ""
)


def answered(model, gpu, **more):
    return [use for use in can_i_run_answer(model, gpu, **more).uses if not use.refused]


@asked
def test_a_row_is_what_its_command_prints(model, gpu, more, capsys):
    for use in answered(model, gpu, **more):
        closed = ["--no-traced"] if "fine-tuning" in use.command else []
        assert main([*shlex.split(use.command)[1:], "--json", *closed]) == 0
        if "--engine vllm" in use.command:
            said = json.loads(capsys.readouterr().out)
            assert (said["tensor"], said["users"] >= use.setup.users) == (use.cards, True)
            continue
        assert json.loads(capsys.readouterr().out)["peak_bytes"] == use.parts.total, use.name


@asked
def test_a_row_leads_to_the_calculator_with_its_settings(model, gpu, more):
    for use in answered(model, gpu, **more):
        slug, settings = use.page
        found = drawn(slug, settings)
        assert not found.failed, found.text
        assert set(settings) <= set(OFFERED[slug].controls)
        if slug == "fine_tuning":
            assert f"{use.parts.total / 2**30:,.2f} GiB at the peak" in found.title or use.parts.total < 2**30


@pytest.mark.parametrize("name", uses.WHY)
def test_a_row_leads_to_the_section_that_explains_it(name):
    chapter, heading = uses.WHY[name]
    cells = nb.read(ROOT / "notebooks" / f"{chapter}.ipynb").cells
    assert any(f"## {heading}" in cell.source.splitlines() for cell in cells)


def test_every_row_has_a_section_of_its_own():
    why = {use.name: use.why for use in can_i_run_answer("llama-3.1-8b", "h100").uses}
    assert why.pop("serve in bf16") == uses.WHY["serve"]
    assert why == {name: uses.WHY[name] for name in uses.WHY if name != "serve"}


def test_a_format_without_a_kernel_is_no_saving():
    """Below Ada Transformers makes BF16 of FP8, and below Turing of MXFP4: no row promises the smaller bytes."""
    rows = {gpu: {use.name: use for use in can_i_run_answer("llama-3.1-8b", gpu).uses} for gpu in ("rtx-3090", "l4")}
    assert "loads the weights as BF16" in rows["rtx-3090"]["serve in FP8"].refused
    assert rows["l4"]["serve in FP8"].setup.weights == "fp8-e4m3"
    assert "serve in FP8" not in [use.name for use in can_i_run_answer("llama-3.1-8b", "12GiB").uses]
    answer = can_i_run_answer("gpt-oss-20b", "v100-32gb")
    assert "no kernel for mxfp4" in answer.sentence
    assert "no kernel" not in can_i_run_answer("gpt-oss-20b", "t4").sentence


@asked
def test_the_most_fits_and_more_does_not(model, gpu, more):
    """The next page of context, user or length of sequence is too much, or there is none."""
    for use in answered(model, gpu, **more):
        room = use.room.for_tensors_bytes
        if not use.fits:
            assert use.parts.total > room
            assert use.change
            continue
        for name, most in use.most.items():
            assert would_fit.parts_of(replace(use.setup, **{name: most}), use.room.card).total <= room
            above = most + 1 if name == "users" else most + would_fit.PAGE
            end = uses.MOST_USERS if name == "users" else uses.longest_context(use.setup.model) or uses.MOST_TOKENS
            if above <= end:
                assert would_fit.parts_of(replace(use.setup, **{name: above}), use.room.card).total > room, (
                    use.name,
                    name,
                )


def test_cards_that_are_named_are_the_fewest():
    found = {use.name: use for use in can_i_run_answer("llama-3.1-70b", "h100-80gb", users=50).uses}
    assert found["serve in bf16"].change == "would fit on 4 of these cards, tensor parallel under vLLM"
    assert found["serve in bf16"].command.endswith("--engine vllm --tensor 4 --gpu h100-80gb")
    assert found["serve in FP8"].change == (
        "would fit on this one with at most 3 users; or on 2 with an FP8 KV cache; "
        "or on 4 of these cards, tensor parallel under vLLM"
    )
    assert found["train every weight"].change == "would fit on 32 of these cards, under FSDP2"
    setup, h100 = found["train every weight"].setup, device("h100-80gb")
    for count, fits in ((16, False), (32, True)):
        need = budget.train(replace(setup, split=Split(fsdp=count)), h100).peak_bytes
        assert (need <= Room(h100, None, count).for_tensors_bytes) == fits


@pytest.mark.parametrize(("gpu", "cards", "fewer_hold"), [("h200", 4, 45), ("h100-80gb", 4, 0)])
def test_cards_that_serve_hold_all_users_under_vllm(gpu, cards, fewer_hold):
    (use, *_) = can_i_run_answer("llama-3.1-70b", gpu, users=50).uses
    assert use.cards == cards
    assert use.page[1]["tensor_parallel"] == str(cards)
    half, all_of_them = (would_fit.launched(use.setup, device(gpu), count) for count in (cards // 2, cards))
    assert (half.users if half else 0) == fewer_hold
    assert all_of_them.users >= 50


def test_what_a_row_would_fit_with_fits_and_more_does_not():
    """Tokens of a context, users, or tokens of the one sequence: the number that is named is the last."""
    asked = [
        ("qwen2.5:14b", "rtx-3060-12gb", {}, "serve in 4 bits", "context", 7168),
        ("llama-3.1-70b", "h100-80gb", {"users": 50}, "serve in FP8", "users", 3),
        ("llama-3.1-70b", "h100-80gb", {"users": 4}, "serve in FP8", "users", 3),
        ("llama-3.1-8b", "rtx-4080", {"sequence": 4096}, "QLoRA", "sequence", 3328),
    ]
    for model, gpu, more, name, what, most in asked:
        (use,) = (one for one in answered(model, gpu, **more) if one.name == name)
        assert f"at most {most:,} {'users' if what == 'users' else 'tokens'}" in use.change
        room, step = use.room.for_tensors_bytes, 1 if what == "users" else would_fit.PAGE
        need = [would_fit.parts_of(replace(use.setup, **{what: most + by}), use.room.card).total for by in (0, step)]
        assert need[0] <= room < need[1]


def test_a_served_row_says_how_an_engine_starts():
    """vLLM where its own pool holds all users; llama.cpp by the file's name; a 4-bit checkpoint is the reader's."""
    starts = {use.name: use.start for use in can_i_run_answer("llama-3.1-70b", "h100-80gb", users=50).uses}
    assert starts["serve in FP8"] == (
        "vllm serve meta-llama/Llama-3.1-70B --tensor-parallel-size 4 --max-model-len 8192 --quantization fp8"
    )
    (fp8,) = (
        use for use in can_i_run_answer("llama-3.1-70b", "h100-80gb", users=50).uses if use.name == "serve in FP8"
    )
    assert fp8.start_with_fp8 == starts["serve in FP8"].replace("size 4", "size 2") + " --kv-cache-dtype fp8_e4m3"
    assert starts["serve in 4 bits"].startswith("vllm serve YOUR/MODEL-AWQ --tensor-parallel-size 4")
    assert starts["QLoRA"] is None
    assert can_i_run_answer("llama-3.1-8b", "mi300x").uses[0].start is None  # whose pool nobody has logged
    shipped = can_i_run_answer("gpt-oss-20b", "h100").uses[0]  # vLLM reads in the checkpoint what it is in
    assert shipped.start == "vllm serve openai/gpt-oss-20b --max-model-len 8192"


def test_a_pool_that_holds_fewer_users_than_fit_is_told():
    """Tensors alone fit for seven users, and vLLM takes its share for more than these."""
    for users, held in ((5, 0), (7, 5)):
        answer = can_i_run_answer("llama-3.1-8b", "rtx-4090", users=users)
        use = answer.uses[0]
        assert (use.fits, use.in_vllms_pool, bool(use.start)) == (True, held, not held)
        assert ("vLLM's pool holds 5" in str(answer)) == bool(held)


def test_several_cards_lead_to_the_planner_with_what_was_asked():
    answer = can_i_run_answer("llama-3.1-70b", "h100-80gb", users=50)
    assert answer.title.endswith("QLoRA fits; serving 50 users takes 2 cards or more")
    found = drawn("service_planner", answer.uses[0].plan)
    assert not found.failed, found.text
    assert answer.uses[3].plan == {}
    assert "not on one card" in answer.as_html()


def test_what_a_row_supposes_is_said():
    sentence = can_i_run_answer("gpt-oss-20b", "h100").sentence
    assert "KV cache in 16 bits" in sentence
    assert "need PYTORCH_ALLOC_CONF=expandable_segments:True" in sentence
    assert "expandable_segments" not in can_i_run_answer("gpt2", "m3-max-64gb").sentence  # no CUDA, no such setting
    assert "QLoRA leaves stacked experts out of the four bits" in sentence
    assert "is read as 14.90 GiB" in can_i_run_answer("llama-3.1-8b", "16GB").sentence
    assert "read as" not in can_i_run_answer("llama-3.1-8b", "16GiB").sentence
    assert can_i_run_answer("llama-3.1-8b", "24GB").sentence.startswith("24GB is read as 22.35 GiB")
    assert "Whether it serves FP8 depends on the card" in can_i_run_answer("llama-3.1-8b", "24GiB").sentence


def test_adapters_are_offered_where_they_can_be():
    """Experts that are stacked in one parameter take none: attention alone has them, and the answer says so."""
    answer = can_i_run_answer("mixtral-8x7b", "h200")
    assert [use.on_attention for use in answer.uses] == [False, False, False, True, True, False]
    assert "attention alone has them" in answer.sentence
    assert "attention alone" not in can_i_run_answer("llama-3.1-8b", "h200").sentence


def test_a_checkpoint_in_4_bits_is_served_as_it_ships():
    assert [use.name for use in can_i_run_answer("gpt-oss-20b", "h100").uses][:2] == ["serve in mxfp4", "QLoRA"]


def test_a_gguf_file_is_served_by_llama_cpp_alone(tmp_path):
    file = tmp_path / "Qwen2.5-14B-Instruct-Q4_K_M.gguf"  # which names no checkpoint of the hub
    file.write_bytes(gguf(llama(), llama_tensors()))
    (use,) = can_i_run_answer(str(file), "rtx-3060").uses
    assert (use.name, use.fits) == ("serve with llama.cpp", True)
    assert use.most["context"] == 8192  # which its positions end
    assert use.start == f"llama-server -m {file.name} -ngl 99 -c 8192 -np 1"
    two = can_i_run_answer(str(file), "rtx-3060", users=2, context=1024).uses[0]
    assert two.start.endswith("-c 2048 -np 2")  # -c is for all slots together
    own = str(ROOT / "helpers/lesson/data/llama-3.1-8b-q4_k_m.gguf")
    (whole,) = can_i_run_answer(own, "8GiB", context=32768).uses
    assert whole.change.startswith("would fit with a context of at most ")
    assert re.search(r"-ngl \d\d -c 32768 -np 1$", whole.start)
    (on_a_mac,) = can_i_run_answer(own, "m1-16gb", context=2**17).uses
    assert (on_a_mac.fits, on_a_mac.start) == (False, None)  # one memory: there is no other place for layers
    assert "--engine llama.cpp" in use.command


def test_what_is_tight_is_not_said_to_be_nothing():
    """Of 23.6 GiB 16 are kept, then 17: what needs 7.25 fits, and then nothing does, but all have the bytes."""
    answer = can_i_run_answer("llama-3.1-8b", "rtx-4090", reserve_bytes=16 * 2**30)
    assert answer.title.endswith("serve in 4 bits fits")
    tight = can_i_run_answer("llama-3.1-8b", "rtx-4090", reserve_bytes=17 * 2**30)
    assert tight.title.endswith("serve in bf16, serve in FP8, serve in 4 bits, QLoRA, LoRA are tight")


def test_a_file_keeps_the_name_that_its_reader_gave_it_where_that_can_be_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    class Sent:
        """What a page sends, as Pyodide has it."""

        def to_bytes(self):
            return gguf(llama(), llama_tensors())

    for called, kept in (
        ("mine-Q4_K_M.gguf", "mine-Q4_K_M.gguf"),
        ("<b>.gguf", "model.gguf"),
        ("../x.gguf", "model.gguf"),
    ):
        found = json.loads(drawn_as_json("can_i_run", "{}", Sent(), called))
        assert f"can-i-run ./{kept} " in found["command"]
        assert str(tmp_path) not in json.dumps(found)


def test_an_error_is_told_in_a_page_s_title():
    assert drawn("can_i_run", {"gpu": "asdf"}).title == "No answer: unknown device 'asdf'"


def test_what_has_no_answer_says_why():
    """A card whose kernels lack a format answers the other rows."""
    found = can_i_run_answer("llama-3.1-8b", "m3-max-64gb")
    assert all(use.setup or use.refused for use in found.uses)
    with pytest.raises(WorkbookError, match="unknown device"):
        can_i_run_answer("llama-3.1-8b", "h1000")


def test_html_has_a_row_for_each_and_links_that_a_page_can_make():
    answer = can_i_run().answer()
    html = answer.as_html()
    assert len(re.findall('<tr role="row" class=', html)) == len(answer.uses) == 6
    assert (
        re.findall(r'data-to="(calculators/\w+)\.html#', html)
        == ["calculators/kv_cache"] * 3 + ["calculators/fine_tuning"] * 3
    )
    assert "href" not in html  # a notebook has no such pages


def test_its_command_takes_the_model_by_position(capsys):
    command = can_i_run_answer("qwen3-32b", "h100", users=4).command
    assert command == "workbook can-i-run qwen3-32b --gpu h100-80gb --users 4"
    assert main(shlex.split(command)[1:]) == 0
    assert "serve in 4 bits" in capsys.readouterr().out
    assert flag_of("users") == "--users"
