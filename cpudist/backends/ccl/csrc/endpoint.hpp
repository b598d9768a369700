// State that all works of one group share: the group's transport and its tagged messages.
#pragma once

#include <atomic>

#include "tag_matching.hpp"
#include "transport.hpp"

namespace cpudist {

class Endpoint {
 public:
  Endpoint(TransportPtr transport, int rank, int size);
  // Does not free the transport if a peer may still write to the transport's memory.
  ~Endpoint();

  // Refuses further works and never frees the transport, because freeing it may need the peers.
  void abort() { aborted_ = true; }
  bool aborted() const { return aborted_; }

  Transport& transport() { return *transport_; }
  TagMatcher& matcher() { return *matcher_; }

 private:
  TransportPtr transport_;
  std::unique_ptr<TagMatcher> matcher_;
  std::atomic<bool> aborted_{false};
};

}  // namespace cpudist
