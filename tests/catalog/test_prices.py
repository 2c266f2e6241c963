"""Prices: dated, with a source, and the reader's own in their place."""

import pytest

from helpers.catalog import prices
from helpers.catalog.errors import WorkbookError


def test_every_listed_price_is_dated_and_has_a_source():
    assert len(prices.listed()) >= 8
    for one in prices.listed().values():
        assert 0 < one.per_hour < 20
        assert len(one.date) == 10
        assert "/" in one.source


def test_ones_own_price_takes_the_listed_ones_place():
    assert prices.with_own({"h100": 2.5})["h100-80gb"].per_hour == 2.5
    assert prices.with_own({})["h100-80gb"] == prices.price("h100")


def test_a_card_without_a_price_has_none():
    assert prices.price("v100") is None


@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), 98.32e3, "2.50"])
def test_what_is_no_price_is_refused(bad):
    with pytest.raises(WorkbookError):
        prices.with_own({"h100": bad})


def test_a_price_without_a_source_cannot_be_built():
    with pytest.raises(WorkbookError, match="source"):
        prices.Price(2.5, "", "2026-01-01")


def test_a_machine_that_is_bought_is_dated_and_has_a_source_and_a_monthly_bill():
    bought = prices.machine("h100")
    assert bought.cards == 8
    assert len(bought.date) == 10
    assert "/" in bought.source
    assert bought.hosted_per_month == pytest.approx(10.2 * 200)
    assert prices.machine("v100") is None


@pytest.mark.parametrize(("broken", "told"), [({"dollars": 0}, "dollars"), ({"source": ""}, "source")])
def test_a_machine_without_a_price_or_a_source_cannot_be_built(broken, told):
    entry = {
        "cards": 8,
        "dollars": 1e5,
        "kilowatts": 10.0,
        "kilowatt_month": 200,
        "source": "a/b",
        "date": "2024-08-22",
    }
    with pytest.raises(WorkbookError, match=told):
        prices.PricedMachine(**entry | broken)


def test_what_vendors_ask_for_the_same_card_spreads_around_its_listed_price():
    least, most = prices.spread("h100")
    assert least < prices.price("h100").per_hour < most
    assert prices.spread("v100") is None
