// What all works of one group share: its transport, and the messages between two ranks.
#pragma once

#include <atomic>

#include "mailbox.hpp"
#include "transport.hpp"

namespace cpudist {

class Endpoint {
 public:
  Endpoint(TransportPtr transport, int rank, int size);
  // Keeps everything for ever where a peer may still write to it.
  ~Endpoint();

  // From here on no work starts, and everything is kept for ever: freeing a transport may need the peers.
  void abort() { aborted_ = true; }
  bool aborted() const { return aborted_; }

  Transport& transport() { return *transport_; }
  Mailbox& mailbox() { return *mailbox_; }

 private:
  TransportPtr transport_;
  std::unique_ptr<Mailbox> mailbox_;
  std::atomic<bool> aborted_{false};
};

}  // namespace cpudist
