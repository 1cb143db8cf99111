// What a packet does to its slot's workers, once the owner is known. Each architecture includes this table in
// its `Bitmap`, as it includes permissions.p4 in its `Owner`.

    table arrivals {
        key = {
            hdr.peelsum.kind : ternary @name("kind");
            ig_md.ownership  : ternary @name("ownership");
        }
        actions = { set_worker; merge_worker; take_workers; @defaultonly hold_none; }
        const entries = {
            (KIND_CONTRIBUTION, MATCH_MINE)    : merge_worker();
            (KIND_CONTRIBUTION, OWNER_EXPIRED) : set_worker();
            (KIND_RETRY, MATCH_MINE)           : merge_worker();
            (KIND_RESEND, MATCH_MINE)          : take_workers();
        }
        const default_action = hold_none();
    }
