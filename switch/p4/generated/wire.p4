// Generated from peelsum.wire by `peelsum switch compile`; edit that instead.

const bit<8> VERSION = 1;
const bit<16> UDP_PORT = 20563;
const bit<9> CPU_PORT = 255;
const bit<16> EVERYONE = 0xffff;
const bit<8> RESULT_KEPT = 0x80;  // in a slot's marks

// The slots' clock: a tick is 64 us on v1model, 2^16 ns on Tofino.
const bit<8> TICK_SHIFT = 6;  // of v1model's clock, which counts microseconds
const bit<32> EPOCH_TICKS = 0x40000000;  // added: unwritten registers look long expired
const bit<32> FREED_TICKS = 0x40000000;  // a freed slot's stamp is this much before now
const bit<32> DEFAULT_AGE_TICKS = 15625;

enum bit<8> kind_t {
    CONTRIBUTION = 1,
    RESEND = 2,
    BYPASS = 3,
    RESULT = 4,
    NEED = 5,
    RESET = 6,
    RETRY = 7
}

// What happened to a packet; UNDECIDED until a control decides.
enum bit<8> verdict_t {
    NOT_PEELSUM = 0,
    SHORT_PACKET = 1,
    BAD_LENGTH = 2,
    BAD_VERSION = 3,
    RESERVED_FLAGS = 4,
    UNKNOWN_JOB = 5,
    WRONG_GENERATION = 6,
    FOREIGN_PORT = 7,
    WRONG_SENDER = 8,
    DUPLICATE = 9,
    NOTHING_HELD = 10,
    NO_RETURN_PATH = 11,
    ABSORBED = 12,
    COMPLETED = 13,
    COLLIDED = 14,
    TOMBSTONED = 15,
    RESENT = 16,
    RESEND_PASSED = 17,
    BYPASSED = 18,
    RESULT_RETURNED = 19,
    NEED_PASSED = 20,
    RESET_DONE = 21,
    RESEND_FORWARDED = 22,
    FORWARDED = 23,
    ANSWERED = 24,
    UNDECIDED = 255
}

header peelsum_h {
    bit<8> version;
    kind_t kind;
    bit<3> reserved_flags;
    bit<1> flag_owned;
    bit<1> flag_fin;
    bit<1> flag_ce;
    bit<1> flag_spine;
    bit<1> flag_or;
    bit<8> job_id;
    bit<16> generation;
    bit<16> sender;
    bit<32> chunk_id;
    bit<32> bitmap;
}
