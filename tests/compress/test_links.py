"""The estimate of a link: what steps tell, when it is probed, and when a change is believed."""

import pytest

from peelsum.compress import LinkModel, TimedExchange
from peelsum.compress.links import LinkEstimate

LINK = LinkModel(1e-3, 0.5)
STEP_S = 0.05


def timed(link, messages, words):
    return TimedExchange(messages * link.latency_s + 32 * words / (link.gbps * 1e9), messages, words)


def estimate():
    return LinkEstimate(lambda words: (2.0, float(words)))


def stepped(one, link, used=None):
    """Take a step over `link` whose sums send (messages, words), None for none; return its probe's words."""
    words, small = one.plan_probe(STEP_S)
    own = used and timed(link, 2, 100)
    one.add(
        small=timed(link, 2, 1) if small else own or None,
        exchange=timed(link, *used) if used else None,
        probe=timed(link, 2, words) if words else None,
    )
    return words


def settled(link=LINK, used=None):
    one = estimate()
    for _ in range(20):
        stepped(one, link, used)
    return one


def near(one, link):
    return (one.link.latency_s, one.link.gbps) == pytest.approx((link.latency_s, link.gbps), rel=0.02)


@pytest.mark.parametrize("used", [None, (4.0, 2e5), (4.0, 10.0)], ids=["idle", "telling", "few words"])
@pytest.mark.parametrize("link", [LINK, LinkModel(1e-3, 0.005), LinkModel(1e-2, 1.0)])
def test_a_steady_link_is_learned(link, used):
    assert near(settled(link, used), link)


def test_steps_that_tell_need_no_probe():
    one = settled(used=(4.0, 2e5))
    assert [stepped(one, LINK, (4.0, 2e5)) for _ in range(20)] == [0] * 20


@pytest.mark.parametrize(("latency_s", "every"), [(2e-4, 4), (1e-2, 6)])
def test_an_idle_link_is_probed_less_often_if_that_takes_long(latency_s, every):
    link = LinkModel(latency_s, 0.5)
    one = settled(link)
    probes = [bool(stepped(one, link)) for _ in range(10 * every)]
    assert sum(probes) == 10


@pytest.mark.parametrize("what", ["small", "probe"])
def test_a_link_is_known_once_both_latency_and_rate_are(what):
    one, told = estimate(), dict.fromkeys(("small", "exchange", "probe"))
    one.add(**told | {what: timed(LINK, 2, 1 << 14)})
    assert one.link is None


@pytest.mark.parametrize(("used", "ahead"), [(None, True), ((4.0, 10.0), False)])
def test_a_dear_probe_has_a_word_ahead_unless_the_steps_tell_the_latency(used, ahead):
    link = LinkModel(1e-2, 0.5)
    one, asked = settled(link, used), []
    for _ in range(12):
        asked.append(one.plan_probe(STEP_S))
        stepped(one, link, used)
    assert {small for words, small in asked if words} == {ahead}


def test_a_probe_takes_one_and_a_half_latencies_beyond_a_short_exchange():
    link = LinkModel(1e-2, 0.5)
    one = settled(link)
    words = max(stepped(one, link) for _ in range(6))
    assert 0.5 <= 32 * words / (link.gbps * 1e9) / (2 * link.latency_s) < 1.0


def test_two_slow_steps_cast_doubt_once():
    used, one = (4.0, 2e5), settled(used=(4.0, 2e5))
    doubts = []
    for _ in range(4):
        stepped(one, LinkModel(1e-3, 0.05), used)
        doubts.append(one.doubtful)
    assert doubts == [False, True, False, False]


def test_an_idle_link_that_is_asked_for_is_believed_at_its_second_probe():
    slow, one = LinkModel(1e-3, 0.05), settled()
    one.request_probe()
    for _ in range(2):
        assert stepped(one, slow)
    assert near(one, slow)
