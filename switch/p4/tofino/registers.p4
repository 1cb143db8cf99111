// How many slots there are: 14 bits' worth on Tofino.

const int SLOT_BITS = 14;
typedef bit<SLOT_BITS> slot_t;
