"""The simulator against the CUDA allocator of this machine, call by call and block by block."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from helpers.memory.allocator import compare_with_snapshot, read_snapshot

ROOT = Path(__file__).parents[3]
CONFS = ["", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4"]
# A process of its own: the history must begin before the first allocation, and settings are read only once.
PROGRAM = """
import random, sys, torch
path, seed = sys.argv[1], int(sys.argv[2])
torch.cuda.init()
torch.cuda.memory._record_memory_history(max_entries=1_000_000, context=None)
rng, living = random.Random(seed), []
for _ in range(3000):
    if rng.random() < 0.01:
        torch.cuda.empty_cache()
    elif living and rng.random() < 0.5:
        living.pop(rng.randrange(len(living)))
    else:
        living.append(torch.empty(int(2 ** rng.uniform(6, 26)), dtype=torch.uint8, device="cuda"))
torch.cuda.memory._dump_snapshot(path)
"""

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("conf", CONFS)
def test_segments_agree_in_size_and_order_and_final_blocks(conf, tmp_path):
    import os

    path, seed = tmp_path / "snapshot.pickle", random.Random(conf).randrange(1000)
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": conf}
    subprocess.run([sys.executable, "-c", PROGRAM, str(path), str(seed)], check=True, cwd=ROOT, env=environment)
    comparison = compare_with_snapshot(read_snapshot(path))
    assert comparison.segment_events > 50
    assert comparison.agrees, str(comparison)
