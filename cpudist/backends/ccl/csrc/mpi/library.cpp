#include "library.hpp"

#include <dlfcn.h>

#include <optional>
#include <stdexcept>

#include "../transport.hpp"

namespace cpudist::mpi {

namespace {

std::optional<Library> used;

class Symbols {
 public:
  explicit Symbols(const std::string& file) : file_(file), handle_(dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD)) {
    if (handle_ == nullptr) throw std::runtime_error("this process has not loaded " + file + "; start it with mpirun");
  }

  template <typename Function>
  void find(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(symbol(name));
  }

  Handle address(const char* name) const { return reinterpret_cast<Handle>(symbol(name)); }

 private:
  void* symbol(const char* name) const {
    void* const found = dlsym(handle_, name);
    if (found == nullptr) throw std::runtime_error(file_ + " has no " + name + "; use another MPI");
    return found;
  }

  std::string file_;
  void* handle_;
};

// Sets the constants of an ABI: mpi.h of MPICH 3 to 5, of Open MPI 2 to 5, and of the MPI 5.0 standard (section 20.3).
// Returns the key of MPI_TAG_UB.
int set_constants(Library& library, const std::string& file, const Symbols& symbols) {
  library.any_tag = -1;
  library.place_of_tag = 1;
  if (file.starts_with("libmpi_abi.")) {
    library.world = 0x101;
    library.byte = 0x247;
    library.errors_return = 0x143;
    library.any_tag = -2;
    return 501;
  }
  if (file == "libmpi.so.40") {
    library.world = symbols.address("ompi_mpi_comm_world");
    library.byte = symbols.address("ompi_mpi_byte");
    library.errors_return = symbols.address("ompi_mpi_errors_return");
    return 0;
  }
  library.world = 0x44000000;
  library.byte = 0x4c00010d;
  library.errors_return = 0x54000001;
  library.place_of_tag = 3;
  return 0x64400001;
}

}  // namespace

void use(const std::string& file) {
  const Symbols symbols(file);
  Library found{};
  const int tag_bound = set_constants(found, file, symbols);
  symbols.find("MPI_Comm_rank", found.comm_rank);
  symbols.find("MPI_Comm_group", found.comm_group);
  symbols.find("MPI_Group_incl", found.group_incl);
  symbols.find("MPI_Group_free", found.group_free);
  symbols.find("MPI_Comm_create_group", found.comm_create_group);
  symbols.find("MPI_Comm_set_errhandler", found.comm_set_errhandler);
  symbols.find("MPI_Isend", found.isend);
  symbols.find("MPI_Irecv", found.irecv);
  symbols.find("MPI_Test", found.test);
  symbols.find("MPI_Iprobe", found.iprobe);
  symbols.find("MPI_Comm_get_attr", found.comm_get_attr);
  symbols.find("MPI_Error_string", found.error_string);
  used = found;
  // MPICH reports some errors of a request to the world's handler, which ends the process by default.
  check(found.comm_set_errhandler(found.world, found.errors_return));
  int* bound = nullptr;
  int is_set = 0;
  check(found.comm_get_attr(found.world, tag_bound, &bound, &is_set));
  used->most_tag = is_set ? *bound : 32767;  // the least that the standard allows
}

const Library& library() {
  if (!used) throw TransportError("there is no MPI to carry the messages; start the ranks with mpirun");
  return *used;
}

void check(int status) {
  if (status == 0) return;
  char text[1024] = "";  // longer than MPI_MAX_ERROR_STRING of any MPI
  int length = 0;
  library().error_string(status, text, &length);
  const std::string words(text);
  throw TransportError("MPI: " + words.substr(0, words.find_first_of(",\n")) + "; look at the output of all ranks");
}

}  // namespace cpudist::mpi
