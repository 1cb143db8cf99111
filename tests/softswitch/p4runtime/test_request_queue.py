"""The queue of requests: their order, and calls that end while they wait."""

import threading

from p4runtime_client import FakeCall
from patience import PATIENCE_S

from peelsum.softswitch.p4runtime.service import RequestQueue
from peelsum.softswitch.p4runtime.status import Code, RequestError


class WatchedCall(FakeCall):
    """A call that shows when it is first asked whether it is active, which a request asks while it waits."""

    def __init__(self):
        super().__init__()
        self.waits = threading.Event()

    def is_active(self):
        self.waits.set()
        return super().is_active()


class Waiting:
    """Start a request in a thread; it appends its name to `order` when it runs."""

    def __init__(self, queue, name, order, updates=0):
        self.call, self.error = WatchedCall(), None
        self._queue, self._name, self._order, self._updates = queue, name, order, updates
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        assert self.call.waits.wait(PATIENCE_S)

    def _run(self):
        try:
            with self._queue.turn(self.call, self._updates):
                self._order.append(self._name)
        except RequestError as error:
            self.error = error


def joined(*requests):
    for request in requests:
        request.thread.join(PATIENCE_S)
        assert not request.thread.is_alive()


def test_turns_come_in_the_order_of_arrival():
    queue, order = RequestQueue(9), []
    with queue.turn(FakeCall()):
        requests = [Waiting(queue, name, order) for name in "abcdef"]
        assert order == []
    joined(*requests)
    assert order == list("abcdef")


def test_a_short_batch_passes_a_long_one_that_waits():
    queue, order = RequestQueue(9), []
    with queue.turn(FakeCall()):
        requests = [Waiting(queue, "long", order, 100_000), Waiting(queue, "short", order, 1)]
    joined(*requests)
    assert order == ["short", "long"]


def test_a_long_batch_is_passed_for_as_long_as_it_takes_and_no_longer(monkeypatch):
    clock = iter([0.0, 0.0, 0.4, 0.6])
    monkeypatch.setattr("peelsum.softswitch.p4runtime.service.monotonic", lambda: next(clock))
    queue, order = RequestQueue(9), []
    with queue.turn(FakeCall()):
        requests = [Waiting(queue, name, order, n) for name, n in (("long", 1000), ("soon", 1), ("late", 1))]
    joined(*requests)
    assert order == ["soon", "long", "late"]


def test_a_call_that_ends_gives_up_its_place():
    queue, order = RequestQueue(9), []
    with queue.turn(FakeCall()):
        ended, next_one = Waiting(queue, "ended", order), Waiting(queue, "next", order)
        ended.call.cancel()
        joined(ended)
        assert ended.error.code == Code.CANCELLED
        assert order == []
    joined(next_one)
    assert order == ["next"]


def test_beyond_the_most_that_wait_the_newest_is_refused_at_once():
    queue, order = RequestQueue(3), []
    with queue.turn(FakeCall()):
        requests = [Waiting(queue, name, order) for name in "abcde"]
        joined(*requests[3:])
        for refused in requests[3:]:
            assert refused.error.code == Code.RESOURCE_EXHAUSTED
            assert refused.error.message.startswith("3 requests wait for their turn already")
            assert "await answers" in refused.error.message
    joined(*requests)
    assert order == list("abc")
    with queue.turn(FakeCall()):
        pass


def test_a_short_batch_takes_the_place_of_a_long_one_where_all_are_taken():
    queue, order = RequestQueue(2), []
    with queue.turn(FakeCall()):
        long_ones = [Waiting(queue, f"long {number}", order, 100_000) for number in range(2)]
        short = Waiting(queue, "short", order, 1)
        joined(long_ones[1])
        assert long_ones[1].error.code == Code.RESOURCE_EXHAUSTED
    joined(short, long_ones[0])
    assert order == ["short", "long 0"]
