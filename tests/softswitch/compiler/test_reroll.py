"""Random programs of lanes: loops over lanes give the results of unrolled code."""

import random
from dataclasses import replace

import pytest

from peelsum.softswitch import Frames, Switch
from peelsum.softswitch.program import model
from peelsum.softswitch.program import operations as ops

LANES, CELLS = 6, 8
PROGRAMS = range(120)
PORTS = ("ingress_port", "egress_spec", "egress_port", "spare")
STANDARD_FIELDS = tuple(model.FieldDeclaration(name, 9) for name in PORTS)
STANDARD = model.Header("standard_metadata", "standard_metadata_t", STANDARD_FIELDS, True)
WORDS = ("a", "b", *(f"v{n}" for n in range(LANES)), "out", "sum")
PACKET = model.Header("h", "h_t", tuple(model.FieldDeclaration(name, 32) for name in WORDS), False)
A, B, OUT = (ops.FieldRef("h", name) for name in ("a", "b", "out"))


def lane(n):
    return ops.FieldRef("h", f"v{n}")


def temporary(n):
    return ops.FieldRef("m", f"t{n}")


class Maker:
    """One random program, whose lanes share temporaries in one of many ways."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.odd = self.rng.random() < 0.7

    def seldom(self, chance=0.12):
        return self.odd and self.rng.random() < chance

    def value(self):
        """Return what each lane stores in its temporary, as a function of the lane, and the width."""
        plain = [
            lambda n: ops.Binary("&", A, ops.Const(CELLS - 1)),
            lambda n: A,
            lambda n: ops.Const(3),
            lambda n: ops.Binary("&", ops.Binary("+", A, ops.Const(1)), ops.Const(7)),
        ]
        tricky = [
            lambda n: lane(n),
            lambda n: ops.Binary("&", lane(n), ops.Const(7)),
            lambda n: ops.Binary("+", A, ops.Const(1)),
            lambda n: OUT,
            lambda n: ops.Binary("&", OUT, ops.Const(7)),
            lambda n: temporary(n + 1),
            lambda n: ops.Binary("&", temporary(n), ops.Const(7)),
            lambda n: ops.Const(-1),
        ]
        return self.rng.choice(tricky if self.seldom(0.5) else plain)

    def body(self):
        rng, value = self.rng, self.value()
        again = self.value()
        uses = rng.sample(["read", "write", "add", "mix", "compare"], rng.randint(1, 4))
        # None, one or two ways in which a temporary is used beyond its own lane.
        reasons = ["before", "twice", "late", "spoil", "read_into", "next", "jump", "second"]
        chosen = rng.sample(reasons, rng.randint(0, 2)) if self.odd else []
        flags = {name: name in chosen for name in reasons}
        out = []
        for n in range(LANES):
            t = temporary(n)
            if flags["before"]:
                out.append(ops.Assign(OUT, ops.Binary("+", OUT, t)))
            if flags["jump"]:
                out.append(ops.JumpIfZero(ops.Binary("&", B, ops.Const(1)), len(out) + 2))
            out.append(ops.Assign(t, value(n)))
            if flags["read_into"]:
                out.append(ops.ReadRegister(t, f"r{n}", ops.Binary("&", B, ops.Const(7))))
            if flags["spoil"]:
                out.append(ops.Assign(A, ops.Binary("+", A, ops.Const(1))))
            for use in uses:
                out += self.use(use, n, temporary(n + 1) if flags["next"] else t)
            if flags["twice"]:
                out.append(ops.Assign(t, again(n)))
                out += self.use("add", n, t)
        if flags["second"]:
            out += [part for n in range(LANES) for part in self.use("mix", n, temporary(n))]
        if flags["late"]:
            out.append(ops.Assign(OUT, ops.Binary("^", OUT, temporary(rng.randrange(LANES)))))
        return tuple(out)

    def use(self, how, n, t):
        index = ops.Binary("&", t, ops.Const(15))
        match how:
            case "read":
                return [ops.ReadRegister(lane(n), f"r{n}", index)]
            case "write":
                return [ops.WriteRegister(f"r{n}", index, lane(n))]
            case "add":
                return [ops.Assign(lane(n), ops.Binary("+", lane(n), t))]
            case "compare":
                one = ops.Ternary(ops.Binary("<", t, ops.Const(5)), ops.Const(1), lane(n))
                return [ops.Assign(lane(n), one)]
        return [ops.Assign(OUT, ops.Binary("+", ops.Binary("*", OUT, ops.Const(3)), t))]

    def program(self):
        rng = self.rng
        bits = rng.choice([3, 8, 9, 16]) if self.seldom(0.4) else 32
        signed = self.seldom(0.3)
        fields = tuple(model.FieldDeclaration(f"t{n}", bits, signed) for n in range(LANES + 1))
        temporaries = model.Header("m", "m_t", fields, True)
        actions = {0: ops.Action(0, "work", (), self.body()), 1: ops.Action(1, "tell", (), (self.told(),))}
        key = model.TableKey("t", temporary(1), "exact", bits) if self.seldom() else None
        table = model.TableDeclaration("work", (), 1, (0,), 0, (), True, None, {0: "tell"}, None)
        tell = model.TableDeclaration("tell", (), 1, (1,), 1, (), True, None, {1: None}, None)
        if key is not None:
            tell = replace(tell, keys=(key,), actions=(), default_action=1, size=4)
        nothing = model.TableDeclaration("late", (), 1, (2,), 2, (), True, None, {2: None}, None)
        actions[2] = ops.Action(2, "late", (), (ops.Assign(OUT, ops.Binary("+", OUT, temporary(2))),))
        late = self.seldom()
        return model.Program(
            name="made",
            headers={header.name: header for header in (STANDARD, temporaries, PACKET)},
            parser=model.Parser(
                "start", {"start": model.ParserState("start", (model.Extract("h"),), (), ())}
            ),
            ingress=model.PipelineGraph("ingress", "work", {"work": table, "tell": tell}),
            egress=model.PipelineGraph("egress", "late" if late else None, {"late": nothing} if late else {}),
            deparser=("h",),
            actions=actions,
            registers={f"r{n}": model.RegisterArray(f"r{n}", CELLS, 32) for n in range(LANES)},
            counters={},
            checksums=self.checksums(bits),
            errors={"NoError": 0, "PacketTooShort": 1},
        )

    def told(self):
        """Return an action that forwards the packet."""
        return ops.Assign(ops.FieldRef("standard_metadata", "egress_spec"), ops.Const(1))

    def checksums(self, bits):
        condition, inputs = None, ((A, 0, 32),)
        if self.seldom():
            condition = ops.Binary("==", temporary(3), ops.Const(3))
        elif self.seldom() and bits % 8 == 0:
            inputs = ((A, 0, 32), (temporary(3), 0, bits))
        elif not self.seldom():
            return ()
        target = ops.FieldRef("h", "sum")
        return (model.Checksum("sum", target, "csum16", inputs, False, condition, False, True),)


def packets(seed):
    rng = random.Random(seed)
    edges = [0, 1, 3, 7, 8, 15, 2**32 - 1]
    words = [[rng.choice([*edges, rng.getrandbits(32)]) for _ in PACKET.fields] for _ in range(12)]
    return Frames.of([(1, b"".join(word.to_bytes(4, "big") for word in row)) for row in words])


def run(switch, frames):
    out = [switch.process(frames, 0).pairs() for _ in range(2)]
    return out, [switch.registers[f"r{n}"].values().tolist() for n in range(LANES)]


@pytest.mark.parametrize("group", range(4))
def test_a_program_does_what_it_does_unrolled(group):
    for seed in PROGRAMS[group::4]:
        program, frames = Maker(seed).program(), packets(seed)
        rolled, unrolled = (Switch(program, "python", roll=roll) for roll in (True, False))
        assert run(rolled, frames) == run(unrolled, frames), f"seed {seed}\n{rolled.source}"


def with_body(body):
    """Return an ordinary program with this body."""
    program = next(made for made in (Maker(seed).program() for seed in PROGRAMS) if not made.checksums)
    told = program.ingress.nodes["tell"]
    ingress = replace(program.ingress, nodes={**program.ingress.nodes, "tell": replace(told, keys=())})
    actions = {**program.actions, 0: ops.Action(0, "work", (), body)}
    return replace(program, ingress=ingress, egress=model.PipelineGraph("egress", None, {}), actions=actions)


def over_bytes(before, body):
    """A program whose loops step through eight bytes that begin `before` bits into a header."""
    lanes = [model.FieldDeclaration(f"w{n}", 8) for n in range(8)]
    fields = [model.FieldDeclaration("x", before), *lanes, model.FieldDeclaration("y", 8 - before)]
    fields = fields if before else lanes
    program = with_body(body)
    start = model.ParserState("start", (model.Extract("h"), model.Extract("g")), (), ())
    headers = {**program.headers, "g": model.Header("g", "g_t", tuple(fields), False)}
    parser = model.Parser("start", {"start": start})
    return replace(program, headers=headers, parser=parser, deparser=("h", "g"))


def added(value, lanes):
    targets = [ops.FieldRef("g", f"w{n}") for n in lanes]
    return tuple(ops.Assign(target, ops.Binary("+", target, ops.Const(value))) for target in targets)


@pytest.mark.parametrize("before", [0, 4])
@pytest.mark.parametrize(
    "body",
    [
        added(1, range(8)),
        added(1, range(4)) + added(2, range(3, 8)),
        added(1, range(1, 5)) + added(5, range(4)),
    ],
    ids=["one loop", "sharing one byte", "shifted"],
)
def test_loops_over_bytes_wherever_they_lie(before, body):
    program = over_bytes(before, body)
    frames = Frames.of([(1, bytes(range(4 * len(PACKET.fields))) + bytes(range(100, 110)))])
    rolled, unrolled = (Switch(program, "python", roll=roll) for roll in (True, False))
    assert run(rolled, frames) == run(unrolled, frames)
    assert ("range(k_" in rolled.source.split("for _ in range")[0]) == (before == 0)
