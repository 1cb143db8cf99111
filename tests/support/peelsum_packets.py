"""A job as tests speak of it: workers, chunks and values instead of packets and tables."""

from peelsum.spec import Packet
from peelsum.wire import CPU_PORT, EVERYONE, Flag, Kind, Level

ADD, OR, SPINE, CE, FIN = (int(f) for f in (Flag.NONE, Flag.OR, Flag.SPINE, Flag.CE, Flag.FIN))


def pattern(value, lanes):
    """A worker's lanes: `value`, and its position added, so that swapped lanes show."""
    return [(value + i) & 0xFFFFFFFF for i in range(lanes)]


def lanes_of(*values, like):
    """Return the sum of the patterns of `values`, modulo 2**32, in Python's own integers."""
    lanes = len(like.lanes)
    return [sum(column) % 2**32 for column in zip(*(pattern(v, lanes) for v in values), strict=True)]


class Job:
    """A job admitted to a rig; member w, a worker or under a spine a rack, sits behind `ports[w]`."""

    now_us = 0

    def __init__(self, rig, job_id, ports, server_port, generation=7, salt=0, level=Level.ONLY):
        self.rig, self.job_id, self.ports, self.server_port = rig, job_id, ports, server_port
        self.generation, self.salt, self.slots, self.level = generation, salt, rig.slots, level
        self.expected_mask = (1 << len(ports)) - 1
        rig.set_group(job_id, list(ports))
        for member, port in enumerate(ports):
            if level is Level.SPINE:
                rig.admit_rack(job_id, port, rack_mask=1 << member, first_worker=32 * member)
            else:
                rig.admit_worker(job_id, port, worker_mask=1 << member, worker_id=member)
            rig.return_to(job_id, self.sender_of(member), port)
        rig.admit_server(job_id, server_port)
        self._admit()

    def sender_of(self, member):
        """A worker's own number, or that of some worker of a rack."""
        return 32 * member + 5 if self.level is Level.SPINE else member

    def _admit(self):
        row = {"generation": self.generation, "salt": self.salt, "expected_mask": self.expected_mask}
        row |= {"up_port": self.server_port, "group": self.job_id, "level": self.level}
        self.rig.admit_job(self.job_id, **row)

    def raise_generation(self):
        self.generation += 1
        self._admit()

    def slot_of(self, chunk):
        return (self.salt + chunk) % self.slots

    def packet(
        self, kind, chunk, *, lanes=None, flags=ADD, sender=EVERYONE, bitmap=0, job_id=None, generation=None
    ):
        """One packet of this job as bytes."""
        return Packet(
            kind=int(kind),
            flags=flags,
            job_id=self.job_id if job_id is None else job_id,
            generation=self.generation if generation is None else generation,
            sender=sender,
            chunk_id=chunk,
            bitmap=bitmap,
            lanes=[0] * self.rig.lanes if lanes is None else lanes,
        ).build()

    def send(self, worker, kind, chunk, value, flags=ADD):
        """A worker's packet; OR-ed lanes all hold `value`, added ones `pattern(value)`."""
        lanes = [value] * self.rig.lanes if flags & OR else pattern(value, self.rig.lanes)
        sender = self.sender_of(worker)
        packet = self.packet(kind, chunk, lanes=lanes, flags=flags, sender=sender, bitmap=1 << worker)
        return self._processed(self.ports[worker], packet)

    def contribute(self, worker, chunk, value, flags=ADD):
        return self.send(worker, Kind.CONTRIBUTION, chunk, value, flags)

    def resend(self, worker, chunk, value, flags=ADD):
        return self.send(worker, Kind.RESEND, chunk, value, flags)

    def retry(self, worker, chunk, value, flags=ADD):
        return self.send(worker, Kind.RETRY, chunk, value, flags)

    def send_from_server(self, kind, chunk, *, value=0, sender=EVERYONE, bitmap=0, flags=ADD):
        lanes = [value] * self.rig.lanes
        packet = self.packet(kind, chunk, lanes=lanes, sender=sender, bitmap=bitmap, flags=flags)
        return self._processed(self.server_port, packet)

    def result(self, chunk, value, sender=EVERYONE):
        return self.send_from_server(
            Kind.RESULT, chunk, value=value, sender=sender, bitmap=self.expected_mask
        )

    def give_up(self, chunk, flags=ADD):
        return self.send_from_server(Kind.RESEND, chunk, flags=flags)

    def verdicts(self):
        """Packets counted since the rig was made ready, by verdict."""
        return self.rig.verdicts()

    def _processed(self, port, packet):
        outputs = self.rig.process(port, packet, self.now_us)
        return [(out, Packet.parse(payload, self.rig.lanes)) for out, payload in outputs]


def admit_two_jobs(rig, age_limit, level):
    rig.set_age_limit(age_limit)
    return [
        Job(rig, job_id=1, ports=(1, 2, 3), server_port=8, level=level),
        Job(rig, job_id=2, ports=(4, 5), server_port=7, salt=3),
    ]


def random_packet(rng, jobs, slots, lanes):
    """Draw a port and a packet: mostly one that a member may send, sometimes another."""
    job = jobs[rng.integers(2)]
    kind = rng.choice(list(Kind), p=[0.45, 0.1, 0.05, 0.2, 0.05, 0.05, 0.1])
    chunk = int(rng.integers(3)) + slots * int(rng.integers(2))
    worker = int(rng.integers(len(job.ports)))
    port, sender = job.ports[worker], job.sender_of(worker)
    if kind in (Kind.RESULT, Kind.NEED) or rng.random() < 0.1:
        port, sender = job.server_port, EVERYONE if rng.random() < 0.7 else sender
    elif kind == Kind.RESET:
        port = CPU_PORT
    packet = Packet(
        kind=int(kind),
        flags=int(rng.integers(16)),
        job_id=job.job_id,
        generation=job.generation,
        sender=sender,
        chunk_id=chunk,
        bitmap=int(rng.integers(8)),
        lanes=[int(v) for v in rng.integers(0, 2**32, lanes)],
    )
    if rng.random() < 0.1:
        # A lie: another port, sender, job or generation. Only resets may come from the controller.
        port = int(rng.choice([1, 4, 6, 8])) if kind != Kind.RESET else port
        packet.sender = int(rng.integers(4))
        packet.job_id = int(rng.integers(4))
        packet.generation += int(rng.integers(2))
    return port, packet.build()
