"""The rules of table entries, and random changes to tables of every kind, compared with a model."""

import random
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
from program_frames import changed_switch
from random_programs import matches

from peelsum.softswitch import Frames, Switch
from peelsum.softswitch.errors import DuplicateEntry, InvalidEntry, NoSuchEntry, TableFull
from peelsum.softswitch.runtime.tables import hash_words

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


BITS = {"small": 8, "middle": 16, "address": 32, "wide": 72}
#: Key fields and kinds of each table, in the order in which packets carry the results.
TABLES = {
    "exact_one": {"small": "exact"},
    "exact_many": {"small": "exact", "wide": "exact", "middle": "exact"},
    "prefix": {"address": "lpm"},
    "prefix_exact": {"small": "exact", "address": "lpm"},
    "masked": {"middle": "ternary"},
    "masked_wide": {"wide": "ternary", "small": "exact"},
    "masked_prefix": {"address": "lpm", "middle": "ternary"},
    "ranged": {"small": "range"},
    "everything": {"middle": "range", "small": "exact", "wide": "ternary", "address": "lpm"},
}
#: Few values, including the limits of each width and of its 64-bit word.
POOLS = {
    "small": [0, 1, 127, 128, 255, *range(2, 40)],
    "middle": [0, 1, 0x00FF, 0xFF00, 0xFFFF],
    "address": [0, 1, 0x0A000000, 0x0A0B0000, 0x0A0B0C0D, 0xFFFFFFFF],
    "wide": [0, 1, 1 << 63, 1 << 64, (1 << 64) + 7, (2 << 64) + 5, (1 << 72) - 1],
}


@dataclass
class Held:
    keys: tuple
    priority: int
    found: int
    serial: int


class Model:
    """A table that tries all its entries."""

    def __init__(self, kinds):
        self.kinds = kinds
        self.has_priority = bool({"ternary", "range"} & set(kinds.values()))
        self.entries = []

    def find(self, keys, priority):
        return next((e for e in self.entries if (e.keys, e.priority) == (keys, priority)), None)

    def fits(self, entry, packet):
        keys = [(kind, BITS[name]) for name, kind in self.kinds.items()]
        return all(map(matches, keys, entry.keys, (packet[name] for name in self.kinds)))

    def prefix(self, entry):
        parts = zip(self.kinds.values(), entry.keys, strict=True)
        return sum(part[1] for kind, part in parts if kind == "lpm")

    def lookup(self, packet):
        fitting = [entry for entry in self.entries if self.fits(entry, packet)]
        best = min(fitting, key=lambda e: (-e.priority, -self.prefix(e), e.serial), default=None)
        return best.found if best else 0


def random_keys(kinds, rng):
    keys = []
    for name, kind in kinds.items():
        bits, value = BITS[name], rng.choice(POOLS[name])
        top = (1 << bits) - 1
        match kind:
            case "exact":
                keys.append(value)
            case "lpm":
                length = rng.choice([0, 1, 8, 16, 31, 32])
                keys.append((value & top ^ value & top >> length, length))
            case "ternary":
                mask = rng.choice([0, 1, top, top - 1, top >> 1, 0xFF, 0xFF00])
                keys.append((value & mask, mask))
            case "range":
                keys.append(tuple(sorted((value, rng.choice(POOLS[name])))))
    return tuple(keys)


def change(table, action, model, rng, serial):
    """Insert, modify or delete one entry in both; if the model refuses, the table must refuse, too."""
    keys = random_keys(model.kinds, rng)
    priority = rng.randint(1, 4) if model.has_priority else 0
    if model.entries and rng.random() < 0.5:
        known = rng.choice(model.entries)
        keys, priority = known.keys, known.priority
    present = model.find(keys, priority)
    kind = rng.choice(["insert", "insert", "modify", "delete"])
    arguments = (keys,) if kind == "delete" else (keys, action, (serial,))
    if kind == "insert":
        error = DuplicateEntry if present else TableFull if len(model.entries) == table.size else None
    else:
        error = None if present else NoSuchEntry
    with pytest.raises(error) if error else nullcontext():
        getattr(table, kind)(*arguments, priority=priority)
    if error is None and kind == "insert":
        model.entries.append(Held(keys, priority, serial, serial))
    elif error is None and kind == "modify":
        present.found = serial
    elif error is None:
        model.entries.remove(present)


def random_packet(models, rng):
    """Return random fields, of which one table's equal those of one of its entries."""
    packet = {name: rng.choice(pool) for name, pool in POOLS.items()}
    model = rng.choice(list(models.values()))
    if model.entries:
        keys = rng.choice(model.entries).keys
        parts = zip(model.kinds, keys, strict=True)
        packet |= {name: part if isinstance(part, int) else part[0] for name, part in parts}
    return packet


def frame(packet):
    key = b"".join(packet[name].to_bytes(bits // 8, "big") for name, bits in BITS.items())
    return key + bytes(2 * len(TABLES))


def found_in(out):
    start = sum(BITS.values()) // 8
    return [int.from_bytes(out[at : at + 2], "big") for at in range(start, len(out), 2)]


def with_wide_ranges(document):
    """Give tables that have ternary keys of 72 bits ranges instead."""
    for table in document["pipelines"][0]["tables"]:
        for key in table["key"]:
            if (key["name"], key["match_type"]) == ("hdr.probe.wide", "ternary"):
                key["match_type"] = "range"


WIDE_RANGES = {
    name: {key: "range" if (key, kind) == ("wide", "ternary") else kind for key, kind in kinds.items()}
    for name, kinds in TABLES.items()
}


@pytest.mark.parametrize("mode", ["python", "numba"])
@pytest.mark.parametrize(
    ("seed", "tables", "changed"),
    [(1, TABLES, bool), (2, TABLES, bool), (3, WIDE_RANGES, with_wide_ranges)],
)
def test_any_sequence_of_changes_is_looked_up_as_the_model_does(mode, seed, tables, changed):
    rng = random.Random(seed)
    switch = changed_switch("lookups", changed, mode)
    models = {name: Model(kinds) for name, kinds in tables.items()}
    results = {name: set() for name in TABLES}
    serial = 0
    for _ in range(25):
        for name, model in models.items():
            for _ in range(12):
                serial += 1
                change(switch.tables[f"I.{name}"], f"I.in_{name}", model, rng, serial)
        packets = [random_packet(models, rng) for _ in range(30)]
        out = switch.process(Frames.of([(0, frame(packet)) for packet in packets]), 0).pairs()
        expected = [[model.lookup(packet) for model in models.values()] for packet in packets]
        assert [found_in(bytes(sent)) for _, sent in out] == expected
        for name, ids in zip(TABLES, zip(*expected, strict=True), strict=True):
            results[name].update(ids)
    assert min(map(len, results.values())) >= 8, "every table had entries to look up"
    for name, model in models.items():
        entries = [(e.keys, e.priority) for e in switch.tables[f"I.{name}"].entries()]
        ordered = sorted(model.entries, key=lambda e: (-e.priority, -model.prefix(e), e.serial))
        assert entries == [(e.keys, e.priority) for e in ordered]


def test_a_counter_stays_with_its_entry_while_others_come_and_go(switch_of):
    switch = switch_of("lookups")
    table, rng, counted = switch.tables["I.masked"], random.Random(3), {}
    for turn in range(80):
        value = rng.randrange(40)
        keys = ((value, 0xFFFF),)
        if value in counted:
            assert table.read_counter(keys, 1)[0] == counted.pop(value)
            table.delete(keys, 1)
        else:
            table.insert(keys, "I.in_masked", (turn,), priority=1)
            counted[value] = 0
        packet = {"small": 0, "middle": rng.randrange(40), "address": 0, "wide": 0}
        switch.process(Frames.of([(0, frame(packet))] * 3), 0)
        if packet["middle"] in counted:
            counted[packet["middle"]] += 3
    assert {v: table.read_counter(((v, 0xFFFF),), 1)[0] for v in counted} == counted


@pytest.mark.parametrize("shift", [56, 33, 16, 0])
def test_keys_at_any_end_of_their_word_are_spread(shift):
    """With 4,000 random keys in 8,192 slots, the fullest slot would have about 6 of them."""
    keys = range(min(4000, 1 << 64 - shift))
    slots = [hash_words([key << shift]) % 8192 for key in keys]
    assert max(map(slots.count, set(slots))) <= 16
    assert len(set(slots)) > 0.6 * len(keys)


def test_a_chain_of_keys_goes_on_at_the_first_slot(switch_of):
    """Keys whose home is the last of 128 slots are found wherever they are, also after deletions."""
    switch = switch_of("lookups")
    table = switch.tables["I.exact_one"]
    slots = {key: hash_words([key << 56]) % 128 for key in range(256)}
    keys = sorted(slots, key=lambda key: -slots[key])[:10]
    assert len({slots[key] for key in keys}) < 8, "some of them meet"
    for key in keys:
        table.insert((key,), "I.in_exact_one", (key + 1,))
    while keys:
        packets = [{"small": key, "middle": 0, "address": 0, "wide": 0} for key in range(256)]
        out = switch.process(Frames.of([(0, frame(packet)) for packet in packets]), 0).pairs()
        results = {key: found_in(bytes(sent))[0] for key, (_, sent) in enumerate(out)}
        assert results == {key: key + 1 if key in keys else 0 for key in range(256)}
        table.delete((keys.pop(0),))
