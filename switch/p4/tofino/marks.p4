// The flags of all packets in the slot, combined with OR.

#ifndef PEELSUM_TOFINO_MARKS_P4_
#define PEELSUM_TOFINO_MARKS_P4_

#define FLAGS hdr.peelsum.reserved_flags ++ hdr.peelsum.flag_owned ++ hdr.peelsum.flag_fin \
    ++ hdr.peelsum.flag_ce ++ hdr.peelsum.flag_spine ++ hdr.peelsum.flag_or

control Marks(in headers_t hdr, inout ingress_metadata_t ig_md) {
    Register<marks_t, slot_t>(SLOTS) slot_marks;

    RegisterAction<marks_t, slot_t, marks_t>(slot_marks) set = {
        void apply(inout marks_t value, out marks_t marks) {
            value = FLAGS;
            marks = value;
        }
    };
    RegisterAction<marks_t, slot_t, marks_t>(slot_marks) merge = {
        void apply(inout marks_t value, out marks_t marks) {
            value = value | (FLAGS);
            marks = value;
        }
    };

    RegisterAction<marks_t, slot_t, marks_t>(slot_marks) keep = {
        void apply(inout marks_t value, out marks_t marks) {
            value = RESULT_KEPT | (FLAGS);
            marks = value;
        }
    };

    action set_worker() {
        ig_md.marks = set.execute((slot_t)ig_md.slot_index);
    }

    action merge_worker() {
        ig_md.marks = merge.execute((slot_t)ig_md.slot_index);
    }

    action take_workers() {
        ig_md.marks = merge.execute((slot_t)ig_md.slot_index);
    }

    action keep_result() {
        ig_md.marks = keep.execute((slot_t)ig_md.slot_index);
    }

    action no_bitmap() { }

    #include "../core/arrivals.p4inc"

    apply {
        arrivals.apply();
    }
}

#endif
