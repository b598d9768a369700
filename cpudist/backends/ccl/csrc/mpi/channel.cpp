#include "channel.hpp"

#include <map>

namespace cpudist::mpi {

namespace {

// A communicator for each list of members, and how many channels have used it. They are never freed: ranks would wait for
// each other in MPI_Comm_free, and an MPI has a limited number of communicators.
struct Shared {
  Handle communicator = 0;
  int channels = 0;
};

Handle create_communicator(const std::vector<int>& members) {
  const auto& mpi = library();
  Handle world = 0, group = 0, communicator = 0;
  check(mpi.comm_group(mpi.world, &world));
  check(mpi.group_incl(world, static_cast<int>(members.size()), members.data(), &group));
  check(mpi.comm_create_group(mpi.world, group, 0, &communicator));
  check(mpi.group_free(&group));
  check(mpi.group_free(&world));
  check(mpi.comm_set_errhandler(communicator, mpi.errors_return));
  return communicator;
}

// Returns the rank in MPI's world of each rank of the group.
std::vector<int> world_ranks(const Group& group) {
  int own = 0;
  check(library().comm_rank(library().world, &own));
  std::vector<int> members;
  for (const auto& text : all_gather(group, "mpi", std::to_string(own))) members.push_back(std::stoi(text));
  return members;
}

}  // namespace

Channel::Channel(const Group& group)
    : rank_(group.rank), ranks_(group.size), most_bytes_(group.round_bytes), communicator_(0) {
  // Channels of one communicator have different tags, all below 2^20, which every MPI allows.
  constexpr int kMostChannels = 8000;
  static std::map<std::vector<int>, Shared> communicators;
  const auto members = world_ranks(group);
  auto& shared = communicators[members];
  if (shared.channels == 0) shared.communicator = create_communicator(members);
  communicator_ = shared.communicator;
  first_tag_ = shared.channels++ % kMostChannels * static_cast<int>(kTags + 1);
}

void Transfers::send(int to, const void* data, size_t bytes) {
  const auto& mpi = library();
  for (size_t begin = 0; begin < bytes; begin += channel_.most_bytes()) {
    const auto length = static_cast<int>(part(bytes, begin, channel_.most_bytes()));
    auto& message = messages_.emplace_back(Message{0, to, length, false});
    check(mpi.isend(static_cast<const char*>(data) + begin, length, mpi.byte, to, tag_, channel_.communicator(),
                    &message.request));
  }
}

void Transfers::receive(int from, void* data, size_t bytes) {
  const auto& mpi = library();
  for (size_t begin = 0; begin < bytes; begin += channel_.most_bytes()) {
    const auto length = static_cast<int>(part(bytes, begin, channel_.most_bytes()));
    auto& message = messages_.emplace_back(Message{0, from, length, true});
    check(mpi.irecv(static_cast<char*>(data) + begin, length, mpi.byte, from, tag_, channel_.communicator(),
                    &message.request));
  }
}

bool Transfers::holds() {
  for (; !messages_.empty(); messages_.pop_back()) {
    int done = 0;
    Status status{};
    try {
      check(library().test(&messages_.back().request, &done, &status));
    } catch (const TransportError& error) {  // a message that is too long
      throw OtherCall(messages_.back().peer, error.what());
    }
    if (!done) return false;
    if (messages_.back().received) check_length(messages_.back(), status);
  }
  return true;
}

// MPI reports a message that is too long, but not one that is too short.
void Transfers::check_length(const Message& message, const Status& status) const {
  int bytes = 0;
  check(library().get_count(&status, library().byte, &bytes));
  if (bytes == message.bytes) return;
  throw OtherCall(message.peer, "rank " + std::to_string(message.peer) + " has sent " + std::to_string(bytes) +
                                    " bytes where " + std::to_string(message.bytes) +
                                    " were expected: ranks make different calls; make the same ones in the same order");
}

}  // namespace cpudist::mpi
