#include "endpoint.hpp"

#include "engine.hpp"

namespace cpudist {

Endpoint::Endpoint(TransportPtr transport, int rank, int size)
    : transport_(std::move(transport)), mailbox_(std::make_unique<Mailbox>(*transport_, rank, size)) {}

Endpoint::~Endpoint() {
  // A receive of a message header may be posted still, and after a failure any call may be in flight.
  const bool freed = Engine::get().exclusively_if_usable([this] {
    if (aborted_ || mailbox_->listening()) return false;
    mailbox_.reset();
    transport_.reset();
    return true;
  });
  if (freed) return;
  static_cast<void>(mailbox_.release());
  static_cast<void>(transport_.release());
}

}  // namespace cpudist
