// A copy of the bitmap that tells whether the slot was empty, and whether it lacked only this worker.

#ifndef PEELSUM_TOFINO_MEMBERSHIP_P4_
#define PEELSUM_TOFINO_MEMBERSHIP_P4_

control Membership(in headers_t hdr, inout ingress_metadata_t ig_md) {
    Register<bit<32>, slot_t>(SLOTS) bitmap;

    RegisterAction<bit<32>, slot_t, membership_t>(bitmap) set = {
        void apply(inout bit<32> value, out membership_t result) {
            result = this.predicate(value == 0, ig_md.other_masks == 0);
            value = ig_md.worker_mask;
        }
    };
    RegisterAction<bit<32>, slot_t, membership_t>(bitmap) merge = {
        void apply(inout bit<32> value, out membership_t result) {
            result = this.predicate(value == 0, value == ig_md.other_masks);
            if (value != 0) {
                value = value | ig_md.worker_mask;
            }
        }
    };
    RegisterAction<bit<32>, slot_t, membership_t>(bitmap) take = {
        void apply(inout bit<32> value, out membership_t result) {
            result = this.predicate(value == 0, value == ig_md.other_masks);
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

    action keep_result() {
        take_workers();
    }

    action no_bitmap() {
        ig_md.membership = HELD_NONE;
    }

    #include "../core/arrivals.p4inc"

    apply {
        arrivals.apply();
    }
}

#endif
