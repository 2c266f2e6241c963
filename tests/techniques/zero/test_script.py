"""The script that torchrun starts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from helpers.catalog import TrainSetup
from helpers.memory.measure import steps
from helpers.techniques.zero.__main__ import SMALL, main
from tests.house import tree

SCRIPT = "helpers.techniques.zero"
needs_deepspeed = pytest.mark.needs("deepspeed", "pip install -r requirements-deepspeed.txt")


def run(*words, torchrun=0):
    """Under torchrun with that many ranks, or without it."""
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(torchrun)] if torchrun else []
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    return subprocess.run(
        [sys.executable, *start, "-m", SCRIPT, *words],
        cwd=tree.ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={**environment, "OMP_NUM_THREADS": "1"},
    )


def losses_of(done):
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("loss")]
    return [float(word) for word in line.split()[1:]]


def first_loss_of(ranks):
    """What the untrained model says to every rank's own text, on average."""
    torch.manual_seed(0)
    model, losses = steps.build_model(TrainSetup(SMALL, "fp32"), "cpu"), []
    for rank in range(ranks):
        ids = torch.randint(0, SMALL["vocab_size"], (2, 16), generator=torch.Generator().manual_seed(rank))
        losses.append(model(input_ids=ids, labels=ids).loss.item())
    return sum(losses) / ranks


@pytest.fixture(scope="module")
def ours():
    """Three steps of our stage 3 on two ranks."""
    return run("--steps", "3", "--sequence", "16", torchrun=2)


@pytest.mark.slow
def test_two_ranks_tell_what_they_hold_and_send(ours):
    first, second, third = losses_of(ours)
    assert first == pytest.approx(first_loss_of(2), abs=1e-4)
    assert third < second < first
    title, _, head, *rows, _ = ours.stdout.splitlines()
    assert title == "ours, stage 3, 2 ranks on gloo, 6,852,864 parameters"
    assert head.split() == ["rank", "parameters", "gradients", "optimizer", "workspace", "peak", "payload", "sent"]
    shard = f"{6_852_864 * 4 / 2 / 2**20:.2f} MiB"  # 13.07, and under 512 bytes of buffers
    assert [row.split()[0] for row in rows] == ["0", "1"]
    assert [row.count(shard) for row in rows] == [2, 2]  # parameters and gradients


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("--stage", "0"),
        ("--engine", "fsdp2", "--stage", "2"),
        pytest.param(("--stage", "1"), marks=pytest.mark.all),
        pytest.param(("--stage", "2"), marks=pytest.mark.all),
        pytest.param(("--engine", "fsdp2"), marks=pytest.mark.all),
        pytest.param(("--engine", "deepspeed"), marks=[needs_deepspeed, pytest.mark.all]),
    ],
)
def test_every_engine_trains_alike(ours, words):
    done = run("--steps", "3", "--sequence", "16", *words, torchrun=2)
    assert losses_of(done) == pytest.approx(losses_of(ours), rel=1e-4)


@pytest.mark.slow
def test_it_leaves_before_the_interpreter_ends():
    """Where a thread of Gloo's, kept by FSDP2's caches, would abort a process whose work is done."""
    code = (
        f"import atexit, runpy, sys; atexit.register(print, 'ends'); sys.argv[1:] = ['--steps', '0']; "
        f"runpy.run_module('{SCRIPT}', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tree.ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--steps is 0" in done.stderr


def test_without_torchrun_it_says_what_to_type():
    done = run()
    assert done.returncode == 2
    assert "torchrun --standalone --nproc-per-node 4 -m helpers.techniques.zero" in done.stderr
    assert "Traceback" not in done.stderr


BAD = [
    (("--engine", "fsdp2", "--stage", "1"), "stage 1 with FSDP2", "--stage 3"),
    (("--steps", "0"), "--steps is 0", "--steps 10"),
    (("--model", "llama-2-7c"), "llama-2-7c", "llama-2-7b"),
]


@pytest.mark.parametrize(("words", "what", "do"), BAD)
def test_bad_words_get_a_sentence_from_one_rank(words, what, do, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    assert main(list(words)) == 2
    told = capsys.readouterr().err
    assert what in told
    assert do in told
    monkeypatch.setenv("RANK", "1")
    assert main(list(words)) == 2
    assert not capsys.readouterr().err
