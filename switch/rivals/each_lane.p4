// The lanes of the committed programs. For others, p4c is told of a folder of ../p4/generated first.

#define EACH_LANE(DO) DO(0) DO(1) DO(2) DO(3)
