"""What a call on ranks gives, and what it refuses."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from helpers.catalog.errors import WorkbookError
from helpers.lesson.ranks import RankError, Ranks, kept, reaper
from tests.lesson.ranks import calls

ROOT = Path(__file__).parents[3]


def test_results_come_by_rank(ranks4):
    assert ranks4.run(dist.get_rank) == [0, 1, 2, 3]
    assert repr(ranks4) == "<4 ranks on gloo, ready>"
    assert all(torch.equal(found, torch.tensor([50, 50])) for found in ranks4.run(calls.total, 5))


def test_what_is_kept_is_there_in_the_next_call(ranks2):
    ranks2.run(calls.keep, "weights", [1, 2])
    assert ranks2.run(calls.recall, name="weights") == [[1, 2], [1, 2]]
    assert len(set(ranks2.run(os.getpid)) | {os.getpid()}) == 3
    assert ranks2.run(lambda: kept["weights"]) == [[1, 2], [1, 2]], "the rank's own, where a cell names it"
    assert not ranks2.view.client.results, "what was handed over is held a second time"


def test_what_is_not_kept_is_named(ranks2):
    ranks2.run(calls.keep, "weights", 1)
    with pytest.raises(RankError) as error:
        ranks2.run(calls.recall, "weight")
    assert "nothing under 'weight'" in error.value.what
    assert "here it holds 'weights'" in error.value.what
    assert error.value.alive


def test_a_function_travels_with_what_it_uses(ranks2):
    class Scale:
        def __init__(self, by):
            self.by = by

    scale = Scale(10)
    assert ranks2.run(lambda x: (scale.by * x, isinstance(scale, Scale)), 2) == [(20, True)] * 2
    assert isinstance(ranks2.run(lambda: Scale(3))[0], Scale)


def test_a_word_that_is_a_submodules_name_too(ranks2):
    """`config` beside `dist`: torch.distributed.config is a module that cannot be pickled."""
    import torch.distributed.config

    class Model:
        config = 5

    def step(model):
        return dist.get_rank(), model.config

    assert torch.distributed.config
    assert ranks2.run(step, Model()) == [(0, 5), (1, 5)]


def test_a_module_that_was_found_after_the_start(ranks2, tmp_path, monkeypatch):
    (tmp_path / "found_later.py").write_text("def answer():\n    return 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    import found_later

    assert ranks2.run(found_later.answer) == [42, 42]


def test_what_ranks_print_is_kept_and_not_shown(ranks2, capfd):
    ranks2.run(calls.greet)
    assert ranks2.printed == ("hello from 0\n", "hello from 1\n")
    assert capfd.readouterr() == ("", "")
    ranks2.run(dist.get_rank)
    assert ranks2.printed == ("", "")


def test_the_environment_is_a_launchers(ranks2):
    first, second = ranks2.run(calls.environment)
    for rank, found in enumerate((first, second)):
        assert (found["RANK"], found["LOCAL_RANK"], found["WORLD_SIZE"]) == (str(rank), str(rank), "2")
        assert (found["OMP_NUM_THREADS"], found["MASTER_ADDR"]) == ("1", "127.0.0.1")
    assert first["MASTER_PORT"] == second["MASTER_PORT"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", int(first["MASTER_PORT"])))


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="two ranks have a GPU each")
def test_without_gpus_nothing_looks_for_one(ranks2):
    found = ranks2.run(calls.environment)[0]
    assert (found["DS_ACCELERATOR"], found["CUDA_VISIBLE_DEVICES"]) == ("cpu", "")


def test_ranks_share_the_cores(ranks2):
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert ranks2.run(torch.get_num_threads) == [max(1, cores // 2)] * 2


def test_a_script_may_end_its_group(ranks2):
    for _ in range(2):
        ranks2.run(dist.destroy_process_group)
        assert ranks2.run(calls.total, 1)[0].tolist() == [3, 3]


def test_the_same_error_everywhere_leaves_the_ranks_and_what_they_keep(ranks2):
    ranks2.run(calls.keep, "n", 1)
    before = ranks2.run(os.getpid)
    with pytest.raises(RankError, match=r"every rank raised ValueError: boom on [01]\n  at: calls.py") as error:
        ranks2.run(calls.all_raise)
    assert error.value.alive
    assert (ranks2.run(os.getpid), ranks2.run(calls.recall, "n")) == (before, [1, 1])


def test_percent_px_finds_the_same_processes(ranks2):
    assert ranks2.view.apply_sync(os.getpid) == ranks2.run(os.getpid)


def test_a_result_that_cannot_be_sent_back_is_an_error(ranks2):
    with pytest.raises(RankError, match="every rank raised TypeError: its result cannot be sent back"):
        ranks2.run(lambda: (i for i in range(3)))


def test_what_cannot_be_sent_is_refused(ranks2):
    for thing in (ranks2, (i for i in range(3))):
        with pytest.raises(WorkbookError, match="<lambda> cannot be sent to the ranks"):
            ranks2.run(lambda thing=thing: thing)
    with pytest.raises(WorkbookError, match=r"3 is not a function") as error:
        ranks2.run(3)
    assert error.value.do == "ranks.run(step, x), not ranks.run(step(x))"


@pytest.mark.parametrize("timeout_s", [0, -1, float("inf"), float("nan"), "5", True])
def test_a_bad_timeout_is_refused(ranks2, timeout_s):
    with pytest.raises(WorkbookError, match="timeout_s is"):
        ranks2.run(dist.get_rank, timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"count": 0}, "count is 0"),
        ({"count": -2}, "count is -2"),
        ({"count": 2.0}, "count is 2.0"),
        ({"count": True}, "count is True"),
        ({"count": "4"}, "count is '4'"),
        ({"count": 17}, "17 ranks on one machine"),
        ({"count": 2, "backend": "nccI"}, "backend 'nccI'"),
        ({"count": 2, "timeout_s": 0}, "timeout_s is 0"),
        ({"count": 2, "profile": "no such profile"}, "there is no IPython profile 'no such profile'"),
    ],
)
def test_bad_ranks_are_refused(bad, named):
    with pytest.raises(WorkbookError) as error:
        Ranks(**bad)
    assert error.value.what == named


@pytest.mark.parametrize("missing", ["ipyparallel", "cloudpickle"])
def test_what_is_not_installed_is_named(missing, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(WorkbookError, match=f"{missing} cannot be imported") as error:
        Ranks(2)
    assert error.value.do == "pip install ipyparallel cloudpickle"


def test_importing_ranks_loads_neither_torch_nor_ipyparallel():
    code = "import helpers.lesson.ranks, sys; print({'torch', 'ipyparallel', 'cloudpickle'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_ranks_that_wait_are_started_by_the_first_call():
    with Ranks(1, start=False) as ranks:
        assert repr(ranks) == "<1 rank, stopped>"
        assert ranks.run(dist.get_world_size) == [1]
        assert repr(ranks) == "<1 rank on gloo, ready>"


def test_stop_leaves_nothing():
    with Ranks(1) as ranks:
        assert ranks.run(dist.get_world_size) == [1]
        assert repr(ranks) == "<1 rank on gloo, ready>"
        before = calls.everything_of(ranks)
        assert len(calls.left_of(*before)) >= 3  # controller, engine, folder
        watchers = [child for child in psutil.Process().children() if before[0] in child.cmdline()]
        assert [reaper.__file__ in watcher.cmdline() for watcher in watchers] == [True]
        watchers[0].kill()  # so that it is `stop` alone that ends them
        ranks.stop()
        assert calls.left_of(*before) == []
        assert repr(ranks) == "<1 rank, stopped>"
    ranks.stop()
