"""Switches under test, behind one interface: fill tables, process packets, read verdicts.

`process` takes a UDP payload and returns (port, payload) pairs, sorted. The rig adds and removes the headers
that frames have on a wire. `fresh()` resets tables and state.
"""

from frames import frame, payload_of

from peelsum.softswitch import Frames, Switch
from peelsum.spec import SpecSwitch
from peelsum.wire import Level, Verdict

#: Every port a test may use; the CPU port is 255.
PORTS = (1, 2, 3, 4, 5, 6, 7, 8, *range(10, 42))


class SpecRig:
    """A rig of the executable specification, `peelsum.spec`."""

    #: Bytes behind a frame that the switch takes for the frame's own.
    trailer_bytes = 0

    def __init__(self, lanes, slots):
        self.lanes, self.slots = lanes, slots
        self.fresh()

    def fresh(self):
        self._switch = SpecSwitch(self.lanes, self.slots)
        for name in ("admit_job", "admit_worker", "admit_rack", "admit_server"):
            setattr(self, name, getattr(self._switch, name))
        for name in ("return_to", "set_group", "set_age_limit"):
            setattr(self, name, getattr(self._switch, name))

    def process(self, port, payload, now_us=0):
        return sorted(self._switch.process(port, payload, now_us))

    def verdicts(self):
        return dict(self._switch.verdicts)


class TableRig:
    """A rig that writes tables by alias. Subclasses define `write(table, keys, action, params)`."""

    trailer_bytes = 0

    def admit_job(self, job_id, *, generation, salt, expected_mask, up_port, group, level=Level.ONLY):
        self.write("jobs", (job_id,), level.value, (generation, salt, expected_mask, up_port, group))

    def admit_worker(self, job_id, port, *, worker_mask, worker_id):
        self.write("members", (job_id, port), "admit_worker", (worker_mask, worker_id))

    def admit_rack(self, job_id, port, *, rack_mask, first_worker):
        self.write("members", (job_id, port), "admit_rack", (rack_mask, first_worker))

    def admit_server(self, job_id, port):
        self.write("members", (job_id, port), "admit_server", ())

    def return_to(self, job_id, sender, port):
        self.write("return_paths", (job_id, sender), "return_to", (port,))

    def set_age_limit(self, ticks):
        self.write("limits", None, "set_age_limit", (ticks,))


class SoftswitchRig(TableRig):
    """A rig of a compiled pipeline in the softswitch; tables are written without P4Runtime."""

    def __init__(self, program, mode):
        self._program, self._mode = program, mode
        self.fresh()
        self.lanes = sum(".lane_" in name for name in self.switch.registers)
        self.slots = self._named(self.switch.registers, "worker_bitmap").size

    def fresh(self):
        self.switch = Switch(self._program, mode=self._mode)
        self._written = set()

    @staticmethod
    def _named(things, alias):
        (name,) = [name for name in things if name.rsplit(".", 1)[-1] == alias]
        return things[name]

    def write(self, table, keys, action, params):
        entries = self._named(self.switch.tables, table)
        action = next(a.name for a in self._program.actions.values() if a.name.rsplit(".", 1)[-1] == action)
        if keys is None:
            entries.set_default(action, params)
        elif (table, keys) in self._written:
            entries.modify(keys, action, params)
        else:
            entries.insert(keys, action, params)
            self._written.add((table, keys))

    def set_group(self, group, ports):
        self.switch.groups.set(group, [(port, 0) for port in ports])

    def process(self, port, payload, now_us=0):
        return sorted(
            (p, payload_of(raw)) for p, raw in self.process_frames([(port, frame(payload))], now_us)
        )

    def process_frames(self, frames, now_us=0):
        """Process raw frames, given as (port, bytes), in one batch; return those that leave."""
        return self.switch.process(Frames.of(frames), now_us).pairs()

    def verdicts(self):
        counter = self._named(self.switch.counters, "verdicts")
        return {v: counter.read(v)[0] for v in Verdict if counter.read(v)[0]}
