"""The relay between namespaces, in virtual time: which ports send a frame, and when; and its cost model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from peelsum.bench.methods import relay
from peelsum.experiments.catalogue.plan import predict
from peelsum.flexible import LinkModel, Step, cost
from peelsum.softswitch import Frames
from peelsum.softswitch.ports.schedule import Change, LinkSchedule, LinkState


class Ports:
    """Three ports that record when they send a frame, and how long it is."""

    ports = dict.fromkeys((1, 2, 3))

    def __init__(self) -> None:
        self.now_us = 0
        self.sent: list[tuple[int, int, int]] = []

    def send(self, frames: Frames) -> None:
        lengths = zip(frames.port.tolist(), frames.length.tolist(), strict=True)
        self.sent += [(self.now_us, port, length) for port, length in lengths]


def made(schedule: LinkSchedule) -> tuple[Ports, relay.Relay]:
    ports = Ports()
    return ports, relay.Relay(ports, schedule)  # type: ignore[arg-type]


def frame(to: str, size: int) -> bytes:
    return bytes.fromhex(to.replace(":", "")) + bytes(size - 6)


def run_to(ports: Ports, one: relay.Relay, until_us: int, every_us: int = 10) -> None:
    for now in range(ports.now_us, until_us + 1, every_us):
        ports.now_us = now
        one.pacer().release(now)


def departures(ports: Ports) -> Iterator[tuple[int, int]]:
    yield from ((now, port) for now, port, _ in ports.sent)


def test_a_frame_goes_to_its_worker_or_to_all_others() -> None:
    ports, one = made(relay.constant(1000, 0))
    frames = [
        (1, frame(relay.mac(1), 100)),
        (3, frame("ff:ff:ff:ff:ff:ff", 60)),
        (2, frame(relay.mac(0), 80)),
    ]
    one.forward(Frames.of(frames), 0)
    run_to(ports, one, 1000)
    assert sorted((port, length) for _, port, length in ports.sent) == [(1, 60), (1, 80), (2, 60), (2, 100)]


def test_a_port_sends_at_its_rate_and_its_link_delays() -> None:
    ports, one = made(relay.constant(8, 2))  # a byte per microsecond
    for _ in range(2):
        one.forward(Frames.of([(1, frame(relay.mac(1), 1000))] * 2), 0)
    run_to(ports, one, 10_000)
    assert list(departures(ports)) == [(3000, 2), (4000, 2), (5000, 2), (6000, 2)]
    one.forward(Frames.of([(1, frame(relay.mac(1), 500))]), 20_000)
    ports.now_us = 20_000
    run_to(ports, one, 30_000)
    assert list(departures(ports))[4:] == [(22_500, 2)]


def test_a_schedule_changes_rate_and_delay() -> None:
    changes = [Change(0, LinkState(8, 1)), Change(1, LinkState(0.8, 5))]
    ports, one = made(LinkSchedule(changes))
    for start_us, wanted_us in ((7_000, 9_000), (1_006_000, 1_008_000), (1_007_000, 1_022_000)):
        ports.now_us = start_us
        one.forward(Frames.of([(1, frame(relay.mac(2), 1000))]), start_us)
        run_to(ports, one, wanted_us - 10)
        count = len(ports.sent)
        run_to(ports, one, wanted_us)
        assert len(ports.sent) == count + 1


def test_a_new_setting_starts_at_once() -> None:
    ports, one = made(relay.constant(8, 2))
    one.forward(Frames.of([(1, frame(relay.mac(1), 1000))]), 0)
    one.set(relay.constant(16, 0))
    one.forward(Frames.of([(1, frame(relay.mac(2), 1000))]), 5_000)
    ports.now_us = 5_000
    run_to(ports, one, 6_000)
    assert (5_500, 3) in list(departures(ports))


@pytest.mark.parametrize("name", ["ar_top_k_ring", "ar_top_k_tree"])
def test_predictions_equal_those_of_the_cost_model(name: str) -> None:
    link = LinkModel(1e-3, 0.1)
    step = Step(1_000_000, 0.01, 4, link, select_s=0.0)
    assert predict(name, link, 4, 10_000) == pytest.approx(cost(name, step).seconds)  # type: ignore[arg-type]
