// One `Lane`, which has a stateful ALU, per lane of a packet.

#ifndef PEELSUM_TOFINO_LANES_P4_
#define PEELSUM_TOFINO_LANES_P4_

#define DECLARE(i) Lane() lane_##i;
#define APPLY(i) lane_##i.apply(op, slot_index, lanes.v##i);

control Lanes(in lane_op_t op, in bit<32> slot_index, inout lanes_h lanes) {
    EACH_LANE(DECLARE)

    apply {
        EACH_LANE(APPLY)
    }
}

#endif
