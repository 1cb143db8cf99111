// The number of slots, and the register operations that actions request. v1model's actions have no branches,
// so the controls carry out the operations after the match.

const int SLOT_BITS = 12;

typedef bit<8> owner_op_t;
const owner_op_t OWNER_KEEP = 0;
const owner_op_t OWNER_CLAIM = 1;
const owner_op_t OWNER_LOOK = 2;
const owner_op_t OWNER_RELEASE = 3;
const owner_op_t OWNER_FREE = 4;

typedef bit<8> bitmap_op_t;
const bitmap_op_t BITMAP_KEEP = 0;
const bitmap_op_t BITMAP_SET = 1;
const bitmap_op_t BITMAP_MERGE = 2;
const bitmap_op_t BITMAP_TAKE = 3;
