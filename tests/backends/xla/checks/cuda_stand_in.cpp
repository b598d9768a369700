// A PJRT plugin that calls itself "cuda" and computes on the CPU: torch_xla 2.8 contains the parts of one, which the
// process must have loaded with RTLD_GLOBAL. They are called by their symbols, since wheels bring no headers: arguments
// and results that C++ passes by a hidden pointer are pointers here.
#include <cstddef>
#include <cstring>

struct ClientArgs {  // PJRT_Client_Create_Args
  size_t size;
  void* extension;
  const void* options;
  size_t option_count;
  void* callbacks[4];
  void* client;
};

struct NameArgs {  // PJRT_Client_PlatformName_Args
  size_t size;
  void* extension;
  void* client;
  const char* name;
  size_t name_size;
};

using Function = void* (*)(void*);

void cpu_client(void* result, void* options) asm("_ZN3xla19GetXlaPjrtCpuClientENS_16CpuClientOptionsE");
void* wrapped(void** client) asm(
    "_ZN4pjrt19CreateWrapperClientESt10unique_ptrIN3xla10PjRtClientESt14default_deleteIS2_EE");
void* initialize(void*) asm("_ZN4pjrt27PJRT_Plugin_Initialize_NoOpEP27PJRT_Plugin_Initialize_Args");
void* attributes(void*) asm("_ZN4pjrt28PJRT_Plugin_Attributes_EmptyEP27PJRT_Plugin_Attributes_Args");
void make_api(void* api, Function client, Function context, Function topology, Function start, void* extension, Function attributes) asm(
    "_ZN4pjrt13CreatePjrtApiEPFP10PJRT_ErrorP23PJRT_Client_Create_ArgsEPFS1_P31PJRT_ExecuteContext_Create_"
    "ArgsEPFS1_P36PJRT_TopologyDescription_Create_ArgsEPFS1_P27PJRT_Plugin_Initialize_ArgsEP19PJRT_Extension_"
    "BasePFS1_P27PJRT_Plugin_Attributes_ArgsE");

static void* create(void* pointer) {
  unsigned char options[512] = {1, 1};  // xla::CpuClientOptions: asynchronous, the older memory spaces
  options[12] = 32;                     // computations in flight
  void* result[2] = {};                 // absl::StatusOr<std::unique_ptr<xla::PjRtClient>>
  cpu_client(result, options);
  static_cast<ClientArgs*>(pointer)->client = wrapped(&result[1]);
  return nullptr;
}

static void* platform(void* pointer) {
  auto* args = static_cast<NameArgs*>(pointer);
  args->name = "cuda";
  args->name_size = std::strlen(args->name);
  return nullptr;
}

extern "C" const void* GetPjrtApi() {
  static void* api[512];
  // Its size, extensions and version take 5 words; the name of the platform is the 13th function.
  make_api(api, create, nullptr, nullptr, initialize, nullptr, attributes);
  api[5 + 12] = reinterpret_cast<void*>(&platform);
  return api;
}
