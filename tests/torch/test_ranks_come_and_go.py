"""Thousands of steps in which ranks enter and leave: exact sums, and nothing grows."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import coming_ranks
import psutil
import pytest
from patience import until
from served_job import served_to_four
from torch_ranks import run_ranks

from peelsum.control import open_session
from peelsum.control.drivers import driver_of

pytestmark = pytest.mark.usefixtures("forked_children")

#: The job's window, and the most by which the memory of a rank may vary, with what the test keeps of steps.
WINDOW, MEMORY_BYTES = 512, 16 << 20


@pytest.mark.parametrize(
    "steps", [pytest.param(1000, marks=pytest.mark.system), pytest.param(10_000, marks=pytest.mark.slow)]
)
def test_memory_descriptors_and_slots_stay_constant(tmp_path, steps):
    (short := tmp_path / "short").mkdir()
    (folder := tmp_path / "run").mkdir()
    with served_to_four(tmp_path, spare=0, timeout_s=900.0) as (switch, controller, job):
        process = psutil.Process(controller.child.pid)

        def connections():
            place = controller.address[1]
            return [one for one in process.net_connections("tcp") if one.raddr and one.laddr.port == place]

        def held():
            with open_session(switch.p4runtime) as session:
                slots = driver_of(session).slots_in_use()
            return process.num_fds(), process.num_threads(), len(controller.started), slots

        def visits(first):
            results, seed = [], first
            while not (folder / "ended").exists():
                results += run_ranks(1, coming_ranks.visit, seed, environments=[job])
                if results[-1] is not None:
                    (folder / f"visited {seed}").touch()
                seed += 2
            return results

        run_ranks(4, coming_ranks.stay, short, 10, environments=[job] * 4)
        until(lambda: not connections() and len(controller.started) <= 1)
        before = held()
        with ThreadPoolExecutor(3) as pool:
            arguments = folder, steps, steps // 200
            options = {"environments": [job] * 4, "patience_s": 3000.0}
            staying = pool.submit(run_ranks, 4, coming_ranks.stay, *arguments, **options)
            until(lambda: (folder / "left").exists() or staying.done())
            guests = [pool.submit(visits, first) for first in (0, 1)]
            stayed = staying.result()[:2]
            visited = [result for guest in guests for result in guest.result()]
        until(lambda: not connections() and len(controller.started) <= 1)
        (*after, slots), (*same, _) = held(), before
        assert after == same
        # Slots of chunks that were given up are taken by later ones.
        assert sum(slots.values()) <= 2 * WINDOW
    assert stayed[0]["digests"] == stayed[1]["digests"]
    assert len(stayed[0]["digests"]) > steps
    for rank in stayed:
        sizes, *counts = zip(*rank["held"], strict=True)
        assert rank["wrong"] == -1
        assert [len(set(count)) for count in counts] == [1, 1]
        assert max(sizes) - min(sizes) < MEMORY_BYTES
    entered = [result for result in visited if result is not None and not result[0]]
    print(f"{len(visited)} ranks entered, of which {visited.count(None)} were killed")
    assert len(entered) >= steps // 200
    for _, wrong, digests in entered:
        assert wrong == -1
        assert digests.items() <= stayed[0]["digests"].items()


def test_a_rank_enters_a_run_with_two_sparse_tables(tmp_path):
    """The others wait for the gradients of both, as they have summed each before; it must do so, too."""
    with served_to_four(tmp_path, spare=0, timeout_s=900.0) as (_, _, job), ThreadPoolExecutor(1) as pool:
        ranks = pool.submit(run_ranks, 4, coming_ranks.train_tables, tmp_path, environments=[job] * 4)
        until(lambda: (tmp_path / "lost").exists() or ranks.done())
        (entered,) = run_ranks(1, coming_ranks.train_tables, tmp_path, True, environments=[job])
        stayed = ranks.result()[:3]
    assert stayed[0] == stayed[1] == stayed[2]
    assert len(entered) == 10
    assert entered.items() <= stayed[0].items()


def test_the_server_ends_before_the_controller_knows_that_ranks_have_left(tmp_path):
    """It has heard nothing since then; the others go on with another server."""
    (folder := tmp_path / "run").mkdir()
    (folder / "wait").touch()
    with (
        served_to_four(tmp_path, spare=0, timeout_s=900.0) as (_, controller, job),
        ThreadPoolExecutor(1) as pool,
    ):
        ranks = pool.submit(run_ranks, 4, coming_ranks.stay, folder, 50, environments=[job] * 4)
        until(lambda: (folder / "leaves 2").exists() and (folder / "leaves 3").exists())
        server = controller.started[0]
        os.kill(controller.child.pid, signal.SIGSTOP)
        (folder / "leave").touch()
        until(lambda: server.status() == psutil.STATUS_ZOMBIE)
        os.kill(controller.child.pid, signal.SIGCONT)
        stayed = ranks.result()[:2]
    assert [rank["wrong"] for rank in stayed] == [-1, -1]
    assert stayed[0]["digests"] == stayed[1]["digests"]
    assert len(stayed[0]["digests"]) > 50
