// What the collectives take, without torch: bench RANKS [REPEATS]. Rank r runs on processor r, while there are enough.
//
// The candidates take turns in one run, because the machine's speed changes from minute to minute. The last one copies
// the same bytes in each process. Buffers change between calls. Prints medians in microseconds.
// Compiled with rendezvous.cpp and shared_memory/unity.cpp of csrc.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "ranks.hpp"

using namespace cpudist;
using namespace cpudist::testing;

namespace {

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

struct Candidate {
  const char* name;
  std::function<void(std::byte* data, std::byte* other, size_t bytes)> call;
};

void bench(const std::filesystem::path& folder, int rank, int ranks, int repeats) {
  cpu_set_t processors;
  CPU_ZERO(&processors);
  CPU_SET(static_cast<size_t>(rank) % std::thread::hardware_concurrency(), &processors);
  sched_setaffinity(0, sizeof processors, &processors);

  const auto transport = make_transport(folder, rank, ranks);
  const auto run = [](RequestPtr request) { complete(*request); };
  const auto share = [&](size_t bytes) { return bytes / sizeof(float) / static_cast<size_t>(ranks); };
  std::vector<Candidate> candidates = {
      {"allreduce fp32",
       [&](std::byte* data, std::byte*, size_t bytes) {
         run(transport->allreduce(data, data, bytes / 4, DataType::kFloat32, Reduction::kSum));
       }},
      {"allreduce bf16",
       [&](std::byte* data, std::byte*, size_t bytes) {
         run(transport->allreduce(data, data, bytes / 2, DataType::kBFloat16, Reduction::kSum));
       }},
      {"broadcast",
       [&](std::byte* data, std::byte*, size_t bytes) {
         run(transport->broadcast(data, bytes / 4, DataType::kFloat32, 0));
         run(transport->barrier());
       }},
      {"allgather",
       [&](std::byte* data, std::byte* other, size_t bytes) {
         std::vector<void*> outputs;
         for (int peer = 0; peer < ranks; ++peer)
           outputs.push_back(other + static_cast<size_t>(peer) * share(bytes) * 4);
         run(transport->allgather(data, outputs, std::vector<size_t>(static_cast<size_t>(ranks), share(bytes)),
                                  DataType::kFloat32));
       }},
      {"reduce_scatter",
       [&](std::byte* data, std::byte* other, size_t bytes) {
         std::vector<const void*> inputs;
         for (int peer = 0; peer < ranks; ++peer) inputs.push_back(data + static_cast<size_t>(peer) * share(bytes) * 4);
         run(transport->reduce_scatter(inputs, other, std::vector<size_t>(static_cast<size_t>(ranks), share(bytes)),
                                       DataType::kFloat32, Reduction::kSum));
       }},
      {"alltoall",
       [&](std::byte* data, std::byte* other, size_t bytes) {
         const std::vector<size_t> counts(static_cast<size_t>(ranks), share(bytes));
         std::vector<const void*> inputs;
         std::vector<void*> outputs;
         for (int peer = 0; peer < ranks; ++peer) {
           inputs.push_back(data + static_cast<size_t>(peer) * share(bytes) * 4);
           outputs.push_back(other + static_cast<size_t>(peer) * share(bytes) * 4);
         }
         run(transport->alltoall(inputs, counts, outputs, counts, DataType::kFloat32));
       }},
      {"memcpy", [](std::byte* data, std::byte* other, size_t bytes) { std::memcpy(other, data, bytes); }},
  };

  if (rank == 0) {
    std::printf("%10s", "bytes");
    for (const auto& candidate : candidates) std::printf(" %14s", candidate.name);
    std::printf("   (us, %d ranks)\n", ranks);
  }
  for (const size_t bytes :
       {size_t{8}, size_t{1} << 10, size_t{8} << 10, size_t{16} << 10, size_t{32} << 10, size_t{64} << 10,
        size_t{256} << 10, size_t{1} << 20, size_t{4} << 20, size_t{25} << 20, size_t{96} << 20}) {
    constexpr size_t kBuffers = 4;
    std::vector<std::vector<std::byte>> buffers(kBuffers + 1, std::vector<std::byte>(bytes));
    const int calls = bytes > (1 << 20) ? 1 : static_cast<int>(std::min<size_t>(1000, (4 << 20) / bytes));
    const int rounds = std::max(3, repeats / (1 + static_cast<int>(bytes >> 22)));
    std::vector<std::vector<double>> times(candidates.size());
    size_t next = 0;
    for (int round = 0; round < rounds; ++round) {
      for (size_t which = 0; which < candidates.size(); ++which) {
        complete(*transport->barrier());
        const auto begin = Clock::now();
        for (int call = 0; call < calls; ++call) {
          candidates[which].call(buffers[next++ % kBuffers].data(), buffers[kBuffers].data(), bytes);
        }
        times[which].push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / calls);
      }
    }
    if (rank != 0) continue;
    std::printf("%10zu", bytes);
    for (const auto& values : times) std::printf(" %14.2f", median(values));
    std::printf("\n");
    std::fflush(stdout);
  }
}

}  // namespace

int main(int count, char** arguments) {
  const int ranks = count > 1 ? std::atoi(arguments[1]) : 2;
  const int repeats = count > 2 ? std::atoi(arguments[2]) : 40;
  return in_a_folder([&](const auto& folder) {
    return run_ranks(ranks, false, [&](int rank) { bench(folder, rank, ranks, repeats); });
  });
}
