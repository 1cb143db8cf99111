"""Register accesses: a Tofino stage reads, changes and writes a register once per packet; BMv2 allows more.

These tests check every path through the compiled control flow against Tofino's rule.
"""

import copy
import json
from collections import defaultdict

import pytest

from peelsum.pipelines import pipeline
from peelsum.wire import COMPILED_LANES


class Paths:
    """The register accesses on the paths through a pipeline of BMv2 JSON.

    A pipeline is an acyclic graph of tables and conditions; each action of a table is a branch.
    """

    def __init__(self, program, name="ingress"):
        pipe = next(p for p in program["pipelines"] if p["name"] == name)
        self.start = pipe["init_table"]
        self.actions = {action["id"]: action for action in program["actions"]}
        self.nodes = {node["name"]: node for node in pipe["tables"] + pipe["conditionals"]}
        self.known = {}

    def ways(self, name):
        """Return (accesses, next node) of each branch; an access is (register, "read" or "write", index)."""
        node = self.nodes[name]
        if "true_next" in node:
            return [([], node["true_next"]), ([], node["false_next"])]
        named = zip(node["actions"], node["action_ids"], strict=True)
        return [(self.accesses(number), node["next_tables"][action]) for action, number in named]

    def accesses(self, action):
        found = []
        for primitive in self.actions[action]["primitives"]:
            kind = primitive["op"].removeprefix("register_")
            if kind in ("read", "write"):
                register, index = (
                    primitive["parameters"][1:3] if kind == "read" else primitive["parameters"][:2]
                )
                found.append((register["value"], kind, json.dumps(index)))
        return found

    def worst(self, name):
        """Return, per register, the access sequences, as text, of all paths from `name` to the end."""
        if name is None:
            return {}
        if name not in self.known:
            sequences = defaultdict(set)
            ways = [(accesses, self.worst(after)) for accesses, after in self.ways(name)]
            registers = {r for accesses, after in ways for r in [*after, *(access[0] for access in accesses)]}
            for accesses, after in ways:
                for register in registers:
                    here = "".join(kind[0] for r, kind, _ in accesses if r == register)
                    sequences[register] |= {here + then for then in after.get(register, {""})}
            self.known[name] = dict(sequences)
        return self.known[name]

    def offences(self):
        """Return the registers that a path accesses other than by a read, a write, or a read then a write."""
        found = self.worst(self.start)
        return {
            register: seqs - {"", "r", "w", "rw"}
            for register, seqs in found.items()
            if seqs - {"", "r", "w", "rw"}
        }

    def indices(self):
        """Return all indices by which each register is accessed."""
        found = defaultdict(set)
        for name in self.nodes:
            for accesses, _ in self.ways(name):
                for register, _, index in accesses:
                    found[register].add(index)
        return found


def program(lanes):
    return json.loads(pipeline(lanes).json_path.read_text())


@pytest.mark.parametrize(
    "lanes", [pytest.param(one, marks=pytest.mark.slow if one > 512 else []) for one in COMPILED_LANES]
)
def test_every_register_is_touched_at_most_once_on_every_path(lanes):
    paths = Paths(program(lanes))
    assert len(paths.worst(paths.start)) == lanes + 4  # owner_tag, owner_stamp, worker_bitmap, slot_marks
    assert paths.offences() == {}


@pytest.mark.parametrize("lanes", COMPILED_LANES)
def test_every_register_is_indexed_by_the_slot(lanes):
    indices = Paths(program(lanes)).indices()
    assert len(set.union(*indices.values())) == 1


def test_egress_touches_no_register():
    paths = Paths(program(32), "egress")
    assert paths.worst(paths.start) == {}


def test_a_second_access_is_found():
    twice = copy.deepcopy(program(32))
    writes = [
        (action, primitive)
        for action in twice["actions"]
        for primitive in action["primitives"]
        if primitive["op"] == "register_write"
    ]
    action, write = writes[0]
    action["primitives"].append(write)
    register = write["parameters"][0]["value"]
    offences = Paths(twice).offences()
    assert set(offences) == {register}
