// A copy of the bitmap that tells which workers are in the slot now.

#ifndef PEELSUM_TOFINO_WORKERS_P4_
#define PEELSUM_TOFINO_WORKERS_P4_

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

    action keep_result() {
        take_workers();
    }

    action no_bitmap() {
        ig_md.worker_bitmap = ig_md.worker_mask;
    }

    #include "../core/arrivals.p4inc"

    apply {
        arrivals.apply();
    }
}

#endif
