"""A forked child is a process as one that was started: its session, output, errors, signals and status."""

import os

import pytest
from forked_children import Forked

from peelsum.processes import Child, ProcessError

RUN = ("switch", "run", "--ports", "1", "--p4runtime", "127.0.0.1:0", "--json", "--child")


@pytest.fixture
def switch(forked_children):
    child = Child.peelsum("switch", *RUN)
    yield child
    child.stop()


def test_it_is_a_process_of_its_own_and_ends_on_sigterm(switch):
    assert isinstance(switch._process, Forked)
    assert len(switch.ready()["udp_ports"]) == 1
    assert os.getsid(switch.pid) == switch.pid
    assert "ports" in switch.stop()
    assert switch.status == 0


def test_errors_are_those_of_a_started_one(request):
    said = []
    for fixture in (None, "forked_children"):
        if fixture:
            request.getfixturevalue(fixture)
        child = Child.peelsum("switch", *RUN, "--udp-base", "70000")
        with pytest.raises(ProcessError) as caught:
            child.ready()
        said.append((str(caught.value), child.status))
        child.stop()
    assert said[0] == said[1]
    assert said[0][1] == 2
