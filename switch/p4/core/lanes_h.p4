// A packet's lanes.
#include "each_lane.p4"

#define FIELD(i) bit<32> v##i;

header lanes_h {
    EACH_LANE(FIELD)
}
