// What the headers of a newer libstdc++ call, and that of GCC 8 lacks (old_symbols.py). From torch 2.13 on its libraries
// export the same, and the modules take those; torch 2.8 does not.
#include <new>
#include <sstream>
#include <string>

// GCC 11, where `new` gets a negative size.
namespace std {
void __throw_bad_array_new_length() { throw bad_array_new_length(); }
}  // namespace std

// GCC 11.
template std::string std::stringbuf::str() const&;
template std::string std::stringbuf::str() &&;
