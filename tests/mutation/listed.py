"""Mutants chosen by hand: the mistakes that are easily made in each area, and hard to see in a review.

`python tests/mutation/run.py --listed` tries them. Each is (text, its replacement); the text occurs once in
the file. A third member says why no test can notice the change.
"""

from __future__ import annotations

from pathlib import Path

from mutants import Mutant

Changes = dict[str, list[tuple[str, str] | tuple[str, str, str]]]

_WORKER: Changes = {
    "host/peelsum/transport/endpoint_kernels.py": [
        ("REORDERING = 3", "REORDERING = 2"),
        ("REORDERING = 3", "REORDERING = 4"),
        ("TIMEOUT_RATIO = 4.0", "TIMEOUT_RATIO = 3.0"),
        ("LOST_BEFORE = 0.5", "LOST_BEFORE = 1.0"),
        ("SOONEST = 0.5", "SOONEST = 1.5"),
        # RETRY or RESEND.
        ("wait = wait if tries == 1 else max(wait, silence)", "wait = max(wait, silence)"),
        ("wait = wait if tries == 1 else max(wait, silence)", "wait = wait if tries else max(wait, silence)"),
        ("if cause == NEEDED or tries > 1 or", "if tries > 1 or"),
        ("if cause == NEEDED or tries > 1 or", "if cause == NEEDED or tries > 2 or"),
        ("or (tries == 1 and own_turn):", "or tries == 1:"),
        ("or (tries == 1 and own_turn):", "or own_turn:"),
        ("or (tries == 1 and own_turn):", "or False:"),
        ("(position & 0xFFFFFFFF) % cursors", "position % cursors"),
        # Contributions, and the rows that they take.
        (
            "state.cursors[Cursor.BASE] < state.cursors[Cursor.END]:",
            "state.cursors[Cursor.BASE] <= state.cursors[Cursor.END]:",
        ),
        ("min(cursors[Cursor.BASE] + window,", "min(cursors[Cursor.BASE] + window + 1,"),
        ("- unanswered, limit,", "- unanswered + 1, limit,"),
        ("if left and cursors[Cursor.BASE] == cursors[Cursor.NEXT]:", "if left:"),
        ("        packet[HEADER_WORDS + filled :] = 0\n", ""),
        ("        state.answered[row] = False\n", ""),
        (
            "        state.queued[row] = 0\n",
            "",
            "retransmissions go first, so the queue is empty and every row's mark is 0 already",
        ),
        ("        state.tries[row] = 0\n", ""),
        ("        state.sent_at[row] = now\n    state.cursors", "    state.cursors"),
        # Results.
        (
            "position < cursors[Cursor.BASE] - limits.window:",
            "position <= cursors[Cursor.BASE] - limits.window:",
        ),
        ("if position < cursors[Cursor.BASE] or state.answered[row]:", "if state.answered[row]:"),
        ("max(cursors[Cursor.HIGHEST], position)", "position"),
        ("    clock[Clock.QUIET_SINCE] = now\n    if state", "    if state"),
        (
            "if state.tries[row] == 0 or now - sent > SOONEST * clock[Clock.USUAL]:",
            "if state.tries[row] == 0:",
        ),
        ("if state.tries[row] == 0 or now - sent > SOONEST * clock[Clock.USUAL]:", "if True:"),
        ("max(clock[Clock.ANSWERED], sent)", "sent"),
        ("if state.tries[row] == 0:  # Karn", "if True:  # Karn"),
        ("(rtt - usual) / 8", "(rtt - usual) / 4"),
        ("(min(rtt, 2 * usual) - usual) / 128", "(rtt - usual) / 128"),
        # What a NEED asks for.
        (
            "cursors[Cursor.FIRST] <= position < cursors[Cursor.JOINED]",
            "cursors[Cursor.FIRST] < position < cursors[Cursor.JOINED]",
        ),
        (
            "cursors[Cursor.RUN] <= position < cursors[Cursor.NEXT]",
            "cursors[Cursor.RUN] < position < cursors[Cursor.NEXT]",
        ),
        (
            "cursors[Cursor.RUN] <= position < cursors[Cursor.NEXT]",
            "cursors[Cursor.RUN] <= position <= cursors[Cursor.NEXT]",
        ),
        ("own >= cursors[Cursor.BASE] - window", "own > cursors[Cursor.BASE] - window"),
        ("own >= cursors[Cursor.BASE] - window", "own >= cursors[Cursor.BASE] - window - 1"),
        (
            "own = position + (cursors[Cursor.RUN] - cursors[Cursor.JOINED] if joining else 0)",
            "own = position",
        ),
        ("    state.queued[row] = max(state.queued[row], cause)", "        state.queued[row] = cause"),
        ("if state.answered[row] and cause != NEEDED:", "if state.answered[row]:"),
        ("        if state.answered[row] and cause != NEEDED:\n            continue\n", ""),
        ("        state.tries[row] += 1\n", ""),
        ("        state.sent_at[row] = now\n        filled", "        filled"),
        # What is taken for lost.
        ("- REORDERING + 1):", "- REORDERING):"),
        ("if first or (sent < clock[Clock.ANSWERED] and now", "if first or (now"),
        (
            " and now - sent > SOONEST * clock[Clock.USUAL]):\n            _enqueue",
            "):\n            _enqueue",
        ),
        ("state.counts[Count.LOST] += first", "state.counts[Count.LOST] += 1"),
        # Timers, back-off, probes.
        ("if tries == 0 and silence >= 0:", "if tries == 0 and silence > 0:"),
        ("if tries == 0 and silence >= 0:", "if silence >= 0:"),
        ("float(max(sent, clock[Clock.QUIET_SINCE]) +", "float(sent +"),
        ("min(limits.most, wait))", "wait)"),
        ("wait = wait if tries == 1 else max(wait, silence)", "pass"),
        ("timed = state.tries[row] or position == cursors[Cursor.BASE]", "timed = True"),
        ("due = (tries > 0 or oldest) and _due", "due = _due"),
        ("queued < probes and", "queued <= probes and"),
        ("queued < probes and now - sent >= clock[Clock.TIMEOUT]", "queued < probes"),
        ("tries == 0 and clock[Clock.QUIET_SINCE] > sent", "tries == 0"),
        ("if 0 < came <=", "if 0 <= came <="),
        ("if 0 < came <= 2 * cursors", "if 0 < came < 2 * cursors"),
        ("min(probes, state.answered.shape[0])", "probes"),
        ("    cursors[Cursor.RESULTS_BEFORE] = state.counts[Count.RESULTS]\n", ""),
    ],
    "host/peelsum/transport/congestion.py": [
        ("LEAST = 16", "LEAST = 15"),
        ("KEPT_ON_MARK = 0.8", "KEPT_ON_MARK = 0.7"),
        ("AFTER_LOSS = 0.25", "AFTER_LOSS = 0.5"),
        (
            "numbers[Number.SIZE] >= numbers[Number.THRESHOLD]",
            "numbers[Number.SIZE] > numbers[Number.THRESHOLD]",
        ),
        ("    numbers[Number.THRESHOLD] = numbers[Number.SIZE]\n", ""),
        ("if base < numbers[Number.CUT_UNTIL]:", "if base <= numbers[Number.CUT_UNTIL]:"),
        ("if end >= numbers[Number.COUNTED_UNTIL]:", "if True:"),
        ("if numbers[Number.TOLERATED] < 0:", "if numbers[Number.TOLERATED] <= 0:"),
    ],
    "host/peelsum/transport/endpoint.py": [
        (">= self.config.timers.stall:", "> self.config.timers.stall:"),
        ("            clock[Clock.MOVED] = now\n", ""),
        ("if self.outstanding or cursors[Cursor.RUN]", "if cursors[Cursor.RUN]"),
        ("or cursors[Cursor.RUN] != cursors[Cursor.FIRST] or", "or"),
        (" or end == cursors[Cursor.FIRST]:", ":"),
        (
            "cursors[[Cursor.HIGHEST, Cursor.NEEDED]] = start - 1",
            "cursors[[Cursor.HIGHEST, Cursor.NEEDED]] = start",
        ),
        ("cursors[Cursor.NEEDED] == cursors[Cursor.BASE]", "True"),
        ("and self._leave_at is None and not self.outstanding:", "and self._leave_at is None:"),
        ("if self._leave_at is None or self.finished else", "if self._leave_at is None else"),
    ],
    "host/peelsum/transport/udp.py": [
        ("min(self.planes, chunks // BATCH)", "min(self.planes, chunks // BATCH + 1)"),
        ("(self._next_plane + count) % self.planes", "self._next_plane"),
        ("self.lanes * (chunks * i // count)", "words.size * i // count"),
        ("share = (turn + i) % self.planes,", "share = i,"),
        ("if not one.left and one.check", "if one.check"),
        ("if len({(job.workers, job.lanes, job.racks) for job in jobs}) > 1:", "if False:"),
    ],
    "host/peelsum/transport/layout.py": [
        ("(1 + number % ((1 << 31) // ring - 2))", "(number % ((1 << 31) // ring - 2))"),
        ("(1 + number % ((1 << 31) // ring - 2))", "(1 + number % ((1 << 31) // ring - 1))"),
        ("ahead < 0x80000000 else", "ahead <= 0x80000000 else"),
    ],
}

_SERVER: Changes = {
    "host/peelsum/transport/server_rows.py": [
        ("ASKS = 8", "ASKS = 7"),
        ("-window < ahead <= window", "-window <= ahead <= window"),
        ("-window < ahead <= window", "-window < ahead < window"),
        (
            "-2 * window < ahead < 2 * window",
            "-2 * window <= ahead < 2 * window",
            "a chunk 2 W from the latest has its row, so it is in none or is the latest itself",
        ),
        (
            "-2 * window < ahead < 2 * window",
            "-2 * window < ahead <= 2 * window",
            "a chunk 2 W from the latest has its row, so it is in none or is the latest itself",
        ),
        ("    state.have[row] = 0\n", ""),
        ("    state.done[row] = False\n", ""),
        ("    state.deadline[row] = np.inf\n", ""),
        ("    state.asked[row] = 0\n", ""),
        ("    state.answered_at[row] = -np.inf\n", ""),
        ("    state.owed[row] = 0\n", ""),
        ("kept = row >= ring and state.done[row]", "kept = row >= ring"),
        ("again = not near and position == cursors[Cursor.ELSEWHERE]", "again = not near"),
        ("if near or not cursors[Cursor.SETTLED]:\n        state.clock", "if True:\n        state.clock"),
        ("if now - clock[Clock.ELSEWHERE] >= patience:", "if now - clock[Clock.ELSEWHERE] >= 2 * patience:"),
        ("if moved or clock[Clock.ELSEWHERE] <= clock[Clock.HEARD]:", "if moved:"),
        (
            "if moved or clock[Clock.ELSEWHERE] <= clock[Clock.HEARD]:",
            "if clock[Clock.ELSEWHERE] <= clock[Clock.HEARD]:",
        ),
        ("max(0, min(asked - 1, 30))", "max(0, min(asked, 30))"),
        ("float(min(most, need *", "float(min(2 * most, need *"),
    ],
    "host/peelsum/transport/server_kernels.py": [
        ("now - state.answered_at[row, number] < gap:", "now - state.answered_at[row, number] <= gap:"),
        ("    state.answered_at[row, number] = now\n", ""),
        ("to_all = _several(who, state.expected)", "to_all = who.rack == RACKS"),
        ("if workers & (workers - 1) or (seen and workers):", "if workers & (workers - 1):"),
        ("if workers & (workers - 1) or (seen and workers):", "if seen and workers:"),
        ("number = state.answered_at.shape[1] - 1 if to_all else sender", "number = sender"),
        ("OWE_ALL if to_all else 1 << worker", "1 << worker"),
        (
            "if rack >= state.expected.shape[0] or not state.expected[rack] >> worker & 1:",
            "if rack >= state.expected.shape[0]:",
        ),
        ("if contains and not contained:", "if contains:"),
        ("sticky |= get(kept, FLAGS) & (CE | FIN) if begun else 0", "pass"),
        (
            "sticky |= get(kept, FLAGS) & (CE | FIN) if begun else 0",
            "sticky |= get(kept, FLAGS) & (CE | FIN)",
        ),
        ("elif not disjoint and not get(packet, FLAGS) & OR:", "elif not disjoint:"),
        ("    elif not begun:\n        state.since[row] = now", "    else:\n        state.since[row] = now"),
        ("max(cursors[Cursor.ANCHOR], state.position[row])", "state.position[row]"),
        ("if not cursors[Cursor.FIRST] <= state.position[row] < cursors[Cursor.RUN]:", "if True:"),
        ("    state.deadline[row] = np.inf\n    cursors", "    cursors"),
        (
            "put(packet, FLAGS, get(packet, FLAGS) & ~SPINE |",
            "put(packet, FLAGS, get(packet, FLAGS) |",
            "one level takes no packet with SPINE, and two levels set it again",
        ),
        ("if state.deadline[row] > now:", "if state.deadline[row] >= now:"),
        (
            "        if state.asked[row]:\n            owe(state, row, racks - 1, OWE_NEED)",
            "        owe(state, row, racks - 1, OWE_NEED)",
        ),
        ("waits = state.asked[row] < ASKS", "waits = state.asked[row] <= ASKS"),
        ("state.position[row] < state.position[oldest]", "state.position[row] > state.position[oldest]"),
        (
            "if counted and not state.done[row] and state.have[row].any():",
            "if counted and not state.done[row]:",
            "a row with a chunk's position has a part of it",
        ),
        ("if state.done[row] or (debt", "if (debt"),
        ("get(packet, FLAGS) & ~(CE | SPINE))", "get(packet, FLAGS) & ~SPINE)"),
        ("    put(packet, BITMAP, 0)\n", ""),
        ("debt == OWE_RESEND and state.have[row, rack] == state.expected[rack]", "False"),
        ("if state.deadline[row] == np.inf:\n", "if True:\n"),
    ],
    "host/peelsum/transport/server.py": [
        ("if now < self._report_at:", "if now <= self._report_at:"),
        ("if waited < timers.stall:", "if waited <= timers.stall:"),
        ("        self._report_at = now + timers.stall\n", ""),
    ],
    "host/peelsum/transport/service.py": [
        (
            "and all(one.finished for one in self._servers.values()):",
            "and any(one.finished for one in self._servers.values()):",
        ),
        (
            "max(config.timers.linger for config in configs)",
            "min(config.timers.linger for config in configs)",
        ),
        ("quiet_since = now if heard else quiet_since", "pass"),
        (
            "        if all(one.finished for one in self._servers.values()):\n            timers",
            "        if any(one.finished for one in self._servers.values()):\n            timers",
        ),
        ("mine = job_ids == job_id", "mine = job_ids >= job_id"),
    ],
}

_CONTROL: Changes = {
    "control_plane/peelsum/control/admission.py": [
        ("for session, _ in reversed(placements):", "for session, _ in placements:"),
        ("(max(known) + 1 + step", "(known[-1] + 1 + step"),
        (
            "range(len(known) + 1))",
            "range(len(known)))",
            "the greatest of them is not among the next ones, so one of these is free",
        ),
        ("if one % _GENERATIONS not in known", "if one not in known"),
        (
            "    if free:\n        free_slots(session, plan)\n",
            "",
        ),
        ("    check(session, plan)\n    close_job(session, plan", "    close_job(session, plan"),
        ("min(slots(session) for session in sessions)", "slots(sessions[0])"),
    ],
    "control_plane/peelsum/control/job_tables.py": [
        (
            '(closed or action.args["expected_mask"]):\n            generation',
            "True:\n            generation",
        ),
        (" or port not in others or", " or"),
        (
            '(action.args["dst_mac"], action.args["dst_ip"]) != (host.mac, host.ip)',
            'action.args["dst_mac"] != host.mac',
        ),
        ("[~closed if present else +closed]", "[+closed]"),
        ('if entry["job_id"] == job_id]', "]"),
        (' if entry["egress_port"] not in others]', "]"),
        ("if 2 * plan.window > slots:", "if 2 * plan.window >= slots:"),
        ('        if entry["job_id"] != besides\n', ""),
        ("updates.append(~entry if port in present else +entry)", "updates.append(+entry)"),
        ("-P4MulticastGroupEntry(PROBE_GROUP)])", "])"),
        ('("members", "return_paths")', '("members",)'),
    ],
    "control_plane/peelsum/control/v1model.py": [
        ("_JOB_OF_TAG = 0xFF", "_JOB_OF_TAG = 0x7F"),
        (
            "if owners is None or owners.get(slot) == job_id]",
            "if owners is not None and owners.get(slot) == job_id]",
        ),
        ("if slot not in owners), None)", "if slot in owners), None)"),
        ("_STALE_AFTER = FREED_TICKS // 2", "_STALE_AFTER = FREED_TICKS // 4"),
        ("if (stamp - earliest) & _WORD > ", "if (stamp - earliest) & _WORD >= "),
        ("        reset(self._session, stale_slots(self._session, size, width), width)\n", ""),
        ("if owners is not None else None\n    if probe", "if owners else None\n    if probe"),
    ],
    "control_plane/peelsum/control/tofino.py": [
        ("_PIPE_BITS = 7", "_PIPE_BITS = 8"),
        ("_JOB_OF_TAG = 0xFF", "_JOB_OF_TAG = 0x03"),
        ("ceil(frame / self._device.cell_bytes)", "frame // self._device.cell_bytes"),
        ('"t2na": _Device(176, 0)', '"t2na": _Device(80, 0)'),
        ("used, processor = (plan.up_port, *plan.group)", "used, processor = (plan.group)"),
        ('{"tag": 0, "expiry": expiry}', '{"tag": 0, "expiry": 0}'),
        ("self._session.write_raw(freed, pipe)", "self._session.write_raw(freed)"),
        ("if pipe != reachable:", "if False:"),
        ("!= DEFAULT_AGE_TICKS:", "< DEFAULT_AGE_TICKS - 20000:"),
        ("            elif not _matches(found, wanted):", "            elif False:"),
        ("if not found:\n                missing", "if True:\n                missing"),
        ('"$PORT_ENABLE": True', '"$PORT_ENABLE": False'),
    ],
    "control_plane/peelsum/control/resets.py": [
        ("in reset_frames(sorted(missing), lanes, request):", "in reset_frames(wanted, lanes, request):"),
        ("randbits(32)", "0"),
        ("wanted[start : start + _WINDOW]", "wanted[start : start + _WINDOW - 1]"),
    ],
    "control_plane/peelsum/control/entries.py": [
        ("sorted(set(bridge.values()))", "sorted(bridge.values())"),
        (
            "if ticks >= NEVER_TICKS else round(ticks)",
            "if ticks > NEVER_TICKS else round(ticks)",
            "at NEVER_TICKS both branches give NEVER_TICKS",
        ),
        ("else round(ticks)", "else int(ticks)"),
        ("rack_mask=member.mask, first_worker", "rack_mask=1, first_worker"),
        ("actions[_BROADCAST] =", "actions.setdefault(_BROADCAST, None);  _ ="),
    ],
    "control_plane/peelsum/control/session.py": [
        ("if election_id <= 0:", "if election_id < 0:"),
        ("            and self._cookie == wanted.p4cookie\n", ""),
        ("        self.schema, self._cookie = wanted, wanted.p4cookie\n", "        self.schema = wanted\n"),
        ("encoded[start : start + _BATCH]", "encoded[start : start + _BATCH - 1]"),
        (" and not error.trailing_metadata()", ""),
        ("if not full or monotonic() >= deadline:", "if not full:"),
        ("            if last:\n                raise\n", ""),
    ],
    "control_plane/peelsum/control/stream.py": [
        ("if response.status.code == rpc_code.NOT_FOUND:", "if False:"),
        ("            self._incoming.put(message)  # the next", "            # the next"),
        ('if message.WhichOneof("update") == "arbitration":', "if True:"),
    ],
    "control_plane/peelsum/control/fabric.py": [
        ("if not self._placed[switch][0].is_primary]", "]"),
        ("for controller, _ in reversed(self._placed):", "for controller, _ in self._placed:"),
        ("closed=False) == generation", "closed=True) == generation"),
        ("in sorted(switches, key=lambda one: _address(self._placed[one][1])):", "in switches:"),
        ("if job.job_id != plan.job_id]", "]"),
        (
            "if controller.runs(json_path, p4info_path) is False:\n            raise",
            "if not controller.runs(json_path, p4info_path):\n            raise",
        ),
    ],
    "control_plane/peelsum/control/watch.py": [
        ("            self._halfway.add(switch)\n", ""),
        ("            self._halfway.discard(switch)\n", ""),
        (
            "            if switch not in self._away:\n                yield",
            "            if True:\n                yield",
        ),
        ("        self._away.discard(switch)\n", ""),
        ("        except NotPrimaryError:\n            return\n", ""),
    ],
    "control_plane/peelsum/control/racks.py": [
        ("(switch.p4runtime, switch.device_id), where)", "(switch.p4runtime, 0), where)"),
        ("Member(port, 1 << rack, rack * MAX_WORKERS,", "Member(port, 1 << rack, rack,"),
        ("[self.spine.server, *self._spine_ports]", "[*self._spine_ports]"),
    ],
    "control_plane/peelsum/control/sections.py": [
        ("workers: int = Field(ge=2, le=MAX_WORKERS)", "workers: int = Field(ge=2, lt=MAX_WORKERS)"),
        ("workers: int = Field(ge=2, le=MAX_WORKERS)", "workers: int = Field(ge=2, le=MAX_WORKERS + 1)"),
        ("if count > 1:", "if count > 2:"),
        ("MAX_BRIDGED, MAX_ROUTES = 1023, 1024", "MAX_BRIDGED, MAX_ROUTES = 1024, 1024"),
        ("Field(ge=0, lt=DROP_PORT)]", "Field(ge=0, le=DROP_PORT + 1)]"),
    ],
    "control_plane/peelsum/control/status.py": [
        ("if index < len(counted):", "if index <= len(counted):"),
        ('action.args["expected_mask"]:\n            jobs', "True:\n            jobs"),
        ("sorted(jobs, key=lambda job: job.job_id)", "jobs"),
    ],
}

_COMPRESS: Changes = {
    "host/peelsum/compress/loops.py": [
        ("((number << left) + half) >> right", "(number << left) >> right"),
        ("min(finest, MOST_BITS - 1 - bits)", "min(finest, MOST_BITS + 2 - bits)"),
        ("min(finest, MOST_BITS - 1 - bits)", "MOST_BITS - 1 - bits"),
        ("return scale if number != 0 else _NO_SCALE", "return scale"),
        ("        while scale > scales[i] and number != 0", "        while False and number != 0"),
        ("min(max(value, -MOST_OFFERED), MOST_OFFERED)", "value"),
        ("+ (np.int64(field != 0) << np.int64(23))", "+ (np.int64(1) << np.int64(23))"),
        # Momentum over a change of the scale.
        ("_moved(velocity[i], target - scale)", "velocity[i]"),
        ("_moved(kept[i], target - scale) + new", "kept[i] + new"),
        ("max(max(bits, kept_bits), own_bits) + 1", "max(kept_bits, own_bits) + 1"),
        ("_finest(velocity[i], _VELOCITY_BITS - bits))", "_NO_SCALE)"),
        ("np.rint(momentum * np.float64", "np.floor(momentum * np.float64"),
        ("if size < k and every > 1:", "if size < 0:"),
        ("bits <= NOT_FINITE", "bits < NOT_FINITE"),
        ("equal -= np.int64(bits == least)", "equal -= np.int64(0)"),
        ("while counts[digit] < left:", "while counts[digit] < left - 1:"),
    ],
    "host/peelsum/compress/memory.py": [
        ("            self.velocity[sent.positions] = 0\n", "            pass\n"),
        (
            "self.numbers[positions], self.scales[positions] = some.numbers, some.scales",
            "self.numbers[positions] = some.numbers",
        ),
        ("self.velocity[positions] = some.velocity", "pass"),
        ("if not momentum:", "if not momentum and self.velocity is None:"),
        ("whole >> zeros, (_MANTISSA_BITS - exponents - zeros)", "whole, (_MANTISSA_BITS - exponents)"),
        ("-self.scales.astype(np.int32)", "-self.scales[0].astype(np.int32)"),
        ("(wide * (most / norm)).astype(np.float32)", "gradient * np.float32(most / norm)"),
        (
            "self._step, self._skipped, self._sent = step, False, []",
            "self._step, self._skipped = step, False",
        ),
        ("return gradient if norm <= most", "return gradient if norm < most", "scaling by 1 changes nothing"),
    ],
    "host/peelsum/compress/indexed.py": [
        ("np.flatnonzero(result.total_at)", "np.arange(result.elements)"),
    ],
    "host/peelsum/compress/result.py": [
        ("(self.sent.positions - begins, self.sent.numbers)", "(self.sent.positions, self.sent.numbers)"),
    ],
    "host/peelsum/compress/methods/threshold.py": [
        ("np.float32)) >= self.value)", "np.float32)) > self.value)"),
    ],
}

_CLI: Changes = {
    "cli/peelsum/cli/demo/command.py": [
        ('    if not values["exact"]:\n        raise SystemExit(1)\n', ""),
        ('"exact": equal == checked,', '"exact": equal >= checked - 1,'),
    ],
    "cli/peelsum/cli/bench.py": [
        ("exit_if(any(", "exit_if(all("),
        ('bool(row.get("wrong"))', 'row.get("wrong") == 2'),
        ('row.get("exact") is False', 'row.get("exact") is None'),
    ],
    "cli/peelsum/cli/simulate.py": [
        ("any(row.wrong for row in report.jobs)", "all(row.wrong for row in report.jobs)")
    ],
}

_TOPOLOGY: Changes = {
    "topology/peelsum/topology/description.py": [
        ("if count > MAX_WORKERS:", "if count >= MAX_WORKERS:"),
        ("if count > MAX_WORKERS:", "if count > MAX_WORKERS + 1:"),
        ('for address in (mac, ip.partition("/")[0]):', 'for address in (ip.partition("/")[0],):'),
        ('for address in (mac, ip.partition("/")[0]):', "for address in (mac,):"),
        (
            "for name in (*topology.hosts, *topology.switches):\n        mac",
            "for name in topology.hosts:\n        mac",
        ),
        ("if not 1 <= port[1] < CPU_PORT:", "if not 1 <= port[1] <= CPU_PORT:"),
    ],
}

LISTED: dict[str, Changes] = {
    "transport": _WORKER | _SERVER,
    "control": _CONTROL,
    "compress": _COMPRESS,
    "cli": _CLI,
    "topology": _TOPOLOGY,
}


def listed(root: Path, area: str) -> list[Mutant]:
    """Return an area's mutants, without those that no test can notice.

    Raises ValueError for a text that does not occur once.
    """
    return [
        _mutant(root / path, *change[:2])
        for path, changes in LISTED.get(area, {}).items()
        for change in changes
        if len(change) == 2
    ]


def _mutant(path: Path, before: str, after: str) -> Mutant:
    source = path.read_bytes()
    if source.count(before.encode()) != 1:
        raise ValueError(
            f"{path}: {before!r} occurs {source.count(before.encode())} times; give a text that occurs once"
        )
    start = source.index(before.encode())
    change = f"{' '.join(before.split())} -> {' '.join(after.split()) or 'nothing'}"
    return Mutant(
        path, source.count(b"\n", 0, start) + 1, "listed", start, start + len(before.encode()), after, change
    )
