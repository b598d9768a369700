#include "endpoint.hpp"

#include "engine.hpp"

namespace cpudist {

Endpoint::Endpoint(TransportPtr transport, int rank, int size)
    : transport_(std::move(transport)), matcher_(std::make_unique<TagMatcher>(*transport_, rank, size)) {}

Endpoint::~Endpoint() {
  // A receive of a message header may be posted still, and after a failure any call may be in flight.
  const bool freed = Engine::get().exclusively_if_usable([this] {
    if (aborted_ || matcher_->listening()) return false;
    matcher_.reset();
    transport_.reset();
    return true;
  });
  if (freed) return;
  static_cast<void>(matcher_.release());
  static_cast<void>(transport_.release());
}

}  // namespace cpudist
