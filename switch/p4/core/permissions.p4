// Which role may send which kind, and what that does to the slot's owner. Each architecture includes this
// table in its `Owner`: a Tofino stage matches and changes a register in one step, so they must be together.

    action refuse() {
        ig_md.verdict = VERDICT_FOREIGN_PORT;
    }

    // Do not read the slot.
    action pass_by() {
        ig_md.ownership = OWNER_OTHER;
    }

    // Pass the server's question on to the racks.
    action ask_racks() {
        ig_md.ownership = OWNER_OTHER;
        ig_md.for_racks = 1;
    }

    table permissions {
        key = {
            ig_md.role             : ternary @name("role");
            hdr.peelsum.kind       : ternary @name("kind");
            ig_md.spine            : ternary @name("spine");
            hdr.peelsum.flag_spine : ternary @name("flag_spine");
        }
        actions = { claim; look; release; free; pass_by; ask_racks; refuse; }
        const entries = {
            (ROLE_WORKER, KIND_CONTRIBUTION, _, _) : claim();
            (ROLE_WORKER, KIND_RESEND, 1, 0)       : refuse();
            (ROLE_WORKER, KIND_RESEND, _, _)       : look();
            (ROLE_WORKER, KIND_RETRY, _, _)        : look();
            (ROLE_WORKER, KIND_BYPASS, _, _)       : pass_by();
            (ROLE_RACK, KIND_CONTRIBUTION, _, _)   : claim();
            (ROLE_RACK, KIND_BYPASS, _, _)         : pass_by();
            (ROLE_SERVER, KIND_RESEND, 1, 0)       : ask_racks();
            (ROLE_SERVER, KIND_RESEND, _, _)       : look();     // the server asks for the partial sum
            (ROLE_SERVER, KIND_RESULT, _, _)       : release();
            (ROLE_SERVER, KIND_NEED, _, _)         : pass_by();
            (ROLE_CONTROLLER, KIND_RESET, _, _)    : free();
        }
        const default_action = refuse();
    }
