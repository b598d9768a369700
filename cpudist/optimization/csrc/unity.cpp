// The library is one translation unit, because most of its compilation is torch's headers.
#include "dropout.cpp"
#include "attention.cpp"
#include "linear.cpp"
