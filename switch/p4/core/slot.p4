// The slot: its owner, its workers, and the sum of their lanes. Owner, bitmap and lanes are each read,
// changed and written once, in this order. Each architecture defines `Owner`, `Bitmap` and `Lanes`.

#ifndef PEELSUM_CORE_SLOT_P4_
#define PEELSUM_CORE_SLOT_P4_

control Slot(inout headers_t hdr, inout ingress_metadata_t ig_md) {
    Bitmap() bitmap;
    Lanes() lanes;

    // Send the packet up with the slot's sum, and with the flags of all packets in it.
    action send_sum(lane_op_t lane_op, verdict_t verdict) {
        ig_md.lane_op = lane_op;
        ig_md.verdict = verdict;
        ig_md.direction = direction_t.UP;
        hdr.peelsum.flag_ce = ig_md.marks[2:2];
        hdr.peelsum.flag_fin = ig_md.marks[3:3];
    }

    // Combine the packet with the slot's lanes and drop it.
    action absorb(lane_op_t lane_op) {
        ig_md.lane_op = lane_op;
        ig_md.verdict = verdict_t.ABSORBED;
    }

    // Keep a result in the slot until another chunk takes it, and pass the result on.
    action keep_result() {
        ig_md.lane_op = lane_op_t.SET;
        ig_md.direction = direction_t.DOWN;
        ig_md.verdict = verdict_t.RESULT_RETURNED;
    }

    // Send the worker the result that the slot keeps.
    action answer() {
        ig_md.lane_op = lane_op_t.READ;
        ig_md.direction = direction_t.DOWN;
        ig_md.verdict = verdict_t.ANSWERED;
        hdr.peelsum.kind = kind_t.RESULT;
        hdr.peelsum.flag_ce = ig_md.marks[2:2];
        hdr.peelsum.flag_fin = ig_md.marks[3:3];
    }

    // Neither read nor change the slot's lanes.
    action skip_lanes(direction_t direction, verdict_t verdict) {
        ig_md.direction = direction;
        ig_md.verdict = verdict;
    }

    // What happens to the lanes and to the packet: the slot table of docs/reference/protocol.md.
    table outcomes {
        key = {
            ig_md.role          : ternary @name("role");
            hdr.peelsum.kind    : ternary @name("kind");
            ig_md.ownership     : ternary @name("ownership");
            ig_md.membership    : ternary @name("membership");
            ig_md.overlap       : ternary @name("overlap");
            hdr.peelsum.flag_or : ternary @name("flag_or");
            ig_md.for_racks     : ternary @name("for_racks");
            ig_md.marks         : ternary @name("marks");
        }
        actions = { send_sum; absorb; keep_result; answer; skip_lanes; }
        const entries = {
            // A tombstone: the slot has sent its sum already.
            (_, kind_t.CONTRIBUTION, MATCH_MINE, MATCH_HELD_NONE, _, _, _, _) :
                skip_lanes(direction_t.UP, verdict_t.TOMBSTONED);
            // One more worker, perhaps the last.
            (_, kind_t.CONTRIBUTION, MATCH_MINE, HELD_SOME, 0, 0, _, _) : absorb(lane_op_t.ADD);
            (_, kind_t.CONTRIBUTION, MATCH_MINE, HELD_SOME, 0, 1, _, _) : absorb(lane_op_t.OR);
            (_, kind_t.CONTRIBUTION, MATCH_MINE, HELD_REST, 0, 0, _, _) :
                send_sum(lane_op_t.ADD, verdict_t.COMPLETED);
            (_, kind_t.CONTRIBUTION, MATCH_MINE, HELD_REST, 0, 1, _, _) :
                send_sum(lane_op_t.OR, verdict_t.COMPLETED);
            (_, kind_t.CONTRIBUTION, MATCH_MINE, _, _, _, _, _) :
                skip_lanes(direction_t.NOWHERE, verdict_t.DUPLICATE);
            // The chunk takes the slot. With one worker in the job it is complete at once.
            (_, kind_t.CONTRIBUTION, OWNER_EXPIRED, MATCH_HELD_REST, _, _, _, _) :
                send_sum(lane_op_t.SET, verdict_t.COMPLETED);
            (_, kind_t.CONTRIBUTION, OWNER_EXPIRED, _, _, _, _, _) : absorb(lane_op_t.SET);
            // Another chunk owns the slot.
            (_, kind_t.CONTRIBUTION, _, _, _, _, _, _) : skip_lanes(direction_t.UP, verdict_t.COLLIDED);
            // The slot keeps the chunk's result, which the worker has lost.
            (_, kind_t.RETRY, MATCH_MINE, _, _, _, _, MATCH_RESULT_KEPT) : answer();
            (role_t.WORKER, kind_t.RESEND, MATCH_MINE, _, _, _, _, MATCH_RESULT_KEPT) : answer();
            // A retry adds to a partial sum, but claims no slot: without a sum of its chunk, it is sent up alone.
            (_, kind_t.RETRY, MATCH_MINE, MATCH_HELD_NONE, _, _, _, _) :
                skip_lanes(direction_t.NOWHERE, verdict_t.NOTHING_HELD);
            (_, kind_t.RETRY, _, MATCH_HELD_NONE, _, _, _, _) :
                skip_lanes(direction_t.UP, verdict_t.RESEND_PASSED);
            (_, kind_t.RETRY, _, HELD_SOME, 0, 0, _, _) : absorb(lane_op_t.ADD);
            (_, kind_t.RETRY, _, HELD_SOME, 0, 1, _, _) : absorb(lane_op_t.OR);
            (_, kind_t.RETRY, _, HELD_REST, 0, 0, _, _) : send_sum(lane_op_t.ADD, verdict_t.COMPLETED);
            (_, kind_t.RETRY, _, HELD_REST, 0, 1, _, _) : send_sum(lane_op_t.OR, verdict_t.COMPLETED);
            (_, kind_t.RETRY, _, _, _, _, _, _)         : skip_lanes(direction_t.NOWHERE, verdict_t.DUPLICATE);
            // A rack's bypass is sent up unchanged. The server's resend to the racks is sent down to them.
            (role_t.RACK, kind_t.BYPASS, _, _, _, _, _, _) :
                skip_lanes(direction_t.THROUGH, verdict_t.BYPASSED);
            (role_t.SERVER, kind_t.RESEND, _, _, _, _, 1, _) :
                skip_lanes(direction_t.DOWN, verdict_t.RESEND_FORWARDED);
            // A resend is sent up with the slot's partial sum. One from the server, or from a worker whose lanes
            // are in it, adds nothing.
            (role_t.SERVER, kind_t.RESEND, _, MATCH_HELD_NONE, _, _, _, _) :
                skip_lanes(direction_t.NOWHERE, verdict_t.NOTHING_HELD);
            (_, kind_t.RESEND, _, MATCH_HELD_NONE, _, _, _, _) :
                skip_lanes(direction_t.UP, verdict_t.RESEND_PASSED);
            (role_t.SERVER, kind_t.RESEND, _, _, _, _, _, _) : send_sum(lane_op_t.READ, verdict_t.RESENT);
            (_, kind_t.RESEND, _, _, 0, 0, _, _)           : send_sum(lane_op_t.ADD, verdict_t.RESENT);
            (_, kind_t.RESEND, _, _, 0, 1, _, _)           : send_sum(lane_op_t.OR, verdict_t.RESENT);
            (_, kind_t.RESEND, _, _, _, _, _, _)           : send_sum(lane_op_t.READ, verdict_t.RESENT);
            (_, kind_t.BYPASS, _, _, _, _, _, _) : skip_lanes(direction_t.UP, verdict_t.BYPASSED);
            (_, kind_t.RESULT, MATCH_MINE, _, _, _, _, _) : keep_result();
            (_, kind_t.RESULT, _, _, _, _, _, _) : skip_lanes(direction_t.DOWN, verdict_t.RESULT_RETURNED);
            (_, kind_t.NEED,   _, _, _, _, _, _) : skip_lanes(direction_t.DOWN, verdict_t.NEED_PASSED);
            (_, kind_t.RESET,  _, _, _, _, _, _) : skip_lanes(direction_t.BACK, verdict_t.RESET_DONE);
        }
        // Not reached: `permissions` refuses every other kind.
        const default_action = skip_lanes(direction_t.NOWHERE, verdict_t.FOREIGN_PORT);
    }

    apply {
        bitmap.apply(hdr, ig_md);
        outcomes.apply();
        lanes.apply(ig_md.lane_op, ig_md.slot_index, hdr.lanes);
    }
}

#endif
