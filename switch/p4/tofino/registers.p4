// The number of slots, as the width of their index.

const int SLOT_BITS = 14;
typedef bit<SLOT_BITS> slot_t;
