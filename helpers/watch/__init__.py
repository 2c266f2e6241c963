"""What a running machine's memory does: samples, trends, alarms. Imports catalog and memory; torch when asked.

    from helpers.watch import Nvml, Watcher, forecast, publish_counters
    publish_counters()                                     # in a training script that wants to be seen
    watcher = Watcher(Nvml()); watcher.sample(time.monotonic()); watcher.states()
    forecast(samples, total_bytes).expected_s              # seconds until the card is full

`nvml` and `simulated` are sources of `samples`; `torch_counters` are those of processes that opt in. `watcher` keeps a
ring for each card, and `exhaustion` says when it will be full. `view`, `exporter` and `alert_rules` tell people,
Prometheus and Alertmanager; `workbook watch` puts them together. `reconfigure`
simulates a day of a service that changes its formats and offloads as its load changes.
"""

from .alert_rules import Rule, alert_rules, rules_file
from .exhaustion import Forecast, Trend, forecast
from .exporter import METRICS, exposition, serve_metrics
from .nvml import Nvml
from .reconfigure import LADDER, Day, Mode, RecoveryPolicy, ServedModel, day_of_users, simulate_day
from .samples import Reading, Ring, Source
from .simulated import SERIES, SimulatedCard, series
from .torch_counters import TorchCounters, publish_counters, read_counters
from .view import screen
from .watcher import CardState, Event, EventKind, Severity, Thresholds, Watcher
