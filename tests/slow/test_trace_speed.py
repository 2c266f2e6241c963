"""How long a trace takes and how much memory, printed; only ratios and sizes are asserted, never a clock."""

import resource
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow

TRACE = """
import sys, time
from helpers.catalog import TrainSetup
from helpers.memory import trace
trace.train(TrainSetup("tiny-llama", precision="bf16", micro_batch=1, sequence=64))  # imports are not what is timed
start = time.perf_counter()
found = trace.train(TrainSetup(sys.argv[1], precision="bf16", optimizer="adamw-fused", micro_batch=1, sequence=2048))
seconds = time.perf_counter() - start
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))  # ru_maxrss counts its parent's too
print(found.peak_allocated_bytes, seconds, int(peak.split()[1]) * 1024)
"""


SIZES = [pytest.param("llama-2-7b", 3, 50.2, marks=pytest.mark.all), ("llama-2-70b", 10, 514.0)]


@pytest.mark.parametrize(("model", "goal_s", "peak_gib"), SIZES)
def test_a_large_model_is_traced_in_little_memory(model, goal_s, peak_gib, capsys):
    done = subprocess.run([sys.executable, "-c", TRACE, model], capture_output=True, text=True, check=True)
    allocated, seconds, resident = (float(word) for word in done.stdout.split())
    with capsys.disabled():
        print(
            f"\n  trace of {model}, two steps: {seconds:.1f} s (goal {goal_s}), {resident / 2**30:.2f} GiB of process"
        )
    assert allocated / 2**30 == pytest.approx(peak_gib, rel=0.002)
    assert resident < 1.5 * 2**30


@pytest.mark.all
@pytest.mark.alone
def test_it_is_quicker_than_pytorch_s_own_tracker(capsys):
    """MemTracker and the trace on the same step of the same model, one after the other in one process."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    from helpers.catalog import TrainSetup
    from helpers.memory import trace
    from helpers.memory.measure import steps
    from helpers.memory.trace.fake import as_on_a_device, without_memory

    setup = TrainSetup("llama-3.2-1b", precision="bf16", optimizer="adamw-fused", micro_batch=1, sequence=512)
    trace.train(setup, steps=1)
    start = time.perf_counter()
    ours = trace.train(setup, steps=1)
    traced = time.perf_counter() - start

    mode = FakeTensorMode()
    model = steps.build_model(setup, "meta")
    with as_on_a_device(), mode:
        run = steps.run_of(setup, without_memory(model, mode), "cpu")
        start = time.perf_counter()
        tracker = MemTracker()
        tracker.track_external(run.model, run.optimizer)
        with tracker:
            run.step()  # it follows one step, no more
        tracked = time.perf_counter() - start
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    with capsys.disabled():
        print(
            f"\n  llama-3.2-1b, one step: trace {traced:.1f} s, MemTracker {tracked:.1f} s; "
            f"peaks {ours.peak_bytes / 2**30:.3f} and {peak / 2**30:.3f} GiB"
        )
    assert traced < tracked
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 * 2**20
