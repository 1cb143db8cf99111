// Inside the architecture's `Bitmap`, as permissions.p4 in `Owner`: what a packet does to the workers that its
// slot holds, once the owner is known.

    table arrivals {
        key = {
            hdr.peelsum.kind : ternary @name("kind");
            ig_md.ownership  : ternary @name("ownership");
        }
        actions = { set_worker; merge_worker; take_workers; @defaultonly hold_none; }
        const entries = {
            (KIND_CONTRIBUTION, 0 &&& NOT_MINE)  : merge_worker();
            (KIND_CONTRIBUTION, OWNER_EXPIRED)   : set_worker();
            (KIND_RESEND, 0 &&& NOT_MINE)        : take_workers();
        }
        const default_action = hold_none();
    }
