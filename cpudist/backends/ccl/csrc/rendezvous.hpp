// How the ranks of a group exchange values before they have a transport.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport.hpp"

namespace cpudist {

// Keys and values that all ranks of a group see.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Returns nothing until the key is set; does not wait.
  virtual std::optional<std::string> get(const std::string& key) = 0;
};

// The part of a store in which all keys begin with a prefix.
class PrefixStore final : public KeyValueStore {
 public:
  PrefixStore(KeyValueStore* store, std::string prefix) : store_(store), prefix_(std::move(prefix) + "/") {}
  void set(const std::string& key, const std::string& value) override { store_->set(prefix_ + key, value); }
  std::optional<std::string> get(const std::string& key) override { return store_->get(prefix_ + key); }

 private:
  KeyValueStore* store_;
  std::string prefix_;
};

// A group whose transport is being created. All members but `rank` are the same on all ranks.
struct Group {
  int rank;
  int size;
  std::vector<int> nodes;      // nodes[r]: number of the machine of rank r; ranks with the same number can share memory
  Milliseconds timeout;        // of the rendezvous
  KeyValueStore* store;        // of this group alone; used while the transport is created, never afterwards
  Wire wire = Wire::kFloat32;  // how allreduces of float32 cross the network
  // Most bytes of a message, or of a rank's part of an alltoall, in one call of oneCCL or MPI: MPI counts in 32 bits.
  size_t round_bytes = size_t{1} << 30;
  // Number of successive calls of the group that have different tags over MPI, at most 15.
  size_t mpi_slots = 15;

  bool on_one_node() const;
};

// Returns a random 64-bit number, which no other process is likely to draw. Throws std::runtime_error.
uint64_t random_number();

// Publishes this rank's value and returns the values of all ranks in their order. A key can be used once per store.
// Throws TransportError, which names the missing rank, after the group's timeout.
std::vector<std::string> all_gather(const Group& group, const std::string& key, const std::string& value);

}  // namespace cpudist
