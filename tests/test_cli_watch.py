"""`workbook watch`: says that there is no GPU, shows a simulated card, and refuses what it cannot do."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from functools import partial
from pathlib import Path

import pytest
import yaml

from helpers.cli import main, watch
from helpers.watch import Nvml, Watcher
from tests.cli_errors import require_told
from tests.watch.fake_nvml import Card, FakeNvml

QUICK = ["watch", "--simulate", "leak", "--interval", "0.001"]


def without_driver() -> Nvml:
    return Nvml(FakeNvml(missing=True))


def test_a_machine_without_a_gpu_is_told_so(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(watch, "Nvml", without_driver)
    require_told(["watch"], "this machine has no NVIDIA GPU that can be watched: NVML Shared Library Not Found", capsys)


def test_the_cards_of_the_machine_are_shown(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(watch, "Nvml", lambda: Nvml(FakeNvml(Card("GPU-a"), Card("GPU-b", lost=True))))
    assert main(["watch", "--samples", "1"]) == 0
    out = capsys.readouterr().out
    assert "GPU 0  NVIDIA H100  ok" in out
    assert "10.00 GiB of 80.00 GiB used (12%), utilization 50%" in out
    assert "lost: GPU is lost" in out


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_a_terminal_gets_colours_unless_no_color_is_set(no_color, coloured, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", no_color)
    assert main([*QUICK, "--samples", "1"]) == 0
    assert ("\x1b[3" in capsys.readouterr().out) is coloured


def test_json_is_one_line_for_each_card_and_sample_and_never_holds_infinity(capsys) -> None:
    assert main([*QUICK, "--samples", "3", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    told = [json.loads(line, parse_constant=refuse) for line in lines]
    assert told[0]["total_bytes"] == 80 * 2**30
    assert told[0]["forecast"]["expected_s"] is None
    assert told[0]["forecast"]["trend"] == "too short to tell"


def test_metrics_are_served_while_it_runs_and_no_longer(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    read: list[str] = []
    sample = Watcher.sample

    def sample_and_read(self: Watcher, time_s: float) -> None:
        sample(self, time_s)
        address = re.findall(r"http://\S+", capsys.readouterr().out)
        if address:
            read.append(address[0])
            with urllib.request.urlopen(address[0], timeout=10) as answer:
                read.append(answer.read().decode())

    monkeypatch.setattr(Watcher, "sample", sample_and_read)
    assert main([*QUICK, "--samples", "1", "--port", "0"]) == 0
    assert 'gpu_memory_total_bytes{gpu="0"} 8.589934592e+10' in read[1]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(read[0], timeout=10)


def test_ctrl_c_ends_it_with_a_line_and_130() -> None:
    command = [sys.executable, "-m", "helpers.cli", "watch", "--simulate", "leak", "--json"]
    unignored = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    watched = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=unignored)
    assert watched.stdout
    assert json.loads(watched.stdout.readline())["total_bytes"]
    watched.send_signal(signal.SIGINT)
    assert watched.communicate(timeout=60)[1] == "Stopped.\n"
    assert watched.returncode == 130


def test_rules_are_written_with_the_thresholds_given(tmp_path: Path, capsys) -> None:
    path = tmp_path / "gpu.yml"
    assert main(["watch", "--rules", str(path), "--critical", "0.97"]) == 0
    assert "prometheus.yml" in capsys.readouterr().out
    (group,) = yaml.safe_load(path.read_text())["groups"]
    assert any(rule["expr"].endswith(">= 0.97") for rule in group["rules"])


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--interval", "0"], "--interval is 0"),
        (["--window", "19"], "--window is 19"),
        (["--window", "100000"], "--window is 100000"),
        (["--samples", "0"], "--samples is 0"),
        (["--warning", "0.99"], "thresholds of 0.99 and 0.95"),
        (["--critical-seconds", "7200"], "thresholds of 3600.0 and 7200.0 s"),
        (["--simulate", "leek"], "did you mean 'leak'?"),
        (["--port", "70000"], "port is 70000"),
        (["--rules", "/nowhere/gpu.yml"], "pass another --rules"),
        (["--interval", "1e-3"], "is not a decimal number"),
    ],
)
def test_bad_flags_are_told(flags: list[str], told: str, capsys) -> None:
    require_told([*QUICK, *flags] if "--simulate" not in flags else ["watch", *flags], told, capsys)
