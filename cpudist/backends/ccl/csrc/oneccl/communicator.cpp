#include "communicator.hpp"

#include <iostream>
#include <map>
#include <sstream>
#include <thread>

#include "transport.hpp"

namespace cpudist::oneccl {

namespace {

// Calls in flight at once, such as the pieces of a large tensor. Inside one machine one at a time is fastest because it
// stays in the caches (96 MB: 8.7 ms one at a time, 12.5 ms with four, 33 ms with all). Across hosts pieces must
// overlap to fill the link; the number is limited because some hold a copy of their data.
constexpr size_t kMostInFlightOnOneNode = 1;
constexpr size_t kMostInFlightAcrossNodes = 8;

// oneCCL's rendezvous over the group's store, which needs no second server and no choice of network interface.
class GroupKvs final : public ccl::kvs_interface {
 public:
  explicit GroupKvs(KeyValueStore* store) : store_(store) {}

  // An empty answer means "not there yet". oneCCL then asks again at once, so this sleeps to spare the store.
  ccl::vector_class<char> get(const ccl::string_class& key) override {
    if (!store_) return {};
    const auto value = store_->get(std::string(key.c_str()));
    if (!value) {
      std::this_thread::sleep_for(Milliseconds(1));
      return {};
    }
    return {value->begin(), value->end()};
  }

  void set(const ccl::string_class& key, const ccl::vector_class<char>& data) override {
    if (store_) store_->set(std::string(key.c_str()), std::string(data.begin(), data.end()));
  }

  int get_id() override { return 0; }

  // A communicator removes its keys when it is destroyed, but the store's server may have ended by then.
  void close() { store_ = nullptr; }

 private:
  KeyValueStore* store_;
};

// The communicators that no group of this process uses any more, by id. Never destroyed, because at the end of the
// process oneCCL may have ended before.
std::map<std::string, std::unique_ptr<ccl::communicator>>& unused() {
  static auto& communicators = *new std::map<std::string, std::unique_ptr<ccl::communicator>>;
  return communicators;
}

// Frees the communicators that all their ranks have stopped using, if all those ranks call this now, in the same order
// on all ranks. Returns an id for a new communicator, the same on all ranks.
std::string free_unused(const Group& group) {
  std::string text = std::to_string(random_number());
  for (const auto& [unused_id, communicator] : unused()) text += ' ' + unused_id;
  std::string id;
  std::map<std::string, int> ranks;  // number of ranks that no longer use it, by id
  for (const auto& listed : all_gather(group, "communicators", text)) {
    std::istringstream words(listed);
    std::string proposed, other;
    words >> proposed;
    if (id.empty()) id = proposed;  // rank 0's
    while (words >> other) ++ranks[other];
  }
  std::erase_if(unused(), [&](const auto& entry) { return ranks[entry.first] == entry.second->size(); });
  return id;
}

}  // namespace

// Starts oneCCL without its line for each setting that is not at its default. oneCCL writes these lines to standard
// output before it has read CCL_LOG_LEVEL.
void start() {
  std::stringstream output;
  auto* const screen = std::cout.rdbuf(output.rdbuf());
  try {
    ccl::init();
  } catch (...) {
    std::cout.rdbuf(screen);
    throw;
  }
  std::cout.rdbuf(screen);
  for (std::string line; std::getline(output, line);) {
    if (line.find("|CCL_WARN| value of ") == std::string::npos) std::cout << line << std::endl;
  }
}

std::string library_version() { return ccl::get_library_version().full; }

Communicator::Communicator(const Group& group)
    : order(group.on_one_node() ? kMostInFlightOnOneNode : kMostInFlightAcrossNodes),
      several_(!group.on_one_node()),
      round_bytes_(group.round_bytes) {
  id_ = free_unused(group);
  const auto kvs = std::make_shared<GroupKvs>(group.store);
  raw_ = std::make_unique<ccl::communicator>(ccl::create_communicator(group.size, group.rank, kvs));
  kvs->close();
}

Communicator::~Communicator() { unused().emplace(std::move(id_), std::move(raw_)); }

}  // namespace cpudist::oneccl
