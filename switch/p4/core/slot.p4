// The slot: who owns it, who is in it, what they add up to. Each of owner, bitmap and lanes is read, changed
// and written once, in this order; `Owner`, `Bitmap` and `Lanes` are the architecture's.

control Slot(inout headers_t hdr, inout ingress_metadata_t ig_md) {
    Bitmap() bitmap;
    Lanes() lanes;

    // The packet goes up with the slot's lanes, and with the marks of all that are in them.
    action leave_summed(lane_op_t lane_op, verdict_t verdict) {
        ig_md.lane_op = lane_op;
        ig_md.verdict = verdict;
        ig_md.way = WAY_UP;
        hdr.peelsum.flag_ce = ig_md.marks[2:2];
        hdr.peelsum.flag_fin = ig_md.marks[3:3];
    }

    // The packet stays behind in the slot's lanes.
    action absorb(lane_op_t lane_op) {
        ig_md.lane_op = lane_op;
        ig_md.verdict = VERDICT_ABSORBED;
    }

    // The slot's lanes are left alone.
    action pass(way_t way, verdict_t verdict) {
        ig_md.way = way;
        ig_md.verdict = verdict;
    }

    // What becomes of the lanes and of the packet: the slot table of docs/protocol.md, row by row.
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
            // A tombstone: the sum has left already.
            (_, KIND_CONTRIBUTION, 0 &&& NOT_MINE, 0 &&& NOT_NONE, _, _, _) : pass(WAY_UP, VERDICT_TOMBSTONED);
            // One more worker, perhaps the last.
            (_, KIND_CONTRIBUTION, 0 &&& NOT_MINE, HELD_SOME, 0, 0, _) : absorb(LANES_ADD);
            (_, KIND_CONTRIBUTION, 0 &&& NOT_MINE, HELD_SOME, 0, 1, _) : absorb(LANES_OR);
            (_, KIND_CONTRIBUTION, 0 &&& NOT_MINE, HELD_REST, 0, 0, _) : leave_summed(LANES_ADD, VERDICT_COMPLETED);
            (_, KIND_CONTRIBUTION, 0 &&& NOT_MINE, HELD_REST, 0, 1, _) : leave_summed(LANES_OR, VERDICT_COMPLETED);
            (_, KIND_CONTRIBUTION, 0 &&& NOT_MINE, _, _, _, _)         : pass(WAY_NOWHERE, VERDICT_DUPLICATE);
            // A claim, complete at once where the job has one worker.
            (_, KIND_CONTRIBUTION, OWNER_EXPIRED, 0 &&& NOT_REST, _, _, _) : leave_summed(LANES_SET, VERDICT_COMPLETED);
            (_, KIND_CONTRIBUTION, OWNER_EXPIRED, _, _, _, _)              : absorb(LANES_SET);
            // Another chunk lives here.
            (_, KIND_CONTRIBUTION, _, _, _, _, _) : pass(WAY_UP, VERDICT_COLLIDED);
            // What a rack's switch passed up stays as it is; what the server asks of the racks goes down to them.
            (ROLE_RACK, KIND_BYPASS, _, _, _, _, _)   : pass(WAY_THROUGH, VERDICT_BYPASSED);
            (ROLE_SERVER, KIND_RESEND, _, _, _, _, 1) : pass(WAY_DOWN, VERDICT_RESEND_FORWARDED);
            // A resend takes what there is with it. The server (in no bitmap) reads; so does who is in already.
            (ROLE_SERVER, KIND_RESEND, _, 0 &&& NOT_NONE, _, _, _) : pass(WAY_NOWHERE, VERDICT_NOTHING_HELD);
            (_, KIND_RESEND, _, 0 &&& NOT_NONE, _, _, _)           : pass(WAY_UP, VERDICT_RESEND_PASSED);
            (ROLE_SERVER, KIND_RESEND, _, _, _, _, _) : leave_summed(LANES_READ, VERDICT_RESENT);
            (_, KIND_RESEND, _, _, 0, 0, _)           : leave_summed(LANES_ADD, VERDICT_RESENT);
            (_, KIND_RESEND, _, _, 0, 1, _)           : leave_summed(LANES_OR, VERDICT_RESENT);
            (_, KIND_RESEND, _, _, _, _, _)           : leave_summed(LANES_READ, VERDICT_RESENT);
            (_, KIND_BYPASS, _, _, _, _, _) : pass(WAY_UP, VERDICT_BYPASSED);
            (_, KIND_RESULT, _, _, _, _, _) : pass(WAY_DOWN, VERDICT_RESULT_RETURNED);
            (_, KIND_NEED,   _, _, _, _, _) : pass(WAY_DOWN, VERDICT_NEED_PASSED);
            (_, KIND_RESET,  _, _, _, _, _) : pass(WAY_BACK, VERDICT_RESET_DONE);
        }
        // Not reached: admission lets no other kind through.
        const default_action = pass(WAY_NOWHERE, VERDICT_FOREIGN_PORT);
    }

    apply {
        bitmap.apply(hdr, ig_md);
        outcomes.apply();
        lanes.apply(ig_md.lane_op, ig_md.slot_index, hdr.lanes);
    }
}
