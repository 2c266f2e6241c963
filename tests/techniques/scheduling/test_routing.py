"""Where requests go: everybody once, prefixes together, and nobody where all the others are."""

import pytest

from helpers.catalog import ServeSetup, WorkbookError
from helpers.techniques.paging import Request
from helpers.techniques.scheduling import Arrival, Policy, Roofline, at_once, poisson
from helpers.techniques.scheduling.routing import ROUTERS, most_free_blocks, simulate_replicas
from helpers.techniques.scheduling.simulator import Server

ROOF = Roofline.of(ServeSetup("llama-3-8b"), "h100")


def conversations(groups=6, each=20):
    """`groups` long system prompts, `each` users of each, in turn; the last tokens differ."""
    return [Request((10 + g,) * 2000 + (1000 + n,) * 20, (0,) * 40) for n in range(each) for g in range(groups)]


def routed(router, arrivals, blocks=1200):
    return simulate_replicas(arrivals, router, 4, Policy(token_budget=2048), ROOF, blocks)


@pytest.mark.parametrize("router", ROUTERS)
def test_everybody_is_served_once(router):
    assert sum(routed(router, poisson(conversations(), 30.0)).requests) == 120


def test_prefixes_that_stay_together_are_found_again():
    """The pools hold a few of the prompts each: in turn, every replica meets all six, and forgets."""
    arrivals = poisson(conversations(), 10.0)
    rates = {router: routed(router, arrivals, blocks=600).prefix_hit_rate for router in ("in-turn", "load", "prefix")}
    assert rates["prefix"] > 0.9 > rates["in-turn"]


def test_one_prefix_for_all_does_not_end_on_one_replica():
    everybody = poisson(conversations(groups=1, each=80), 400.0)
    assert min(routed("prefix", everybody).requests) > 10


def test_a_few_words_in_common_do_not_decide():
    """All begin with the same 32 tokens of two thousand: whoever served the first would serve most."""
    apart = [Request((9,) * 32 + (1000 + n,) * 2000, (0,) * 100) for n in range(80)]
    assert max(routed("prefix", poisson(apart, 8.0)).requests) < 40


def test_free_blocks_see_what_a_count_does_not():
    """A long prompt and a short one are one request each; only the blocks tell that the long one takes more."""
    turns = [Request((at,) * (8000 if at % 4 == 0 else 100), (0,) * 200) for at in range(1, 41)]
    worst = {
        router: max(one.peak_blocks for one in routed(router, poisson(turns, 40.0), blocks=8000).outcomes)
        for router in ("in-turn", "free-blocks")
    }
    assert worst["free-blocks"] < worst["in-turn"]


def test_who_waits_will_take_blocks_too():
    """A short request that runs while long ones wait, or a long one alone: the second leaves more blocks."""
    servers = [Server(Policy(max_running=1), ROOF, blocks=1000) for _ in range(2)]
    for server, prompts in zip(servers, ((100, 4000, 4000), (3000,)), strict=True):
        for prompt in prompts:
            server.submit(Arrival(Request((1,) * prompt, (0,) * 50)), 0.0)
        server.step()
    free = [server.scheduler.manager.available for server in servers]
    assert free[0] > free[1]
    assert most_free_blocks(Arrival(Request((1,), (0,))), servers, 0) == 1


def test_a_router_that_is_none():
    with pytest.raises(WorkbookError, match="in-turn"):
        routed("random", at_once(conversations()))
