#include "tag_matching.hpp"

#include <algorithm>
#include <cstring>

#include "endpoint.hpp"

namespace cpudist {

SendWork::SendWork(Call call, std::shared_ptr<Endpoint> endpoint, const at::Tensor& tensor, int destination, int tag)
    : AsyncWork(std::move(call), std::move(endpoint), c10d::OpType::SEND, "ccl:send", {tensor}, {tensor}),
      buffer_(tensor.contiguous()),
      destination_(destination),
      header_{tag, static_cast<int64_t>(buffer_.nbytes())} {}

void SendWork::start() { endpoint_->matcher().senders(destination_).push_back(this); }

Progress SendWork::advance() {
  auto& queue = endpoint_->matcher().senders(destination_);
  if (queue.front() != this) return Progress::kWaiting;
  auto& transport = endpoint_->transport();
  if (state_ == State::kQueued) {
    request_ = transport.send(&header_, sizeof header_, destination_);
    state_ = State::kHeader;
  }
  for (;;) {
    const auto progress = request_->test();
    if (progress != Progress::kComplete) return progress;
    if (state_ == State::kBody || header_.bytes == 0) break;
    request_ = transport.send(buffer_.data_ptr(), header_.bytes, destination_);
    state_ = State::kBody;
  }
  queue.pop_front();
  request_.reset();
  return Progress::kComplete;
}

void SendWork::release() { buffer_.reset(); }

RecvWork::RecvWork(Call call, std::shared_ptr<Endpoint> endpoint, const at::Tensor& tensor, int source, int tag)
    : AsyncWork(std::move(call), std::move(endpoint),
                source == kAnySource ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV,
                source == kAnySource ? "ccl:recvAnySource" : "ccl:recv", {tensor}, {tensor}),
      tensor_(tensor),
      buffer_(tensor),
      source_(source),
      tag_(tag) {
  if (!tensor.is_contiguous()) {
    buffer_ = at::empty(tensor.sizes(), tensor.options());
    caller_.emplace();
  }
}

void RecvWork::start() { endpoint_->matcher().post(*this); }

Progress RecvWork::advance() {
  const bool moved = !arrived_ && endpoint_->matcher().progress();
  if (!arrived_) return moved ? Progress::kMoved : Progress::kWaiting;
  if (caller_ && !failure_) as_caller([this] { tensor_.copy_(buffer_); });
  return Progress::kComplete;
}

void RecvWork::release() {
  tensor_.reset();
  buffer_.reset();
}

bool RecvWork::accepts(int source, int64_t tag) const {
  return (source_ == kAnySource || source_ == source) && tag_ == tag;
}

void RecvWork::fail(int64_t bytes) {
  failure_ = std::make_exception_ptr(
      std::runtime_error("ccl: " + call().describe() + ": the message from rank " + std::to_string(source_) + " (tag " +
                         std::to_string(tag_) + ") has " + std::to_string(bytes) + " bytes, but its tensor " +
                         std::to_string(this->bytes()) + "; receive it into a tensor of that size"));
}

TagMatcher::TagMatcher(Transport& transport, int rank, int size)
    : transport_(transport), rank_(rank), senders_(size), incoming_(size) {}

void TagMatcher::post(RecvWork& receiver) {
  for (int source = 0; source < static_cast<int>(incoming_.size()); ++source) {
    auto& unexpected = incoming_[source].unexpected;
    const auto message = std::find_if(unexpected.begin(), unexpected.end(), [&](const Message& candidate) {
      return receiver.accepts(source, candidate.header.tag);
    });
    if (message == unexpected.end()) continue;
    receiver.source_ = source;
    receiver.arrived_ = true;
    if (message->header.bytes != receiver.bytes()) {
      receiver.fail(message->header.bytes);
    } else if (message->header.bytes > 0) {
      std::memcpy(receiver.buffer_.data_ptr(), message->bytes.get(), message->header.bytes);
    }
    unexpected.erase(message);
    return;
  }
  posted_.push_back(&receiver);
}

bool TagMatcher::progress() {
  bool moved = false;
  for (int source = 0; source < static_cast<int>(incoming_.size()); ++source) {
    if (source != rank_) moved = read(source) || moved;
  }
  return moved;
}

// Advances the messages from one peer without waiting; returns whether something has moved.
bool TagMatcher::read(int source) {
  auto& incoming = incoming_[source];
  using State = Incoming::State;
  for (bool moved = false;; moved = true) {
    switch (incoming.state) {
      case State::kIdle:
        if (!awaited(source)) return moved;
        incoming.request = transport_.recv(&incoming.header, sizeof incoming.header, source);
        incoming.state = State::kHeader;
        break;
      case State::kHeader:
      case State::kBody: {
        const auto progress = incoming.request->test();
        if (progress != Progress::kComplete) return moved || progress == Progress::kMoved;
        incoming.request.reset();
        if (incoming.state == State::kHeader) {
          incoming.state = incoming.header.tag == kDisconnectTag ? State::kClosed : State::kHeld;
        } else {
          deliver(source);
        }
        break;
      }
      case State::kHeld:
        place(source);
        if (incoming.state == State::kHeld) return moved;
        break;
      case State::kClosed: return moved;
    }
  }
}

// Starts to read the message whose header has arrived, into the buffer of the matching receiver. A message of another
// size, or one ahead of the message that a receiver waits for, goes to a new buffer. Others stay with their sender.
void TagMatcher::place(int source) {
  auto& incoming = incoming_[source];
  const auto bytes = incoming.header.bytes;
  incoming.receiver = match_posted(source, incoming.header.tag);
  if (!incoming.receiver && !awaited(source)) return;
  char* target = nullptr;
  if (incoming.receiver && incoming.receiver->bytes() == bytes) {
    target = static_cast<char*>(incoming.receiver->buffer_.data_ptr());
  } else {
    incoming.body = std::make_unique_for_overwrite<char[]>(bytes);
    target = incoming.body.get();
  }
  if (bytes == 0) {
    deliver(source);
    return;
  }
  incoming.request = transport_.recv(target, bytes, source);
  incoming.state = Incoming::State::kBody;
}

void TagMatcher::deliver(int source) {
  auto& incoming = incoming_[source];
  if (auto* receiver = incoming.receiver) {
    if (receiver->bytes() != incoming.header.bytes) receiver->fail(incoming.header.bytes);
    receiver->arrived_ = true;
  } else {
    incoming.unexpected.push_back({incoming.header, std::move(incoming.body)});
    // A matching receive that was posted while the message was being read is in the queue already.
    if (auto* late = match_posted(source, incoming.header.tag)) post(*late);
  }
  incoming.receiver = nullptr;
  incoming.body.reset();
  incoming.state = Incoming::State::kIdle;
}

// Removes the first receiver that accepts the message from the queue and returns it; nullptr if none accepts it.
RecvWork* TagMatcher::match_posted(int source, int64_t tag) {
  const auto found = std::find_if(posted_.begin(), posted_.end(),
                                  [&](const RecvWork* receiver) { return receiver->accepts(source, tag); });
  if (found == posted_.end()) return nullptr;
  auto* receiver = *found;
  posted_.erase(found);
  receiver->source_ = source;
  return receiver;
}

bool TagMatcher::awaited(int source) const {
  return std::any_of(posted_.begin(), posted_.end(), [&](const RecvWork* receiver) {
    return receiver->source_ == kAnySource || receiver->source_ == source;
  });
}

bool TagMatcher::listening() const {
  return std::any_of(incoming_.begin(), incoming_.end(),
                     [](const Incoming& incoming) { return incoming.request != nullptr; });
}

}  // namespace cpudist
