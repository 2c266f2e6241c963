"""`workbook watch`: the cards of this machine in the terminal, for Prometheus, and as alerts."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from math import isinf
from pathlib import Path
from typing import Any

from ..catalog.errors import WorkbookError, require_number, require_whole
from ..questions.parameter import decimal, whole
from ..watch import Nvml, SimulatedCard, Thresholds, Watcher, read_counters, rules_file, screen, serve_metrics
from ..watch.exhaustion import LEAST_SAMPLES
from ..watch.simulated import SERIES
from ..watch.view import CLEAR
from ..watch.watcher import WINDOW
from .flags import Commands, add_command


def add(commands: Commands) -> None:
    text = "memory of the GPUs of this machine, live: used, growth, time to exhaustion; also for Prometheus"
    watch = add_command(commands, "watch", text, _watch)
    watch.add_argument("--interval", type=decimal, default=1.0, metavar="S", help="seconds between samples")
    watch.add_argument("--window", type=whole, default=WINDOW, metavar="N", help="samples that the growth is fitted to")
    watch.add_argument("--samples", type=whole, metavar="N", help="end after as many; default: run until Ctrl-C")
    watch.add_argument("--json", action="store_true", help="print one line of JSON for each card and sample, in bytes")
    watch.add_argument(
        "--port", type=whole, metavar="PORT", help="serve metrics for Prometheus there; 0: any free port"
    )
    address = "address that they are served at (default 127.0.0.1: this machine alone)"
    watch.add_argument("--address", default="127.0.0.1", help=address)
    watch.add_argument("--rules", type=Path, metavar="FILE", help="write Prometheus' alert rules there, and end")
    usual = Thresholds()
    for name in ("warning", "critical"):
        share, seconds = getattr(usual, f"{name}_share"), getattr(usual, f"{name}_s")
        text = f"share of the card that is {'a warning' if name == 'warning' else 'critical'}"
        watch.add_argument(f"--{name}", type=decimal, default=share, metavar="SHARE", help=text)
        text = "the same for predicted seconds to exhaustion"
        watch.add_argument(f"--{name}-seconds", type=decimal, default=seconds, metavar="S", help=text)
    text = f"an invented card in place of this machine's: {', '.join(SERIES)}"
    watch.add_argument("--simulate", metavar="SERIES", help=text)


def _watch(arguments: argparse.Namespace) -> int:
    thresholds = Thresholds(
        arguments.warning, arguments.critical, arguments.warning_seconds, arguments.critical_seconds
    )
    if arguments.rules is not None:
        return _write_rules(arguments.rules, thresholds)
    interval_s = require_number(
        "--interval", arguments.interval, below=3600, expected="seconds, above 0 and below 3600", do="pass --interval 1"
    )
    require_whole("--window", arguments.window, LEAST_SAMPLES, 86_400, unit="samples", do="pass --window 600")
    if arguments.samples is not None:
        require_whole("--samples", arguments.samples)
    source = SimulatedCard(arguments.simulate) if arguments.simulate else Nvml()
    watcher = Watcher(source, thresholds, arguments.window, read_counters)
    served, end = (None, None) if arguments.port is None else serve_metrics(watcher, arguments.port, arguments.address)
    where = "" if served is None else f"metrics at http://{arguments.address}:{served}/metrics"
    try:
        _run(watcher, interval_s, arguments.samples, arguments.json, where)
    finally:
        if end is not None:
            end()
    return 0


def _run(watcher: Watcher, interval_s: float, samples: int | None, as_json: bool, where: str) -> None:
    """Sample on a steady beat, so that a slow terminal shifts no sample, and show each."""
    live = sys.stdout.isatty() and not as_json
    if where:
        print(where, file=sys.stderr if as_json else sys.stdout, flush=True)
    start, taken = time.monotonic(), 0
    while samples is None or taken < samples:
        watcher.sample(time.monotonic())
        taken += 1
        if as_json:
            print("\n".join(json.dumps(figures) for figures in _figures(watcher)), flush=True)
        elif live:
            coloured = not os.environ.get("NO_COLOR")
            print(f"{CLEAR}{where}\n{screen(watcher, coloured)}", flush=True)
        elif samples is None or taken == samples:
            print(screen(watcher), flush=True)
        if taken != samples:
            time.sleep(max(0.0, start + taken * interval_s - time.monotonic()))


def _figures(watcher: Watcher) -> list[dict[str, Any]]:
    """A card's state without its history; times that never come are null, which JSON has and infinity is not."""
    return [
        {
            "time_s": time.time(),
            **asdict(state.reading),
            "severity": state.severity,
            "forecast": {
                name: None if _is_infinite(value) else value for name, value in asdict(state.forecast).items()
            },
            "processes": [asdict(one) for one in state.processes],
        }
        for state in watcher.states()
    ]


def _is_infinite(value: object) -> bool:
    return isinstance(value, float) and isinf(value)


def _write_rules(path: Path, thresholds: Thresholds) -> int:
    try:
        path.write_text(rules_file(thresholds), encoding="utf-8")
    except OSError as error:
        raise WorkbookError(f"{path}: {error.strerror}", "a file that can be written", "pass another --rules") from None
    print(f"{path}: name it under rule_files in prometheus.yml")
    return 0
