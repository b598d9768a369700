#include "transport.hpp"

#include <exception>
#include <optional>
#include <utility>

#include "board.hpp"
#include "collectives.hpp"
#include "messages.hpp"

namespace cpudist::shared_memory {

namespace {

// How often a request looks before it reports that nothing has moved: longer than a cache line takes to arrive from a
// peer, and much shorter than a time slice of a process that shares the core.
constexpr int kLooks = 16;
// How many stops of a coroutine one test may pass; each is followed by the work of at most one piece.
constexpr int kStops = 4;

Progress advance(const Coroutine& work) {
  for (int stops = 0; stops < kStops; ++stops) {
    for (int looks = 0; !work.can_resume(); ++looks) {
      if (looks == kLooks) return stops > 0 ? Progress::kMoved : Progress::kWaiting;
    }
    work.resume();
    if (work.done()) return Progress::kComplete;
  }
  return Progress::kMoved;
}

// Watches the peer that a request waits for. A peer that has ended, or has destroyed the group, does not send any more.
class Watch {
 public:
  // Advances the work. Throws TransportError, the same on all ranks, where a rank has failed or has gone.
  Progress advance(Board& board, const Coroutine& work) {
    try {
      const Progress progress = shared_memory::advance(work);
      if (progress == Progress::kWaiting) {
        look(board, work);
      } else {
        idle_ = 0;
      }
      return progress;
    } catch (const TransportError& error) {
      board.fail(error.what());
      board.check_failed();
      throw;
    }
  }

 private:
  static constexpr int kIdleTests = 64;  // between two looks at the clock
  static constexpr std::chrono::seconds kInterval{1};

  void look(Board& board, const Coroutine& work) {
    board.check_failed();
    if (++idle_ % kIdleTests != 0) return;
    const auto now = Clock::now();
    if (idle_ == kIdleTests) looked_ = now;
    if (now - looked_ < kInterval) return;
    looked_ = now;
    const int rank = work.awaited_rank();
    if (rank < 0 || board.has(rank) || work.can_resume()) return;
    throw TransportError("rank " + std::to_string(rank) + " has ended or has left the group");
  }

  int idle_ = 0;
  Clock::time_point looked_;
};

// Which collective may proceed: steps belong to one collective after the other, in the order of the calls.
struct Turns {
  uint64_t given = 0;
  uint64_t done = 0;
};

class CollectiveRequest final : public Request {
 public:
  CollectiveRequest(Board& board, Turns& turns, Signature signature, std::vector<size_t> counts, Coroutine work)
      : board_(board),
        turns_(turns),
        turn_(turns.given++),
        signature_(signature),
        counts_(std::move(counts)),
        work_(std::move(work)) {}

  Progress test() override {
    if (turns_.done != turn_) return Progress::kWaiting;
    board_.begin(signature_, counts_.empty() ? nullptr : counts_.data());
    const Progress progress = watch_.advance(board_, work_);
    if (progress == Progress::kComplete) ++turns_.done;
    return progress;
  }

 private:
  Board& board_;
  Turns& turns_;
  uint64_t turn_;
  Signature signature_;
  std::vector<size_t> counts_;
  Coroutine work_;
  Watch watch_;
};

class MessageRequest final : public Request {
 public:
  MessageRequest(Board& board, Coroutine work) : board_(board), work_(std::move(work)) {}
  Progress test() override { return watch_.advance(board_, work_); }

 private:
  Board& board_;
  Coroutine work_;
  Watch watch_;
};

const std::byte* bytes(const void* data) { return static_cast<const std::byte*>(data); }
std::byte* bytes(void* data) { return static_cast<std::byte*>(data); }

template <typename To, typename From>
std::vector<To> all_bytes(const std::vector<From>& pointers) {
  std::vector<To> result;
  result.reserve(pointers.size());
  for (const auto pointer : pointers) result.push_back(bytes(pointer));
  return result;
}

std::vector<size_t> in_bytes(std::vector<size_t> counts, DataType type) {
  for (size_t& count : counts) count *= size_of(type);
  return counts;
}

Combination combination(DataType type, Reduction reduction) {
  return {kernels::reduction(type, reduction), size_of(type)};
}

class SharedMemory final : public Transport {
 public:
  SharedMemory(Segment segment, const Layout& layout, int rank, int ranks)
      : board_(std::move(segment), layout, rank, ranks), messages_(board_) {}

  const char* name() const override { return "shared_memory"; }

  RequestPtr barrier() override {
    return collective(Signature(Operation::kBarrier), {}, shared_memory::barrier(board_));
  }

  RequestPtr broadcast(void* data, size_t count, DataType type, int root) override {
    return collective(Signature(Operation::kBroadcast, count, type, root), {},
                      shared_memory::broadcast(board_, bytes(data), count * size_of(type), root));
  }

  RequestPtr allreduce(const void* input, void* output, size_t count, DataType type, Reduction reduction) override {
    return collective(
        Signature(Operation::kAllreduce, count, type, static_cast<int>(reduction)), {},
        shared_memory::allreduce(board_, bytes(input), bytes(output), count, combination(type, reduction), kAllRanks));
  }

  RequestPtr reduce(const void* input, void* output, size_t count, DataType type, Reduction reduction,
                    int root) override {
    return collective(
        Signature(Operation::kReduce, count, type, static_cast<int>(reduction) << 8 | root), {},
        shared_memory::allreduce(board_, bytes(input), bytes(output), count, combination(type, reduction), root));
  }

  RequestPtr allgather(const void* input, std::vector<void*> outputs, std::vector<size_t> counts,
                       DataType type) override {
    const Signature signature(Operation::kAllgather, counts[board_.rank()], type);
    return collective(
        signature.with_hash_of(counts), counts,
        shared_memory::allgather(board_, bytes(input), all_bytes<std::byte*>(outputs), in_bytes(counts, type)));
  }

  RequestPtr reduce_scatter(std::vector<const void*> inputs, void* output, std::vector<size_t> counts, DataType type,
                            Reduction reduction) override {
    const Signature signature(Operation::kReduceScatter, counts[board_.rank()], type, static_cast<int>(reduction));
    return collective(signature.with_hash_of(counts), counts,
                      shared_memory::reduce_scatter(board_, all_bytes<const std::byte*>(inputs), bytes(output), counts,
                                                    combination(type, reduction)));
  }

  RequestPtr alltoall(std::vector<const void*> inputs, std::vector<size_t> input_counts, std::vector<void*> outputs,
                      std::vector<size_t> output_counts, DataType type) override {
    return collective(
        Signature(Operation::kAlltoall), {},
        shared_memory::alltoall(board_, all_bytes<const std::byte*>(inputs), in_bytes(std::move(input_counts), type),
                                all_bytes<std::byte*>(outputs), in_bytes(std::move(output_counts), type)));
  }

  RequestPtr send(const void* data, size_t count, int destination) override {
    return std::make_unique<MessageRequest>(board_, messages_.send(bytes(data), count, destination));
  }

  RequestPtr recv(void* data, size_t count, int source) override {
    return std::make_unique<MessageRequest>(board_, messages_.receive(bytes(data), count, source));
  }

 private:
  // `counts`: of each rank's signature, where those differ.
  RequestPtr collective(Signature signature, std::vector<size_t> counts, Coroutine work) {
    return std::make_unique<CollectiveRequest>(board_, turns_, signature, std::move(counts), std::move(work));
  }

  Board board_;
  Messages messages_;
  Turns turns_;
};

// The message of the exception that `attempt` throws, or an empty text.
template <typename Attempt>
std::string error_of(Attempt attempt) {
  try {
    attempt();
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

// All ranks decide together. Round one: rank 0 publishes where the memory is. Round two: every rank publishes whether
// it could open the memory and allocate its region. A rank that has failed takes part in both rounds and says so.
TransportPtr create(const Group& group, std::string& why) {
  if (group.size > kMostRanks) {
    why = std::to_string(group.size) + " ranks on one machine, more than " + std::to_string(kMostRanks);
    return nullptr;
  }
  const Layout layout(group.size);
  std::optional<Segment> segment;
  std::string address;
  std::string failure;
  if (group.rank == 0) {
    failure = error_of([&] {
      segment.emplace(Segment::create(layout.total_bytes));
      address = segment->address();
    });
  }
  address = all_gather(group, "shared_memory/address", address).front();

  if (failure.empty()) {
    failure = error_of([&] {
      if (address.empty()) throw std::runtime_error("rank 0 could not create shared memory");
      if (!segment) segment.emplace(Segment::open(address));
      segment->allocate(layout.region(group.rank), layout.region_bytes);
      segment->lock(layout.region(group.rank));
    });
  }
  const auto failures = all_gather(group, "shared_memory/failure", failure);
  for (int rank = 0; rank < group.size; ++rank) {
    if (failures[rank].empty()) continue;
    why = "rank " + std::to_string(rank) + ": " + failures[rank];
    return nullptr;
  }
  segment->prefault();
  return std::make_unique<SharedMemory>(std::move(*segment), layout, group.rank, group.size);
}

}  // namespace cpudist::shared_memory
