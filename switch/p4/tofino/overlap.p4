// A copy of the bitmap that tells whether this worker was in the slot.

#ifndef PEELSUM_TOFINO_OVERLAP_P4_
#define PEELSUM_TOFINO_OVERLAP_P4_

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

    action keep_result() {
        take_workers();
    }

    action no_bitmap() { }

    #include "../core/arrivals.p4inc"

    apply {
        arrivals.apply();
    }
}

#endif
