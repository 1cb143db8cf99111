// Find the packet's sender and slot. The two tables are independent of each other: they fit one stage.

#ifndef PEELSUM_CORE_ADMISSION_P4_
#define PEELSUM_CORE_ADMISSION_P4_

control Admission(inout headers_t hdr, inout ingress_metadata_t ig_md) {
    action admit_job(bit<16> generation, bit<32> salt, bit<32> expected_mask, port_t up_port, bit<16> group) {
        ig_md.generation = generation;
        ig_md.slot_index = salt + hdr.peelsum.chunk_id;
        ig_md.slot_tag = hdr.peelsum.chunk_id[31:8] ++ hdr.peelsum.job_id;
        ig_md.expected_mask = expected_mask;
        ig_md.up_port = up_port;
        ig_md.group = group;
        ig_md.sum_kind = kind_t.BYPASS;
    }

    // This is a rack's switch: its complete sums are contributions to the spine's switch.
    action admit_leaf(bit<16> generation, bit<32> salt, bit<32> expected_mask, port_t up_port, bit<16> group) {
        admit_job(generation, salt, expected_mask, up_port, group);
        ig_md.sum_kind = kind_t.CONTRIBUTION;
        ig_md.sum_spine = 1;
    }

    // This is the spine's switch: `expected_mask` and the slots' bitmaps count racks.
    action admit_spine(bit<16> generation, bit<32> salt, bit<32> expected_mask, port_t up_port, bit<16> group) {
        admit_job(generation, salt, expected_mask, up_port, group);
        ig_md.sum_spine = 1;
        ig_md.spine = 1;
    }

    action refuse_job() {
        ig_md.verdict = verdict_t.UNKNOWN_JOB;
    }

    table jobs {
        key = { hdr.peelsum.job_id : exact @name("job_id"); }
        actions = { admit_job; admit_leaf; admit_spine; @defaultonly refuse_job; }
        const default_action = refuse_job();
        size = 256;
    }

    action admit_worker(bit<32> worker_mask, bit<16> worker_id) {
        ig_md.role = role_t.WORKER;
        ig_md.worker_mask = worker_mask;
        ig_md.worker_id = worker_id;
    }

    // A rack's workers have the numbers from `first_worker`, a multiple of 32, to `first_worker + 31`.
    action admit_rack(bit<32> rack_mask, bit<16> first_worker) {
        ig_md.role = role_t.RACK;
        ig_md.worker_mask = rack_mask;
        ig_md.worker_id = first_worker[15:5] ++ hdr.peelsum.sender[4:0];
    }

    // The server may send for every worker.
    action admit_server() {
        ig_md.role = role_t.SERVER;
        ig_md.worker_id = hdr.peelsum.sender;
    }

    // No member of the job is behind this port: `permissions` refuses the packet.
    action admit_nobody() {
        ig_md.worker_id = hdr.peelsum.sender;
    }

    table members {
        key = {
            hdr.peelsum.job_id : exact @name("job_id");
            ig_md.ingress_port : exact @name("ingress_port");
        }
        actions = { admit_worker; admit_rack; admit_server; @defaultonly admit_nobody; }
        const default_action = admit_nobody();
        size = 4096;
    }

    apply {
        if (hdr.peelsum.kind == kind_t.RESET) {
            if (ig_md.ingress_port == CPU_PORT) {
                ig_md.role = role_t.CONTROLLER;
            }
            ig_md.slot_index = hdr.peelsum.chunk_id;
            ig_md.generation = hdr.peelsum.generation;
            ig_md.worker_id = hdr.peelsum.sender;
        } else {
            jobs.apply();
            members.apply();
        }
    }
}

#endif
