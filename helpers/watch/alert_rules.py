"""Alerts as a rules file of Prometheus, which hands what fires to Alertmanager; Grafana imports the same file.

Expressions are written from the thresholds that the terminal uses, and name only metrics that the exporter serves. An
alert waits (`for`) so that one step's peak wakes nobody; those that report a fact, a lost card or an error, do not.
"""

from __future__ import annotations

from dataclasses import dataclass

from .watcher import Severity, Thresholds


@dataclass(frozen=True)
class Rule:
    """One alert; Prometheus fills in what stands in double braces."""

    alert: str
    expr: str
    waits: str
    severity: Severity
    summary: str

    def __str__(self) -> str:
        return "\n".join(
            [
                f"      - alert: {self.alert}",
                f"        expr: {_quoted(self.expr)}",
                f"        for: {self.waits}",
                f"        labels: {{severity: {self.severity.value}}}",
                f"        annotations: {{summary: {_quoted(self.summary)}}}",
            ]
        )


def alert_rules(thresholds: Thresholds) -> tuple[Rule, ...]:
    """The alerts, worst first."""
    used = "gpu_memory_used_bytes / gpu_memory_total_bytes"
    warning, critical = thresholds.warning_share, thresholds.critical_share
    soon, later = thresholds.critical_s, thresholds.warning_s
    expected = 'gpu_memory_exhaustion_seconds{bound="expected"}'
    card, of_process = "GPU {{ $labels.gpu }}", "process {{ $labels.pid }} on GPU {{ $labels.gpu }}"
    left = "{{ $value | humanizeDuration }}"
    share = "{{ $value | humanizePercentage }}"
    retries, errors = "torch_memory_alloc_retries_total", "torch_memory_oom_total"
    return (
        Rule("GpuLost", "gpu_up == 0", "0m", Severity.CRITICAL, f"{card} does not answer"),
        Rule(
            "TorchOutOfMemory",
            f"increase({errors}[5m]) > 0",
            "0m",
            Severity.CRITICAL,
            f"{of_process} ran out of memory",
        ),
        Rule("GpuMemoryCritical", f"{used} >= {critical:g}", "2m", Severity.CRITICAL, f"{card} is {share} full"),
        Rule(
            "GpuMemoryExhaustionSoon", f"{expected} <= {soon:g}", "1m", Severity.CRITICAL, f"{card} is full in {left}"
        ),
        Rule("GpuMemoryHigh", f"{used} >= {warning:g}", "10m", Severity.WARNING, f"{card} is {share} full"),
        Rule("GpuMemoryGrowing", f"{expected} <= {later:g}", "5m", Severity.WARNING, f"{card} is full in {left}"),
        Rule(
            "TorchAllocRetries",
            f"increase({retries}[10m]) > 0",
            "0m",
            Severity.WARNING,
            f"{of_process} had to free its cache to find room",
        ),
        Rule("GpuWatchDown", "absent(gpu_watch_samples_total)", "2m", Severity.WARNING, "nobody watches the GPUs"),
    )


def rules_file(thresholds: Thresholds) -> str:
    """The file, as YAML: save it, and name it under `rule_files` in prometheus.yml."""
    rules = "\n".join(str(rule) for rule in alert_rules(thresholds))
    return f"groups:\n  - name: gpu-memory\n    rules:\n{rules}\n"


def _quoted(text: str) -> str:
    """YAML's single quotes: nothing inside means anything but itself."""
    return "'" + text.replace("'", "''") + "'"
