#include "channel.hpp"

#include <limits>
#include <map>
#include <sstream>

namespace cpudist::mpi {

namespace {

constexpr size_t kMostInFlight = 8;  // enough to fill a link while other pieces are added; each holds a copy
constexpr int kChannels = 256;       // per communicator; the rest of a tag is a hash, one of 256 if tags have 20 bits

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

}  // namespace

// Groups that share a rank have different numbers, because each rank's next number is above all that it has had. Groups
// of the same members share communicators, because an MPI has a limited number of them. Communicators are never freed:
// ranks would wait for each other in MPI_Comm_free.
Channel::Channel(const Group& group)
    : order(kMostInFlight, group.mpi_slots),
      rank_(group.rank),
      ranks_(group.size),
      most_bytes_(group.round_bytes),
      slots_(group.mpi_slots) {
  static int next_number = 0;
  static std::map<std::pair<std::vector<int>, int>, Handle> communicators;
  const auto& mpi = library();
  int own = 0;
  check(mpi.comm_rank(mpi.world, &own));
  std::vector<int> members;
  int number = 0, most_tag = std::numeric_limits<int>::max();
  std::ostringstream text;
  text << own << ' ' << next_number << ' ' << mpi.most_tag;
  for (const auto& told : all_gather(group, "mpi", text.str())) {
    int member = 0, next = 0, most = 0;
    std::istringstream(told) >> member >> next >> most;
    members.push_back(member);
    number = std::max(number, next);
    most_tag = std::min(most_tag, most);
  }
  next_number = number + 1;
  number_ = number % kChannels;
  hashes_ = most_tag / (kChannels * kSlots);
  if (hashes_ == 0) throw TransportError("MPI_TAG_UB is " + std::to_string(most_tag) + "; use another MPI");
  auto& communicator = communicators[{members, number / kChannels}];
  if (communicator == 0) communicator = create_communicator(members);
  communicator_ = communicator;
}

template <typename Start>
void Transfers::in_rounds(std::vector<Message>& messages, int peer, size_t bytes, Start start) {
  size_t begin = 0;
  do {
    const size_t length = part(bytes, begin, channel_.most_bytes());
    auto& message = messages.emplace_back(Message{0, peer, channel_.add_hash(tag_, length)});
    if (const int status = start(begin, static_cast<int>(length), message); status != 0) failure_ = status;
    begin += length;
  } while (begin < bytes);
}

void Transfers::send(int to, const void* data, size_t bytes) {
  in_rounds(sends_, to, bytes, [&](size_t begin, int length, Message& message) {
    return library().isend(static_cast<const char*>(data) + begin, length, library().byte, to, message.tag,
                           channel_.communicator(), &message.request);
  });
}

void Transfers::receive(int from, void* data, size_t bytes) {
  in_rounds(receives_, from, bytes, [&](size_t begin, int length, Message& message) {
    return library().irecv(static_cast<char*>(data) + begin, length, library().byte, from, message.tag,
                           channel_.communicator(), &message.request);
  });
}

bool Transfers::holds() {
  check(failure_);
  for (auto* messages : {&receives_, &sends_}) {
    for (; !messages->empty(); messages->pop_back()) {
      int done = 0;
      Status status{};
      check(library().test(&messages->back().request, &done, &status));
      if (!done) {
        if (messages == &receives_ && watch_.due()) look_for_other_call(messages->back());
        return false;
      }
      watch_.moved();
      suspicious_ = false;
    }
  }
  return true;
}

// MPI keeps messages that no receive matches. A peer sends its messages in the order in which this rank awaits them, so
// none should remain unmatched in the slot of this call. There may be one for a moment, just before this rank sees that
// the awaited message is complete, so only one that is found twice is an error.
void Transfers::look_for_other_call(const Message& awaited) {
  const auto& mpi = library();
  int found = 0;
  Status status{};
  check(mpi.iprobe(awaited.peer, mpi.any_tag, channel_.communicator(), &found, &status));
  const int tag = mpi.tag_of(status);
  if (!found || tag == awaited.tag || !channel_.same_slot(tag, awaited.tag)) return;
  if (!std::exchange(suspicious_, true)) return;
  const auto peer = std::to_string(awaited.peer), own = std::to_string(channel_.rank());
  throw OtherCall(awaited.peer, "ranks make different calls: rank " + peer + "'s has another name, size, type, " +
                                    "reduction or root than rank " + own + "'s, or it has left the group; " +
                                    "let all ranks make the same calls in one order");
}

}  // namespace cpudist::mpi
