// The workers in a slot, and their flags: whether any met congestion, whether any has finished. The bitmap
// stays after the sum has left: a zero bitmap under a matching tag is a tombstone.
//
// A stateful ALU returns one value, but the next stage needs three. So three registers hold the same bitmap.
// The first tells whether it was empty or lacked only this worker, the second whether this worker was in it,
// and the third which workers are in it now.

control Membership(in headers_t hdr, inout ingress_metadata_t ig_md) {
    Register<bit<32>, slot_t>(SLOTS) bitmap;

    RegisterAction<bit<32>, slot_t, membership_t>(bitmap) set = {
        void apply(inout bit<32> value, out membership_t found) {
            found = this.predicate(value == 0, ig_md.other_masks == 0);
            value = ig_md.worker_mask;
        }
    };
    RegisterAction<bit<32>, slot_t, membership_t>(bitmap) merge = {
        void apply(inout bit<32> value, out membership_t found) {
            found = this.predicate(value == 0, value == ig_md.other_masks);
            if (value != 0) {
                value = value | ig_md.worker_mask;
            }
        }
    };
    RegisterAction<bit<32>, slot_t, membership_t>(bitmap) take = {
        void apply(inout bit<32> value, out membership_t found) {
            found = this.predicate(value == 0, value == ig_md.other_masks);
            value = 0;
        }
    };

    action set_worker() {
        ig_md.membership = set.execute((slot_t)ig_md.slot_index);
    }

    action merge_worker() {
        ig_md.membership = merge.execute((slot_t)ig_md.slot_index);
    }

    action take_workers() {
        ig_md.membership = take.execute((slot_t)ig_md.slot_index);
    }

    action hold_none() {
        ig_md.membership = HELD_NONE;
    }

    #include "../core/arrivals.p4"

    apply {
        arrivals.apply();
    }
}

control Overlap(in headers_t hdr, inout ingress_metadata_t ig_md) {
    Register<bit<32>, slot_t>(SLOTS) bitmap;

    RegisterAction<bit<32>, slot_t, bit<32>>(bitmap) set = {
        void apply(inout bit<32> value) {
            value = ig_md.worker_mask;
        }
    };
    RegisterAction<bit<32>, slot_t, bit<32>>(bitmap) merge = {
        void apply(inout bit<32> value, out bit<32> overlap) {
            overlap = value & ig_md.worker_mask;
            if (value != 0) {
                value = value | ig_md.worker_mask;
            }
        }
    };
    RegisterAction<bit<32>, slot_t, bit<32>>(bitmap) take = {
        void apply(inout bit<32> value, out bit<32> overlap) {
            overlap = value & ig_md.worker_mask;
            value = 0;
        }
    };

    action set_worker() {
        set.execute((slot_t)ig_md.slot_index);
    }

    action merge_worker() {
        ig_md.overlap = merge.execute((slot_t)ig_md.slot_index);
    }

    action take_workers() {
        ig_md.overlap = take.execute((slot_t)ig_md.slot_index);
    }

    action hold_none() { }

    #include "../core/arrivals.p4"

    apply {
        arrivals.apply();
    }
}

control Workers(in headers_t hdr, inout ingress_metadata_t ig_md) {
    Register<bit<32>, slot_t>(SLOTS) bitmap;

    RegisterAction<bit<32>, slot_t, bit<32>>(bitmap) set = {
        void apply(inout bit<32> value, out bit<32> workers) {
            value = ig_md.worker_mask;
            workers = value;
        }
    };
    RegisterAction<bit<32>, slot_t, bit<32>>(bitmap) merge = {
        void apply(inout bit<32> value, out bit<32> workers) {
            workers = value | ig_md.worker_mask;
            if (value != 0) {
                value = value | ig_md.worker_mask;
            }
        }
    };
    RegisterAction<bit<32>, slot_t, bit<32>>(bitmap) take = {
        void apply(inout bit<32> value, out bit<32> workers) {
            workers = value | ig_md.worker_mask;
            value = 0;
        }
    };

    action set_worker() {
        ig_md.worker_bitmap = set.execute((slot_t)ig_md.slot_index);
    }

    action merge_worker() {
        ig_md.worker_bitmap = merge.execute((slot_t)ig_md.slot_index);
    }

    action take_workers() {
        ig_md.worker_bitmap = take.execute((slot_t)ig_md.slot_index);
    }

    action hold_none() {
        ig_md.worker_bitmap = ig_md.worker_mask;
    }

    #include "../core/arrivals.p4"

    apply {
        arrivals.apply();
    }
}

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

    action set_worker() {
        ig_md.marks = set.execute((slot_t)ig_md.slot_index);
    }

    action merge_worker() {
        ig_md.marks = merge.execute((slot_t)ig_md.slot_index);
    }

    action take_workers() {
        ig_md.marks = merge.execute((slot_t)ig_md.slot_index);
    }

    action hold_none() { }

    #include "../core/arrivals.p4"

    apply {
        arrivals.apply();
    }
}

control Bitmap(inout headers_t hdr, inout ingress_metadata_t ig_md) {
    Membership() membership;
    Overlap() overlap;
    Workers() workers;
    Marks() marks;

    apply {
        membership.apply(hdr, ig_md);
        overlap.apply(hdr, ig_md);
        workers.apply(hdr, ig_md);
        marks.apply(hdr, ig_md);
    }
}
