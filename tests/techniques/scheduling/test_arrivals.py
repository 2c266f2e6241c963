"""Streams of arrivals: their rate, their order, and what is no rate."""

import pytest

from helpers.catalog import WorkbookError
from helpers.techniques.paging import Request
from helpers.techniques.scheduling import Arrival, at_once, bursts, limited, mixed, poisson, scaled

REQUESTS = [Request((at,), (0,)) for at in range(1, 401)]


def times(arrivals):
    return [arrival.at_s for arrival in arrivals]


def test_poisson_has_its_rate_and_its_seed():
    arrivals = poisson(REQUESTS, 20.0, seed=1)
    gaps = [after - before for before, after in zip([0.0, *times(arrivals)], times(arrivals), strict=False)]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(1 / 20, rel=0.15)
    assert spread == pytest.approx(mean, rel=0.2)  # as exponential gaps have it
    assert arrivals == poisson(REQUESTS, 20.0, seed=1) != poisson(REQUESTS, 20.0, seed=2)


def test_bursts_come_together():
    assert times(bursts(REQUESTS[:5], size=2, every_s=3.0)) == [0.0, 0.0, 3.0, 3.0, 6.0]


def test_mixed_is_in_order_and_keeps_who_asked():
    both = mixed(bursts(REQUESTS[:3], 1, 2.0, user="a"), at_once(REQUESTS[:1], "b", priority=3))
    assert [(one.at_s, one.user, one.priority) for one in both] == [(0, "a", 0), (0, "b", 3), (2, "a", 0), (4, "a", 0)]


def test_twice_the_load_is_half_the_time():
    assert times(scaled(bursts(REQUESTS[:3], 1, 2.0), 2.0)) == [0.0, 1.0, 2.0]


def test_a_limit_is_never_less_than_the_answer():
    requests = [Request((5,), (0,) * 3), Request((5,), (0,) * 9)]
    assert [one.most_tokens for one in at_once(requests)] == [3, 9]
    assert [one.most_tokens for one in limited(at_once(requests), 6)] == [6, 9]
    with pytest.raises(WorkbookError, match="max_tokens"):
        Arrival(requests[1], max_tokens=8)


@pytest.mark.parametrize("rate", [0, -1, float("nan"), "fast", True])
def test_what_is_no_rate_is_refused(rate):
    with pytest.raises(WorkbookError, match="above zero"):
        poisson(REQUESTS, rate)
