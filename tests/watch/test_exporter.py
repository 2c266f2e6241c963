"""What Prometheus gets, read back with its own parser; and alerts that name only what is served."""

from __future__ import annotations

import re
import socket
import urllib.request

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from helpers.catalog import WorkbookError
from helpers.watch import (
    METRICS,
    Nvml,
    Severity,
    SimulatedCard,
    Thresholds,
    TorchCounters,
    Watcher,
    exposition,
    rules_file,
    serve_metrics,
)
from helpers.watch.exporter import SERVED
from tests.watch.fake_nvml import GIB, Card, FakeNvml

PROCESS = TorchCounters(7, "simulated", 2 * GIB, 3 * GIB, 4 * GIB, 1, 2)
# Words of PromQL that are no metrics; what stands in quotes, braces and brackets is cut before.
PROMQL = {"increase", "absent", "by", "on", "or", "and", "unless", "rate", "max", "min", "sum"}


def leaking(seconds: int = 120) -> Watcher:
    watcher = Watcher(SimulatedCard("leak"), counters=lambda: [PROCESS])
    for second in range(seconds):
        watcher.sample(second)
    return watcher


def values(watcher: Watcher) -> dict[tuple[str, str], float]:
    """Each sample's value by its name and labels, as Prometheus' parser reads them."""
    families = text_string_to_metric_families(exposition(watcher))
    return {
        (sample.name, ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def metrics_in(expr: str) -> set[str]:
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|\"[^\"]*\"", " ", expr)
    return set(re.findall(r"[a-z_]\w+", bare)) - PROMQL


def test_a_growing_card_with_a_process_serves_every_metric() -> None:
    watcher = leaking()
    found, (state,) = values(watcher), watcher.states()
    assert {name for name, _ in found} == SERVED
    assert found["gpu_memory_used_bytes", "gpu=0"] == state.reading.used_bytes
    assert found["gpu_memory_exhaustion_seconds", "bound=expected,gpu=0"] == state.forecast.expected_s
    assert found["torch_memory_reserved_bytes", "gpu=0,pid=7"] == 3 * GIB
    assert found["torch_memory_oom_total", "gpu=0,pid=7"] == 2
    assert found["gpu_watch_samples_total", ""] == 120


def test_what_is_not_known_is_absent_and_not_a_large_number() -> None:
    watcher = Watcher(SimulatedCard("steady"))
    for second in range(120):
        watcher.sample(second)
    found = values(watcher)
    assert not [name for name, _ in found if "exhaustion" in name or "torch" in name]
    assert ("gpu_memory_growth_bytes_per_second", "gpu=0") in found
    assert float("inf") not in found.values()


def test_a_lost_card_is_down_and_tells_no_bytes() -> None:
    card = Card("GPU-a")
    watcher = Watcher(Nvml(FakeNvml(card, Card("GPU-b"))))
    card.lost = True
    watcher.sample(0)
    found = values(watcher)
    assert found["gpu_up", "gpu=0,name=NVIDIA H100,uuid=GPU-a"] == 0
    assert ("gpu_memory_used_bytes", "gpu=0") not in found
    assert ("gpu_memory_used_bytes", "gpu=1") in found


def test_jumps_are_counted() -> None:
    card = Card("GPU-a")
    watcher = Watcher(Nvml(FakeNvml(card)))
    for second in range(3):
        card.used_bytes = (10 + 20 * (second % 2)) * GIB
        watcher.sample(second)
    assert values(watcher)["gpu_memory_jumps_total", "gpu=0"] == 2


def test_metric_names_follow_prometheus_conventions() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"(gpu|torch)(_[a-z]+)+", metric.name)
        assert metric.name.endswith("_total") == metric.counts_up
        assert metric.name.endswith(("_bytes", "_seconds", "_ratio", "_per_second", "_total", "_up"))


def test_the_server_answers_while_the_watcher_samples_and_ends() -> None:
    watcher = leaking()
    port, end = serve_metrics(watcher, 0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert b'gpu_memory_used_bytes{gpu="0"}' in answer.read()
        with pytest.raises(WorkbookError, match=f"port {port} of 127.0.0.1 cannot be opened"):
            serve_metrics(watcher, port)
    finally:
        end()
    with socket.socket() as again:
        assert again.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize("port", [-1, 65_536, True, "9400"])
def test_a_port_that_is_none(port: object) -> None:
    with pytest.raises(WorkbookError, match="port is"):
        serve_metrics(leaking(1), port)


def rules(thresholds: Thresholds) -> dict[str, dict]:
    (group,) = yaml.safe_load(rules_file(thresholds))["groups"]
    assert group["name"] == "gpu-memory"
    return {rule["alert"]: rule for rule in group["rules"]}


def test_alerts_name_only_metrics_that_are_served_and_there_is_one_for_each_fact() -> None:
    found = rules(Thresholds())
    named = set().union(*(metrics_in(rule["expr"]) for rule in found.values()))
    assert named <= SERVED
    assert named >= {"gpu_up", "gpu_memory_used_bytes", "gpu_memory_exhaustion_seconds", "torch_memory_oom_total"}
    assert len(found) == 8


def test_a_metric_that_nobody_serves_would_be_noticed() -> None:
    assert metrics_in('increase(gpu_gone_total{gpu="0"}[5m]) > 0') == {"gpu_gone_total"}


def test_labels_in_expressions_and_summaries_are_labels_that_are_served() -> None:
    labels = {metric.name: {"gpu", *metric.labels} for metric in METRICS} | {"gpu_watch_samples_total": set()}
    for rule in rules(Thresholds()).values():
        (name, *_) = sorted(metrics_in(rule["expr"]), key=lambda name: "total" in name)
        used = re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]) + re.findall(r"(\w+)=", rule["expr"])
        assert set(used) - {""} <= labels[name], rule


def test_alerts_carry_the_thresholds_and_a_severity() -> None:
    found = rules(Thresholds(0.5, 0.75, 100, 50))
    assert found["GpuMemoryHigh"]["expr"].endswith(">= 0.5")
    assert found["GpuMemoryCritical"]["expr"].endswith(">= 0.75")
    assert found["GpuMemoryGrowing"]["expr"].endswith("<= 100")
    assert found["GpuMemoryExhaustionSoon"]["expr"].endswith("<= 50")
    for rule in found.values():
        assert rule["labels"]["severity"] in {Severity.WARNING.value, Severity.CRITICAL.value}
        assert re.fullmatch(r"\d+m", rule["for"])
