"""What the warm process may import: nothing that starts a thread or a process, since forks would lack or share it."""

from __future__ import annotations

import pytest

from helpers.grading.sandbox.fork_server import _harmless


@pytest.mark.parametrize(
    ("source", "harmless"),
    [
        ("value = 1", True),
        ("raise ImportError", True),
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()", False),
        ("import subprocess\nchild = subprocess.Popen(['sleep', '60'])", False),
        ("import os\nos._exit(1)", False),
    ],
    ids=["quiet", "missing", "a thread", "a process", "a crash"],
)
def test_an_import_is_tried_where_it_can_do_no_harm(source, harmless, tmp_path, monkeypatch):
    (tmp_path / "imported_by_the_fork_server.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert _harmless(["imported_by_the_fork_server"]) is harmless
