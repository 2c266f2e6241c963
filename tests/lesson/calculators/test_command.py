"""The command under a calculator gives the calculator's answer: its parser makes the same setup of it, in any state."""

import json
import shlex
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.catalog import ServeSetup, TrainSetup, WorkbookError, device, model
from helpers.catalog.split import Split
from helpers.cli import main
from helpers.lesson.calculators import (
    Efficiencies,
    Workload,
    allocation,
    block_map,
    checkpointing,
    kv_cache,
    kv_cache_answer,
    mesh,
    numbers,
    offload,
    offload_serving_answer,
    offload_training_answer,
    quantization,
    roofline,
    serving_answer,
    serving_load,
    serving_load_answer,
    tensor_numbers,
    training_answer,
    training_memory,
    zero,
    zero_answer,
)
from helpers.questions.setups import setup_of
from helpers.techniques.kv_cache import plan_of
from helpers.techniques.scheduling import Policy
from tests.lesson.calculators.live import live
from tests.memory.configs import QWEN2

CALCULATORS = {
    maker.__name__: maker()
    for maker in (
        allocation,
        block_map,
        checkpointing,
        kv_cache,
        mesh,
        numbers,
        offload,
        quantization,
        roofline,
        serving_load,
        tensor_numbers,
        training_memory,
        zero,
    )
}


TRACED = ("training_memory", "fine_tuning")


def run(command, capsys, *more):
    """What the command prints."""
    program, *words = shlex.split(command)
    assert program == "workbook"
    capsys.readouterr()
    assert main([*words, *more]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", CALCULATORS)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_command_gives_the_answer_in_every_state(name, data, capsys):
    calculator = CALCULATORS[name]
    chosen = {key: data.draw(st.sampled_from(list(known)), key) for key, (_, known) in calculator.options.items()}
    try:
        answer = calculator.answer(**chosen)
    except WorkbookError:  # a choice that cannot be: the error stands in place of the picture, and of the command
        assert "command" not in calculator.render(chosen)
        return
    closed = ["--no-traced"] if name in TRACED else []  # near a card's room a trace would decide in place of the form
    assert run(answer.command, capsys, *closed) == f"{answer}\n"


@settings(max_examples=60)
@given(
    st.builds(
        TrainSetup,
        model=st.sampled_from(["llama-2-7b", "gpt2"]),
        precision=st.sampled_from(["fp32", "bf16", "autocast-bf16", "megatron-bf16"]),
        optimizer=st.sampled_from(["adamw", "adamw-fused", "sgd", "adafactor", "lion", "adamw-8bit-trainer"]),
        micro_batch=st.integers(1, 9),
        sequence=st.integers(1, 1024),
        checkpointing=st.sampled_from(["none", "full", "every:2", "selective"]),
        attention=st.sampled_from(["sdpa", "eager"]),
        split=st.integers(1, 64).map(lambda ranks: Split(ranks, zero=3)),
        offload_optimizer=st.sampled_from(["none", "cpu", "nvme"]),
        offload_parameters=st.sampled_from(["none", "cpu"]),
        micro_batches=st.integers(1, 64),
    ),
    st.sampled_from([None, "mi300x-192gb"]),
    st.integers(0, 4096),
)
def test_the_parser_makes_the_same_setup_of_it(setup, gpu, reserve):
    from helpers import cli
    from helpers.cli.flags import device_of, reserve_bytes_of

    answer = training_answer(setup, gpu, reserve * 2**20)
    asked = cli._parser().parse_args(shlex.split(answer.command)[1:])
    assert setup_of(TrainSetup, vars(asked)) == setup
    assert device_of(asked) == answer.gpu
    assert gpu is None or reserve_bytes_of(asked) == reserve * 2**20


@pytest.mark.parametrize(
    "answer",
    [
        serving_answer(ServeSetup("mixtral-8x7b", "nf4", "fp8-e4m3", 16, 8192, ["lm_head", "experts"]), "h100"),
        serving_answer(ServeSetup("llama-3-8b", skipped=[])),
        kv_cache_answer(ServeSetup("llama-3-8b", users=4), "h100", plan_of("int4-per-token", residual=64)),
        kv_cache_answer(ServeSetup("llama-3-8b"), None, "window:100"),
        zero_answer(TrainSetup("gpt2", sequence=512, split=Split(8, zero=2)), "h100", 3.5e9),
        zero_answer(TrainSetup("gpt2", sequence=512, split=Split(8, zero=2)), "h100", "pcie"),
        serving_load_answer(
            ServeSetup("mixtral-8x7b", "nf4", skipped=["lm_head"]),
            "h100",
            Workload(777, 99, requests_per_s=2.5, answer_limit=512, shared=100),
            Policy(token_budget=700, max_running=33),
            Efficiencies(0.8, 0.4, 0.0125),
            reserve_bytes=3 * 2**30,
            free_share=0.85,
        ),
        offload_serving_answer(
            ServeSetup("mixtral-8x7b", "nf4", "fp8-e4m3", 3, 777, ["lm_head"]),
            "h100",
            "prefill",
            "sata",
            1,
            0.456789,
            2**31,
        ),
        offload_training_answer(
            TrainSetup("gpt2", sequence=512, split=Split(24, zero=2), offload_optimizer="nvme", micro_batches=3),
            "a100-40gb",
            "dgx-a100-host",
            "pm9a3",
            4,
            0.123456789,
            2**31,
        ),
    ],
    ids=lambda answer: answer.command,
)
def test_what_no_control_offers_is_in_the_command_too(answer, capsys):
    assert run(answer.command, capsys) == f"{answer}\n"


@pytest.mark.parametrize("folder", [False, True])
def test_a_config_s_path_is_a_model(folder, tmp_path, capsys):
    """With a blank in it, for the shell; a folder stands for the config.json in it."""
    path = tmp_path / "my model" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(QWEN2))
    typed = str(path.parent if folder else path)
    for name in ("training_memory", "quantization", "kv_cache", "checkpointing", "serving_load", "zero"):
        calculator = CALCULATORS[name]
        answer = calculator.answer(config=f" {typed} ")
        assert "my model" in answer.title
        assert str(path) in shlex.split(answer.command)
        assert run(answer.command, capsys) == f"{answer}\n"
        assert calculator.answer(config="", model=typed).command == answer.command
    assert "there is no file" in CALCULATORS["zero"].render({**CALCULATORS["zero"].start, "config": "./nowhere.json"})


def test_the_path_is_typed_and_takes_the_model_s_place(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN2))
    calculator = training_memory()
    controls, *_, output = live(calculator)
    assert type(controls["config"]).__name__ == "Text"
    assert controls["config"].continuous_update is False
    before = output.value
    controls["config"].value = str(path)
    assert tmp_path.name in output.value
    controls["config"].value = ""
    assert output.value == before


def test_what_cannot_be_written_has_no_command(tmp_path):
    """A config that is in no file, a file that holds another by now, a card that is not in the catalogue."""
    in_no_file = training_answer(TrainSetup(QWEN2))
    assert in_no_file.command is None
    assert "command" not in in_no_file.as_html()
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN2))
    setup = TrainSetup(str(path))
    path.write_text(json.dumps({**QWEN2, "hidden_size": 512}))
    assert training_answer(setup).command is None
    path.unlink()
    assert training_answer(setup).command is None
    h100 = device("h100")
    measured = replace(h100, capacity=replace(h100.capacity, value=2**36))
    assert training_answer(TrainSetup("gpt2", sequence=512), measured).command is None
    assert model("gpt2").name in training_answer(TrainSetup("gpt2", sequence=512), h100).command


def test_it_can_be_selected_with_a_click_and_is_escaped():
    html = allocation().answer(settings="max_split_size_mb:20").as_html()
    assert 'class="command" style="user-select:all' in html
    assert "workbook estimate allocation --trace &#x27;batch first&#x27; --settings max_split_size_mb:20" in html
