// What all works of one group share: its transport, and the messages between two ranks.
#pragma once

#include "mailbox.hpp"
#include "transport.hpp"

namespace cpudist {

class Endpoint {
 public:
  Endpoint(TransportPtr transport, int rank, int size);
  // Keeps everything for ever where a peer may still write to it.
  ~Endpoint();

  Transport& transport() { return *transport_; }
  Mailbox& mailbox() { return *mailbox_; }

 private:
  TransportPtr transport_;
  std::unique_ptr<Mailbox> mailbox_;
};

}  // namespace cpudist
