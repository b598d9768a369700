// This folder as one translation unit, for the unity build of the extension and for tests without torch.
#include "../kernels/reduce.cpp"
#include "alltoall.cpp"
#include "channel.cpp"
#include "collectives.cpp"
#include "messages.cpp"
#include "segment.cpp"
#include "../signature.cpp"
#include "transport.cpp"
