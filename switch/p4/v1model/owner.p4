// A slot's owner and the time of its claim: the pair (tag, stamp).

#ifndef PEELSUM_V1MODEL_OWNER_P4_
#define PEELSUM_V1MODEL_OWNER_P4_

control Owner(inout headers_t hdr, inout ingress_metadata_t ig_md) {
    register<bit<32>>(SLOTS) owner_tag;
    register<bit<32>>(SLOTS) owner_stamp;
    owner_op_t owner_op = owner_op_t.KEEP;
    bit<32> deadline = 0;  // stamps up to this one have expired
    bit<32> tag;
    bit<32> stamp;
    bool mine;
    bool expired;

    // Take the slot if it is this chunk's or expired.
    action claim() {
        owner_op = owner_op_t.CLAIM;
    }

    // Read the owner only.
    action read_owner() {
        owner_op = owner_op_t.READ;
    }

    // Let other chunks take the slot if it is this chunk's.
    action release() {
        owner_op = owner_op_t.RELEASE;
    }

    // Free the slot of any owner.
    action free() {
        owner_op = owner_op_t.FREE;
    }

    action set_age_limit(bit<32> ticks) {
        deadline = ig_md.now - ticks;
    }

    table limits {
        actions = { set_age_limit; }
        default_action = set_age_limit(DEFAULT_AGE_TICKS);
    }

    #include "../core/permissions.p4inc"

    apply {
        permissions.apply();
        if (owner_op != owner_op_t.KEEP) {
            limits.apply();
            ig_md.slot_index = ig_md.slot_index & (SLOTS - 1);
            owner_tag.read(tag, ig_md.slot_index);
            owner_stamp.read(stamp, ig_md.slot_index);
            // The clock wraps, so compare by signed difference: bit 31 is set if the stamp is after the
            // deadline.
            expired = (deadline - stamp) & 0x80000000 == 0;
            mine = tag == ig_md.slot_tag;
            if (mine) {
                ig_md.ownership = OWNER_MINE;
            } else if (expired) {
                ig_md.ownership = OWNER_EXPIRED;
            } else {
                ig_md.ownership = OWNER_OTHER;
            }
            if (owner_op == owner_op_t.CLAIM) {
                if (mine || expired) {
                    tag = ig_md.slot_tag;
                    stamp = ig_md.now;
                }
            } else if (owner_op == owner_op_t.FREE || (owner_op == owner_op_t.RELEASE && mine)) {
                stamp = ig_md.now - FREED_TICKS;
            }
            if (owner_op == owner_op_t.FREE) {
                tag = 0;
            }
            owner_tag.write(ig_md.slot_index, tag);
            owner_stamp.write(ig_md.slot_index, stamp);
        }
    }
}

#endif
