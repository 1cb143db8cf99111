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
    }

    table jobs {
        key = { hdr.peelsum.job_id : exact @name("job_id"); }
        actions = { admit_job; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 256;
    }

    action admit_worker(bit<32> worker_mask, bit<16> worker_id) {
        ig_md.role = ROLE_WORKER;
        ig_md.worker_mask = worker_mask;
        ig_md.worker_id = worker_id;
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
        actions = { admit_worker; admit_server; @defaultonly NoAction; }
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
        }
        actions = { use_slot; @defaultonly refuse; }
        const entries = {
            (ROLE_WORKER, KIND_CONTRIBUTION) : use_slot(OWNER_CLAIM);
            (ROLE_WORKER, KIND_RESEND)       : use_slot(OWNER_LOOK);
            (ROLE_WORKER, KIND_BYPASS)       : use_slot(OWNER_NONE);
            (ROLE_SERVER, KIND_RESEND)       : use_slot(OWNER_LOOK);     // 'give up what you hold'
            (ROLE_SERVER, KIND_RESULT)       : use_slot(OWNER_RELEASE);
            (ROLE_SERVER, KIND_NEED)         : use_slot(OWNER_NONE);
            (ROLE_CONTROLLER, KIND_RESET)    : use_slot(OWNER_RESET);
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
