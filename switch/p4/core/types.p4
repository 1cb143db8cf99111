// Types and constants of the core, shared by every architecture.

#ifndef PEELSUM_CORE_TYPES_P4_
#define PEELSUM_CORE_TYPES_P4_

typedef bit<9>  port_t;
typedef bit<48> mac_t;
typedef bit<32> ipv4_t;

const bit<2> ECN_CE = 3;

// The flags of all packets in a slot, combined with OR: CE is bit 2, FIN is bit 3. RESULT_KEPT is a bit that no
// packet has: the lanes are the chunk's result, and another chunk may take the slot.
typedef bit<8> marks_t;

// A ternary key that matches the marks of a slot that keeps a result.
#define MATCH_RESULT_KEPT RESULT_KEPT &&& RESULT_KEPT

// Number of slots: a power of two, at least 256, and at least twice the largest window of a job. Each
// architecture defines SLOT_BITS.
const bit<32> SLOTS = 1 << SLOT_BITS;

// A queue depth that no queue reaches: packets are not marked.
const bit<19> NEVER_MARKED = 0x7ffff;

// Who is behind a port.
enum bit<8> role_t {
    NOBODY = 0,
    WORKER = 1,
    SERVER = 2,
    CONTROLLER = 3,
    RACK = 4
}

// Who owns the packet's slot. One-hot, because a Tofino stateful ALU returns two comparisons in this form.
typedef bit<4> ownership_t;
const ownership_t OWNER_OTHER = 1;         // another chunk, not expired; or the slot was not read
const ownership_t OWNER_MINE = 2;          // this chunk
const ownership_t OWNER_EXPIRED = 4;       // another chunk, expired: this chunk may take the slot
const ownership_t OWNER_MINE_EXPIRED = 8;  // this chunk, expired: it keeps the slot

// A ternary key that matches OWNER_MINE and OWNER_MINE_EXPIRED.
#define MATCH_MINE 0 &&& (OWNER_OTHER | OWNER_EXPIRED)

// Which workers the slot held before this packet. One-hot.
typedef bit<4> membership_t;
const membership_t HELD_SOME = 1;       // some, and at least one other worker is missing
const membership_t HELD_NONE = 2;       // none
const membership_t HELD_REST = 4;       // all except this packet's
const membership_t HELD_NONE_REST = 8;  // none, and the job has only this packet's worker

// Ternary keys: no worker was in the slot; no worker besides this packet's is missing.
#define MATCH_HELD_NONE 0 &&& (HELD_SOME | HELD_REST)
#define MATCH_HELD_REST 0 &&& (HELD_SOME | HELD_NONE)

// What a packet does to the lanes of its slot. Each operation leaves the new value in the packet.
enum bit<8> lane_op_t {
    NONE = 0,
    SET = 1,
    ADD = 2,
    OR = 3,
    READ = 4
}

// Where a packet goes.
enum bit<8> direction_t {
    NOWHERE = 0,
    UP = 1,
    DOWN = 2,
    BACK = 3,
    THROUGH = 4,  // up, unchanged
    ACROSS = 5    // other traffic
}

#endif
