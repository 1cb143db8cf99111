// One register per lane of a packet, and its four operations.

#ifndef PEELSUM_V1MODEL_LANES_P4_
#define PEELSUM_V1MODEL_LANES_P4_

#define DECLARE(i) register<bit<32>>(SLOTS) lane_##i;
#define SET(i) lane_##i.write(slot_index, lanes.v##i);
#define ADD(i) lane_##i.read(held, slot_index); lanes.v##i = lanes.v##i + held; SET(i)
#define OR(i) lane_##i.read(held, slot_index); lanes.v##i = lanes.v##i | held; SET(i)
#define READ(i) lane_##i.read(lanes.v##i, slot_index);

control Lanes(in lane_op_t op, in bit<32> slot_index, inout lanes_h lanes) {
    EACH_LANE(DECLARE)
    bit<32> held;
    action set_lanes() { EACH_LANE(SET) }
    action add_lanes() { EACH_LANE(ADD) }
    action or_lanes() { EACH_LANE(OR) }
    action read_lanes() { EACH_LANE(READ) }
    apply {
        if (op == lane_op_t.ADD) add_lanes();
        else if (op == lane_op_t.SET) set_lanes();
        else if (op == lane_op_t.OR) or_lanes();
        else if (op == lane_op_t.READ) read_lanes();
    }
}

#endif
