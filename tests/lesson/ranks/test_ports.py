"""The ports of a controller, which binds them seconds after they are chosen."""

from __future__ import annotations

import itertools
import random
import socket

from helpers.lesson.ranks.engines import free_ports


def test_they_are_free_and_none_that_a_system_gives_away(monkeypatch):
    asked = free_ports(20).start
    taken = asked + 7
    draws = itertools.chain([asked], itertools.cycle(range(taken + 1, taken + 2000, 20)))
    monkeypatch.setattr(random.SystemRandom, "randrange", lambda self, low, high: next(draws))
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", taken))
        other.listen()
        found = free_ports(20)
    assert len(found) == 20
    assert found.start > taken  # beyond, where somebody else has one of these
    monkeypatch.undo()
    drawn = [free_ports(20) for _ in range(50)]
    assert all(ports[0] >= 10_000 and ports[-1] < 32_768 for ports in drawn)
    assert len({ports[0] for ports in drawn}) > 25
