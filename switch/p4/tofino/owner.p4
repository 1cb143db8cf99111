// A slot's owner and when it expires: the pair (tag, expiry), in one stateful ALU with two comparisons.

#ifndef PEELSUM_TOFINO_OWNER_P4_
#define PEELSUM_TOFINO_OWNER_P4_

// A stateful ALU works on a pair of 32-bit values.
struct owner_t {
    bit<32> expiry;
    bit<32> tag;
}

control Owner(inout headers_t hdr, inout ingress_metadata_t ig_md) {
    Register<owner_t, slot_t>(SLOTS) owner;
    RegisterParam<bit<32>>(DEFAULT_AGE_TICKS) age_limit;

    // The clock wraps, so compare by signed difference.
    #define EXPIRED ((int<32>)ig_md.now - (int<32>)value.expiry >= 0)
    #define MINE (value.tag == ig_md.slot_tag)

    RegisterAction<owner_t, slot_t, ownership_t>(owner) claim_owner = {
        void apply(inout owner_t value, out ownership_t result) {
            result = this.predicate(MINE, EXPIRED);
            if (MINE || EXPIRED) {
                value.tag = ig_md.slot_tag;
                value.expiry = ig_md.now + age_limit.read();
            }
        }
    };
    RegisterAction<owner_t, slot_t, ownership_t>(owner) get_owner = {
        void apply(inout owner_t value, out ownership_t result) {
            result = this.predicate(MINE, EXPIRED);
        }
    };
    RegisterAction<owner_t, slot_t, ownership_t>(owner) release_owner = {
        void apply(inout owner_t value, out ownership_t result) {
            result = this.predicate(MINE, EXPIRED);
            if (MINE) {
                value.expiry = ig_md.now;
            }
        }
    };
    RegisterAction<owner_t, slot_t, ownership_t>(owner) free_owner = {
        void apply(inout owner_t value) {
            value.tag = 0;
            value.expiry = ig_md.now;
        }
    };

    // Take the slot if it is this chunk's or expired.
    action claim() {
        ig_md.ownership = claim_owner.execute((slot_t)ig_md.slot_index);
    }

    // Read the owner only.
    action read_owner() {
        ig_md.ownership = get_owner.execute((slot_t)ig_md.slot_index);
    }

    // Let other chunks take the slot if it is this chunk's.
    action release() {
        ig_md.ownership = release_owner.execute((slot_t)ig_md.slot_index);
    }

    // Free the slot of any owner.
    action free() {
        free_owner.execute((slot_t)ig_md.slot_index);
    }

    #include "../core/permissions.p4inc"

    apply {
        permissions.apply();
    }
}

#endif
