// Which way an allreduce goes inside a machine, by the NUMA nodes that 4 ranks are told: levels. Exit status 0 when all
// went as it must.
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>

#include "choice.hpp"
#include "oneccl/transport.hpp"
#include "ranks.hpp"
#include "refuse.hpp"

namespace cpudist {

TransportPtr oneccl::create(const Group&) { throw TransportError("the ranks can share memory"); }

}  // namespace cpudist

using namespace cpudist;
using namespace cpudist::testing;

namespace {

constexpr int kRanks = 4;
const std::string kOneLevel = "shared_memory";
const std::string kTwoLevels = "numa_hierarchy";
constexpr size_t kLarge = 1'000'003;
constexpr size_t kSmall = 1000;

// The only transport that has been used since the last time.
std::string carrier() {
  static std::vector<Traffic> before;
  std::string name;
  auto now = traffic();
  for (const auto& used : now) {
    const bool grew = std::none_of(before.begin(), before.end(), [&](const Traffic& old) {
      return old.transport == used.transport && old.calls == used.calls;
    });
    if (grew) name += used.transport;
  }
  before = std::move(now);
  return name;
}

// An allreduce of 1, 4, 7 and 10.
template <typename T>
void check(Transport& transport, int rank, DataType type, size_t count, Reduction reduction, T expected,
           const std::string& way) {
  std::vector<T> values(count, static_cast<T>(1 + 3 * rank));
  complete(*transport.allreduce(values.data(), values.data(), count, type, reduction));
  require(values == std::vector<T>(count, expected), "a wrong result");
  const auto used = carrier();
  require(used == way, std::to_string(count) + " elements went by " + used + ", not by " + way);
}

// bfloat16 as the upper half of a float.
uint16_t bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

void check_ways(Transport& transport, int rank, const std::string& large) {
  check<float>(transport, rank, DataType::kFloat32, kLarge, Reduction::kSum, 22, large);
  check<double>(transport, rank, DataType::kFloat64, kLarge, Reduction::kAverage, 5.5, large);
  check<int32_t>(transport, rank, DataType::kInt32, kLarge, Reduction::kMax, 10, large);
  check<int32_t>(transport, rank, DataType::kInt32, kLarge, Reduction::kAverage, 5, kOneLevel);
  check<float>(transport, rank, DataType::kFloat32, kSmall, Reduction::kSum, 22, kOneLevel);
  std::vector<uint16_t> halves(kLarge, bfloat16(static_cast<float>(rank)));
  complete(*transport.allreduce(halves.data(), halves.data(), kLarge, DataType::kBFloat16, Reduction::kSum));
  require(halves == std::vector<uint16_t>(kLarge, bfloat16(6)), "a wrong sum in bfloat16");
  require(carrier() == kOneLevel, "bfloat16 may be rounded once only");
}

// Random numbers, whose sum depends on the order: all ranks have the same bits, also while several calls are under way.
void check_bits(Transport& transport, int rank) {
  std::mt19937 random(static_cast<unsigned>(rank));
  std::normal_distribution<float> normal;
  std::vector<float> input(kLarge);
  for (float& value : input) value = normal(random);
  std::vector<std::vector<float>> outputs(3, std::vector<float>(kLarge));
  std::vector<RequestPtr> requests;
  for (auto& output : outputs) {
    requests.push_back(transport.allreduce(input.data(), output.data(), kLarge, DataType::kFloat32, Reduction::kSum));
  }
  for (auto& request : requests) complete(*request);
  require(carrier() == kTwoLevels, "this test is of two levels");
  std::vector<float> theirs = outputs[0];
  complete(*transport.broadcast(theirs.data(), kLarge, DataType::kFloat32, 0));
  for (const auto& output : outputs) {
    require(std::memcmp(output.data(), theirs.data(), kLarge * sizeof(float)) == 0, "other bits than on rank 0");
  }
  carrier();
}

// From the moment that the ranks begin to meet for one of the two levels, this rank gets no more memory.
class LastRoom final : public FolderStore {
 public:
  LastRoom(const std::filesystem::path& folder, std::string level)
      : FolderStore(folder), level_(std::move(level) + "/") {}

  void set(const std::string& key, const std::string& value) override {
    if (key.starts_with(level_)) refuse(SYS_fallocate, ENOSPC);
    FolderStore::set(key, value);
  }

 private:
  std::string level_;
};

TransportPtr make(KeyValueStore& store, int rank, std::vector<int> numa_nodes, std::string& warning) {
  const std::vector<int> one_machine(kRanks, 0);
  const Group group{rank, kRanks, one_machine, Milliseconds(60'000), &store, std::move(numa_nodes)};
  return make_transport(group, /*shared_memory=*/true, warning);
}

void check_layouts(const std::filesystem::path& folder, int rank) {
  const std::vector<std::pair<std::vector<int>, std::string>> layouts = {
      {{0, 0, 1, 1}, kTwoLevels},
      {{7, 2, 2, 7}, kTwoLevels},
      {{0, 0, 0, 0}, kOneLevel},
      {{0, 0, 0, 1}, kOneLevel},  // uneven
      {{0, 1, 2, 3}, kOneLevel},  // nothing to add up inside
      {{}, kOneLevel},            // some rank is in several
  };
  for (size_t i = 0; i < layouts.size(); ++i) {
    const auto& [numa_nodes, large] = layouts[i];
    FolderStore store(folder / std::to_string(i));
    std::string warning;
    const auto transport = make(store, rank, numa_nodes, warning);
    require(warning.empty(), warning);
    check_ways(*transport, rank, large);
    if (large == kTwoLevels) check_bits(*transport, rank);
  }
}

void check_failure(const std::filesystem::path& folder, int rank, const char* level) {
  const auto store = rank == 3 ? std::make_unique<LastRoom>(folder, level) : std::make_unique<FolderStore>(folder);
  std::string warning;
  const auto transport = make(*store, rank, {0, 0, 1, 1}, warning);
  require(warning.starts_with("not adding up inside each NUMA node first: rank 1: allocating"),
          "another warning: " + warning);
  check_ways(*transport, rank, kOneLevel);
}

}  // namespace

int main() {
  const std::filesystem::path temporary = std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "/tmp";
  std::string name = temporary / "levels-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) return 1;
  const std::filesystem::path folder = name;
  int failed = run_ranks(kRanks, false, [&](int rank) { check_layouts(folder, rank); });
  for (const char* const level : {"inside", "across"}) {
    failed += run_ranks(kRanks, false, [&](int rank) { check_failure(folder / level, rank, level); });
  }
  std::filesystem::remove_all(folder);
  return failed;
}
