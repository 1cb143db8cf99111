"""Schedules of links: what holds when, repeats, files, and one line for each mistake."""

from pathlib import Path

import pytest

from peelsum.softswitch import SoftswitchError
from peelsum.softswitch.ports.links import Change, LinkSchedule, LinkState, load_schedule

TOML = """
repeat_s = 10
[[change]]
at_s = 0
mbit = 1000
delay_ms = 1
[[change]]
at_s = 4
mbit = 100
[[change]]
at_s = 6.5
delay_ms = 20
port = 2
"""
CSV = "at_s,mbit,delay_ms,port\n0, 1000, 1,\n4,100,,\n6.5,,20,2\n"


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(("name", "text"), [("links.toml", TOML), ("links.csv", CSV)])
def test_what_is_set_holds_until_it_is_set_again(tmp_path: Path, name: str, text: str) -> None:
    schedule = load_schedule(written(tmp_path, name, text))
    for seconds, one, two in (
        (0, (1000, 1), (1000, 1)),
        (3.999, (1000, 1), (1000, 1)),
        (4, (100, 1), (100, 1)),
        (6.5, (100, 1), (100, 20)),
        (9.9, (100, 1), (100, 20)),
    ):
        assert schedule.at(seconds, 1) == LinkState(*one)
        assert schedule.at(seconds, 2) == LinkState(*two)
    assert schedule.ports == {2}


def test_a_repeated_schedule_starts_again(tmp_path: Path) -> None:
    schedule = load_schedule(written(tmp_path, "links.toml", TOML))
    assert schedule.at(10, 2) == schedule.at(0, 2)
    assert schedule.at(37, 2) == schedule.at(7, 2)
    assert [schedule.next_change(at) for at in (0, 3, 4, 6.5, 10, 13, 16.5)] == [4, 4, 6.5, 10, 14, 14, 20]


def test_what_the_first_change_leaves_is_kept_from_the_round_before() -> None:
    changes = [Change(1, LinkState(mbit=10)), Change(2, LinkState(delay_ms=5))]
    schedule = LinkSchedule(changes, repeat_s=3)
    assert schedule.at(0.5, 1) == LinkState()
    assert schedule.at(3.5, 1) == LinkState(10, 5)


def test_a_schedule_that_is_played_once_ends(tmp_path: Path) -> None:
    schedule = load_schedule(written(tmp_path, "links.csv", CSV))
    assert [schedule.next_change(at) for at in (-1, 0, 5, 6.5, 100)] == [0, 4, 6.5, None, None]
    assert schedule.at(1e6, 1) == LinkState(100, 1)


def test_changes_are_sorted() -> None:
    schedule = LinkSchedule([Change(5, LinkState(1)), Change(0, LinkState(2))])
    assert schedule.at(1, 1).mbit == 2
    assert schedule.at(5, 1).mbit == 1


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "", "schedule: has no change; give at least one"),
        ("a.toml", "change = 3", "change: is not a list of tables"),
        ("a.toml", "[[change]]\nmbit = 1", "change 1: has no at_s; say when"),
        ("a.toml", "[[change]]\nat_s = 'x'", "change 1: at_s: 'x' is not a number"),
        ("a.toml", "[[change]]\nat_s = true", "change 1: at_s: True is not a number"),
        ("a.toml", "[[change]]\nat_s = -1", "at_s: -1 is not a time"),
        ("a.toml", "[[change]]\nat_s = 0\nmbit = 0", "change 1: mbit: 0 is out of range; use 0.01 to 1e"),
        ("a.toml", "[[change]]\nat_s = 0\ndelay_ms = 1e9", "change 1: delay_ms: 1e.09 is out of range"),
        ("a.toml", "[[change]]\nat_s = 0\nrate = 1", "change 1: 'rate' is unknown; use at_s, mbit"),
        ("a.toml", "[[change]]\nat_s = 0\nport = 1.5", "change 1: port: 1.5 is not a port"),
        ("a.toml", "repeat_s = 1\n[[change]]\nat_s = 2", "repeat_s: 1 does not reach the last change"),
        ("a.toml", "loop = 1", "'loop' is unknown"),
        ("a.toml", "[[change", "a.toml: "),
        ("a.csv", "at_s,mbit\n0,1,2\n", "change 1: 'None' is unknown"),
        ("a.csv", "at_s,mbit\n0,fast\n", "change 1: mbit: 'fast' is not a number"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(SoftswitchError, match=message) as caught:
        load_schedule(written(tmp_path, name, text))
    assert len(str(caught.value).splitlines()) == 1
    assert name in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SoftswitchError, match=r"schedule: .*none.csv: No such file"):
        load_schedule(tmp_path / "none.csv")
