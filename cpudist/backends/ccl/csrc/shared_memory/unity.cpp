// All of this folder as one translation unit, for the extension's unity build.
#include "board.cpp"
#include "call.cpp"
#include "collectives.cpp"
#include "kernels.cpp"
#include "messages.cpp"
#include "segment.cpp"
#include "transport.cpp"
