// A packet's lanes.

#ifndef PEELSUM_CORE_LANES_H_P4_
#define PEELSUM_CORE_LANES_H_P4_

#include "each_lane.p4"

#define FIELD(i) bit<32> v##i;

header lanes_h {
    EACH_LANE(FIELD)
}

#endif
