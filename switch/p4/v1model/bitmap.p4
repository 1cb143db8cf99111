// Which workers a slot holds, and their marks: has any met congestion, has any finished. A slot's bitmap
// outlives its sum: zero under a matching tag is a tombstone.

control Bitmap(inout ingress_metadata_t ig_md) {
    register<bit<32>>(SLOTS) worker_bitmap;
    register<bit<8>>(SLOTS) slot_marks;
    bit<32> held;
    bit<32> next;
    marks_t marks;

    apply {
        if (ig_md.bitmap_op != BITMAP_NONE) {
            worker_bitmap.read(held, ig_md.slot_index);
            slot_marks.read(marks, ig_md.slot_index);
            next = 0;
            if (ig_md.bitmap_op == BITMAP_SET) {
                next = ig_md.worker_mask;
                held = 0;
                marks = 0;
            } else if (ig_md.bitmap_op == BITMAP_MERGE && held != 0) {
                next = held | ig_md.worker_mask;
            }
            marks = marks | ig_md.marks;
            worker_bitmap.write(ig_md.slot_index, next);
            slot_marks.write(ig_md.slot_index, marks);
            ig_md.held_bitmap = held;
            ig_md.marks = marks;
        }
    }
}
