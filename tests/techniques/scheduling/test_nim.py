"""The simulator against NVIDIA's table: three numbers are fitted on two rows, the others are predicted."""

import pytest

from helpers.techniques.scheduling import nim

ROWS = {row.concurrency: row for row in nim.TABLE}


@pytest.mark.parametrize("concurrency", [1, 25])
def test_the_rows_that_the_efficiencies_come_from(concurrency):
    row, mine = ROWS[concurrency], nim.predicted(concurrency)
    assert mine.itl_s == pytest.approx(row.itl_s, rel=0.02)
    assert concurrency > 1 or mine.ttft_s == pytest.approx(row.ttft_s, rel=0.02)


@pytest.mark.parametrize(
    "concurrency", [5, 50, 100, *(pytest.param(c, marks=pytest.mark.slow) for c in (150, 200, 250))]
)
def test_the_rows_that_it_has_not_seen(concurrency):
    row, mine = ROWS[concurrency], nim.predicted(concurrency)
    assert mine.itl_s == pytest.approx(row.itl_s, rel=0.03)
    assert mine.tokens_per_s == pytest.approx(row.tokens_per_s, rel=0.08)


def test_where_it_saturates():
    """Who runs when more wait: the table by Little's law, the pool by its blocks."""
    running = [row.running for row in nim.TABLE if row.concurrency >= 100]
    assert max(running) / min(running) < 1.01
    assert nim.predicted(100).running == pytest.approx(running[0], rel=0.10)
    assert nim.users_that_fit() == 92


def test_little_holds_within_the_table():
    """NVIDIA's three columns agree with one another: throughput is clients x answer / time of a request."""
    for row in nim.TABLE:
        a_request_s = row.ttft_s + row.itl_s * (nim.ANSWER - 1)
        assert row.concurrency * nim.ANSWER / a_request_s == pytest.approx(row.tokens_per_s, rel=0.03)
