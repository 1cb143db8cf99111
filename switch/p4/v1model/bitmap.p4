// The workers in a slot, and their flags: whether any met congestion, whether any has finished. The bitmap
// stays after the sum has left: a zero bitmap under a matching tag is a tombstone, which keeps the result once
// that has passed.

#ifndef PEELSUM_V1MODEL_BITMAP_P4_
#define PEELSUM_V1MODEL_BITMAP_P4_

control Bitmap(inout headers_t hdr, inout ingress_metadata_t ig_md) {
    register<bit<32>>(SLOTS) worker_bitmap;
    register<bit<8>>(SLOTS) slot_marks;
    bitmap_op_t bitmap_op = bitmap_op_t.KEEP;
    bit<32> held;
    bit<32> next;
    marks_t marks;

    // Set the bitmap to this worker.
    action set_worker() {
        bitmap_op = bitmap_op_t.SET;
    }

    // Add this worker, unless the slot is a tombstone.
    action merge_worker() {
        bitmap_op = bitmap_op_t.MERGE;
    }

    // Clear the bitmap, which leaves a tombstone.
    action take_workers() {
        bitmap_op = bitmap_op_t.TAKE;
    }

    // Clear the bitmap, and mark the slot as one that keeps its chunk's result.
    action keep_result() {
        bitmap_op = bitmap_op_t.KEEP_RESULT;
    }

    // Leave the bitmap unchanged.
    action no_bitmap() {
        ig_md.membership = HELD_NONE;
        ig_md.worker_bitmap = ig_md.worker_mask;
    }

    #include "../core/arrivals.p4inc"

    apply {
        arrivals.apply();
        if (bitmap_op != bitmap_op_t.KEEP) {
            worker_bitmap.read(held, ig_md.slot_index);
            slot_marks.read(marks, ig_md.slot_index);
            next = 0;
            if (bitmap_op == bitmap_op_t.SET) {
                held = 0;
                marks = 0;
                next = ig_md.worker_mask;
            } else if (bitmap_op == bitmap_op_t.MERGE && held != 0) {
                next = held | ig_md.worker_mask;
            }
            if (bitmap_op == bitmap_op_t.KEEP_RESULT) {
                marks = RESULT_KEPT;
            }
            marks = marks | 4w0 ++ hdr.peelsum.flag_fin ++ hdr.peelsum.flag_ce ++ 2w0;
            worker_bitmap.write(ig_md.slot_index, next);
            slot_marks.write(ig_md.slot_index, marks);
            ig_md.marks = marks;
            ig_md.overlap = held & ig_md.worker_mask;
            ig_md.worker_bitmap = held | ig_md.worker_mask;
            if (held == 0 && ig_md.other_masks == 0) {
                ig_md.membership = HELD_NONE_REST;
            } else if (held == 0) {
                ig_md.membership = HELD_NONE;
            } else if (held == ig_md.other_masks) {
                ig_md.membership = HELD_REST;
            } else {
                ig_md.membership = HELD_SOME;
            }
        }
    }
}

#endif
