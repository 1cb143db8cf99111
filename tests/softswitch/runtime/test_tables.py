"""The rules of table entries: validation, errors, and the order in which entries are tried."""

import pytest

from peelsum.softswitch import Switch
from peelsum.softswitch.errors import InvalidEntry, NoSuchEntry
from peelsum.softswitch.program.model import TableEntry

ROUTES, ACL, BY_PORT = "RouterIngress.routes", "RouterIngress.acl", "RouterIngress.by_port"
ROUTE, DROP, PERMIT = "RouterIngress.route", "RouterIngress.drop", "RouterIngress.permit"


@pytest.fixture
def switch(program_of):
    return Switch(program_of("router"), "python")


@pytest.fixture
def routes(switch):
    return switch.tables[ROUTES]


@pytest.fixture
def by_port(switch):
    return switch.tables[BY_PORT]


def test_entries_read_back_in_the_order_they_are_tried(routes):
    routes.insert(((0x0A000000, 8),), ROUTE, (1, 2))
    routes.insert(((0x0A0B0000, 16),), DROP)
    assert routes.entries() == [
        TableEntry(((0x0A0B0000, 16),), DROP, (), 0),
        TableEntry(((0x0A000000, 8),), ROUTE, (1, 2), 0),
    ]
    assert len(routes) == 2
    routes.modify(((0x0A000000, 8),), DROP)
    assert routes.entry(((0x0A000000, 8),)) == TableEntry(((0x0A000000, 8),), DROP, (), 0)


def test_const_entries_read_back_with_the_first_largest(switch):
    entries = switch.tables[ACL].entries()
    assert [entry.priority for entry in entries] == [4, 3, 2, 1]
    assert entries[1].keys == (1, (0, 0), (1000, 1009), (100, 0xFFF))


@pytest.mark.parametrize(
    ("keys", "action", "params", "message"),
    [
        (((1 << 32, 32),), DROP, (), "does not fit 32 bits"),
        (((-1, 32),), DROP, (), "does not fit 32 bits"),
        (((0, 33),), DROP, (), "prefix length 33"),
        (((1 << 23, 8),), DROP, (), "beyond its prefix"),
        ((5,), DROP, (), "is not a pair"),
        (((0, 8, 9),), DROP, (), "is not a pair"),
        (((0, 0), (0, 0)), DROP, (), "2 keys given"),
        ((), DROP, (), "0 keys given"),
        (((0, 0),), PERMIT, (1,), f"no action {PERMIT}"),
        (((0, 0),), ROUTE, (1,), "1 parameters given"),
        (((0, 0),), ROUTE, (512, 0), "port: 512 does not fit 9 bits"),
        (((0, 0),), ROUTE, (1, -1), "next_hop: -1 does not fit 48 bits"),
    ],
)
def test_an_entry_that_does_not_fit_is_refused_by_name(routes, keys, action, params, message):
    with pytest.raises(InvalidEntry, match=message):
        routes.insert(keys, action, params)
    assert routes.entries() == []


def test_ternary_values_lie_within_their_mask(program_of):
    copies = Switch(program_of("replicate"), "python").tables["E.copies"]
    with pytest.raises(InvalidEntry, match="outside its mask"):
        copies.insert(((3, 2), (0, 0)), "E.drop", (), priority=1)
    copies.insert(((2, 2), (0, 0)), "E.drop", (), priority=1)
    copies.insert(((2, 2), (0, 0)), "E.strip", (), priority=2)
    assert [entry.action for entry in copies.entries()] == ["E.strip", "E.drop"]


def test_const_tables_and_defaults_stay_as_they_are(switch):
    with pytest.raises(InvalidEntry, match="entries are const"):
        switch.tables[ACL].delete((1, (0, 0), (1000, 1009), (100, 0xFFF)), priority=3)
    with pytest.raises(InvalidEntry, match="default action is const"):
        switch.tables["RouterIngress.routes6"].set_default(DROP)


def test_defaults_are_checked_and_read_back(routes):
    assert routes.default == (DROP, ())
    with pytest.raises(InvalidEntry, match="0 parameters given"):
        routes.set_default(ROUTE)
    routes.set_default(ROUTE, (1, 2))
    assert routes.default == (ROUTE, (1, 2))


def test_direct_counters_need_an_entry_and_a_counter(routes, by_port):
    with pytest.raises(NoSuchEntry):
        routes.read_counter(((0, 0),))
    with pytest.raises(InvalidEntry, match="no direct counter"):
        by_port.read_counter((1, 0, 0))
    routes.insert(((0, 0),), DROP)
    routes.write_counter(((0, 0),), 5, 600)
    assert routes.read_counter(((0, 0),)) == (5, 600)
    routes.delete(((0, 0),))
    routes.insert(((0, 0),), DROP)
    assert routes.read_counter(((0, 0),)) == (0, 0), "a new entry starts at zero"
