"""The lock around a switch's state: a waiting thread gets it before its last holder."""

import threading

from patience import PATIENCE_S

from peelsum.softswitch.runtime.locks import FairLock


def waits_at(lock):
    """Return once a thread waits for the lock."""
    while not lock._door.locked():
        threading.Event().wait(0.001)


def test_a_waiting_thread_comes_before_the_last_holder():
    lock, order = FairLock(), []

    def packets():
        with lock:
            order.append("packets")

    with lock:
        waiting = threading.Thread(target=packets)
        waiting.start()
        waits_at(lock)
    for _ in range(3):
        with lock:
            order.append("changes")
    waiting.join(PATIENCE_S)
    assert order == ["packets", "changes", "changes", "changes"]


def test_its_holder_may_take_it_again_while_another_waits():
    lock, taken = FairLock(), threading.Event()

    def other():
        with lock:
            taken.set()

    with lock:
        waiting = threading.Thread(target=other)
        waiting.start()
        waits_at(lock)
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
