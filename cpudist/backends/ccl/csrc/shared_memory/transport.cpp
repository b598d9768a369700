#include "transport.hpp"

#include <exception>
#include <optional>
#include <utility>

#include "board.hpp"
#include "collectives.hpp"
#include "messages.hpp"

namespace cpudist::shared_memory {

namespace {

// How often a request looks before it says that nothing has moved: longer than a cache line takes from a peer, and much
// shorter than anybody would mind who shares the processor.
constexpr int kLooks = 16;
// How many stops of a coroutine one test may pass: each is followed by at most one piece's work.
constexpr int kStops = 4;

Progress move_on(const Coroutine& work) {
  for (int stops = 0; stops < kStops; ++stops) {
    for (int looks = 0; !work.can_resume(); ++looks) {
      if (looks == kLooks) return stops > 0 ? Progress::kMoved : Progress::kWaiting;
    }
    work.resume();
    if (work.done()) return Progress::kComplete;
  }
  return Progress::kMoved;
}

// Whose turn it is: steps belong to one collective after the other, in the order of the calls.
struct Turns {
  uint64_t given = 0;
  uint64_t done = 0;
};

class Collective final : public Request {
 public:
  Collective(Board& board, Turns& turns, Call call, Coroutine work)
      : board_(board), turns_(turns), turn_(turns.given++), call_(call), work_(std::move(work)) {}

  Progress test() override {
    if (turns_.done != turn_) return Progress::kWaiting;
    board_.begin(call_);
    const Progress progress = move_on(work_);
    if (progress == Progress::kComplete) ++turns_.done;
    return progress;
  }

 private:
  Board& board_;
  Turns& turns_;
  uint64_t turn_;
  Call call_;
  Coroutine work_;
};

class Message final : public Request {
 public:
  explicit Message(Coroutine work) : work_(std::move(work)) {}
  Progress test() override { return move_on(work_); }

 private:
  Coroutine work_;
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

size_t total(const std::vector<size_t>& counts) {
  size_t sum = 0;
  for (const size_t count : counts) sum += count;
  return sum;
}

Combination combination(DataType type, Reduction reduction) { return {reduce_kernel(type, reduction), size_of(type)}; }

class SharedMemory final : public Transport {
 public:
  SharedMemory(Segment segment, const Layout& layout, int rank, int ranks)
      : board_(std::move(segment), layout, rank, ranks), messages_(board_) {}

  const char* name() const override { return "shared_memory"; }

  RequestPtr barrier() override { return collective(Call(Operation::kBarrier), shared_memory::barrier(board_)); }

  RequestPtr broadcast(void* data, size_t count, DataType type, int root) override {
    return collective(Call(Operation::kBroadcast, count, type, root),
                      shared_memory::broadcast(board_, bytes(data), count * size_of(type), root));
  }

  RequestPtr allreduce(const void* input, void* output, size_t count, DataType type, Reduction reduction) override {
    return collective(
        Call(Operation::kAllreduce, count, type, static_cast<int>(reduction)),
        shared_memory::allreduce(board_, bytes(input), bytes(output), count, combination(type, reduction), kEverybody));
  }

  RequestPtr reduce(const void* input, void* output, size_t count, DataType type, Reduction reduction,
                    int root) override {
    return collective(
        Call(Operation::kReduce, count, type, static_cast<int>(reduction) << 8 | root),
        shared_memory::allreduce(board_, bytes(input), bytes(output), count, combination(type, reduction), root));
  }

  RequestPtr allgather(const void* input, std::vector<void*> outputs, std::vector<size_t> counts,
                       DataType type) override {
    const Call call(Operation::kAllgather, total(counts), type);
    return collective(call, shared_memory::allgather(board_, bytes(input), all_bytes<std::byte*>(outputs),
                                                     in_bytes(std::move(counts), type)));
  }

  RequestPtr reduce_scatter(std::vector<const void*> inputs, void* output, std::vector<size_t> counts, DataType type,
                            Reduction reduction) override {
    const Call call(Operation::kReduceScatter, total(counts), type, static_cast<int>(reduction));
    return collective(call, shared_memory::reduce_scatter(board_, all_bytes<const std::byte*>(inputs), bytes(output),
                                                          std::move(counts), combination(type, reduction)));
  }

  RequestPtr alltoall(std::vector<const void*> inputs, std::vector<size_t> input_counts, std::vector<void*> outputs,
                      std::vector<size_t> output_counts, DataType type) override {
    return collective(
        Call(Operation::kAlltoall),
        shared_memory::alltoall(board_, all_bytes<const std::byte*>(inputs), in_bytes(std::move(input_counts), type),
                                all_bytes<std::byte*>(outputs), in_bytes(std::move(output_counts), type)));
  }

  RequestPtr send(const void* data, size_t count, int destination) override {
    return std::make_unique<Message>(messages_.send(bytes(data), count, destination));
  }

  RequestPtr recv(void* data, size_t count, int source) override {
    return std::make_unique<Message>(messages_.receive(bytes(data), count, source));
  }

 private:
  RequestPtr collective(Call call, Coroutine work) {
    return std::make_unique<Collective>(board_, turns_, call, std::move(work));
  }

  Board board_;
  Messages messages_;
  Turns turns_;
};

// What a rank has to say in one round of create(): empty when all is well.
template <typename Attempt>
std::string complaint(Attempt attempt) {
  try {
    attempt();
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

// Nobody decides alone. Round one: rank 0 says where the memory is. Round two: every rank says whether it could open it
// and allocate its region. In both, a rank that has failed says so instead of staying away.
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
    failure = complaint([&] {
      segment.emplace(Segment::create(layout.total_bytes));
      address = segment->address();
    });
  }
  address = exchange(group, "shared_memory/address", address).front();

  if (failure.empty()) {
    failure = complaint([&] {
      if (address.empty()) throw std::runtime_error("rank 0 could not make shared memory");
      if (!segment) segment.emplace(Segment::open(address));
      segment->allocate(layout.region(group.rank), layout.region_bytes);
    });
  }
  const auto failures = exchange(group, "shared_memory/failure", failure);
  for (int rank = 0; rank < group.size; ++rank) {
    if (failures[rank].empty()) continue;
    why = "rank " + std::to_string(rank) + ": " + failures[rank];
    return nullptr;
  }
  segment->close_descriptor();
  segment->prefault();
  return std::make_unique<SharedMemory>(std::move(*segment), layout, group.rank, group.size);
}

}  // namespace cpudist::shared_memory
