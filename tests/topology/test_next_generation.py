"""`exec` gives workers the seat of a generation that they can join: after a run, the next one."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from networks import PEELSUM, exec_in, needs_namespaces, own_folder, pair, said, summed_at, up
from patience import PATIENCE_S

from peelsum.topology.records import Record

__all__ = ["own_folder", "pair"]

pytestmark = pytest.mark.usefixtures("own_folder")

#: Prints the generation of the seat that `exec` gave.
PROGRAM = "import json, os; print(json.loads(os.environ['PEELSUM_SEAT'])['admission']['generation'])"
GENERATION = (sys.executable, "-c", PROGRAM)


@pytest.mark.system
@pytest.mark.parametrize("links", ["udp", pytest.param("veth", marks=needs_namespaces)])
def test_runs_in_succession_are_each_in_a_generation_of_their_own(pair, links):
    with up(pair, links):
        first = int(said(exec_in("h1", *GENERATION)))
        assert int(said(exec_in("h2", *GENERATION))) == first  # nobody has used it
        for run in range(3):
            assert summed_at("h1", "h2") == ["worker 0: exact", "worker 1: exact"]
            assert int(said(exec_in("h2", *GENERATION))) == first + run + 1


@pytest.mark.system
def test_exec_waits_for_a_network_that_is_starting(pair):
    command = [*PEELSUM, "up", pair, "--json"]
    starting = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        for _ in iter(lambda: (record := Record.read()) and record.up.pid == starting.pid, True):
            assert starting.poll() is None
        assert not Record.read().places  # the test is of nothing otherwise
        early = exec_in("h1", *GENERATION)
        assert int(said(early)) >= 0
    finally:
        starting.send_signal(signal.SIGTERM)
        starting.communicate(timeout=PATIENCE_S)


@pytest.mark.system
def test_exec_gives_a_host_its_own_seat_and_says_what_it_waits_for(pair):
    """Also to a command that a worker starts at another host: the server's has no seat."""
    show = "echo ${PEELSUM_SEAT-none}"
    with up(pair, "udp"):
        command = " ".join(PEELSUM) + f" exec h3 -- sh -c '{show}'"
        assert said(exec_in("h1", "sh", "-c", command)) == "none"
        command = " ".join(PEELSUM) + f" exec h2 -- sh -c '{show}'"
        assert json.loads(said(exec_in("h1", "sh", "-c", command)))["worker_id"] == 1
        Path(Record.read().seats_file).unlink()  # as a server does whose workers have all finished
        waiting = exec_in("h1", "true")
        line = "exec: waiting for the job's next generation: the workers of the last have finished\n"
        assert waiting.stderr.readline() == line
        subprocess.run([*PEELSUM, "readmit"], check=True)
        assert waiting.wait(PATIENCE_S) == 0
        waiting.communicate()
