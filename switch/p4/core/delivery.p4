// Choose the egress port: up to the server, down to one worker or to all, or back to the controller.

#ifndef PEELSUM_CORE_DELIVERY_P4_
#define PEELSUM_CORE_DELIVERY_P4_

control Delivery(inout headers_t hdr, inout ingress_metadata_t ig_md) {
    action return_to(port_t port) {
        ig_md.egress_port = port;
    }

    action drop_without_path() {
        ig_md.direction = direction_t.NOWHERE;
        ig_md.verdict = verdict_t.NO_RETURN_PATH;
    }

    // The port of each worker of each job.
    table return_paths {
        key = {
            hdr.peelsum.job_id : exact @name("job_id");
            hdr.peelsum.sender : exact @name("sender");
        }
        actions = { return_to; @defaultonly drop_without_path; }
        const default_action = drop_without_path();
        size = 4096;
    }

    apply {
        if (ig_md.direction == direction_t.UP) {
            if (ig_md.verdict == verdict_t.COMPLETED) {
                hdr.peelsum.kind = ig_md.sum_kind;
                hdr.peelsum.flag_spine = ig_md.sum_spine;
            } else {
                hdr.peelsum.kind = kind_t.BYPASS;
                hdr.peelsum.flag_spine = ig_md.spine;
            }
            hdr.peelsum.bitmap = ig_md.worker_bitmap;
            ig_md.egress_port = ig_md.up_port;
        } else if (ig_md.direction == direction_t.THROUGH) {
            ig_md.egress_port = ig_md.up_port;
        } else if (ig_md.direction == direction_t.BACK) {
            ig_md.egress_port = CPU_PORT;
        } else if (ig_md.direction == direction_t.DOWN) {
            if (hdr.peelsum.sender == EVERYONE) {
                ig_md.multicast = 1;
            } else {
                return_paths.apply();
            }
        }
    }
}

#endif
