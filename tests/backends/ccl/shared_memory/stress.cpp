// Random calls, checked to the bit: stress threads|processes RANKS CALLS SEED [THREADS OF EACH RANK].
//
// All ranks draw the same calls from the same seed, on several groups at once (everybody, and random subsets), several
// under way at a time and completed in any order. What each rank contributes is a function of call, rank and position,
// so every rank can work out every result by itself, one number at a time and without anything of the library's.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>

#include "ranks.hpp"
#include "reference.hpp"

using namespace cpudist;
using namespace cpudist::testing;

namespace {

// --- what ranks contribute --------------------------------------------------------------------------------------

// Random bits: for floating point all magnitudes, subnormals, infinities and NaNs; now and then only tame ones.
std::vector<std::byte> contribution(uint64_t call, int rank, int part, size_t count, DataType type) {
  std::mt19937_64 random(call * 1'000'003 + static_cast<uint64_t>(rank) * 1'009 + static_cast<uint64_t>(part));
  std::vector<std::byte> bytes(count * size_of(type));
  const bool tame = call % 2 == 0;
  for (size_t at = 0; at < bytes.size(); at += size_of(type)) {
    uint64_t bits = random();
    if (tame && !is_integer(type)) {
      const float value = static_cast<float>(static_cast<int64_t>(bits)) * 0x1p-62f;
      const double wide = value;
      const uint16_t narrow = size_of(type) == 2 ? encode(type, value) : uint16_t{0};
      if (type == DataType::kFloat32) std::memcpy(&bits, &value, sizeof value);
      if (type == DataType::kFloat64) std::memcpy(&bits, &wide, sizeof wide);
      if (size_of(type) == 2) std::memcpy(&bits, &narrow, sizeof narrow);
    }
    std::memcpy(&bytes[at], &bits, size_of(type));
  }
  return bytes;
}

// --- calls ------------------------------------------------------------------------------------------------------

enum class Kind { kBarrier, kBroadcast, kAllreduce, kReduce, kAllgather, kReduceScatter, kAlltoall, kMessages };

struct Drawn {
  uint64_t number;
  Kind kind;
  DataType type;
  Reduction reduction;
  int root;
  bool in_place;
  std::vector<size_t> counts;               // one per rank; the first one where a call has a single count
  std::vector<std::vector<size_t>> matrix;  // of an alltoall: from, to
};

size_t draw_count(std::mt19937_64& random, int ranks) {
  const size_t most = ranks > 4 ? 20'000 : 200'000;
  switch (random() % 8) {
    case 0: return 0;
    case 1: return 1 + random() % 8;
    case 2:
    case 3: return random() % 100;
    case 4:
    case 5: return random() % 5'000;
    case 6: return random() % (most / 4);
    default: return random() % most;
  }
}

Drawn draw(std::mt19937_64& random, uint64_t number, int ranks) {
  Drawn drawn;
  drawn.number = number;
  drawn.kind = static_cast<Kind>(random() % 8);
  drawn.type = static_cast<DataType>(random() % 9);
  drawn.reduction = static_cast<Reduction>(random() % (is_integer(drawn.type) ? 8 : 5));
  drawn.root = static_cast<int>(random() % static_cast<uint64_t>(ranks));
  drawn.in_place = random() % 2 == 0;
  const bool even = random() % 2 == 0;
  for (int rank = 0; rank < ranks; ++rank) {
    drawn.counts.push_back(even && rank > 0 ? drawn.counts[0] : draw_count(random, ranks) / static_cast<size_t>(ranks));
  }
  if (drawn.kind <= Kind::kReduce) drawn.counts[0] = draw_count(random, ranks);
  if (drawn.kind == Kind::kAlltoall || drawn.kind == Kind::kMessages) {
    for (int from = 0; from < ranks; ++from) {
      drawn.matrix.emplace_back();
      for (int to = 0; to < ranks; ++to) {
        drawn.matrix.back().push_back(even ? drawn.counts[0] : draw_count(random, ranks) / static_cast<size_t>(ranks));
      }
    }
  }
  return drawn;
}

// A call under way on one rank: its buffers, and what they must hold in the end.
struct Pending {
  Drawn drawn;
  std::vector<RequestPtr> requests;
  std::vector<std::vector<std::byte>> inputs;
  std::vector<std::vector<std::byte>> outputs;
  std::vector<std::vector<std::byte>> expected;  // of outputs
};

std::vector<std::byte> result_of(const Drawn& drawn, int ranks, int part, size_t count) {
  std::vector<std::vector<std::byte>> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(contribution(drawn.number, rank, part, count, drawn.type));
  const size_t width = size_of(drawn.type);
  std::vector<std::byte> result(count * width);
  std::vector<const std::byte*> sources(static_cast<size_t>(ranks));
  for (size_t at = 0; at < result.size(); at += width) {
    for (size_t rank = 0; rank < all.size(); ++rank) sources[rank] = &all[rank][at];
    reduce_one(drawn.type, drawn.reduction, sources, &result[at]);
  }
  return result;
}

template <typename Pointer, typename Buffers>
std::vector<Pointer> pointers(Buffers& buffers) {
  std::vector<Pointer> result;
  for (auto& buffer : buffers) result.push_back(buffer.data());
  return result;
}

std::unique_ptr<Pending> start(Transport& transport, const Drawn& drawn, int rank, int ranks) {
  auto pending = std::make_unique<Pending>();
  pending->drawn = drawn;
  auto& [_, requests, inputs, outputs, expected] = *pending;
  const size_t count = drawn.counts[0];
  const size_t width = size_of(drawn.type);
  const auto own = [&](int part, size_t length) { return contribution(drawn.number, rank, part, length, drawn.type); };
  const auto empty = [&](size_t length) { return std::vector<std::byte>(length * width); };

  switch (drawn.kind) {
    case Kind::kBarrier: requests.push_back(transport.barrier()); break;
    case Kind::kBroadcast:
      outputs = {rank == drawn.root ? own(0, count) : empty(count)};
      expected = {contribution(drawn.number, drawn.root, 0, count, drawn.type)};
      requests.push_back(transport.broadcast(outputs[0].data(), count, drawn.type, drawn.root));
      break;
    case Kind::kAllreduce:
    case Kind::kReduce: {
      inputs = {own(0, count)};
      outputs = {drawn.in_place ? inputs[0] : empty(count)};
      const auto* input = drawn.in_place ? outputs[0].data() : inputs[0].data();
      const bool receives = drawn.kind == Kind::kAllreduce || rank == drawn.root;
      expected = {receives ? result_of(drawn, ranks, 0, count) : outputs[0]};
      requests.push_back(drawn.kind == Kind::kAllreduce
                             ? transport.allreduce(input, outputs[0].data(), count, drawn.type, drawn.reduction)
                             : transport.reduce(input, receives ? outputs[0].data() : nullptr, count, drawn.type,
                                                drawn.reduction, drawn.root));
      break;
    }
    case Kind::kAllgather: {
      for (int peer = 0; peer < ranks; ++peer) {
        outputs.push_back(empty(drawn.counts[static_cast<size_t>(peer)]));
        expected.push_back(contribution(drawn.number, peer, 0, drawn.counts[static_cast<size_t>(peer)], drawn.type));
      }
      auto& mine = outputs[static_cast<size_t>(rank)];
      inputs = {own(0, drawn.counts[static_cast<size_t>(rank)])};
      if (drawn.in_place) mine = inputs[0];
      requests.push_back(transport.allgather(drawn.in_place ? mine.data() : inputs[0].data(), pointers<void*>(outputs),
                                             drawn.counts, drawn.type));
      break;
    }
    case Kind::kReduceScatter: {
      for (int peer = 0; peer < ranks; ++peer) inputs.push_back(own(peer, drawn.counts[static_cast<size_t>(peer)]));
      const size_t mine = drawn.counts[static_cast<size_t>(rank)];
      outputs = {drawn.in_place ? inputs[static_cast<size_t>(rank)] : empty(mine)};
      expected = {result_of(drawn, ranks, rank, mine)};
      auto sources = pointers<const void*>(inputs);
      if (drawn.in_place) sources[static_cast<size_t>(rank)] = outputs[0].data();
      requests.push_back(
          transport.reduce_scatter(sources, outputs[0].data(), drawn.counts, drawn.type, drawn.reduction));
      break;
    }
    case Kind::kAlltoall:
    case Kind::kMessages: {
      std::vector<size_t> receive_counts;
      const auto& send_counts = drawn.matrix[static_cast<size_t>(rank)];
      for (int peer = 0; peer < ranks; ++peer) {
        const size_t incoming = drawn.matrix[static_cast<size_t>(peer)][static_cast<size_t>(rank)];
        inputs.push_back(own(peer, send_counts[static_cast<size_t>(peer)]));
        outputs.push_back(empty(incoming));
        receive_counts.push_back(incoming);
        expected.push_back(contribution(drawn.number, peer, rank, incoming, drawn.type));
      }
      if (drawn.kind == Kind::kAlltoall) {
        requests.push_back(transport.alltoall(pointers<const void*>(inputs), send_counts, pointers<void*>(outputs),
                                              receive_counts, drawn.type));
        break;
      }
      for (int peer = 0; peer < ranks; ++peer) {
        auto& input = inputs[static_cast<size_t>(peer)];
        auto& output = outputs[static_cast<size_t>(peer)];
        requests.push_back(transport.send(input.data(), input.size(), peer));
        requests.push_back(transport.recv(output.data(), output.size(), peer));
      }
    }
  }
  return pending;
}

// --- a rank -----------------------------------------------------------------------------------------------------

struct Team {
  std::vector<int> members;
  TransportPtr transport;  // null where this rank is not a member
  bool messages_under_way = false;
  int rank = 0;
};

void finish(std::vector<std::pair<Team*, std::unique_ptr<Pending>>>& under_way) {
  // Oldest first, each in turn, as the engine does.
  const auto limit = Clock::now() + std::chrono::minutes(2);
  for (bool all = false; !all;) {
    all = true;
    for (auto& [team, pending] : under_way) {
      for (auto& request : pending->requests) {
        if (request && request->test() == Progress::kComplete) request.reset();
        all = all && !request;
      }
    }
    if (!all) sched_yield();
    if (Clock::now() > limit) throw std::runtime_error("still waiting after two minutes");
  }
  for (auto& [team, pending] : under_way) {
    team->messages_under_way = false;
    for (size_t i = 0; i < pending->outputs.size(); ++i) {
      if (same(pending->drawn.type, pending->outputs[i], pending->expected[i])) continue;
      char text[200];
      std::snprintf(text, sizeof text,
                    "call %lu (kind %d, type %d, reduction %d, in place %d): "
                    "output %zu is wrong",
                    static_cast<unsigned long>(pending->drawn.number), static_cast<int>(pending->drawn.kind),
                    static_cast<int>(pending->drawn.type), static_cast<int>(pending->drawn.reduction),
                    pending->drawn.in_place, i);
      throw std::runtime_error(text);
    }
  }
  under_way.clear();
}

void stress(const std::filesystem::path& folder, int rank, int ranks, int calls, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Team> teams(3);
  for (size_t which = 0; which < teams.size(); ++which) {
    Team& team = teams[which];
    for (int peer = 0; peer < ranks; ++peer) {
      if (which == 0 || random() % 3 > 0) team.members.push_back(peer);
    }
    if (team.members.empty()) team.members.push_back(0);
    const auto place = std::find(team.members.begin(), team.members.end(), rank);
    if (place == team.members.end()) continue;
    team.rank = static_cast<int>(place - team.members.begin());
    team.transport = make_transport(folder / std::to_string(which), team.rank, static_cast<int>(team.members.size()));
  }

  std::vector<std::pair<Team*, std::unique_ptr<Pending>>> under_way;
  for (int call = 0; call < calls; ++call) {
    Team& team = teams[random() % teams.size()];
    const int size = static_cast<int>(team.members.size());
    const Drawn drawn = draw(random, seed * 100'000 + static_cast<uint64_t>(call), size);
    const bool flush = random() % 3 == 0 || (drawn.kind == Kind::kMessages && team.messages_under_way);
    if (flush) finish(under_way);  // drawn by all ranks alike, though nothing needs that
    if (drawn.kind == Kind::kMessages) team.messages_under_way = true;
    if (team.transport) under_way.emplace_back(&team, start(*team.transport, drawn, team.rank, size));
  }
  finish(under_way);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 5) return 2;
  if (count > 5) threads_of_rank = std::atoi(arguments[5]);
  const bool threads = std::strcmp(arguments[1], "threads") == 0;
  const int ranks = std::atoi(arguments[2]);
  const int calls = std::atoi(arguments[3]);
  const auto seed = static_cast<uint64_t>(std::atoll(arguments[4]));
  return in_a_folder([&](const auto& folder) {
    return run_ranks(ranks, threads, [&](int rank) { stress(folder, rank, ranks, calls, seed); });
  });
}
