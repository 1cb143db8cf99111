// The slot: its owner, its workers, and the sum of their lanes. Owner, bitmap and lanes are each read,
// changed and written once, in this order. Each architecture defines `Owner`, `Bitmap` and `Lanes`.

control Slot(inout headers_t hdr, inout ingress_metadata_t ig_md) {
    Bitmap() bitmap;
    Lanes() lanes;

    // Send the packet up with the slot's lanes and with the flags of all packets in them.
    action leave_summed(lane_op_t lane_op, verdict_t verdict) {
        ig_md.lane_op = lane_op;
        ig_md.verdict = verdict;
        ig_md.way = WAY_UP;
        hdr.peelsum.flag_ce = ig_md.marks[2:2];
        hdr.peelsum.flag_fin = ig_md.marks[3:3];
    }

    // Combine the packet with the slot's lanes and drop it.
    action absorb(lane_op_t lane_op) {
        ig_md.lane_op = lane_op;
        ig_md.verdict = VERDICT_ABSORBED;
    }

    // Leave the slot's lanes unchanged.
    action pass(way_t way, verdict_t verdict) {
        ig_md.way = way;
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
        }
        actions = { leave_summed; absorb; pass; }
        const entries = {
            // A tombstone: the sum has already left.
            (_, KIND_CONTRIBUTION, MATCH_MINE, MATCH_HELD_NONE, _, _, _) : pass(WAY_UP, VERDICT_TOMBSTONED);
            // One more worker, perhaps the last.
            (_, KIND_CONTRIBUTION, MATCH_MINE, HELD_SOME, 0, 0, _) : absorb(LANES_ADD);
            (_, KIND_CONTRIBUTION, MATCH_MINE, HELD_SOME, 0, 1, _) : absorb(LANES_OR);
            (_, KIND_CONTRIBUTION, MATCH_MINE, HELD_REST, 0, 0, _) : leave_summed(LANES_ADD, VERDICT_COMPLETED);
            (_, KIND_CONTRIBUTION, MATCH_MINE, HELD_REST, 0, 1, _) : leave_summed(LANES_OR, VERDICT_COMPLETED);
            (_, KIND_CONTRIBUTION, MATCH_MINE, _, _, _, _)         : pass(WAY_NOWHERE, VERDICT_DUPLICATE);
            // The chunk takes the slot. With one worker in the job it is complete at once.
            (_, KIND_CONTRIBUTION, OWNER_EXPIRED, MATCH_HELD_REST, _, _, _) :
                leave_summed(LANES_SET, VERDICT_COMPLETED);
            (_, KIND_CONTRIBUTION, OWNER_EXPIRED, _, _, _, _) : absorb(LANES_SET);
            // Another chunk owns the slot.
            (_, KIND_CONTRIBUTION, _, _, _, _, _) : pass(WAY_UP, VERDICT_COLLIDED);
            // A retry adds to a partial sum, but claims no slot: it leaves alone if the slot is another chunk's.
            (_, KIND_RETRY, MATCH_MINE, MATCH_HELD_NONE, _, _, _) : pass(WAY_NOWHERE, VERDICT_NOTHING_HELD);
            (_, KIND_RETRY, _, MATCH_HELD_NONE, _, _, _)          : pass(WAY_UP, VERDICT_RESEND_PASSED);
            (_, KIND_RETRY, _, HELD_SOME, 0, 0, _) : absorb(LANES_ADD);
            (_, KIND_RETRY, _, HELD_SOME, 0, 1, _) : absorb(LANES_OR);
            (_, KIND_RETRY, _, HELD_REST, 0, 0, _) : leave_summed(LANES_ADD, VERDICT_COMPLETED);
            (_, KIND_RETRY, _, HELD_REST, 0, 1, _) : leave_summed(LANES_OR, VERDICT_COMPLETED);
            (_, KIND_RETRY, _, _, _, _, _)         : pass(WAY_NOWHERE, VERDICT_DUPLICATE);
            // A rack's bypass passes unchanged. The server's question to the racks goes down to them.
            (ROLE_RACK, KIND_BYPASS, _, _, _, _, _)   : pass(WAY_THROUGH, VERDICT_BYPASSED);
            (ROLE_SERVER, KIND_RESEND, _, _, _, _, 1) : pass(WAY_DOWN, VERDICT_RESEND_FORWARDED);
            // A resend takes the slot's partial sum along. The server, or a worker already in it, only reads.
            (ROLE_SERVER, KIND_RESEND, _, MATCH_HELD_NONE, _, _, _) : pass(WAY_NOWHERE, VERDICT_NOTHING_HELD);
            (_, KIND_RESEND, _, MATCH_HELD_NONE, _, _, _)           : pass(WAY_UP, VERDICT_RESEND_PASSED);
            (ROLE_SERVER, KIND_RESEND, _, _, _, _, _) : leave_summed(LANES_READ, VERDICT_RESENT);
            (_, KIND_RESEND, _, _, 0, 0, _)           : leave_summed(LANES_ADD, VERDICT_RESENT);
            (_, KIND_RESEND, _, _, 0, 1, _)           : leave_summed(LANES_OR, VERDICT_RESENT);
            (_, KIND_RESEND, _, _, _, _, _)           : leave_summed(LANES_READ, VERDICT_RESENT);
            (_, KIND_BYPASS, _, _, _, _, _) : pass(WAY_UP, VERDICT_BYPASSED);
            (_, KIND_RESULT, _, _, _, _, _) : pass(WAY_DOWN, VERDICT_RESULT_RETURNED);
            (_, KIND_NEED,   _, _, _, _, _) : pass(WAY_DOWN, VERDICT_NEED_PASSED);
            (_, KIND_RESET,  _, _, _, _, _) : pass(WAY_BACK, VERDICT_RESET_DONE);
        }
        // Not reached: `permissions` refuses every other kind.
        const default_action = pass(WAY_NOWHERE, VERDICT_FOREIGN_PORT);
    }

    apply {
        bitmap.apply(hdr, ig_md);
        outcomes.apply();
        lanes.apply(ig_md.lane_op, ig_md.slot_index, hdr.lanes);
    }
}
