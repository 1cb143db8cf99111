"""Processes of a network that end by themselves: how often they are restarted."""

import pytest

from peelsum.processes.children import MAX_RESTARTS, RESET_AFTER_S, RestartableProcess
from peelsum.processes.user_errors import ProcessError


class Mortal:
    """A child that has ended."""

    name = "s1"

    def exit_report(self):
        return "s1: ended by SIGKILL"

    def stop(self):
        """It has ended already."""


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def process(clock):
    return RestartableProcess(Mortal(), Mortal, clock)


def test_one_that_ends_at_once_again_and_again_is_given_up(process):
    for _ in range(MAX_RESTARTS):
        before = process.child
        assert process.restart() == "s1: ended by SIGKILL; started again"
        assert process.child is not before
    with pytest.raises(ProcessError, match="s1: ended by SIGKILL; not started again after 5 restarts"):
        process.restart()


def test_one_that_lives_for_a_while_may_be_restarted_as_often_again(process, clock):
    for _ in range(MAX_RESTARTS):
        process.restart()
    clock.now += RESET_AFTER_S
    for _ in range(MAX_RESTARTS):
        process.restart()
    clock.now += RESET_AFTER_S - 1
    with pytest.raises(ProcessError, match="not started again after 5 restarts"):
        process.restart()


def test_one_that_cannot_be_started_again_says_how_it_ended(clock):
    with pytest.raises(ProcessError, match=r"^s1: ended by SIGKILL$"):
        RestartableProcess(Mortal(), None, clock).restart()
