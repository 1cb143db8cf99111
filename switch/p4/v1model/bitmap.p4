// Which workers a slot holds, and whether any of them met congestion. A slot's bitmap outlives its sum: zero
// under a matching tag is a tombstone.

control Bitmap(in bit<1> ce, inout ingress_metadata_t ig_md) {
    register<bit<32>>(SLOTS) worker_bitmap;
    register<bit<8>>(SLOTS) ecn;
    bit<32> held;
    bit<32> next;
    bit<8> marks;

    apply {
        if (ig_md.bitmap_op != BITMAP_NONE) {
            worker_bitmap.read(held, ig_md.slot_index);
            ecn.read(marks, ig_md.slot_index);
            next = 0;
            if (ig_md.bitmap_op == BITMAP_SET) {
                next = ig_md.worker_mask;
                held = 0;
                marks = 0;
            } else if (ig_md.bitmap_op == BITMAP_MERGE && held != 0) {
                next = held | ig_md.worker_mask;
            }
            marks = marks | (bit<8>)ce;
            worker_bitmap.write(ig_md.slot_index, next);
            ecn.write(ig_md.slot_index, marks);
            ig_md.held_bitmap = held;
            ig_md.slot_ce = marks[0:0];
        }
    }
}
