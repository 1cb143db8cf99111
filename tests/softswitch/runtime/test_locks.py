"""The lock around a switch's state: a waiting thread gets it before its last holder."""

import threading

from patience import PATIENCE_S

from peelsum.softswitch.runtime.state import FairLock


def test_a_waiting_thread_comes_before_the_last_holder():
    lock, order, waits = FairLock(), [], threading.Event()
    lock.on_wait = waits.set

    def packets():
        with lock:
            order.append("packets")

    with lock:
        waiting = threading.Thread(target=packets)
        waiting.start()
        assert waits.wait(PATIENCE_S)
    for _ in range(3):
        with lock:
            order.append("changes")
    waiting.join(PATIENCE_S)
    assert order == ["packets", "changes", "changes", "changes"]


def test_its_holder_may_take_it_again_while_another_waits():
    lock, taken, waits = FairLock(), threading.Event(), threading.Event()
    lock.on_wait = waits.set

    def other():
        with lock:
            taken.set()

    with lock:
        waiting = threading.Thread(target=other)
        waiting.start()
        assert waits.wait(PATIENCE_S)
        with lock:
            assert not taken.is_set()
        assert not taken.is_set()
    assert taken.wait(PATIENCE_S)
    waiting.join(PATIENCE_S)


def test_no_two_hold_it():
    lock, total, inside = FairLock(), [0], []

    def add():
        for _ in range(300):
            with lock:
                inside.append(1)
                assert len(inside) == 1
                total[0] += 1
                inside.pop()

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert total == [1200]
