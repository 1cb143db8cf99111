"""Workers and servers over real sockets, against the specification's switch."""

import logging
import os
import select
import socket
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from patience import PATIENCE_S, with_longer_timeouts
from udp_switch import CONFIG, UdpSwitch, check_steps, drawn, served, steps

from peelsum.summation import Part
from peelsum.transport import (
    SwitchSummation,
    Timers,
    TransportError,
    endpoint_kernels,
    exchange_kernels,
    link,
    server_kernels,
)
from peelsum.transport.errors import StalledError, SwitchUnreachableError
from peelsum.transport.lease import Lease, LostRank, RankLostError
from peelsum.transport.link import PortLink
from peelsum.transport.warming import warm_up

LOOPS = {
    endpoint_kernels: ["contribute", "take", "next_due", "expire", "resend"],
    exchange_kernels: ["exchange", "serve"],
    server_kernels: ["take", "next_due", "expire", "send"],
}


def test_a_missing_worker_is_named_by_the_others():
    config = replace(CONFIG, timers=Timers(first_answer=0.01, need=0.005, resend_most=0.05, linger=0.1))

    def named(timeout_s):
        with served(config) as (switch, _service, pool, _serving):

            def wait_in_vain(worker):
                address = switch.address(worker)
                lease = Mock(spec=Lease)
                options = {"timeout_s": timeout_s, "join_s": 0.0, "leases": [lease]}
                with SwitchSummation(config, worker, address, **options) as summation:
                    with pytest.raises(StalledError, match=r"job 1: .*chunk 4294967264 .*worker 2") as error:
                        summation.sum_words([Part(drawn(worker, 0, 5), "add")])
                    with pytest.raises(TransportError, match="out of step"):
                        summation.sum_words([])
                # Otherwise those whose sums fail later would take this worker's end for the cause.
                lease.fail.assert_called_once_with(str(error.value))

            for one in [pool.submit(wait_in_vain, worker) for worker in (0, 1)]:
                one.result()

    with_longer_timeouts(named)


def test_a_loss_that_the_controller_has_reported_is_not_reported_to_it():
    lease = Mock(spec=Lease)
    lease.check.side_effect = RankLostError([LostRank(2, 17, "10.0.0.3")], "job 1")
    with (
        served(CONFIG, runs=False) as (switch, _service, _pool, _),
        SwitchSummation(CONFIG, 0, switch.address(0), leases=[lease]) as summation,
        pytest.raises(RankLostError),
    ):
        summation.sum_words([Part(drawn(0, 0, 5), "add")])
    lease.fail.assert_not_called()


def test_results_that_came_while_a_worker_had_no_processor_are_no_stall(monkeypatch):
    """As when another thread holds the interpreter's lock after the compiled loop has returned."""
    config = replace(CONFIG, workers=1)
    late_by = [0.0]
    exchange = exchange_kernels.exchange

    def kept_waiting(stations, polled, until):
        if late_by[0]:
            return exchange(stations, polled, until)
        returned = exchange(stations, polled, 0.0)  # sends; nobody answers yet
        pool.submit(service.run)
        late_by[0] = 1000.0
        assert select.select([stations[0].wire.descriptor], [], [], PATIENCE_S)[0]
        return returned

    def now():
        of_worker = threading.current_thread() is threading.main_thread()
        return time.monotonic() + (late_by[0] if of_worker else 0.0)

    with served(config, runs=False) as (switch, service, pool, _):
        address = switch.address(0)
        monkeypatch.setattr("peelsum.transport.exchange.exchange", kept_waiting)
        monkeypatch.setattr("peelsum.transport.exchange.time", SimpleNamespace(monotonic=now))
        with SwitchSummation(config, 0, address) as summation:
            (result,) = summation.sum_words([Part(drawn(0, 0, 5), "add")])
        np.testing.assert_array_equal(result, drawn(0, 0, 5))


def test_a_switch_that_forgot_its_peers_meets_them_again():
    with served(CONFIG) as (switch, _service, pool, serving):
        met = threading.Barrier(3, action=switch.forget_peers)

        def worker(number):
            address = switch.address(number)
            with SwitchSummation(CONFIG, number, address, timeout_s=120) as summation:
                first = steps(summation, 1)
                met.wait()
                return first + steps(summation, 1)

        for one in [pool.submit(worker, number) for number in range(3)]:
            first, second = one.result()
            check_steps([first], 3)
            check_steps([second], 3)
        serving.result()


@pytest.mark.parametrize("address", [("a" * 64, 5), ("127.0.0.1", 99999)])
def test_an_address_that_is_none_is_named(address):
    with pytest.raises(SwitchUnreachableError, match=rf"{address[0]}:{address[1]}: .*; check host and port"):
        SwitchSummation(CONFIG, 0, address)


def test_after_warm_up_nothing_is_compiled_any_more():
    config = replace(CONFIG, workers=1)
    warm_up(config.lanes)
    loops = [getattr(module, name) for module, names in LOOPS.items() for name in names]
    before = [len(loop.signatures) for loop in loops]
    with served(config, loss=0.1, seed=3) as (switch, _service, _pool, serving):
        with SwitchSummation(config, 0, switch.address(0)) as summation:
            check_steps(steps(summation, 1), 1)
        serving.result()
    assert [len(loop.signatures) for loop in loops] == before
    assert min(before) > 0


def test_a_forked_child_is_refused_and_leaves_the_job_to_its_parent():
    """It sends nothing, and closes only its own descriptors."""
    config, left = replace(CONFIG, workers=1), ExitStack()
    with served(config) as (switch, _service, _pool, _):
        summation = SwitchSummation(config, 0, switch.address(0), held=left)
        left.callback(lambda: os._exit(9))
        steps(summation, 1)
        heard, say = os.pipe()
        if not (child := os.fork()):
            try:
                summation.sum_words([])
            except TransportError as error:
                os.write(say, str(error).encode())
            summation.close()
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert b"this process was forked from the one that is connected" in os.read(heard, 1000)
        left.pop_all()
        check_steps(steps(summation, 1), 1)
        summation.close()


def test_a_worker_whose_own_code_fails_leaves_without_a_last_chunk():
    with UdpSwitch(8) as switch:
        switch.admit(CONFIG)
        with pytest.raises(ZeroDivisionError), SwitchSummation(CONFIG, 0, switch.address(0)) as summation:
            raise ZeroDivisionError
        assert summation.stats().contributions == 0
        with pytest.raises(TransportError, match="this connection is closed"):
            summation.sum_words([])


def test_a_switch_that_does_not_answer_is_talked_of_once(monkeypatch, caplog):
    monkeypatch.setattr(link, "_TELL_AFTER", 0.1)
    with socket.socket(type=socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        host, port = silent.getsockname()
        with caplog.at_level(logging.WARNING, "peelsum"), pytest.raises(SwitchUnreachableError):
            PortLink((host, port), 64, hello_s=1.0)
    assert caplog.messages == [f"switch address {host}:{port}: no answer yet; waiting up to 1 s"]
