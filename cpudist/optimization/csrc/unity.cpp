// The library is one translation unit, because most of its compilation is torch's headers.
#include "dropout.cpp"
#include "linear.cpp"
#if defined(__x86_64__)
#include "attention.cpp"
#endif
