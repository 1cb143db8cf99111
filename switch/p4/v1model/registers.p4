// The number of slots, and the register operations that actions request. v1model's actions have no branches,
// so the controls carry out the operations after the match.

#ifndef PEELSUM_V1MODEL_REGISTERS_P4_
#define PEELSUM_V1MODEL_REGISTERS_P4_

const int SLOT_BITS = 12;

enum bit<8> owner_op_t {
    KEEP = 0,
    CLAIM = 1,
    READ = 2,
    RELEASE = 3,
    FREE = 4
}

enum bit<8> bitmap_op_t {
    KEEP = 0,
    SET = 1,
    MERGE = 2,
    TAKE = 3,
    KEEP_RESULT = 4
}

#endif
