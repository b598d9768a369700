#include "call.hpp"

namespace cpudist {

void GroupState::completed(const Call& call) {
  if (call.peer || call.sequence <= last_sequence) return;
  last_sequence = call.sequence;
  last_name = call.name;
}

std::string Call::describe() const {
  std::string text = name;
  if (!peer) {
    text += " #" + std::to_string(sequence);
  } else if (*peer >= 0) {
    text += (text == "send" ? " to rank " : " from rank ") + std::to_string(*peer);
  }
  if (!group->name.empty()) text += " of group '" + group->name + "'";
  return text + " on rank " + std::to_string(rank) + " of " + std::to_string(size);
}

}  // namespace cpudist
