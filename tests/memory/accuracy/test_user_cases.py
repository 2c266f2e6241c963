"""`workbook accuracy --measured FILE`: steps of the reader's own, rebuilt; what is not of the form is told."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from helpers.catalog import TrainSetup
from helpers.catalog.errors import WorkbookError
from helpers.cli import main
from helpers.memory import trace
from helpers.memory.accuracy import Case, lora, recorded
from helpers.memory.accuracy.user_cases import read
from helpers.memory.trace import QuantizedBase

PAGE = Path(__file__).parents[3] / "docs" / "your-measurements.md"
TINY = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}
SETUP = {"model": TINY, "attention": "eager", "micro_batch": 2, "sequence": 128, "rank": 8, "targets": ["q_proj"]}
STEP = {"name": "tiny", "device": "l4-24gb", "setup": SETUP, "figures": {"peak allocated": 20}, "source": "mine"}


def written(tmp_path, *steps):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(steps))
    return str(path)


@pytest.mark.slow
def test_the_example_of_the_page_is_exact(tmp_path, capsys) -> None:
    pytest.importorskip("peft")
    page = PAGE.read_text(encoding="utf-8")
    path = tmp_path / "mine.json"
    path.write_text(re.search(r"```json\n(.*?)```", page, re.DOTALL)[1])
    assert main(["accuracy", "--measured", str(path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["quantity"] for row in rows] == ["after load", "peak allocated", "peak reserved"]
    assert all(abs(row["error"]) < 5e-6 for row in rows)


def test_as_text_only_these_are_shown(tmp_path, capsys, monkeypatch) -> None:
    pytest.importorskip("peft")
    monkeypatch.setattr(recorded, "rows", lambda apply: pytest.fail("recordings were asked for"))
    assert main(["accuracy", "--measured", written(tmp_path, STEP)]) == 0
    out = capsys.readouterr().out
    assert out.count("tiny  ") == 1
    assert "1 of   1" in out
    assert "recorded" not in out


@pytest.mark.parametrize("model", ["tiny-llama", TINY], ids=["catalogue", "config"])
def test_a_model_is_a_name_or_a_config(tmp_path, model) -> None:
    (case,) = read(written(tmp_path, {**STEP, "setup": {**SETUP, "model": model}}))
    assert (case.kind, case.unit, case.setup["model"]) == ("lora", "MiB", model)


@pytest.mark.parametrize(
    ("base", "dtype"),
    [("nf4-dq", "bf16"), *(pytest.param("nf4", dtype, marks=pytest.mark.all) for dtype in ("fp16", "fp32"))],
)
def test_qlora_needs_what_the_ready_made_step_needs(base, dtype) -> None:
    """Two programs: the script's loop here, the workbook's own step there. The script keeps its logits for backward."""
    pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    setup = {**SETUP, "base": base, "dtype": dtype}
    case = Case("tiny", "lora", "l4-24gb", setup, {"peak allocated": 1}, "MiB", "none yet")
    assert lora._quantized(case).dtype == dtype
    found = lora.predict(case)
    same = TrainSetup(TINY, "bf16", "adamw-foreach", 2, 128, "full", "eager")
    ready = trace.lora(same, 8, ["q_proj"], "l4", base=QuantizedBase(base, dtype))
    logits = 4 * 2 * 128 * 1000
    assert found["peak allocated"] == pytest.approx(ready.peak_allocated_bytes + logits, rel=1e-4)
    plain = lora.predict(Case("tiny", "lora", "l4-24gb", SETUP, {"peak allocated": 1}, "MiB", "none yet"))
    assert found["after load"] < plain["after load"] + 2 * 1000 * 256 * 2  # embedding and head are FP32 now


def test_the_base_has_the_dtype_that_is_asked_for() -> None:
    pytest.importorskip("peft")
    loaded = {
        dtype: lora.predict(
            Case("tiny", "lora", "l4-24gb", {**SETUP, "dtype": dtype}, {"peak allocated": 1}, "MiB", "none yet")
        )["after load"]
        for dtype in ("bf16", "fp32")
    }
    assert 1.9 < loaded["fp32"] / loaded["bf16"] < 2


def change(**changes):
    return {**STEP, **changes}


def setup(**changes):
    return {**STEP, "setup": {**SETUP, **changes}}


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ({key: value for key, value in STEP.items() if key != "source"}, "has no 'source'"),
        (change(source=""), "write down where"),
        (change(device="t5"), "unknown device"),
        (change(note="x"), "unknown key of step 1"),
        (change(figures={}), "write down where"),
        (change(figures={"peak": 1}), "did you mean 'peak"),
        (change(figures={"peak reserved": "12"}), "a whole number or a number"),
        (change(figures={"peak reserved": -1.0}), "write down where"),
        (change(unit="MB"), "write down where"),
        (setup(model="lama"), "unknown model"),
        (setup(attention="flash"), "unknown attention"),
        (setup(base="int8"), "unknown base"),
        (setup(dtype="fp8"), "unknown dtype"),
        (setup(rank=0), "a whole number from 1 up"),
        (setup(rank=True), "a whole number"),
        (setup(targets="q_proj"), "a list"),
        (setup(lora_alpha=16), "unknown key of the setup"),
        (["a list"], "holds no list of objects"),
    ],
    ids=str,
)
def test_what_is_wrong_is_told(tmp_path, step, told) -> None:
    with pytest.raises(WorkbookError, match=told):
        read(written(tmp_path, step))


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", "\x00"])
def test_a_file_of_another_form_is_told(tmp_path, text, capsys) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    assert main(["accuracy", "--measured", str(path)]) == 2
    told = capsys.readouterr()
    assert "docs/your-measurements.md" in told.err
    assert told.out == ""


def test_a_file_that_is_not_there_is_told(capsys) -> None:
    assert main(["accuracy", "--measured", "nowhere.json"]) == 2
    assert "nowhere.json" in capsys.readouterr().err


TRAIN = {"model": TINY, "precision": "bf16", "optimizer": "lion", "micro_batch": 2, "sequence": 64}
RUN = {"name": "mine", "device": "l4-24gb", "train": TRAIN, "figures": {"peak allocated": 9}, "source": "mine"}
SERVED = {"model": TINY, "weights": "gptq-int4", "kv": "fp16", "users": 2, "context": 96, "prompt": 64}


def test_the_runs_of_the_page_are_read(tmp_path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    runs = json.loads(re.search(r"```json runs\n(.*?)```", page, re.DOTALL)[1])
    assert [next(iter({"train", "serve"} & run.keys())) for run in runs] == ["train", "serve", "train"]
    path = tmp_path / "runs.json"
    path.write_text(json.dumps(runs))
    assert [case.kind for case in read(path)] == ["train", "serve", "train"]


@pytest.mark.parametrize("adapter", [None, {"rank": 4, "targets": ["q_proj"]}], ids=["full", "lora"])
def test_a_training_run_is_what_the_trace_says(tmp_path, capsys, adapter) -> None:
    if adapter:
        pytest.importorskip("peft")
    own = {**TRAIN, "optimizer": "adamw-fused", "adapter": adapter} if adapter else TRAIN
    run = {**RUN, "train": own, "figures": {"peak allocated": 9, "peak reserved": 9, "peak of optimizer step": 9}}
    assert main(["accuracy", "--measured", written(tmp_path, run), "--json"]) == 0
    rows = {row["quantity"]: row["predicted"] for row in json.loads(capsys.readouterr().out)["rows"]}
    from helpers.catalog import Adapter

    fields = {**own, "adapter": Adapter(**adapter)} if adapter else own
    found = trace.train(TrainSetup(**fields), "l4-24gb")
    assert rows["peak allocated"] == found.peak_allocated_bytes
    assert rows["peak reserved"] == found.peak_reserved_bytes
    assert rows["peak of optimizer step"] <= rows["peak allocated"]


def test_a_service_is_what_the_trace_says(tmp_path, capsys) -> None:
    figures = {"peak of prefill": 1, "peak of decode": 1, "after load": 1, "peak allocated": 1}
    run = {"name": "s", "device": "a100", "serve": SERVED, "figures": figures, "source": "mine"}
    assert main(["accuracy", "--measured", written(tmp_path, run), "--json"]) == 0
    rows = {row["quantity"]: row["predicted"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["peak allocated"] == max(rows["peak of prefill"], rows["peak of decode"]) > rows["after load"] > 0


@pytest.mark.parametrize(
    ("gib", "happened", "right"), [(0.001, True, 1), (0.001, False, 0), (10.0, True, 0), (10.0, False, 1)]
)
def test_out_of_memory_or_not_is_right_or_wrong(tmp_path, capsys, gib, happened, right) -> None:
    run = {key: value for key, value in RUN.items() if key != "figures"}
    run |= {"train": {**TRAIN, "optimizer": "sgd"}, "out_of_memory": happened, "capacity_gib": gib}
    assert main(["accuracy", "--measured", written(tmp_path, run), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["quantity"], row["predicted"], row["unit"]) == (
        "out of memory" if happened else "runs to its end",
        right,
        "runs",
    )
    assert ("out of memory" in row["why"]) == (gib < 1)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"serve": SERVED}, "is several runs"),
        ({"setup": SETUP}, "is several runs"),
        ({"train": {"precision": "bf16"}}, "has no 'model'"),
        ({"train": {**TRAIN, "optimiser": "sgd"}}, "did you mean 'optimizer'"),
        ({"train": {**TRAIN, "precision": "bf17"}}, "unknown precision"),
        ({"train": {**TRAIN, "adapter": {"r": 8}}}, "unknown key of an adapter"),
        ({"train": {**TRAIN, "model": "lama"}}, "unknown model"),
        ({"figures": {"peak of prefill": 1}}, "did you mean"),
        ({"figures": {}}, "write down where"),
        ({"out_of_memory": 1}, "true or false"),
        ({"capacity_gib": True}, "a number"),
        ({"train": []}, "an object"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_run_is_told(tmp_path, changes, told) -> None:
    with pytest.raises(WorkbookError, match=told):
        read(written(tmp_path, {**RUN, **changes}))
