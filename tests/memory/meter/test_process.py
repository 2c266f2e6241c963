"""What a process grows by, in whatever form it takes the memory: to a mebibyte, beside what a Meter cannot see."""

from __future__ import annotations

import subprocess
import sys

import pytest

from helpers.memory.meter import ProcessGrowth, process

MIB = 2**20
BYTES = 32 * MIB
FORMS = {
    "a tensor": f"torch.ones({BYTES // 4})",
    "a storage that no operator made": f"torch.UntypedStorage({BYTES}).fill_(1)",
    "an array": f"np.ones({BYTES // 4}, np.float32)",
    "a file in memory": f"io.BytesIO(b'1' * {BYTES})",
    "bytes": f"bytearray(b'1' * {BYTES})",
}
pytestmark = pytest.mark.skipif(not process.STATUS.exists(), reason="only Linux says what a process holds")


def test_memory_counts_in_whatever_form():
    """In a process of its own: in this one tests before it may have left something to be freed meanwhile."""
    asked = "kept = None\nwith ProcessGrowth() as growth: kept = {}; print(growth.live_bytes)\n"
    imports = "import io, torch, numpy as np\nfrom helpers.memory.meter import ProcessGrowth\n"
    code = imports + "".join(map(asked.format, FORMS.values()))
    grown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    found = dict(zip(FORMS, map(int, grown.split()), strict=True))
    assert found == pytest.approx(dict.fromkeys(FORMS, BYTES), abs=2 * MIB)


def test_a_list_of_numbers_counts_in_a_process_that_has_nothing_free():
    """In this one, tests before it have left Python pools half full, which small objects fill first."""
    numbers = f"[n + 0.5 for n in range({BYTES // 40})]"  # 8 in the list, and 32 for each number
    code = (
        "from helpers.memory.meter import ProcessGrowth\n"
        f"with ProcessGrowth() as growth: kept = {numbers}; print(growth.live_bytes)"
    )
    grown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(grown) == pytest.approx(BYTES, abs=2 * MIB)


def test_what_was_freed_does_not_count():
    with ProcessGrowth() as growth:
        pieces = [bytearray(b"1" * 1000) for _ in range(BYTES // 1000)]
        del pieces
        assert growth.live_bytes < 2 * MIB


def test_what_a_threads_heap_keeps_for_later_does_not_count():
    """glibc does not give back the end of a heap that is not the main thread's."""
    code = (
        "import threading, torch\n"
        "from helpers.memory.meter import ProcessGrowth\n"
        "def work():\n"
        f"    torch.empty({8 * MIB})\n"  # freed: from here on glibc maps only what is larger
        "    with ProcessGrowth() as growth:\n"
        "        for count in (1, 3, 6) * 3:\n"
        f"            tensors = [torch.empty({5 * MIB // 4}) for _ in range(count)]\n"
        "            for tensor in tensors: tensor.zero_()\n"
        "            del tensors, tensor\n"
        "            print(growth.live_bytes)\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()"
    )
    for _ in range(2):
        grown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        assert max(map(int, grown.split())) < 2 * MIB


def test_what_mkl_keeps_for_its_next_product_does_not_count():
    code = (
        "import torch\n"
        "from helpers.memory.meter import ProcessGrowth\n"
        "a, b = torch.ones(2000, 2000), torch.ones(2000, 2000).T\n"
        "torch.ones(2, 2) @ torch.ones(2, 2)\n"
        "with ProcessGrowth() as growth: product = a @ b; del product; print(growth.live_bytes)"
    )
    grown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(grown) < MIB


def test_nothing_is_said_where_the_system_says_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(process, "STATUS", tmp_path / "status")
    with ProcessGrowth() as growth:
        kept = bytearray(b"1" * BYTES)
        assert growth.live_bytes == 0
    assert len(kept) == BYTES
