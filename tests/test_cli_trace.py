"""`workbook trace`: the real code without memory, from the terminal."""

import json

import pytest

from helpers.catalog import ServeSetup, TrainSetup
from helpers.cli import main
from helpers.memory import breakdown, budget
from helpers.memory.breakdown import PARTS, Phase
from tests.versions import divided_embedding

TRAIN = ["trace", "train", "--model", "tiny-llama", "--precision", "bf16", "--sequence", "64"]
SERVE = ["trace", "serve", "--model", "tiny-llama", "--users", "2", "--context", "64"]


def told(capsys, *words):
    code = main([*words])
    return code, capsys.readouterr()


def test_training_beside_the_closed_form(capsys):
    code, said = told(capsys, *TRAIN, "--gpu", "a100")
    assert code == 0
    for words in (
        "trace",
        "budget",
        "residual",
        "parameters",
        "torch.cuda.max_memory_reserved()",
        "Fits the NVIDIA A100",
    ):
        assert words in said.out
    off = float(said.out.split("budget off by ")[1].split("%")[0])
    assert abs(off) < 0.1


def test_fp8_is_traced_on_a_card_that_has_it_and_refused_on_one_that_has_not(capsys):
    pytest.importorskip("torchao")
    fp8 = ["torchao-fp8" if word == "bf16" else word for word in TRAIN]
    code, said = told(capsys, *fp8)
    assert (code, said.err) == (0, "")
    assert abs(float(said.out.split("budget off by ")[1].split("%")[0])) < 0.1
    code, said = told(capsys, *fp8, "--gpu", "a100")
    assert code == 2
    assert "has no FP8 products" in said.err


def test_the_reserve_moves_the_verdict_and_accumulation_is_traced(capsys):
    code, said = told(capsys, *TRAIN, "--gpu", "a100", "--reserve", "81150", "--accumulate", "2")
    assert code == 0
    assert "2 accumulated" in said.out.splitlines()[0]
    assert "Tight on the NVIDIA A100" in said.out
    off = float(said.out.split("budget off by ")[1].split("%")[0])
    assert abs(off) < 0.1


def test_json_has_every_figure_in_bytes(capsys):
    _, said = told(capsys, *TRAIN, "--gpu", "h100", "--json")
    found = json.loads(said.out)
    assert list(found["parts"]) == list(PARTS)
    assert sum(found["parts"].values()) == found["peak_bytes"] <= found["peak_allocated_bytes"]
    assert found["peak_allocated_bytes"] <= found["peak_reserved_bytes"]
    assert list(found["phases"]) == ["forward", "backward", "optimizer step"]
    assert found["device"]["fits"] is True
    predicted = budget.train(TrainSetup("tiny-llama", "bf16", "adamw-fused", sequence=64), "h100").parts
    assert found["budget_parts"] == {part: predicted.get(part, 0) for part in PARTS}


def test_json_names_a_phase_by_what_it_is_and_not_by_its_caption(capsys, monkeypatch):
    monkeypatch.setitem(breakdown.CAPTIONS, Phase.FORWARD, "the way up")
    _, said = told(capsys, *TRAIN, "--json")
    assert list(json.loads(said.out)["phases"]) == ["forward", "backward", "optimizer step"]


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_serving_by_phase(phase, capsys):
    _, said = told(capsys, *SERVE, "--phase", phase, "--json")
    kv = budget.serve(ServeSetup("tiny-llama", users=2, context=64)).held["kv_cache"]
    assert kv <= json.loads(said.out)["parts"]["kv_cache"] <= 1.6 * kv


@pytest.mark.parametrize("gpu", ["m4-max-128gb", "mi300x-192gb"])
@pytest.mark.parametrize("command", [TRAIN, SERVE])
def test_a_card_without_cuda_is_refused(command, gpu, capsys):
    code, said = told(capsys, *command, "--gpu", gpu)
    assert (code, said.out) == (2, "")
    assert "has no CUDA" in said.err


def test_where_the_closed_form_has_no_answer_the_trace_stands_alone(capsys):
    """What an offload brings back depends on who asks when."""
    _, said = told(capsys, *TRAIN, "--checkpointing", "offload", "--json")
    assert json.loads(said.out)["budget_parts"] is None


def test_dtype_stands_for_the_recipe(capsys):
    _, half = told(capsys, *TRAIN[:4], "--dtype", "bf16", "--sequence", "64", "--json")
    _, full = told(capsys, *TRAIN[:4], "--dtype", "fp32", "--sequence", "64", "--json")
    assert json.loads(full.out)["parts"]["parameters"] > 1.9 * json.loads(half.out)["parts"]["parameters"]


def test_lora(capsys):
    pytest.importorskip("peft")
    code, said = told(capsys, *TRAIN, "--lora-rank", "8", "--lora-targets", "q_proj,o_proj")
    assert code == 0
    assert "LoRA of rank 8 on q_proj, o_proj" in said.out
    assert "budget" in said.out


@pytest.mark.parametrize(
    ("words", "phrase"),
    [
        ([*TRAIN, "--steps", "0"], "steps"),
        ([*TRAIN, "--gpu", "h1000"], "h1000"),
        ([*TRAIN, "--zero", "2", "--ranks", "2"], "ranks"),
        ([*TRAIN, "--zero", "3", "--ranks", "2", "--offload-optimizer", "cpu"], "counts the memory of one device"),
        ([*TRAIN, "--lora-rank", "0"], "LoRA rank"),
        ([*TRAIN, "--dtype", "fp8"], "fp8"),
        ([*SERVE, "--weights", "int8"], "int8"),
        (["trace", "serve", "--model", "tiny-lama"], "tiny-lama"),
    ],
)
def test_bad_input_ends_in_one_clear_error(words, phrase, capsys):
    code, said = told(capsys, *words)
    assert code == 2
    assert phrase in said.err
    assert "Traceback" not in said.err


def test_a_policy_that_is_more_than_segments_is_put_in(capsys):
    plain, selective = (json_of(capsys, "--checkpointing", policy) for policy in ("none", "selective"))
    assert selective["peak_allocated_bytes"] < plain["peak_allocated_bytes"]


@pytest.mark.slow
def test_a_quantized_base_is_smaller(capsys):
    pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    lora = ("--lora-rank", "4", "--model", "llama-3.2-1b", "--sequence", "16")
    plain, quantized = (json_of(capsys, *lora, *more) for more in ((), ("--lora-base", "nf4")))
    assert quantized["peak_allocated_bytes"] < plain["peak_allocated_bytes"]


def json_of(capsys, *flags):
    tiny = ["--model", "tiny-llama", "--micro-batch", "8", "--sequence", "256", "--precision", "bf16"]
    assert main(["trace", "train", "--json", *tiny, *flags]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_run_that_does_not_fit_says_out_of_memory_and_where(capsys):
    big = ["trace", "train", "--model", "llama-3.2-1b", "--precision", "bf16", "--sequence", "2048"]
    _, said = told(capsys, *big, "--gpu", "t4")
    last = said.out.splitlines()[-1]
    assert last.startswith("Out of memory on the NVIDIA T4 16 GB, in the forward, in model.layers.")
    assert "it asks for" in last
    _, said = told(capsys, *big, "--gpu", "t4", "--json")
    failed = json.loads(said.out)["out_of_memory"]
    assert failed["phase"] == "forward"
    assert failed["module"].startswith("model.layers.")
    assert failed["asked_bytes"] + failed["allocated_bytes"] - 2**30 * 12 > 0
    _, said = told(capsys, *TRAIN, "--gpu", "t4", "--json")
    assert json.loads(said.out)["out_of_memory"] is None


def test_a_model_too_large_to_load_says_so(capsys):
    _, said = told(capsys, "trace", "serve", "--model", "llama-3-70b", "--context", "16", "--gpu", "t4")
    assert "Out of memory on the NVIDIA T4 16 GB, in the loading of the model" in said.out.splitlines()[-1]


def test_the_closed_form_names_the_first_moment_that_is_too_much(capsys):
    assert main(["estimate", "train", "--model", "llama-2-7b", "--gpu", "h100"]) == 0
    assert "Out of memory at the end of the forward pass, in the loss." in capsys.readouterr().out.splitlines()[-1]
    assert main(["estimate", "serve", "--model", "llama-3-8b", "--gpu", "rtx-4090", "--users", "64"]) == 0
    assert "Out of memory in the prefill" in capsys.readouterr().out
    assert main(["estimate", "serve", "--model", "llama-3-8b", "--gpu", "h100"]) == 0
    assert "Out of memory" not in capsys.readouterr().out


def peak(capsys, *words):
    code, said = told(capsys, *TRAIN, *words, "--json")
    assert (code, said.err) == (0, "")
    return json.loads(said.out)


def test_one_rank_of_several(capsys):
    alone, shared = peak(capsys), peak(capsys, "--fsdp", "4")
    assert shared["parts"]["optimizer"] == pytest.approx(alone["parts"]["optimizer"] / 4, rel=0.1)
    assert sum(shared["budget_parts"].values()) == pytest.approx(shared["peak_bytes"], rel=0.01)
    code, said = told(capsys, *TRAIN, "--fsdp", "4", "--rank", "3")
    assert code == 0
    assert "on rank 3 of FSDP 4" in said.out


def test_ranks_are_those_of_all_dimensions(capsys):
    both = peak(capsys, "--ranks", "4", "--tensor-parallel", "2")
    assert both == peak(capsys, "--fsdp", "2", "--tensor-parallel", "2")
    assert peak(capsys, "--zero", "3", "--ranks", "2") == peak(capsys, "--fsdp", "2")


def test_a_pipelines_last_stage_has_the_head(capsys):
    pipeline = ["--pipeline", "2", "--accumulate", "4", "--rank"]
    first, last = (peak(capsys, *pipeline, rank) for rank in ("0", "1"))
    assert last["peak_bytes"] > first["peak_bytes"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--ranks", "5", "--tensor-parallel", "2"], "multiple of 2"),
        (["--tensor-parallel", "0", "--ranks", "4"], "tensor_parallel is 0"),
        (["--rank", "1"], "0 to 0"),
        (["--pipeline", "2", "--schedule", "best"], "1F1B"),
    ],
)
def test_a_split_that_cannot_be(capsys, flags, words):
    code, said = told(capsys, *TRAIN, *flags)
    assert code == 2
    assert words in said.err
    assert "Traceback" not in said.err


@divided_embedding
@pytest.mark.parametrize("flags", [["--tensor-parallel", "2"], ["--tensor-parallel", "4"]])
def test_the_closed_form_divides_each_layer_as_well(capsys, flags):
    found = peak(capsys, "--fsdp", "4", *flags)
    assert sum(found["budget_parts"].values()) == pytest.approx(found["peak_bytes"], rel=0.0025)


@pytest.mark.parametrize("flags", [["--rank", "3"], ["--tensor-parallel", "2", "--rank", "1"]])
def test_the_closed_form_is_that_of_every_rank(capsys, flags):
    found = peak(capsys, "--fsdp", "4", *flags)
    assert sum(found["budget_parts"].values()) == pytest.approx(found["peak_bytes"], rel=0.0025)


def test_the_closed_form_gives_back_what_it_gathers(capsys):
    found = peak(capsys, "--fsdp", "4", "--no-reshard")
    assert found["budget_parts"] is None
    assert found["phases"]["forward"] > peak(capsys, "--fsdp", "4")["phases"]["forward"]


def test_qlora_with_a_release_that_loads_by_threads_reserves_a_range(capsys, tmp_path):
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("peft")
    path = tmp_path / "config.json"
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 8}
    path.write_text(json.dumps({"model_type": "llama", "num_key_value_heads": 8, "vocab_size": 1000, **sizes}))
    words = ["trace", "train", "--model", str(path), "--lora-rank", "4", "--lora-base", "nf4", "--precision", "bf16"]
    words += ["--sequence", "64", "--gpu", "t4", "--transformers"]
    _, early = told(capsys, *words, "5.1", "--json")
    _, late = told(capsys, *words, "5.17", "--json")
    _, text = told(capsys, *words, "5.1")
    low, high = json.loads(early.out)["peak_reserved_range_bytes"]
    assert low <= json.loads(early.out)["peak_reserved_bytes"] <= high
    assert low < high
    assert json.loads(late.out)["peak_reserved_range_bytes"] is None
    assert "read weights ahead of the quantizer" in text.out
    assert "If loading reserves the most: Fits" in text.out


def test_a_release_before_5_0_is_refused_before_anything_runs(capsys):
    code, said = told(capsys, *TRAIN, "--transformers", "4.57")
    assert code == 2
    assert "not known here" in said.err


@divided_embedding
def test_a_tensor_parallel_rank_stands_beside_its_closed_form(capsys):
    code, said = told(capsys, *TRAIN, "--gpu", "h100", "--tensor-parallel", "2", "--rank", "1")
    assert code == 0
    assert abs(float(said.out.split("budget off by ")[1].split("%")[0])) < 0.5


def test_weights_that_are_too_large_alone_are_told_before_any_moment(capsys):
    assert main(["estimate", "train", "--model", "llama-3-8b", "--gpu", "rtx-4090"]) == 0
    assert "Out of memory while the model is loaded." in capsys.readouterr().out.splitlines()[-1]


def test_a_trace_is_written_for_pytorchs_viewer(tmp_path, capsys):
    from helpers.memory.allocator import read_snapshot

    path = tmp_path / "step.pickle"
    assert main([*TRAIN, "--json", "--snapshot", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)
    assert read_snapshot(path).reserved_bytes > 2**20
    assert len(read_snapshot(path).trace()) > 1000
    assert main([*TRAIN, "--snapshot", str(tmp_path / "nowhere" / "step.pickle")]) == 2
    assert "a file in a folder that exists" in capsys.readouterr().err
