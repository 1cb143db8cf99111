// One register per lane of a packet, and its four operations.

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
        if (op == LANES_ADD) add_lanes();
        else if (op == LANES_SET) set_lanes();
        else if (op == LANES_OR) or_lanes();
        else if (op == LANES_READ) read_lanes();
    }
}
