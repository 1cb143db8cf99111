// Who sent this packet, may it, and which slot is it about?

control Admission(inout headers_t hdr, inout ingress_metadata_t ig_md) {
    bit<32> salt = 0;
    bit<32> age_ticks = DEFAULT_AGE_TICKS;

    action admit_job(bit<16> generation, bit<32> job_salt, bit<32> expected_mask, port_t up_port, bit<16> group) {
        ig_md.generation = generation;
        salt = job_salt;
        ig_md.expected_mask = expected_mask;
        ig_md.up_port = up_port;
        ig_md.group = group;
        ig_md.sum_kind = KIND_BYPASS;
    }

    // A rack's switch: complete sums are contributions to the switch above.
    action admit_leaf(bit<16> generation, bit<32> job_salt, bit<32> expected_mask, port_t up_port, bit<16> group) {
        admit_job(generation, job_salt, expected_mask, up_port, group);
        ig_md.sum_kind = KIND_CONTRIBUTION;
        ig_md.sum_spine = 1;
    }

    // The switch above the racks: `expected_mask` and slots count racks.
    action admit_spine(bit<16> generation, bit<32> job_salt, bit<32> expected_mask, port_t up_port, bit<16> group) {
        admit_job(generation, job_salt, expected_mask, up_port, group);
        ig_md.sum_spine = 1;
        ig_md.spine = 1;
    }

    table jobs {
        key = { hdr.peelsum.job_id : exact @name("job_id"); }
        actions = { admit_job; admit_leaf; admit_spine; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 256;
    }

    action admit_worker(bit<32> worker_mask, bit<16> worker_id) {
        ig_md.role = ROLE_WORKER;
        ig_md.worker_mask = worker_mask;
        ig_md.worker_id = worker_id;
    }

    // A rack's 32 workers are numbered from `first_worker`, a multiple of 32.
    action admit_rack(bit<32> rack_mask, bit<16> first_worker) {
        ig_md.role = ROLE_RACK;
        ig_md.worker_mask = rack_mask;
        ig_md.worker_id = first_worker | (hdr.peelsum.sender & 31);
    }

    action admit_server() {
        ig_md.role = ROLE_SERVER;
        ig_md.worker_id = hdr.peelsum.sender;
    }

    table members {
        key = {
            hdr.peelsum.job_id : exact @name("job_id");
            ig_md.ingress_port : exact @name("ingress_port");
        }
        actions = { admit_worker; admit_rack; admit_server; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 4096;
    }

    action set_age_limit(bit<32> ticks) {
        age_ticks = ticks;
    }

    table limits {
        actions = { set_age_limit; }
        default_action = set_age_limit(DEFAULT_AGE_TICKS);
    }

    action use_slot(owner_op_t owner_op) {
        ig_md.owner_op = owner_op;
    }

    action refuse(verdict_t verdict) {
        ig_md.verdict = verdict;
    }

    // Which role may send which kind, and what that means to the slot's owner.
    table permissions {
        key = {
            ig_md.role : exact @name("role");
            hdr.peelsum.kind : exact @name("kind");
            ig_md.for_racks : exact @name("for_racks");
        }
        actions = { use_slot; @defaultonly refuse; }
        const entries = {
            (ROLE_WORKER, KIND_CONTRIBUTION, 0) : use_slot(OWNER_CLAIM);
            (ROLE_WORKER, KIND_RESEND, 0)       : use_slot(OWNER_LOOK);
            (ROLE_WORKER, KIND_BYPASS, 0)       : use_slot(OWNER_NONE);
            (ROLE_RACK, KIND_CONTRIBUTION, 0)   : use_slot(OWNER_CLAIM);
            (ROLE_RACK, KIND_BYPASS, 0)         : use_slot(OWNER_NONE);
            (ROLE_SERVER, KIND_RESEND, 0)       : use_slot(OWNER_LOOK);     // 'give up what you hold'
            (ROLE_SERVER, KIND_RESEND, 1)       : use_slot(OWNER_NONE);     // the same, to the racks below
            (ROLE_SERVER, KIND_RESULT, 0)       : use_slot(OWNER_RELEASE);
            (ROLE_SERVER, KIND_NEED, 0)         : use_slot(OWNER_NONE);
            (ROLE_CONTROLLER, KIND_RESET, 0)    : use_slot(OWNER_RESET);
        }
        const default_action = refuse(VERDICT_FOREIGN_PORT);
    }

    apply {
        limits.apply();
        ig_md.deadline = ig_md.now - age_ticks;
        if (hdr.peelsum.kind == KIND_RESET) {
            if (ig_md.ingress_port == CPU_PORT) {
                ig_md.role = ROLE_CONTROLLER;
            }
            ig_md.worker_id = hdr.peelsum.sender;
        } else if (!jobs.apply().hit) {
            ig_md.verdict = VERDICT_UNKNOWN_JOB;
        } else if (hdr.peelsum.generation != ig_md.generation) {
            ig_md.verdict = VERDICT_WRONG_GENERATION;
        } else {
            members.apply();
            if (hdr.peelsum.kind == KIND_RESEND && ig_md.spine == 1 && hdr.peelsum.flag_spine == 0) {
                ig_md.for_racks = 1;
            }
        }
        if (ig_md.verdict == VERDICT_UNDECIDED) {
            permissions.apply();
        }
        if (ig_md.verdict == VERDICT_UNDECIDED && hdr.peelsum.sender != ig_md.worker_id) {
            ig_md.verdict = VERDICT_WRONG_SENDER;
        }
        ig_md.slot_index = (salt + hdr.peelsum.chunk_id) & SLOT_INDEX_MASK;
        ig_md.slot_tag = ((bit<32>)hdr.peelsum.job_id << 24) | (hdr.peelsum.chunk_id >> SLOT_BITS);
    }
}
