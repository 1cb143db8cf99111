// Who owns a slot, since when: the pair (tag, stamp).

control Owner(inout ingress_metadata_t ig_md) {
    register<bit<32>>(SLOTS) owner_tag;
    register<bit<32>>(SLOTS) owner_stamp;
    bit<32> tag;
    bit<32> stamp;

    apply {
        if (ig_md.owner_op != OWNER_NONE) {
            owner_tag.read(tag, ig_md.slot_index);
            owner_stamp.read(stamp, ig_md.slot_index);
            if (tag == ig_md.slot_tag) {
                ig_md.tag_equal = 1;
            }
            // A signed difference of clocks that wrap: bit 31 says that the stamp is later than the deadline.
            if ((ig_md.deadline - stamp) & 0x80000000 == 0) {
                ig_md.expired = 1;
            }
            if (ig_md.owner_op == OWNER_CLAIM) {
                if (ig_md.tag_equal == 1 || ig_md.expired == 1) {
                    tag = ig_md.slot_tag;
                    stamp = ig_md.now;
                }
            } else if (ig_md.owner_op == OWNER_RESET || (ig_md.owner_op == OWNER_RELEASE && ig_md.tag_equal == 1)) {
                tag = 0;
                stamp = ig_md.now - EPOCH_TICKS;  // expired under every limit
            }
            owner_tag.write(ig_md.slot_index, tag);
            owner_stamp.write(ig_md.slot_index, stamp);
        }
    }
}
