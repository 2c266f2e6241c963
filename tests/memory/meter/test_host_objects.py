"""Bytes beside tensors: arrays to the byte, Python's own objects where they are many."""

from __future__ import annotations

import base64
import functools
import json
import linecache
import pickle
import subprocess
import sys
import textwrap
import tracemalloc
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from helpers.catalog.errors import WorkbookError
from helpers.memory.breakdown import rounded
from helpers.memory.meter import Beside, FreshMeter

NUMBERS = np.random.default_rng(0).random(20_000)  # 160 kB


@dataclass
class Kept:
    number: float


@functools.cache
def remembered(at):
    return float(at)


MAKERS: dict[str, Callable[[], object]] = {
    "base64": lambda: base64.b64encode(NUMBERS.data),
    "base64, in small texts": lambda: [base64.b64encode(one.tobytes()) for one in np.split(NUMBERS, 1000)],
    "pickle, in C": lambda: pickle.dumps(NUMBERS),
    "pickle, in Python": lambda: vars(pickle)["_dumps"]([[[[NUMBERS.tobytes()]]]]),
    "json": lambda: json.dumps([[[[*map(int, NUMBERS * 1e15)]]]], indent=0),
    "json, read": lambda: json.loads("[" + "0.25," * 20_000 + "1]"),
    "NumPy": NUMBERS.tobytes,
    "str.join": lambda: ",".join(str(one) for one in range(40_000)),
    "a comprehension": lambda: {at: float(at) for at in range(5000)},
    "a queue": lambda: deque(float(at) for at in range(5000)),
    "a cache": lambda: [remembered(at) for at in range(5000)],
    "code made of text": lambda: [Kept(float(at)) for at in range(5000)],
    "text run as code": lambda: eval("[float(at) for at in range(20_000)]"),
    "a function of ours": lambda: rounded(int.from_bytes(NUMBERS.tobytes(), "little")),
    "who calls what it is given": lambda: functools.partial(NUMBERS.tobytes)(),
    "a buffer": lambda: bytearray(NUMBERS),
}


def test_an_array_counts_while_it_lives():
    with Beside() as beside:
        assert beside.live_bytes == 0
        kept = torch.zeros(100, 100).numpy().copy()
        stacked = np.stack([kept, kept])
        assert beside.live_bytes == 3 * 40_000
        del kept
        assert beside.live_bytes == 2 * 40_000
        del stacked
        assert beside.live_bytes == 0


def test_a_tensor_and_what_an_array_only_looks_at_are_not_beside():
    with Beside() as beside:
        tensor = torch.ones(100_000)
        view = tensor.numpy()[10:]
        assert (len(view), beside.live_bytes) == (99_990, 0)


def test_many_numbers_of_python_count_and_a_few_do_not():
    with Beside() as beside:
        few = [float(at) for at in range(1000)]
        assert (len(few), beside.live_bytes) == (1000, 0)
        many = torch.arange(20_000.0).tolist()
        assert beside.live_bytes > 8 * len(many)
        del many
        assert beside.live_bytes == 0


@pytest.mark.parametrize("made", MAKERS.values(), ids=MAKERS)
def test_what_a_library_makes_counts_as_what_own_lines_make(made):
    with Beside() as beside:
        kept = made()
        assert beside.live_bytes > 2 * 10**5 * 3 / 4
        remembered.cache_clear()
        del kept
        assert beside.live_bytes == 0


def test_who_keeps_little_may_be_told_less():
    with Beside() as beside, Beside(2**14) as strict:
        kept = bytes(2**15)
        assert (len(kept), beside.live_bytes) == (2**15, 0)
        assert 2**15 < strict.live_bytes < 2**15 + 2**14  # and what a process with much in it does besides


def test_the_books_of_a_meter_and_what_operators_leave_behind_do_not_count():
    """And names that Python remembers, tuples that it has ready: after 1,000 operators they were 50 kB."""
    noise = torch.randn(4, 64)
    with FreshMeter() as meter, Beside(2**13) as beside:
        kept = []
        for _ in range(1000):
            kept = [*kept[-8:], (noise.unflatten(1, (8, -1)).amax(2) + 1).half().clone()]
        assert (len(kept), len(meter.events) > 4000, beside.live_bytes) == (9, True, 0)
    meter.stop()


def test_what_a_meter_runs_for_somebody_counts():
    with FreshMeter() as meter, Beside() as beside:
        kept = meter.call(NUMBERS.tobytes, (), {})
        assert beside.live_bytes > len(kept)
    meter.stop()


def test_attributes_of_modules_are_little():
    with Beside(2**14) as beside:
        model = torch.nn.Sequential(*(torch.nn.Linear(2, 2, bias=False) for _ in range(4)))
        assert (len(model), beside.live_bytes) == (4, 0)


def test_lines_of_a_file_that_a_warning_shows_do_not_count():
    linecache.checkcache(torch.overrides.__file__)
    linecache.cache.pop(torch.overrides.__file__, None)
    with Beside(2**14) as beside:
        assert linecache.getline(torch.overrides.__file__, 1)
        assert beside.live_bytes == 0


def in_a_new_process(source: str) -> str:
    """What it prints. Modules come in once."""
    found = subprocess.run([sys.executable, "-c", textwrap.dedent(source)], check=True, capture_output=True, text=True)
    return found.stdout.strip()


def test_what_is_imported_does_not_count_and_what_is_kept_beside_it_does():
    told = in_a_new_process("""
        from helpers.memory.meter import Beside
        import base64, sys
        assert "mailbox" not in sys.modules
        with Beside() as beside:
            import mailbox
            first = beside.live_bytes
            kept = base64.b64encode(bytes(10**6))
            print(first, beside.live_bytes > len(kept))
    """)
    assert told == "0 True"


def test_an_import_is_no_cover_for_more_than_a_module_takes():
    told = in_a_new_process("""
        from helpers.memory.meter import Beside
        import importlib.util, os
        with Beside() as beside:
            import wave
            kept = importlib.util.decode_source(b"a" * 10**6)
            print(beside.live_bytes > 10**6 - 4 * os.path.getsize(wave.__file__))
    """)
    assert told == "True"


def test_one_within_another_goes_on():
    with Beside() as outer:
        with Beside():
            kept = np.zeros(1000)
        assert (kept.sum(), outer.live_bytes) == (0, 8000)


def test_a_peak_is_remembered_when_all_is_gone_again():
    np.zeros(10**6)
    with Beside() as beside:
        made = sum([float(at) for at in range(20_000)])
        lists = beside.peak_bytes
        assert 20_000 * 32 < lists < 20_000 * 36
        made += np.zeros(10**6).sum()
        assert (made > 0, beside.live_bytes) == (True, 0)
        assert 8 * 10**6 < beside.peak_bytes < 8 * 10**6 + 20_000


@pytest.mark.parametrize("ends", [tracemalloc.clear_traces, tracemalloc.stop])
def test_a_count_that_was_cleared_says_so_and_gives_no_number(ends):
    with Beside() as beside:
        kept = np.zeros(1000)
        ends()
        for asks in ("array_bytes", "live_bytes"):
            with pytest.raises(WorkbookError, match="cleared or stopped"):
                getattr(beside, asks)
    assert kept.sum() == 0
