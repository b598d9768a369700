#include "signature.hpp"

namespace cpudist {

std::string Signature::describe(const std::string& verb) const {
  static constexpr const char* kOperations[] = {
      "barrier", "broadcast", "all_reduce", "reduce", "all_gather", "reduce_scatter", "all_to_all, gather or scatter"};
  const auto operation = static_cast<Operation>(bits_ >> 60 & 0x7);
  if (operation == Operation::kLeave) return "has left the group (destroy_process_group)";
  const std::string text = verb + " " + kOperations[static_cast<size_t>(operation)];
  if (operation == Operation::kBarrier || operation == Operation::kAlltoall) return text;
  const bool has_hash = operation == Operation::kAllgather || operation == Operation::kReduceScatter;
  const uint64_t argument = (has_hash ? without_hash().bits_ : bits_) >> 43 & 0xfff;
  const auto& type = kTypes[bits_ >> 55 & 0x1f];
  return text + " of " + std::to_string((bits_ & kCountMask) / type.parts) + " " + type.name + " (argument " +
         std::to_string(argument) + ")";
}

}  // namespace cpudist
