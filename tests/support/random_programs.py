"""Random programs as p4c writes them: typed expressions, primitives on headers and their copies, tables."""

import copy
import json
from pathlib import Path

from unrolled_lanes import expression, field, number

SKELETON = Path(__file__).parents[1] / "softswitch" / "p4" / "arithmetic.json"
#: Field types: the width, and whether the field is signed.
FIELDS = [
    *([8, False], [8, True], [3, False], [5, True], [16, False], [16, True], [32, False], [32, True]),
    *([48, False], [64, False], [11, True], [5, False]),
]
#: The first header is parsed always, the second one by choice; then copies, as of `inout` arguments.
HEADERS = ["a", "b", "a_0", "b_0"]
STACK, STACK_COPY, ELEMENTS = "s", "s_0", 3
STANDARD, STANDARD_COPY = "standard_metadata", "standard_metadata_0"


class Programs:
    """Makes programs; all headers, and the variables, have fields of the same types."""

    def __init__(self, rng):
        self._rng = rng

    # --- expressions ------------------------------------------------------------------------------

    def _fields(self, bits=None, signed=None):
        return [
            field(owner, f"f{n}")
            for owner in (*HEADERS, "scalars")
            for n, kind in enumerate(FIELDS)
            if bits is None or kind == [bits, signed]
        ]

    def _constant(self, bits, signed):
        value = self._rng.choice([0, 1, self._rng.getrandbits(bits), (1 << bits) - 1, 1 << bits - 1])
        return number(value - (1 << bits) if signed and value >> bits - 1 else value)

    def _wrapped(self, value, bits, signed):
        if signed:
            return expression("two_comp_mod", value, number(bits))
        return expression("&", value, number((1 << bits) - 1))

    def number(self, bits, signed, depth=3, params=()):
        """Return an expression of type bit<bits>, or int<bits> if signed."""
        rng = self._rng
        leaves = self._fields(bits, signed) + [
            {"type": "local", "value": n} for n, kind in enumerate(params) if kind == [bits, signed]
        ]
        if not leaves or (depth == 0 and rng.random() < 0.3):
            return self._constant(bits, signed)
        if depth == 0 or rng.random() < 0.2:
            return rng.choice(leaves)

        def part(bits=bits, signed=signed):
            return self.number(bits, signed, depth - 1, params)

        match rng.choice(["arithmetic", "bits", "not", "shift", "cast", "saturated", "chosen", "negated"]):
            case "arithmetic":
                return self._wrapped(expression(rng.choice("+-*"), part(), part()), bits, signed)
            case "bits":
                return expression(rng.choice("&|^"), part(), part())
            case "not":
                inverted = {"op": "~", "left": None, "right": part()}
                return self._wrapped({"type": "expression", "value": inverted}, bits, signed)
            case "negated":
                return self._wrapped(expression("-", number(0), part()), bits, signed)
            case "shift":
                by = number(rng.randrange(bits + 3)) if rng.random() < 0.5 else part(3, False)
                return self._wrapped(expression(rng.choice(["<<", ">>"]), part(), by), bits, signed)
            case "cast":
                return self._wrapped(part(*rng.choice(FIELDS)), bits, signed)
            case "saturated" if bits <= 48:
                total = expression(rng.choice("+-"), part(), part())
                return expression("sat_cast" if signed else "usat_cast", total, number(bits))
        chosen = {"op": "?", "left": part(), "right": part(), "cond": self.truth(depth - 1, params)}
        return {"type": "expression", "value": chosen}

    def truth(self, depth=2, params=()):
        """Return a Boolean expression."""
        rng = self._rng
        if depth > 0 and rng.random() < 0.3:
            return expression(rng.choice(["and", "or"]), self.truth(depth - 1), self.truth(depth - 1))
        if rng.random() < 0.2:
            valid = {"op": "d2b", "left": None, "right": field(rng.choice(HEADERS), "$valid$")}
            return {"type": "expression", "value": valid}
        kind = rng.choice(FIELDS)
        sides = (self.number(*kind, max(depth, 0), params) for _ in range(2))
        return expression(rng.choice(["==", "!=", "<", "<=", ">", ">="]), *sides)

    # --- actions ----------------------------------------------------------------------------------

    def _primitive(self, params):
        rng = self._rng

        def call(op, *values):
            return {"op": op, "parameters": list(values)}

        def header(name):
            return {"type": "header", "value": name}

        def stack(name):
            return {"type": "header_stack", "value": name}

        kinds = [8, 16, 32]
        # BMv2's ingress does not wait for a packet's egress, which therefore must not have registers.
        registers = [] if self._egress else ["register"]
        match rng.choice(["assign"] * 5 + ["header", "stack", "standard", "hash", "count", *registers]):
            case "assign":
                target = rng.choice(self._fields())
                bits, signed = FIELDS[int(target["value"][1][1:])]
                value = self.number(bits, signed, 3, params)
                return call("assign", target, {"type": "expression", "value": value})
            case "header":
                one, other = (
                    header(name) for name in rng.sample([*HEADERS, f"{STACK}[0]", f"{STACK}[2]"], 2)
                )
                return rng.choice(
                    [call("add_header", one), call("remove_header", one), call("assign_header", one, other)]
                )
            case "stack":
                one, other = (stack(name) for name in rng.sample([STACK, STACK_COPY], 2))
                moved = call(rng.choice(["push", "pop"]), one, number(rng.randrange(1, 3)))
                return rng.choice([moved, call("assign_header_stack", one, other)])
            case "standard":
                one, other = rng.sample([STANDARD, STANDARD_COPY], 2)
                copied = [
                    call("assign", field(one, name), field(other, name))
                    for name in ("egress_spec", "mcast_grp")
                ]
                return rng.choice([call("mark_to_drop", header(STANDARD_COPY)), *copied])
            case "register":
                array, bits = {"type": "register_array", "value": "cells"}, 16
                index = expression("&", self.number(8, False, 1, params), number(7))
                index = {"type": "expression", "value": index}
                if rng.random() < 0.5:
                    return call("register_read", rng.choice(self._fields(bits, False)), array, index)
                return call("register_write", array, index, rng.choice(self._fields(bits, False)))
            case "hash":
                target = rng.choice(self._fields(rng.choice(kinds), False))
                calculation = {"type": "calculation", "value": f"calc_{rng.randrange(3)}"}
                return call(
                    "modify_field_with_hash_based_offset", target, number(3), calculation, number(1000)
                )
        index = expression("&", self.number(8, False, 1, params), number(3))
        return call(
            "count", {"type": "counter_array", "value": "seen"}, {"type": "expression", "value": index}
        )

    def _action(self, name, number_, params=()):
        rng = self._rng
        steps = [self._primitive(params) for _ in range(rng.randrange(1, 6))]
        if number_ == 0:
            sent = {"op": "assign", "parameters": [field(STANDARD, "egress_spec"), number(2)]}
            steps.insert(0, sent)
        if rng.random() < 0.3:
            at = rng.randrange(len(steps))
            condition = {"op": "b2d", "left": None, "right": self.truth(1, params)}
            wrapped = {"type": "expression", "value": {"type": "expression", "value": condition}}
            jump = {"op": "_jump_if_zero", "parameters": [wrapped]}
            steps.insert(at, jump)
            jump["parameters"].append(number(rng.randrange(at + 1, len(steps) + 1)))
        if rng.random() < 0.05:
            steps.append({"op": "exit", "parameters": []})
        data = [{"name": f"p{n}", "bitwidth": bits} for n, (bits, _) in enumerate(params)]
        return {"name": name, "id": number_, "runtime_data": data, "primitives": steps}

    # --- pipelines --------------------------------------------------------------------------------

    def _table(self, document, name, following):
        rng = self._rng
        keyed = rng.random() < 0.6
        params = [rng.choice(FIELDS) for _ in range(rng.randrange(3))] if keyed else []
        actions = []
        for _ in range(2 if keyed else 1):
            made = self._action(f"action_{len(document['actions'])}", len(document["actions"]), params)
            document["actions"].append(made)
            actions.append(made)

        def call(action, const=None):
            data = [self._constant(*kind)["value"] for kind in params]
            entry = {"action_id": action["id"], "action_data": data}
            return entry if const is None else entry | {"action_const": const, "action_entry_const": const}

        table = {
            "name": name, "id": 0, "match_type": "exact", "type": "simple", "max_size": 16, "key": [],
            "with_counters": False, "support_timeout": False, "direct_meters": None,
            "action_ids": [action["id"] for action in actions],
            "actions": [action["name"] for action in actions],
            "base_default_next": following,
            "next_tables": {action["name"]: following for action in actions},
            "default_entry": call(actions[0], rng.random() < 0.5 or not keyed),
        }  # fmt: skip
        if keyed:
            at = rng.randrange(len(FIELDS))
            bits, _ = FIELDS[at]
            # BMv2 counts the bits of a prefix from the first whole byte on.
            kind = rng.choice(["exact", "ternary", "range", *([] if bits % 8 else ["lpm"])])
            target = [rng.choice(["a", "scalars"]), f"f{at}"]
            table["match_type"] = kind
            table["key"] = [{"match_type": kind, "name": "key", "target": target, "mask": None}]
            entries = {self._match(kind, bits): call(rng.choice(actions)) for _ in range(3)}
            table["entries"] = [
                {"match_key": [json.loads(key)], "action_entry": entry, "priority": priority}
                for priority, (key, entry) in enumerate(entries.items(), 1)
            ]
        return table

    def _match(self, kind, bits):
        rng, width = self._rng, -(-bits // 8)

        def text(value):
            return f"0x{value:0{2 * width}x}"

        value = rng.choice([rng.getrandbits(bits), 0, 1])
        other = rng.choice([rng.getrandbits(bits), (1 << bits) - 1])
        match kind:
            case "exact":
                found = {"key": text(value)}
            case "ternary":
                found = {"key": text(value & other), "mask": text(other)}
            case "lpm":
                length = rng.randrange(bits + 1)
                found = {"key": text(value >> bits - length << bits - length), "prefix_length": length}
            case "range":
                found = {"start": text(min(value, other)), "end": text(max(value, other))}
        return json.dumps({"match_type": kind} | found)

    def _pipeline(self, document, name, number_, count):
        self._egress = name == "egress"
        pipeline = {"name": name, "id": number_, "action_profiles": [], "tables": [], "conditionals": []}
        names = [f"{name}_{n}" for n in range(count)]
        for n, node in enumerate(names):
            following = names[n + 1] if n + 1 < count else None
            later = names[n + 2] if n + 2 < count else None
            if self._rng.random() < 0.3 and n:
                test = self.truth(2)
                pipeline["conditionals"].append(
                    {"name": node, "id": n, "expression": test, "true_next": following, "false_next": later}
                )
            else:
                pipeline["tables"].append(self._table(document, node, following))
        return pipeline | {"init_table": names[0]}

    # --- the whole --------------------------------------------------------------------------------

    def program(self):
        """Return a program's BMv2 JSON."""
        rng = self._rng
        document = json.loads(SKELETON.read_text())
        standard = next(kind for kind in document["header_types"] if kind["name"] == STANDARD)
        fields = [[f"f{n}", *kind] for n, kind in enumerate(FIELDS)]
        fields_of = copy.deepcopy(fields)
        padding = -sum(bits for bits, _ in FIELDS) % 8
        fields_of += [["pad", padding, False]] if padding else []
        document["header_types"] = [
            {"name": "h_t", "id": 0, "fields": fields_of},
            {"name": "scalars_t", "id": 1, "fields": fields},
            standard | {"id": 2},
        ]
        stacks = {name: [f"{name}[{n}]" for n in range(ELEMENTS)] for name in (STACK, STACK_COPY)}
        names = [*HEADERS, *(element for elements in stacks.values() for element in elements)]
        kinds = [(name, "h_t", False) for name in names]
        kinds += [("scalars", "scalars_t", True), (STANDARD, STANDARD, True), (STANDARD_COPY, STANDARD, True)]
        document["headers"] = [
            {"name": name, "id": n, "header_type": kind, "metadata": metadata, "pi_omit": True}
            for n, (name, kind, metadata) in enumerate(kinds)
        ]
        document["header_stacks"] = [
            {"name": name, "id": n, "header_type": "h_t", "size": ELEMENTS,
             "header_ids": [names.index(element) for element in elements]}
            for n, (name, elements) in enumerate(stacks.items())
        ]  # fmt: skip
        document["parsers"] = [self._parser()]
        document["deparsers"][0] |= {"order": ["a", "b", "a_0", "b_0", *stacks[STACK]]}
        document["register_arrays"] = [{"name": "cells", "id": 0, "bitwidth": 16, "size": 8}]
        document["counter_arrays"] = [{"name": "seen", "id": 0, "is_direct": False, "size": 4}]
        document["calculations"] = [
            {
                "name": f"calc_{n}",
                "id": n,
                "algo": algo,
                "input": rng.sample(self._fields(rng.choice([8, 16, 32]), True), 3),
            }
            for n, algo in enumerate(["crc16", "crc32", "csum16"])
        ]
        document["actions"] = []
        document["pipelines"] = [
            self._pipeline(document, "ingress", 0, rng.randrange(3, 7)),
            self._pipeline(document, "egress", 1, rng.randrange(1, 3)),
        ]
        for n, table in enumerate(
            table for pipeline in document["pipelines"] for table in pipeline["tables"]
        ):
            table["id"] = n
        return document

    def _parser(self):
        rng = self._rng

        def state(name, n, extracts, key=(), transitions=()):
            ops = [
                {"op": "extract", "parameters": [{"type": kind, "value": value}]} for kind, value in extracts
            ]
            if rng.random() < 0.5:
                at = rng.randrange(len(FIELDS))
                value = {"type": "expression", "value": self.number(*FIELDS[at], 2)}
                ops.append({"op": "set", "parameters": [field("scalars", f"f{at}"), value]})
            edges = [*transitions, {"type": "default", "value": None, "mask": None, "next_state": None}]
            return {
                "name": name, "id": n, "parser_ops": ops, "transition_key": list(key), "transitions": edges
            }  # fmt: skip

        def edges(*targets):
            """Return a key of two fields, and an edge to each target."""
            ats = rng.sample(range(len(FIELDS)), 2)
            widths = [-(-FIELDS[at][0] // 8) for at in ats]
            made = []
            for target in targets:
                values, masks = ([rng.getrandbits(FIELDS[at][0]) for at in ats] for _ in range(2))

                def text(parts):
                    return "0x" + "".join(
                        f"{part:0{2 * width}x}" for part, width in zip(parts, widths, strict=True)
                    )

                mask = None if rng.random() < 0.5 else text(masks)
                made.append({"type": "hexstr", "value": text(values), "mask": mask, "next_state": target})
            return [field("a", f"f{at}") for at in ats], made

        states = [
            state("start", 0, [("regular", "a")], *edges("more", "stack")),
            state("more", 1, [("regular", "b")], *edges("stack")),
            state("stack", 2, [("stack", STACK)] * rng.randrange(1, ELEMENTS + 1)),
        ]
        # Or BMv2 reads what an earlier packet left in headers that are not valid.
        states[0]["parser_ops"][:0] = [
            {"op": "primitive", "parameters": [{"op": op, "parameters": [{"type": "header", "value": name}]}]}
            for name in ("b", "a_0", "b_0")
            for op in ("add_header", "remove_header")
        ]
        return {"name": "parser", "id": 0, "init_state": "start", "parse_states": states}
