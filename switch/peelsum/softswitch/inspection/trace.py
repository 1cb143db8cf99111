"""Traces packets through a program: what each parser state, table and statement does, as plain values.

A trace is made of dictionaries that can be written as JSON; docs/reference/softswitch.md describes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from peelsum.softswitch.compiler.emit_multi_pass import MOST_ITEMS
from peelsum.softswitch.compiler.emit_statements import CLONE_FLAG
from peelsum.softswitch.compiler.layout import ROW_ENTRY
from peelsum.softswitch.compiler.observing import Point
from peelsum.softswitch.inspection.text import Step, expression_text, field_name
from peelsum.softswitch.program import model
from peelsum.softswitch.program import operations as ops
from peelsum.softswitch.program.load_actions import VALID
from peelsum.softswitch.runtime.frames import Frames
from peelsum.softswitch.runtime.switch import Switch
from peelsum.wire import DROP_PORT

#: The values of fields, by (header, field), of validities and of stacks' counts, as in `Emitter.variables`.
_State: TypeAlias = dict[tuple[str, str], int]
#: The operands of a point, by name.
_Operands: TypeAlias = dict[str, int]

#: What a pass through the switch is, by simple_switch's number of the kind of packet.
_PASSES = {
    0: "arrived",
    1: "clone made in ingress",
    2: "clone made in egress",
    4: "recirculated",
    6: "resubmitted",
    8: "continues after its clones",
}
#: How the second number of a key in an entry is called.
_SECOND = {"lpm": "prefix_length", "ternary": "mask", "range": "high"}


class Tracer:
    """A switch that runs a program and traces each packet.

    Its `switch` has the program's tables, registers, groups and sessions, which keep their state from packet
    to packet.
    """

    def __init__(self, program: model.Program) -> None:
        self.program = program
        self.switch = Switch(program, "python", observer=self._observe)

    def trace(self, port: int, packet: bytes, now_us: int = 0) -> Step:
        """Process a packet that arrives at `port`; return its trace."""
        self._steps: list[Step] = []
        self._phase = ""
        self._pass: tuple[int, ...] = ()
        self._finish: Callable[[_State], None] = lambda state: None
        self._departures: list[tuple[Step, _State]] = []
        refused = self.switch.refused_passes
        frames = self.switch.process(Frames.of([(port, packet)]), now_us).pairs()
        self._leave()
        if refused := self.switch.refused_passes - refused:
            reason = f"after {MOST_ITEMS} passes of a packet, the softswitch refuses others, here {refused}"
            self._add("drop", reason=reason)
        for (step, state), (step["port"], data) in zip(self._departures, frames, strict=True):
            step.update(bytes=data.hex(), changed=self._changed_by_checksums(step["headers"], state, data))
        digests = [{"digest": name, "values": values} for name, values in self.switch.messages.digests]
        self.switch.messages.digests.clear()
        leaving = [{"port": port, "bytes": data.hex()} for port, data in frames]
        return {
            "program": self.program.name, "port": port, "bytes": packet.hex(), "steps": self._steps,
            "digests": digests, "packets": leaving,
        }  # fmt: skip

    # --- the points of the program ----------------------------------------------------------------

    def _observe(self, number: int, variables: Mapping[str, Any], operands: list[int]) -> None:
        """Finish the step before this point, and begin the point's step."""
        generated = self.switch.generated
        point = generated.points[number]
        starts_egress = (point.kind, point.name) == ("start", "egress")
        starts_parser = point.kind == "state" and self._phase != "parser"
        if starts_egress or starts_parser:
            self._leave()
        self._variables = dict(variables)  # the interpreter reuses the dictionary
        if starts_parser:
            self._begin_pass()
            self._phase = "parser"
        # Egress works on copies of the variables that it changes.
        copied = "e_" if self._phase == "egress" or starts_egress else ""
        self._state = state = {
            key: variables.get(copied + name, variables[name]) for key, name in generated.variables.items()
        }
        self._failed = variables.get(f"{copied}failed", variables.get("failed", False))
        self._finish(state)
        self._finish = lambda state: None
        if point.kind != "end":  # there, the step before is finished, and none begins
            getattr(self, f"_at_{point.kind}")(point, dict(zip(point.operands, operands, strict=True)))

    def _add(self, kind: str, source: ops.Source | None = None, **values: Any) -> Step:
        self._steps.append(_step(kind, source, **values))
        return self._steps[-1]

    def _begin_pass(self) -> None:
        """Begin a pass through the switch, of the packet or of a copy of it."""
        kind, item = self._variables.get("kind", 0), self._variables.get("item", 0)
        if (kind, item) != self._pass:
            self._pass = (kind, item)
            self._add("pass", packet=_PASSES[kind], size=int(self._variables["size"]))

    def _at_state(self, point: Point, operands: _Operands) -> None:
        if self._steps[-1]["step"] == "state":
            self._steps[-1]["next"] = point.name
        step = self._add("state", state=point.name, operations=[], key=[], next=None, failed=True)
        self._body = step["operations"]

    def _at_select(self, point: Point, operands: _Operands) -> None:
        key = zip(point.node.key, operands.values(), strict=True)
        values = [{"field": expression_text(part), "value": value} for part, value in key]
        self._steps[-1].update(failed=False, key=values)

    def _at_start(self, point: Point, operands: _Operands) -> None:
        if self._phase == "parser":
            error, remaining = self._variables["parser_error"], int(self._variables["remaining"])
            names = {number: name for name, number in self.program.errors.items()}
            error_name = names.get(error, str(error)) if error else None
            self._add("parser_end", error=error_name, payload_bytes=remaining)
        elif point.name == "egress":
            self._begin_pass()
        if point.name == "egress":
            numbers = (int(self._variables[name]) for name in ("egress_port", "egress_rid", "instance"))
            port, rid, instance = numbers
            self._add("egress", port=port, rid=rid, instance_type=instance)
        else:
            self._add("ingress")
        self._phase = point.name

    def _at_condition(self, point: Point, operands: _Operands) -> None:
        text = expression_text(point.node.condition)
        self._add("condition", point.source, condition=text, outcome=bool(operands["outcome"]))

    def _at_table(self, point: Point, operands: _Operands) -> None:
        table = self.switch.tables[point.name]
        values = zip(table.keys, operands.values(), strict=True)
        key = [{"field": part.name, "match": part.kind, "value": value} for part, value in values]
        step = self._add("table", point.source, table=point.name, key=key, hit=None, entry=None)

        def finish(state: _State) -> None:
            row = self._variables["found"]
            step["hit"] = row != self.switch.generated.tables[point.name].default_row
            if step["hit"]:
                number = int(self._variables["memory"][row + ROW_ENTRY])
                step["entry"] = _entry(table.entry_with_number(number), table.keys)

        if key:
            self._finish = finish

    def _at_action(self, point: Point, operands: _Operands) -> None:
        self._body = self._add("action", action=point.name, parameters=operands, statements=[])["statements"]

    def _at_statement(self, point: Point, operands: _Operands) -> None:
        """Begin a statement's step; what it changed is known at the next point."""
        before, node, values = self._state, point.node, {**point.values, **operands}
        match node:
            case ops.Log():
                values = {**point.values, "values": list(operands.values())}
            case ops.ReadRegister() | ops.WriteRegister():
                values["before"] = self._cell(values["register"], values["index"])
            case ops.CountAt(counter=name):
                values["exists"] = values["index"] < self.program.counters[name].size
            case ops.ExecuteMeter(meter=name):
                values["exists"] = values["index"] < self.program.meters[name].size
            case ops.JumpIfZero() | ops.Assert() | model.Verify():
                values["outcome"] = bool(values["outcome"])
            case ops.Assign(target=ops.FieldRef(header, field)):
                values["field"] = field_name(header, field)
            case ops.SetValidity(header):
                values["field"] = field_name(header, VALID)
        step = _step(re.sub("(?<!^)(?=[A-Z])", "_", point.name).lower(), point.source, **values, changed=[])
        self._body.append(step)

        def finish(state: _State) -> None:
            step["changed"] = [
                {"field": field_name(*key), "before": value, "after": state[key]}
                for key, value in before.items()
                if state[key] != value and key[1]
            ]
            match node:
                case model.Extract() | model.ExtractNext():
                    failed = bool(self._variables["parser_error"])
                    extracted = self.program.headers[self._extracted(node, state, failed)]
                    fields = {part.name: state[extracted.name, part.name] for part in extracted.fields}
                    del step["changed"]
                    step.update(header=extracted.name, fields=None if failed else fields)
                case ops.ReadRegister() | ops.WriteRegister():
                    step["after"] = self._cell(step["register"], step["index"])
                case ops.Assign(target=ops.FieldRef(header, field)):
                    step["value"] = state[header, field]
                case ops.SetValidity(header):
                    step["value"] = bool(state[header, VALID])

        self._finish = finish

    # --- what follows a pipeline ------------------------------------------------------------------

    def _leave(self) -> None:
        """Add what happens to a packet after the pipeline whose end it has reached."""
        if self._phase not in ("ingress", "egress"):
            return
        is_ingress, self._phase = self._phase == "ingress", ""
        self._finish = lambda state: None
        variables, state = self._variables, self._state
        if cloning := variables.get("cloning", 0):
            session = cloning % CLONE_FLAG
            self._add("clone", session=session, ports=_ports(self.switch.sessions, session))
        group = self._intrinsic("intrinsic_metadata.mcast_grp") & 0xFFFF if is_ingress else 0
        port = self._intrinsic("standard_metadata.egress_spec")
        if is_ingress and variables.get("resubmit_fields"):
            self._add("resubmit")
        elif self._failed:
            self._add("drop", reason="an assertion does not hold")
        elif group and not _ports(self.switch.groups, group):
            self._add("drop", reason=f"multicast group {group} has no ports")
        elif group:
            self._add("multicast", group=group, ports=_ports(self.switch.groups, group))
        elif port == DROP_PORT:
            self._add("drop", reason=f"egress_spec is {DROP_PORT}, the drop port")
        elif is_ingress and self._intrinsic("intrinsic_metadata.priority"):
            self._add("drop", reason="priority is not 0, and ports have one queue")
        elif is_ingress:
            self._add("forward", port=port)
        else:
            headers = [name for name in self.program.deparser if state[name, VALID]]
            if variables.get("recirculate_fields"):
                self._add("recirculate", headers=headers)
            else:
                self._departures.append((self._add("send", port=0, bytes="", headers=headers), state))

    def _changed_by_checksums(self, headers: list[str], state: _State, data: bytes) -> list[Step]:
        """Return the fields of a packet that differ from their values at the end of egress."""
        changes, start = [], 0
        for header in (self.program.headers[name] for name in headers):
            if header.varbit or start + header.bits // 8 > len(data):
                break  # the rest has no fixed place, or was truncated
            end = start + header.bits // 8
            number, end_bit = int.from_bytes(data[start:end], "big"), header.bits
            for field in header.fields:
                end_bit -= field.bits
                value, before = number >> end_bit & (1 << field.bits) - 1, state[header.name, field.name]
                if value != before:
                    name = field_name(header.name, field.name)
                    changes.append({"field": name, "before": before, "after": value})
            start = end
        return changes

    # --- values -----------------------------------------------------------------------------------

    def _intrinsic(self, name: str) -> int:
        """Return a field of the architecture; 0 if the program does not have it."""
        ref = self.program.intrinsic(name)
        return 0 if ref is None else int(self._state.get((ref.header, ref.field), 0))

    def _cell(self, register: str, index: int) -> int | None:
        """Return a register's cell; None past its end."""
        plan = self.switch.generated.layout.registers[register]
        array = self._variables["wide" if plan.wide else "regs"]
        return int(array[plan.base + index * plan.step]) if 0 <= index < plan.size else None

    def _extracted(self, node: model.Extract | model.ExtractNext, state: _State, failed: bool) -> str:
        """Return the header that was extracted, or would have been."""
        if isinstance(node, model.Extract):
            return node.header
        elements = self.program.stacks[node.stack]
        place = state[node.stack, ""] - (not failed)
        return elements[min(place, len(elements) - 1)][node.member]


def _step(kind: str, source: ops.Source | None, **values: Any) -> Step:
    place = {} if source is None else {"source": vars(source)}
    return {"step": kind, **values, **place}


def _entry(entry: model.TableEntry, keys: tuple[model.TableKey, ...]) -> Step:
    match = []
    for value, key in zip(entry.keys, keys, strict=True):
        first, second = (value, None) if isinstance(value, int) else value
        part = {"field": key.name, "value": first}
        match.append(part if second is None else {**part, _SECOND[key.kind]: second})
    action = entry.action if isinstance(entry.action, str) else str(entry.action)
    return {"match": match, "priority": entry.priority, "action": action, "parameters": list(entry.params)}


def _ports(groups: Any, group: int) -> list[int]:
    """Return the ports of a multicast group or clone session; none if it does not exist."""
    return [port for port, _ in groups.get(group)] if group in groups else []
