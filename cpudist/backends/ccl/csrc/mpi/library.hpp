// The functions of the MPI library that the process has loaded, found at run time. So one binary works with every MPI:
// with MPICH's ABI (MPICH, Intel MPI, Cray MPICH), Open MPI's, or the standard ABI of MPI 5.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace cpudist::mpi {

// A communicator, group, datatype, error handler or request. In MPICH's ABI it is an int, in the others a pointer. An
// int argument is passed in the low half of the register that a pointer takes (x86-64, aarch64), and a zeroed Handle
// can store either, so this type serves all ABIs.
using Handle = std::intptr_t;

// Room for an MPI_Status of any MPI.
struct alignas(8) Status {
  std::array<std::int32_t, 16> words;
};

struct Library {
  Handle world;
  Handle byte;
  Handle errors_return;
  int any_tag;
  int place_of_tag;  // in Status::words
  int most_tag;      // MPI_TAG_UB
  int (*comm_rank)(Handle, int*);
  int (*comm_group)(Handle, Handle*);
  int (*group_incl)(Handle, int, const int*, Handle*);
  int (*group_free)(Handle*);
  int (*comm_create_group)(Handle, Handle, int, Handle*);
  int (*comm_set_errhandler)(Handle, Handle);
  int (*isend)(const void*, int, Handle, int, int, Handle, Handle*);
  int (*irecv)(void*, int, Handle, int, int, Handle, Handle*);
  int (*test)(Handle*, int*, void*);
  int (*iprobe)(int, int, Handle, int*, void*);
  int (*comm_get_attr)(Handle, int, void*, int*);
  int (*error_string)(int, char*, int*);

  int tag_of(const Status& status) const { return status.words[static_cast<size_t>(place_of_tag)]; }
};

// Uses the library with this file name, such as "libmpi.so.12". Throws std::runtime_error if the process has not loaded
// the library, or if the library lacks a function.
void use(const std::string& file);

// The library in use. Throws TransportError before `use`.
const Library& library();

// Throws TransportError if an MPI function has returned an error.
void check(int status);

}  // namespace cpudist::mpi
