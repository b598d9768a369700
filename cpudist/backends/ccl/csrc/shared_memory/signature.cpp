#include "signature.hpp"

namespace cpudist::shared_memory {

std::string Signature::describe(const std::string& verb) const {
  static constexpr const char* kOperations[] = {
      "barrier", "broadcast", "all_reduce", "reduce", "all_gather", "reduce_scatter", "all_to_all, gather or scatter"};
  static constexpr const char* kTypes[] = {"int8",    "uint8",    "int16",   "int32",  "int64",
                                           "float16", "bfloat16", "float32", "float64"};
  const uint64_t operation = bits_ >> 59 & 0xf;
  const uint64_t type = bits_ >> 55 & 0xf;
  if (static_cast<Operation>(operation) == Operation::kLeave) return "has left the group (destroy_process_group)";
  if (operation >= std::size(kOperations) || type >= std::size(kTypes)) return verb + " something unknown";
  const std::string text = verb + " " + kOperations[operation];
  const auto kind = static_cast<Operation>(operation);
  if (kind == Operation::kBarrier || kind == Operation::kAlltoall) return text;
  const bool has_hash = kind == Operation::kAllgather || kind == Operation::kReduceScatter;
  const uint64_t argument = (has_hash ? without_hash().bits_ : bits_) >> 43 & 0xfff;
  return text + " of " + std::to_string(bits_ & kCountMask) + " " + kTypes[type] + " (argument " +
         std::to_string(argument) + ")";
}

}  // namespace cpudist::shared_memory
