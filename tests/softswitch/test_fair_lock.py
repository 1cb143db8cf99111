"""The lock around a switch's state: a waiting thread gets it before its last holder."""

import threading
from types import SimpleNamespace

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


def test_an_error_releases_it():
    lock = FairLock()
    try:
        with lock:
            raise ValueError
    except ValueError:
        pass
    done = threading.Event()

    def other():
        with lock:
            done.set()

    threading.Thread(target=other).start()
    assert done.wait(PATIENCE_S)


def test_it_forgets_its_holder_before_another_may_take_it():
    lock, holders = FairLock(), []
    lock._inner = SimpleNamespace(
        acquire=lambda blocking=True: True, release=lambda: holders.append(lock._holder)
    )
    with lock:
        assert lock._holder == threading.get_ident()
    assert holders == [None]


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
