#include "endpoint.hpp"

#include "engine.hpp"

namespace cpudist {

Endpoint::Endpoint(TransportPtr transport, int rank, int size)
    : transport_(std::move(transport)), mailbox_(std::make_unique<Mailbox>(*transport_, rank, size)) {}

Endpoint::~Endpoint() {
  // A message header may still be awaited, and after a failure anything may still be under way.
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
