// Types and constants of the core, shared by every architecture.

typedef bit<9>  port_t;
typedef bit<48> mac_t;
typedef bit<32> ipv4_t;

const bit<2> ECN_CE = 3;

// What a slot remembers of the packets that it took, besides their lanes: their flags, OR-ed. CE is bit 2, FIN bit 3.
typedef bit<8> marks_t;

// The verdict of a packet that is still on its way.
const verdict_t VERDICT_UNDECIDED = 255;

// Slots of the switch: a power of two, at least 256, at least twice the largest window of a job. The
// architecture says SLOT_BITS.
const bit<32> SLOTS = 1 << SLOT_BITS;

// The slots' clock ticks every 64 us (2^16 ns on Tofino). It starts a quarter turn ahead, so that a register
// that was never written looks long expired. No age limit is longer than that quarter.
const bit<32> EPOCH_TICKS = 1 << 30;
const bit<32> DEFAULT_AGE_TICKS = 15625;

// Who is behind a port.
typedef bit<8> role_t;
const role_t ROLE_NOBODY = 0;
const role_t ROLE_WORKER = 1;
const role_t ROLE_SERVER = 2;
const role_t ROLE_CONTROLLER = 3;
const role_t ROLE_RACK = 4;

// What a packet found out about its slot's owner, one-hot: a Tofino stateful ALU says it so.
typedef bit<4> ownership_t;
const ownership_t OWNER_OTHER = 1;         // another chunk, live; or nobody asked
const ownership_t OWNER_MINE = 2;          // this chunk
const ownership_t OWNER_EXPIRED = 4;       // another chunk, too old to stay
const ownership_t OWNER_MINE_EXPIRED = 8;  // this chunk, too old to stay: it does
const ownership_t NOT_MINE = 5;            // a mask

// What a packet found out about the workers in its slot, one-hot.
typedef bit<4> membership_t;
const membership_t HELD_SOME = 1;       // and some are missing
const membership_t HELD_NONE = 2;
const membership_t HELD_REST = 4;       // all but this one
const membership_t HELD_NONE_REST = 8;  // none, and there is but this one
const membership_t NOT_NONE = 5;        // masks
const membership_t NOT_REST = 3;

// What a packet does to the lanes of its slot. Each leaves the new value in the packet.
typedef bit<8> lane_op_t;
const lane_op_t LANES_NONE = 0;
const lane_op_t LANES_SET = 1;
const lane_op_t LANES_ADD = 2;
const lane_op_t LANES_OR = 3;
const lane_op_t LANES_READ = 4;

// Where a packet goes.
typedef bit<8> way_t;
const way_t WAY_NOWHERE = 0;
const way_t WAY_UP = 1;
const way_t WAY_DOWN = 2;
const way_t WAY_BACK = 3;
const way_t WAY_THROUGH = 4;  // up, untouched
const way_t WAY_ACROSS = 5;   // other traffic
