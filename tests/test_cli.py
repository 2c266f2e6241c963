"""The `workbook` command: bad input is a table, good input prints JSON of one shape, and nothing is a traceback."""

import argparse
import gc
import json
import re
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import pytest

import helpers
from helpers.catalog import MODELS, Adapter, TrainSetup, device, model
from helpers.cli import GROUPS, _parser, by_trace, main
from helpers.memory import budget
from helpers.memory.breakdown import PARTS
from helpers.memory.fit import Room, reserve
from helpers.questions.parameters import OPTIMIZER
from helpers.questions.setups import setup_of

ROOT = Path(__file__).resolve().parents[1]
TRAIN = ["estimate", "train", "--model", "llama-2-7b"]
OP = ["estimate", "op", "--gpu", "h100-80gb", "--op"]
SERVE = ["estimate", "serve", "--model", "llama-3-8b"]
QUANTIZE = ["estimate", "quantize", "--model", "llama-3-8b"]
WHOLE = "is not a whole number"
BAD = [
    (["esimate"], "did you mean 'estimate'?"),
    (["--verison"], "did you mean '--version'?"),
    (["estimate", "trian"], "unknown command 'trian'"),
    (["estimate", "offload", "both"], "expected: serve, train"),
    (["estimate", "train"], "--model"),
    (["estimate", "train", "--modle", "gpt2"], "did you mean '--model'?"),  # and not: --model is required
    (["trace", "train", "--model", "gpt2", "--dtype", "bf-16"], "did you mean 'bf16'?"),
    ([*TRAIN, "--colour", "red"], "unknown flag '--colour'"),
    (["check", "02", "--batch"], "pick one of the 4 names"),  # the dashes alone make no two flags alike
    ([*TRAIN, "--prec", "bf16"], "unknown flag '--prec'"),  # no abbreviations: one spelling
    ([*TRAIN, "--batch=4"], "did you mean '--micro-batch'?"),
    ([*TRAIN, "red"], "unrecognized arguments: red"),
    ([*TRAIN, "--precision"], "expected one argument"),
    (["estimate", "train", "--model", "lama-2-7b"], "did you mean 'llama-2-7b'?"),
    (["estimate", "train", "--model", "llama"], "unknown model 'llama'"),
    (["estimate", "train", "--model", ""], "unknown model ''"),
    (["estimate", "train", "--model", "./nowhere/config.json"], "there is no file"),
    (["estimate", "train", "--model", "x" * 9000], "unknown model"),
    (["estimate", "train", "--model", "mixtral-8x7b", "--checkpointing", "offload"], "no closed form"),
    ([*TRAIN, "--lora-base", "nf4"], "--lora-base without adapters"),
    ([*TRAIN, "--adapter", "lokr"], "unknown kind of adapter 'lokr'"),
    ([*TRAIN, "--adapter", "vera"], "workbook trace train --adapter vera"),
    (["estimate", "fine-tuning", *TRAIN[2:], "--adapter", "ia3"], "workbook trace train --adapter ia3"),
    ([*TRAIN, "--adapter", "vera", "--lora-base", "nf4"], "a base in 16 bits"),
    ([*TRAIN, "--trainer", "trl"], "--trainer without adapters"),
    ([*TRAIN, "--no-prepared"], "--prepared without adapters"),
    ([*TRAIN, "--lora-rank", "8", "--lora-dropout", "1"], "from 0 to below 1"),
    ([*TRAIN, "--lora-rank", "8", "--lora-dropout", "5%"], "is not a decimal number"),
    ([*TRAIN, "--lora-rank", "8", "--trainer", "tlr"], "did you mean 'trl'?"),
    ([*TRAIN, "--lora-rank", "8", "--lora-targets", "qproj"], "did you mean 'q_proj'?"),
    ([*TRAIN, "--lora-rank", "8", "--precision", "megatron-bf16"], "a frozen base"),
    (["estimate", "fine-tuning", "--model", "gpt2", "--lora-rank", "8", "--sequence", "9"], "layer of gpt2"),
    (["estimate", "train", "--model", "gemma-2-9b", "--attention", "sdpa"], "caps its attention scores"),
    ([*TRAIN, "--gpu", "h1000"], "as 12GiB"),
    ([*TRAIN, "--gpu", ""], "unknown device ''"),
    ([*TRAIN, "--precision", "bf-16"], "did you mean 'bf16'?"),
    ([*TRAIN, "--precision", ""], "unknown precision ''"),
    ([*TRAIN, "--optimizer", "adamw-fussed"], "did you mean 'adamw-fused'?"),
    ([*TRAIN, "--attention", "flash"], "eager, sdpa"),
    ([*TRAIN, "--loss", "ligre"], "did you mean 'liger'?"),
    ([*TRAIN, "--micro-batch", "0"], "micro_batch is 0"),
    ([*TRAIN, "--micro-batch", "-3"], "micro_batch is -3"),
    ([*TRAIN, "--micro-batch", "1.5"], WHOLE),
    ([*TRAIN, "--micro-batch", "1e3"], WHOLE),
    ([*TRAIN, "--micro-batch", "1_000"], WHOLE),
    ([*TRAIN, "--micro-batch", " 7"], WHOLE),
    ([*TRAIN, "--micro-batch", "٣"], WHOLE),  # a digit to Python
    ([*TRAIN, "--micro-batch", ""], WHOLE),
    ([*TRAIN, "--micro-batch", "nan"], WHOLE),
    ([*TRAIN, "--micro-batch", "9" * 5000], WHOLE),
    ([*TRAIN, "--micro-batch", "9" * 17], "1,048,576"),
    ([*TRAIN, "--accumulate", "0"], "micro_batches is 0"),
    ([*TRAIN, "--gradient-accumulation-steps", "1.5"], WHOLE),
    ([*TRAIN, "--sequence", "0"], "sequence is 0"),
    ([*TRAIN, "--sequence", "99999999999"], "16,777,216"),
    (["estimate", "train", "--model", "gpt2", "--sequence", "1025"], "position for 1,024 tokens"),
    ([*TRAIN, "--ranks", "0"], "ranks is 0"),
    ([*TRAIN, "--zero", "4"], "zero is 4"),
    ([*TRAIN, "--reserve", "-1"], "reserve is -1"),
    ([*TRAIN, "--reserve", "1.3"], WHOLE),
    ([*QUANTIZE, "--reserve", "9999999999"], "1,048,576"),
    ([*TRAIN, "--zero", "-1"], "zero is -1"),
    ([*SERVE, "--skipped", "lm_hed"], "did you mean 'lm_head'?"),
    ([*QUANTIZE, "--weights", "nf5"], "unknown weight format 'nf5'"),
    ([*QUANTIZE, "--context", "0"], "context is 0"),
    (["train-lm", "--steps-scale", "0"], "steps_scale is 0"),
    ([*TRAIN, "--checkpointing", "every:0"], "every:K with K from 1 to 32"),
    ([*TRAIN, "--checkpointing", "every:99"], "every:K with K from 1 to 32"),
    ([*TRAIN, "--checkpointing", "some"], "none, full, selective, "),
    ([*SERVE, "--weights", "nf5"], "did you mean 'nf4'?"),
    ([*SERVE, "--kv", "nf4"], "unknown KV cache format"),
    ([*SERVE, "--users", "0"], "users is 0"),
    ([*SERVE, "--context", "-1"], "context is -1"),
    ([*SERVE, "--context", "1" * 16], "16,777,216"),
    ([*SERVE, "--precision", "bf16"], "unknown flag '--precision'"),  # of train, not of serve
    (["estimate", "op"], "arguments are required: --gpu, --op"),
    (["estimate", "attention"], "arguments are required: --gpu"),
    (["estimate", "attention", "--gpu", "t4"], "fp16"),
    (["estimate", "attention", "--gpu", "h100", "--heads", "12"], "kv_heads that divide heads"),
    (["estimate", "op", "--op", "linear"], "--gpu"),
    ([*OP, "gemm"], "unknown operator 'gemm'"),
    ([*OP, "sofmax"], "did you mean 'softmax'?"),
    ([*OP, "linear", "--gpu", "h1000"], "as 12GiB"),
    ([*OP, "linear", "--gpu", "t4"], "NVIDIA T4 16 GB has no rate for matrix products in bf16"),
    ([*OP, "linear", "--format", "bf17"], "did you mean 'bf16'?"),
    ([*OP, "linear", "--format", "nf4"], "linear in nf4 is not counted here"),
    ([*OP, "softmax", "--format", "tf32"], "fp32, bf16, fp16"),
    ([*OP, "linear", "--tokens", "0"], "tokens is 0"),
    ([*OP, "linear", "--tokens", "1e3"], WHOLE),
    ([*OP, "linear", "--outputs", "9" * 17], "16,777,216"),
    ([*OP, "linear", "--context", "8192"], "linear takes no context"),  # refused, not quietly dropped
    ([*OP, "attention-decode", "--kv-heads", "5"], "32 heads share 5"),
    ([*OP, "attention-decode", "--heads", "5"], "width 4,096 is not divided by 5 heads"),
    ([*OP, "linear", "--model", "gpt2"], "unknown flag '--model'"),
    ([*TRAIN, "--fit"], "--fit needs a device"),
    ([*SERVE, "--fit"], "--fit needs a device"),
    ([*OP, "linear", "--fit"], "unknown flag '--fit'"),
    (["explain-oom"], "arguments are required: FILE"),
    (["explain-oom", "nowhere.txt"], "cannot read nowhere.txt"),
    (["explain-oom", "."], "Is a directory"),
    (["explain-oom", "pyproject.toml"], "no out-of-memory message"),
    (["explain-oom", "x", "--gpu", "h1000"], "as 12GiB"),
    (["explain-oom", "x", "--users", "3"], "--users without --model"),
    (["explain-oom", "x", "--model", "gpt2", "--users", "3", "--zero", "1"], "--zero and --users together"),
    (["explain-oom", "x", "--model", "gtp2"], "did you mean"),
    (["explain-oom", "x", "--accumulate", "3"], "--accumulate without --model"),
    (["explain-oom", "x", "--lora-rank", "8"], "--lora-rank without --model"),
    (["explain-oom", "x", "--model", "gpt2", "--lora-base", "nf4"], "--lora-base without adapters"),
    (["explain-oom", "x", "--model", "gpt2", "--adapter", "lora", "--users", "3"], "--adapter and --users together"),
    (["explain-oom", "x", "--model", "gpt2", "--micro-batch", "1.5"], WHOLE),
    (["check"], "lab"),
    (["check", "02", "--show", "1", "--json"], "not allowed with argument"),
    (["check", "99"], "99"),
    (["build", "77"], "77"),
    (["release", "--check", "--nbgrader", "x"], "not allowed with argument --check"),
    (["release", "--nbgrader", "pyproject.toml"], "holds something else"),
    (["sample-class", "02"], "--out"),
    (["sample-class", "99", "--out", "x"], "99"),
    (["sample-class", "02", "--out", "tests"], "holds something"),
]
FILES = [
    ("not json", "cannot be read as JSON"),
    ("", "cannot be read as JSON"),
    ("[1, 2]", "holds a JSON list"),
    ("{}", "model_type"),
    ('{"model_type": "llama"}', "is missing"),
    ('{"model_type": "llama", "hidden_size": -1}', "is"),
    ("\ufeff{", "cannot be read as JSON"),
]


def failure(argv, capsys):
    """stderr of a refused command, which prints nothing else and exits with 2."""
    assert main(argv) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "expected:" in printed.err
    assert "do:" in printed.err
    assert "Traceback" not in printed.err
    return printed.err


@pytest.mark.parametrize(("argv", "phrase"), BAD, ids=lambda value: str(value)[:60])
def test_bad_input_is_refused_with_what_is_allowed(argv, phrase, capsys):
    assert phrase in failure(argv, capsys)


@pytest.mark.parametrize(("content", "phrase"), FILES, ids=[content for content, _ in FILES])
@pytest.mark.parametrize("kind", ["train", "serve"])
def test_bad_config_files(kind, content, phrase, tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(content)
    assert phrase in failure(["estimate", kind, "--model", str(path)], capsys)


def test_a_folder_without_a_config_and_bytes_that_are_no_text(tmp_path, capsys):
    assert "there is no file" in failure([*TRAIN[:-1], str(tmp_path)], capsys)
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in failure([*TRAIN[:-1], str(tmp_path)], capsys)


def as_json(argv, capsys):
    assert main([*argv, "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return json.loads(printed.out)


GOOD = [
    ("train", []),
    ("train", ["--gpu", "H100-80GB"]),
    ("train", ["--precision", "BF16", "--optimizer", "adamw", "--checkpointing", "every:32"]),
    ("train", ["--accumulate", "8"]),
    ("train", ["--zero", "3", "--ranks", "64", "--attention", "eager", "--micro-batch", "007"]),
    ("serve", []),
    ("serve", ["--gpu", "t4", "--weights", "nf4", "--kv", "fp8-e4m3", "--users", "16", "--context", "8192"]),
]


SERVED = {"held", "moments", "kv_bytes_per_token"}


@pytest.mark.parametrize(("kind", "options"), GOOD, ids=str)
def test_json_has_one_shape(kind, options, capsys):
    said = as_json(["estimate", kind, "--model", "llama-2-7b", *options], capsys)
    assert list(said)[:4] == ["parts", "peak_bytes", "device", "traced"]
    assert set(said) - {"parts", "peak_bytes", "device", "traced"} == (SERVED if kind == "serve" else set())
    assert tuple(said["parts"]) == PARTS
    assert said["peak_bytes"] == sum(said["parts"].values())
    assert all(type(size) is int for size in (*said["parts"].values(), said["peak_bytes"]))
    if "--gpu" not in options:
        assert said["device"] is None
        return
    where = device(options[options.index("--gpu") + 1])
    assert said["device"] == {
        "name": where.name,
        "capacity_bytes": where.capacity_bytes,
        "reserve_bytes": reserve(where).size_bytes,
        "verdict": Room(where).verdict(said["peak_bytes"]),
        "fits": said["peak_bytes"] + reserve(where).size_bytes <= where.capacity_bytes,
    }


def test_fits_says_yes_and_no(capsys):
    small = as_json(["estimate", "train", "--model", "gpt2", "--sequence", "512", "--gpu", "h100-80gb"], capsys)
    large = as_json([*TRAIN, "--gpu", "h100-80gb"], capsys)
    assert (small["device"]["fits"], large["device"]["fits"]) == (True, False)


def test_kv_bytes_per_token_is_of_one_sequence(capsys):
    one, many = (as_json([*SERVE, "--users", users], capsys) for users in ("1", "64"))
    assert one["kv_bytes_per_token"] == many["kv_bytes_per_token"] == 32 * 2 * 8 * 128 * 2
    assert many["parts"]["kv_cache"] == 64 * one["parts"]["kv_cache"]


def test_an_answer_names_the_recipe_of_a_quantized_base_and_its_command_says_the_same(capsys):
    qlora = ["estimate", "fine-tuning", "--model", "llama-3-8b", "--adapter", "lora", "--lora-base", "nf4"]
    told = {name: _said(capsys, *qlora, *words) for name, words in {"": (), "trl": ("--trainer", "trl")}.items()}
    assert "prepared by peft" in told[""]
    assert "as TRL does since November 2025. TRL's own loss" in told["trl"]
    assert "prepared" not in told["trl"]
    assert _said(capsys, *qlora, "--no-prepared", "--adapter-dtype", "bf16") == told["trl"]
    dropped = _said(capsys, *qlora, "--lora-dropout", "0.05")
    assert "dropout 0.05" in dropped
    assert "--lora-dropout 0.05" in dropped.partition("In a terminal:")[2] or "In a terminal" not in dropped


def _said(capsys, *words):
    assert main([*words]) == 0
    return capsys.readouterr().out


def test_fit_lists_changes_in_json_and_in_text(capsys):
    asked = [*TRAIN, "--gpu", "h100-80gb", "--fit"]
    said = as_json(asked, capsys)
    assert list(said) == ["parts", "peak_bytes", "device", "traced", "fit"]
    assert said["fit"][0] == {
        "change": "8-bit Adam",
        "peak_bytes": said["fit"][0]["peak_bytes"],
        "costs": "states rounded to 8 bits (bitsandbytes)",
        "fields": {"optimizer": "adamw-8bit"},
        "device": None,
    }
    again = as_json([*TRAIN, "--gpu", "h100-80gb", "--optimizer", "adamw-8bit"], capsys)
    assert again["peak_bytes"] == said["fit"][0]["peak_bytes"] <= said["device"]["capacity_bytes"]
    assert main(asked) == 0
    text = capsys.readouterr().out
    assert "What would fit, cheapest first:" in text
    assert "flags  --optimizer adamw-8bit" in text
    assert main([*SERVE, "--gpu", "h100-80gb", "--fit"]) == 0
    assert "Fits already, with 62.98 GiB to spare." in capsys.readouterr().out
    assert main([*SERVE, "--gpu", "h100-80gb", "--fit", "--reserve", "0"]) == 0
    assert "Fits already, with 63.75 GiB to spare." in capsys.readouterr().out


@pytest.mark.parametrize("command", ["train", "serve", "checkpointing", "zero", "fine-tuning", "quantize", "kv"])
def test_the_reserve_moves_the_verdict_of_every_memory_calculator(command, capsys):
    """18.32 GiB of Llama-3.2-1B's training and 14 GiB of a 7B's serving, on cards that just hold them."""
    training = command in ("train", "checkpointing", "zero", "fine-tuning")
    asked = ["--model", "llama-3.2-1b", "--gpu", "rtx-4090"] if training else ["--model", "llama-2-7b", "--gpu", "t4"]
    said = {
        reserve: as_json(["estimate", command, *asked, *LIGHT.get(command, []), "--reserve", str(reserve)], capsys)
        for reserve in (0, 1343, 14000)
    }
    verdicts = [answer.get("verdict") or answer["device"]["verdict"] for answer in said.values()]
    assert verdicts[::2] == ["fits", "tight"]
    assert main(["estimate", command, *asked, *LIGHT.get(command, []), "--reserve", str(14000)]) == 0
    assert "13.67 GiB are kept for the CUDA context" in capsys.readouterr().out


LIGHT = {
    "train": ["--no-traced"],
    "fine-tuning": ["--no-traced"],
    "serve": ["--context", "512"],
    "kv": ["--context", "512"],
    "quantize": ["--weights", "bf16"],
}
OOM_LOG = """Traceback (most recent call last):
  File "train.py", line 31, in step
    optimizer.step()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of 23.64 GiB of
which 11.06 MiB is free. Including non-PyTorch memory, this process has 23.60 GiB memory in use. Of the allocated
memory 23.10 GiB is allocated by PyTorch, and 34.87 MiB is reserved by PyTorch but unallocated.
"""


def test_explain_oom_in_text_in_json_and_from_a_pipe(tmp_path, capsys, monkeypatch):
    path = tmp_path / "log.txt"
    path.write_text(OOM_LOG)
    assert main(["explain-oom", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "64.00 MiB refused on GPU 0, in the optimizer step",
        "  train.py:31 in step",
        "    optimizer.step()",
    ]
    assert any(line.startswith("Full. 23.10 GiB in tensors and 64.00 MiB more do not fit") for line in lines)
    said = as_json(["explain-oom", str(path)], capsys)
    assert (said["reason"], said["place"], said["line"]["line"], said["fit"]) == ("full", "the optimizer step", 31, [])
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=BytesIO(OOM_LOG.encode())))
    assert as_json(["explain-oom", "-"], capsys) == said


@pytest.mark.parametrize(("flags", "fields"), [(["--micro-batch", "4"], "optimizer"), (["--users", "900"], "users")])
def test_explain_oom_with_a_setup_names_what_fits(flags, fields, tmp_path, capsys):
    path = tmp_path / "log.txt"
    path.write_text(OOM_LOG)
    said = as_json(["explain-oom", str(path), "--model", "llama-3.2-1b", *flags], capsys)
    assert "By the closed form llama-3.2-1b" in said["predicted"]
    assert fields in said["fit"][0]["fields"]


def test_explain_oom_takes_the_adapters_that_it_advises(tmp_path, capsys):
    """The advice says `--adapter lora`; the run that its flags describe is that of `estimate train`."""
    path = tmp_path / "log.txt"
    path.write_text(OOM_LOG)
    explain = ["explain-oom", str(path), "--model", "llama-3.2-1b"]
    flags = ["--adapter", "lora", "--lora-rank", "8", "--lora-base", "nf4", "--micro-batch", "4"]
    peak = as_json(["estimate", "train", "--model", "llama-3.2-1b", *flags], capsys)["peak_bytes"]
    said = as_json([*explain, *flags], capsys)["predicted"]
    assert f"{peak / 2**30:.2f} GiB" in said
    assert as_json(explain, capsys)["predicted"] != said


def test_the_floor_of_an_operator_in_json_and_in_text(capsys):
    """4096 × 14336 BF16 weights over the H100's 3.35 TB/s are 35.1 µs."""
    gemv = [*OP, "linear", "--format", "bf16", "--tokens", "1", "--width", "4096", "--outputs", "14336"]
    said = as_json(gemv, capsys)
    assert list(said) == [
        "flops",
        "read_bytes",
        "written_bytes",
        "intensity",
        "ridge",
        "seconds",
        "bound",
        "tokens_at_ridge",
    ]
    assert (said["flops"], said["read_bytes"], said["written_bytes"]) == (117440512, 117448704, 28672)
    assert said["seconds"] == pytest.approx(117477376 / 3.35e12)
    assert (said["bound"], said["tokens_at_ridge"]) == ("memory", 326)
    assert as_json([*OP, "softmax"], capsys)["tokens_at_ridge"] is None
    assert main(gemv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "linear, NVIDIA H100 SXM 80 GB: 35.1 µs at least, memory-bound"
    assert lines[-1].startswith("Memory is the limit: computing fills 0.3 % of that time.")
    assert lines[-1].endswith("From 326 tokens at once compute is the limit.")


@pytest.mark.parametrize("name", MODELS)
def test_every_model_can_be_served_and_named_by_its_config(name, tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(dict(model(name).config)))
    named = ["estimate", "serve", "--context", "512", "--model", name]
    assert as_json([*named[:-1], str(path)], capsys) == as_json(named, capsys)


def test_without_json_a_table_and_one_sentence(capsys):
    assert main([*TRAIN, "--gpu", "h100-80gb"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Training llama-2-7b: ")
    parts = ["parameters", "optimizer", "activations", "logits", "workspace", "peak"]
    assert [line.split()[0] for line in lines[2:-2]] == parts
    assert lines[-1].startswith("Does not fit the NVIDIA H100 SXM")
    assert "Out of memory at the end of the forward pass, in the loss." in lines[-1]
    assert main([*SERVE, "--gpu", "h100-80gb"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("Fits the NVIDIA H100 SXM")


def test_help_is_not_an_error(capsys):
    for argv in (["--help"], ["estimate", "train", "--help"], ["estimate", "op", "--help"], ["explain-oom", "--help"]):
        with pytest.raises(SystemExit) as left:
            main(argv)
        assert left.value.code == 0
        assert "usage: workbook" in capsys.readouterr().out


@pytest.mark.parametrize(("argv", "code"), [(["estimate", "train", "--model", "nope"], 2), ([*SERVE, "--json"], 0)])
def test_the_command_itself(argv, code):
    done = subprocess.run([sys.executable, "-m", "helpers.cli", *argv], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code
    assert "Traceback" not in done.stderr + done.stdout
    assert bool(done.stderr) == bool(code)


def test_quantize_answers_as_its_calculator_does(capsys):
    assert main([*QUANTIZE, "--weights", "nf4-dq", "--gpu", "rtx-4090", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["weight_bytes"] == 5_702_540_160
    assert "rtx-4090-24gb" in said["fits"]
    assert main([*QUANTIZE, "--skipped", "", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["weight_bytes"] < said["weight_bytes"]


def test_checkpointing_answers_with_every_policy(capsys):
    command = ["estimate", "checkpointing", "--model", "llama-2-7b", "--micro-batch", "4", "--gpu", "h100"]
    assert main([*command, "--checkpointing", "selective"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("none", "full", "sqrt-n", "module:mlp"))
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("gpu", ["m4-max-128gb", "mi300x-192gb"])
@pytest.mark.parametrize(
    "command",
    [
        *(f"{kind} --sequence 512" for kind in ("train", "checkpointing", "zero --ranks 2", "fine-tuning")),
        "serve",
        "kv",
    ],
)
def test_a_card_without_cuda_gets_its_tensors_and_no_word_of_cuda_s(command, gpu, capsys):
    """The bytes of the tensors, as budget.train has them for no device, and one sentence on what is left out."""
    kind, *flags = command.split()
    asked = ["estimate", kind, "--model", "llama-3.2-1b", *flags, "--gpu", gpu]
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert "CUDA" not in said.replace("has no CUDA", "")
    assert "has no CUDA" in said or kind in ("serve", "kv")
    assert main([*asked, "--json"]) == 0
    if kind == "train":
        found = json.loads(capsys.readouterr().out)
        assert (
            found["peak_bytes"]
            == budget.train(TrainSetup("llama-3.2-1b", optimizer=OPTIMIZER, sequence=512)).peak_bytes
        )


def test_what_would_fit_a_card_without_cuda_says_so(capsys):
    asked = ["estimate", "train", "--model", "llama-3-8b", "--sequence", "512", "--fit", "--gpu", "m4-max"]
    assert main([*asked, "--micro-batch", "64"]) == 0
    said = capsys.readouterr().out
    assert "too much. What would fit" in said
    assert "CUDA" not in said.replace("has no CUDA", "")


@pytest.mark.parametrize(
    ("words", "code"), [(("estimate", "serve", "--model", "tiny-llama"), 0), (("estimate", "serve"), 2)]
)
def test_a_process_that_ends_at_once_has_said_all_and_keeps_its_code(words, code):
    done = subprocess.run([sys.executable, "-m", "helpers.cli", *words], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert ("Serving tiny-llama" in done.stdout) == (code == 0)
    assert bool(done.stderr) == (code != 0)
    assert not done.stdout or done.stdout.endswith("\n")


def test_a_call_from_python_changes_nothing_of_the_process(capsys):
    before = gc.get_threshold()
    assert main(["estimate", "serve", "--model", "tiny-llama"]) == 0
    assert gc.get_threshold() == before


def parsers(parser):
    """It, and those of all of its commands."""
    yield parser
    for action in parser._actions:
        for command in getattr(action.choices, "values", tuple)():
            yield from parsers(command)


def test_alone_it_shows_every_command_on_a_line_of_its_group(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([]) == 0
    groups = dict(re.findall(r"^(\w+):\n((?:  .+\n?)+)", capsys.readouterr().out, re.MULTILINE))
    assert list(groups) == ["options", *GROUPS]
    listed = {title: tuple(line.split()[0] for line in groups[title].splitlines()) for title in GROUPS}
    assert listed == GROUPS
    (commands,) = [action.choices for action in _parser()._actions if action.choices]
    assert sorted(commands) == sorted(name for names in GROUPS.values() for name in names)


@pytest.mark.parametrize("words", ["estimate", "estimate offload", "plan", "trace"])
def test_a_command_of_commands_alone_shows_its_help(words, capsys):
    assert main(words.split()) == 0
    assert capsys.readouterr().out.startswith(f"usage: workbook {words} [-h] COMMAND ...")


def test_every_default_is_told():
    untold = []
    for parser in parsers(_parser()):
        for action in parser._actions:
            formatter = parser._get_formatter()
            formatter.add_argument(action)
            if action.option_strings and str(action.default) not in ("None", "False", "", "[]", argparse.SUPPRESS):
                untold += [(parser.prog, action.option_strings[0])] * ("default" not in formatter.format_help())
    assert untold == []
    (explained,) = [one.format_help() for one in parsers(_parser()) if one.prog == "workbook explain-oom"]
    assert "tokens that each of them holds (default 2048)" in " ".join(explained.split())  # though it sets none


def test_it_says_its_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"workbook {helpers.__version__}\n")


# Ctrl-C when a module is looked for; where the import turns it into an error of its own, as NumPy's and torch's may.
PRESSED = """
import os, signal, sys
module, turned, *sys.argv[1:] = sys.argv[1:]

class Pressing:
    def find_spec(self, name, *_):
        if name == module:
            try:
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(1000): pass
            except KeyboardInterrupt:
                if turned: raise ImportError("numpy is broken") from None
                raise

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Pressing())
from helpers.cli import GROUPS, _parser, main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("module", "turned", "words"),
    [
        ("helpers.catalog.errors", "", "number 1"),
        ("helpers.cli.flags", "", "check 02"),
        ("torch", "turned", "trace train --model tiny-llama"),
        ("torch", "turned", "serve --port 0"),
        ("nbclient", "turned", "check 02"),
        ("nbformat", "", "grade 02 x --out y"),
        ("nbclient", "", "build 02"),
        ("helpers.watch.view", "", "watch --simulate leak"),
    ],
)
def test_ctrl_c_is_one_line_and_130_while_it_still_imports(module, turned, words):
    command = [sys.executable, "-c", PRESSED, module, turned, *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (130, "Stopped.\n", "")


LORA_8B = ["estimate", "train", "--model", "llama-3.1-8b", "--gpu", "rtx-4090", "--lora-rank", "16"]
LORA_8B += ["--checkpointing", "full", "--reserve", "1343"]


@pytest.mark.parametrize(
    ("options", "ending"),
    [
        (["--micro-batch", "2"], "With expandable_segments:True it runs."),  # 21.98 GiB of tensors, 22.33 are for them
        (["--sequence", "3900"], "the allocator gives back 1,013.64 MiB of what it has cached on the way."),
    ],
    ids=["holes", "gives back"],
)
def test_near_the_line_the_trace_decides(options, ending, capsys):
    """A closed form says "fits" of both; with two sequences PyTorch's default segments leave no room in one piece."""
    assert main([*LORA_8B, *options]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("Traced, with the holes between its blocks: ")
    assert last.endswith(ending)


def test_the_verdict_of_a_trace_for_programs(capsys):
    said = as_json([*LORA_8B, "--micro-batch", "2"], capsys)
    assert said["device"]["verdict"] == "fits"
    assert said["traced"]["out_of_memory"]["phase"] == "backward"
    assert said["traced"]["peak_allocated_bytes"] == pytest.approx(said["peak_bytes"], rel=1e-3)


@pytest.mark.parametrize("options", [[], ["--micro-batch", "64"]], ids=["far below", "far above"])
def test_far_from_the_line_nothing_is_traced(options, capsys, monkeypatch):
    monkeypatch.setattr(by_trace, "_trace", lambda *_: pytest.fail("traced"))
    assert (
        as_json(["estimate", "train", "--model", "gpt2", "--sequence", "1024", "--gpu", "rtx-4090", *options], capsys)[
            "traced"
        ]
        is None
    )


@pytest.mark.parametrize("package", by_trace.PACKAGES)
def test_without_torch_the_closed_form_says_how_far_holes_can_go(package, capsys, monkeypatch):
    monkeypatch.setattr(by_trace, "find_spec", lambda name: None if name == package else name)
    assert main(LORA_8B) == 0
    assert capsys.readouterr().out.endswith("`workbook trace train` says whether they do.\n")


def test_what_was_asked_for_and_cannot_be_traced_is_told(capsys):
    asked = ["estimate", "train", "--model", "gpt2", "--sequence", "1024", "--traced"]
    assert main(asked) == 2
    assert "--traced without a card" in capsys.readouterr().err
    assert main([*asked, "--gpu", "m4-max"]) == 2
    assert "CUDA" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "means"),
    [
        ("llama-3-8b", {"precision": "autocast-bf16", "optimizer": "adamw-fused", "attention": "sdpa"}),
        ("gpt-oss-20b", {"precision": "autocast-bf16", "optimizer": "adamw-fused", "attention": "eager"}),
        ("llama-3-8b --lora-rank 8", {"precision": "bf16", "adapter": Adapter(rank=8)}),
        ("llama-3-8b --lora-rank 8 --lora-base nf4", {"precision": "autocast-bf16"}),
        ("llama-3-8b --lora-rank 8 --precision fp32", {"precision": "fp32"}),
    ],
)
def test_what_is_not_said_is_what_people_run(said, means):
    setup = setup_of(TrainSetup, vars(_parser().parse_args(["estimate", "train", "--model", *said.split()])))
    assert {name: getattr(setup, name) for name in means} == means


def test_adapters_on_a_checkpoint_of_bitsandbytes_are_qlora(capsys):
    asked = ["estimate", "train", "--adapter", "lora", "--trainer", "unsloth", "--gpu", "rtx-3060", "--no-traced"]
    stored = _said(capsys, *asked, "--model", "unsloth/Qwen3-8B-bnb-4bit")
    assert "in nf4-dq, " in stored
    assert "as Unsloth does" in stored
    assert "dequantized" not in stored
    assert "in nf4-dq, " not in _said(capsys, *asked, "--model", "qwen3-8b")


def test_where_transformers_has_no_kernel_for_a_format_it_loads_bf16(capsys):
    """Of FP8 below compute capability 8.9, of MXFP4 below 7.5."""
    asked = ["estimate", "serve", "--model", "Qwen/Qwen3-8B-FP8", "--gpu"]
    assert "Fits" in _said(capsys, *asked, "rtx-4060-ti-16gb")
    said = _said(capsys, *asked, "rtx-3060")
    assert "Does not fit" in said
    assert "no kernel for fp8-e4m3" in said


def test_a_tag_of_ollama_is_told_what_it_ships_in(capsys):
    asked = ["estimate", "serve", "--gpu", "rtx-4090", "--model"]
    assert "Ollama's own qwen3:30b is Q4_K_M, about 17.24 GiB" in _said(capsys, *asked, "qwen3:30b")
    assert "Ollama" not in _said(capsys, *asked, "qwen3-30b-a3b")
    assert main([*asked, "qwen3:30b", "--json"]) == 0
    json.loads(capsys.readouterr().out)


def test_transformers_by_name_takes_a_prompt_whole(capsys):
    asked = ["estimate", "serve", "--model", "llama-3.1-8b", "--context", "45000", "--gpu", "rtx-4090"]
    assert as_json(asked, capsys)["device"]["fits"]
    assert not as_json([*asked, "--engine", "transformers"], capsys)["device"]["fits"]


def test_where_little_else_helps_a_fused_loss_is_offered(capsys):
    asked = ["estimate", "fine-tuning", "--model", "google/gemma-3-4b-it", "--lora-rank", "16", "--lora-base", "nf4-dq"]
    said = _said(capsys, *asked, "--checkpointing", "full", "--gpu", "rtx-3060", "--no-traced")
    assert "The cheapest change that fits: Liger's loss" in said
