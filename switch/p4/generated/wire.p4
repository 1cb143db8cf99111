// Generated from peelsum.wire by `peelsum switch compile`; edit that instead.

const bit<8> VERSION = 1;
const bit<16> UDP_PORT = 20563;
const bit<9> CPU_PORT = 255;
const bit<16> EVERYONE = 0xffff;

// The slots' clock: a tick is 64 us on v1model, 2^16 ns on Tofino.
const bit<8> TICK_SHIFT = 6;  // of v1model's clock, which counts microseconds
const bit<32> EPOCH_TICKS = 0x40000000;  // added: unwritten registers look long expired
const bit<32> FREED_TICKS = 0x40000000;  // a freed slot's stamp is this much before now
const bit<32> DEFAULT_AGE_TICKS = 15625;

typedef bit<8> kind_t;
const kind_t KIND_CONTRIBUTION = 1;
const kind_t KIND_RESEND = 2;
const kind_t KIND_BYPASS = 3;
const kind_t KIND_RESULT = 4;
const kind_t KIND_NEED = 5;
const kind_t KIND_RESET = 6;
const kind_t KIND_RETRY = 7;

typedef bit<8> verdict_t;
const verdict_t VERDICT_NOT_PEELSUM = 0;
const verdict_t VERDICT_SHORT_PACKET = 1;
const verdict_t VERDICT_BAD_LENGTH = 2;
const verdict_t VERDICT_BAD_VERSION = 3;
const verdict_t VERDICT_RESERVED_FLAGS = 4;
const verdict_t VERDICT_UNKNOWN_JOB = 5;
const verdict_t VERDICT_WRONG_GENERATION = 6;
const verdict_t VERDICT_FOREIGN_PORT = 7;
const verdict_t VERDICT_WRONG_SENDER = 8;
const verdict_t VERDICT_DUPLICATE = 9;
const verdict_t VERDICT_NOTHING_HELD = 10;
const verdict_t VERDICT_NO_RETURN_PATH = 11;
const verdict_t VERDICT_ABSORBED = 12;
const verdict_t VERDICT_COMPLETED = 13;
const verdict_t VERDICT_COLLIDED = 14;
const verdict_t VERDICT_TOMBSTONED = 15;
const verdict_t VERDICT_RESENT = 16;
const verdict_t VERDICT_RESEND_PASSED = 17;
const verdict_t VERDICT_BYPASSED = 18;
const verdict_t VERDICT_RESULT_RETURNED = 19;
const verdict_t VERDICT_NEED_PASSED = 20;
const verdict_t VERDICT_RESET_DONE = 21;
const verdict_t VERDICT_RESEND_FORWARDED = 22;
const verdict_t VERDICT_FORWARDED = 23;

header peelsum_h {
    bit<8> version;
    bit<8> kind;
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
