// The slot: who owns it, who is in it, what they add up to. Each of owner, bitmap and lanes is read, changed
// and written once, in this order; `Owner`, `Bitmap` and `Lanes` are the architecture's.

control Slot(inout headers_t hdr, inout ingress_metadata_t ig_md) {
    Owner() owner;
    Bitmap() bitmap;
    Lanes() lanes;

    action change_bitmap(bitmap_op_t bitmap_op) {
        ig_md.bitmap_op = bitmap_op;
    }

    // What becomes of the bitmap, once the owner is known.
    table arrivals {
        key = {
            hdr.peelsum.kind : ternary @name("kind");
            ig_md.tag_equal  : ternary @name("tag_equal");
            ig_md.expired    : ternary @name("expired");
        }
        actions = { change_bitmap; }
        const entries = {
            (KIND_CONTRIBUTION, 1, _) : change_bitmap(BITMAP_MERGE);
            (KIND_CONTRIBUTION, 0, 1) : change_bitmap(BITMAP_SET);
            (KIND_RESEND,       1, _) : change_bitmap(BITMAP_TAKE);
        }
        const default_action = change_bitmap(BITMAP_NONE);
    }

    // The packet goes up with the slot's lanes, and with the marks of all that are in them.
    action leave_summed(lane_op_t lane_op, verdict_t verdict) {
        ig_md.lane_op = lane_op;
        ig_md.verdict = verdict;
        ig_md.way = WAY_UP;
        hdr.peelsum.flag_ce = ig_md.marks[0:0];
        hdr.peelsum.flag_fin = ig_md.marks[1:1];
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
            ig_md.tag_equal     : ternary @name("tag_equal");
            ig_md.expired       : ternary @name("expired");
            ig_md.held_none     : ternary @name("held_none");
            ig_md.held_this     : ternary @name("held_this");
            ig_md.complete      : ternary @name("complete");
            hdr.peelsum.flag_or : ternary @name("flag_or");
            ig_md.for_racks     : ternary @name("for_racks");
        }
        actions = { leave_summed; absorb; pass; }
        const entries = {
            // A tombstone: the sum has left already.
            (_, KIND_CONTRIBUTION, 1, _, 1, _, _, _, _) : pass(WAY_UP, VERDICT_TOMBSTONED);
            (_, KIND_CONTRIBUTION, 1, _, 0, 1, _, _, _) : pass(WAY_NOWHERE, VERDICT_DUPLICATE);
            // One more worker, perhaps the last.
            (_, KIND_CONTRIBUTION, 1, _, 0, 0, 0, 0, _) : absorb(LANES_ADD);
            (_, KIND_CONTRIBUTION, 1, _, 0, 0, 0, 1, _) : absorb(LANES_OR);
            (_, KIND_CONTRIBUTION, 1, _, 0, 0, 1, 0, _) : leave_summed(LANES_ADD, VERDICT_COMPLETED);
            (_, KIND_CONTRIBUTION, 1, _, 0, 0, 1, 1, _) : leave_summed(LANES_OR, VERDICT_COMPLETED);
            // A claim, complete at once where the job has one worker.
            (_, KIND_CONTRIBUTION, 0, 1, _, _, 0, _, _) : absorb(LANES_SET);
            (_, KIND_CONTRIBUTION, 0, 1, _, _, 1, _, _) : leave_summed(LANES_SET, VERDICT_COMPLETED);
            // Another chunk lives here.
            (_, KIND_CONTRIBUTION, 0, 0, _, _, _, _, _) : pass(WAY_UP, VERDICT_COLLIDED);
            // What a rack's switch passed up stays as it is; what the server asks of the racks goes down to them.
            (ROLE_RACK, KIND_BYPASS, _, _, _, _, _, _, _)    : pass(WAY_THROUGH, VERDICT_BYPASSED);
            (ROLE_SERVER, KIND_RESEND, _, _, _, _, _, _, 1)  : pass(WAY_DOWN, VERDICT_RESEND_FORWARDED);
            // A resend takes what there is with it. The server (in no bitmap) reads; so does who is in already.
            (ROLE_SERVER, KIND_RESEND, _, _, 1, _, _, _, _) : pass(WAY_NOWHERE, VERDICT_NOTHING_HELD);
            (_, KIND_RESEND, _, _, 1, _, _, _, _)           : pass(WAY_UP, VERDICT_RESEND_PASSED);
            (ROLE_SERVER, KIND_RESEND, _, _, 0, _, _, _, _) : leave_summed(LANES_READ, VERDICT_RESENT);
            (_, KIND_RESEND, _, _, 0, 1, _, _, _)           : leave_summed(LANES_READ, VERDICT_RESENT);
            (_, KIND_RESEND, _, _, 0, 0, _, 0, _)           : leave_summed(LANES_ADD, VERDICT_RESENT);
            (_, KIND_RESEND, _, _, 0, 0, _, 1, _)           : leave_summed(LANES_OR, VERDICT_RESENT);
            (_, KIND_BYPASS, _, _, _, _, _, _, _) : pass(WAY_UP, VERDICT_BYPASSED);
            (_, KIND_RESULT, _, _, _, _, _, _, _) : pass(WAY_DOWN, VERDICT_RESULT_RETURNED);
            (_, KIND_NEED,   _, _, _, _, _, _, _) : pass(WAY_DOWN, VERDICT_NEED_PASSED);
            (_, KIND_RESET,  _, _, _, _, _, _, _) : pass(WAY_BACK, VERDICT_RESET_DONE);
        }
        // Not reached: admission lets no other kind through.
        const default_action = pass(WAY_NOWHERE, VERDICT_FOREIGN_PORT);
    }

    apply {
        owner.apply(ig_md);
        arrivals.apply();
        if (hdr.peelsum.flag_ce == 1) {
            ig_md.marks = ig_md.marks | MARK_CE;
        }
        if (hdr.peelsum.flag_fin == 1) {
            ig_md.marks = ig_md.marks | MARK_FIN;
        }
        bitmap.apply(ig_md);
        ig_md.worker_bitmap = ig_md.held_bitmap | ig_md.worker_mask;
        if (ig_md.held_bitmap == 0) {
            ig_md.held_none = 1;
        }
        if (ig_md.held_bitmap & ig_md.worker_mask != 0) {
            ig_md.held_this = 1;
        }
        if (ig_md.worker_bitmap == ig_md.expected_mask) {
            ig_md.complete = 1;
        }
        outcomes.apply();
        lanes.apply(ig_md.lane_op, ig_md.slot_index, hdr.lanes);
    }
}
