// Who owns a slot, since when: the pair (tag, stamp).

control Owner(inout headers_t hdr, inout ingress_metadata_t ig_md) {
    register<bit<32>>(SLOTS) owner_tag;
    register<bit<32>>(SLOTS) owner_stamp;
    owner_op_t owner_op = OWNER_KEEP;
    bit<32> deadline = 0;  // a stamp up to here has expired
    bit<32> tag;
    bit<32> stamp;
    bool mine;
    bool expired;

    // Mine or expired: mine from now on.
    action claim() {
        owner_op = OWNER_CLAIM;
    }

    // Change nothing.
    action look() {
        owner_op = OWNER_LOOK;
    }

    // Mine: nobody's.
    action release() {
        owner_op = OWNER_RELEASE;
    }

    // Nobody's, whosever it is.
    action free() {
        owner_op = OWNER_FREE;
    }

    action set_age_limit(bit<32> ticks) {
        deadline = ig_md.now - ticks;
    }

    table limits {
        actions = { set_age_limit; }
        default_action = set_age_limit(DEFAULT_AGE_TICKS);
    }

    #include "../core/permissions.p4"

    apply {
        permissions.apply();
        if (owner_op != OWNER_KEEP) {
            limits.apply();
            ig_md.slot_index = ig_md.slot_index & (SLOTS - 1);
            owner_tag.read(tag, ig_md.slot_index);
            owner_stamp.read(stamp, ig_md.slot_index);
            // A signed difference of clocks that wrap: bit 31 says that the stamp is later than the deadline.
            expired = (deadline - stamp) & 0x80000000 == 0;
            mine = tag == ig_md.slot_tag;
            if (mine) {
                ig_md.ownership = OWNER_MINE;
            } else if (expired) {
                ig_md.ownership = OWNER_EXPIRED;
            } else {
                ig_md.ownership = OWNER_OTHER;
            }
            if (owner_op == OWNER_CLAIM) {
                if (mine || expired) {
                    tag = ig_md.slot_tag;
                    stamp = ig_md.now;
                }
            } else if (owner_op == OWNER_FREE || (owner_op == OWNER_RELEASE && mine)) {
                tag = 0;
                stamp = ig_md.now - EPOCH_TICKS;  // expired under every limit
            }
            owner_tag.write(ig_md.slot_index, tag);
            owner_stamp.write(ig_md.slot_index, stamp);
        }
    }
}
