#include "provider.hpp"

#include <atomic>
#include <cstring>
#include <mutex>

// oneCCL chooses among the providers that libfabric finds, and tells nobody but its log. It looks libfabric's functions
// up by dlsym, which the linker (--wrap=dlsym) takes from here; and where it asks for fi_fabric, which opens the provider
// that it will use, it gets a function that notes which.

namespace cpudist::oneccl {

namespace {

// The head of libfabric's struct fi_fabric_attr, the same since its version 1.0.
struct FabricAttributes {
  void* fabric;
  char* name;
  char* provider;
};

using OpenFabric = int (*)(FabricAttributes* attributes, void** fabric, void* context);

std::atomic<OpenFabric> libfabrics_own{nullptr};
std::mutex mutex;
std::set<std::string> opened;

int open_fabric(FabricAttributes* attributes, void** fabric, void* context) {
  const int status = libfabrics_own.load()(attributes, fabric, context);
  if (status == 0 && attributes->provider) {
    std::lock_guard<std::mutex> lock(mutex);
    opened.insert(attributes->provider);
  }
  return status;
}

}  // namespace

std::set<std::string> opened_providers() {
  std::lock_guard<std::mutex> lock(mutex);
  return opened;
}

}  // namespace cpudist::oneccl

extern "C" void* __real_dlsym(void* library, const char* name);

extern "C" void* __wrap_dlsym(void* library, const char* name) {
  void* const found = __real_dlsym(library, name);
  if (!found || std::strcmp(name, "fi_fabric") != 0) return found;
  cpudist::oneccl::libfabrics_own = reinterpret_cast<cpudist::oneccl::OpenFabric>(found);
  return reinterpret_cast<void*>(&cpudist::oneccl::open_fabric);
}
