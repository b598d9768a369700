#include "mailbox.hpp"

#include <algorithm>
#include <cstring>

#include <ATen/core/grad_mode.h>

#include "endpoint.hpp"

namespace cpudist {

SendWork::SendWork(Call call, std::shared_ptr<Endpoint> endpoint, const at::Tensor& tensor, int destination, int tag)
    : AsyncWork(std::move(call), std::move(endpoint), c10d::OpType::SEND, "ccl:send", {tensor}, {tensor}),
      buffer_(tensor.contiguous()),
      destination_(destination),
      header_{tag, static_cast<int64_t>(buffer_.nbytes())} {}

void SendWork::start() { endpoint_->mailbox().senders(destination_).push_back(this); }

Progress SendWork::advance() {
  auto& queue = endpoint_->mailbox().senders(destination_);
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

void RecvWork::start() { endpoint_->mailbox().post(*this); }

Progress RecvWork::advance() {
  const bool moved = !arrived_ && endpoint_->mailbox().progress();
  if (!arrived_) return moved ? Progress::kMoved : Progress::kWaiting;
  finish();
  return Progress::kComplete;
}

void RecvWork::finish() {
  try {
    if (caller_ && !failure_) {
      const at::ThreadLocalStateGuard as_caller(*caller_);
      const at::NoGradGuard no_grad;
      tensor_.copy_(buffer_);
    }
  } catch (...) {
    failure_ = std::current_exception();
  }
}

void RecvWork::release() {
  tensor_.reset();
  buffer_.reset();
  caller_.reset();
}

bool RecvWork::accepts(int source, int64_t tag) const {
  return (source_ == kAnySource || source_ == source) && tag_ == tag;
}

void RecvWork::fail(int64_t bytes) {
  failure_ = std::make_exception_ptr(
      std::runtime_error("ccl: " + call().describe() + ": the message from rank " + std::to_string(source_) + " (tag " +
                         std::to_string(tag_) + ") has " + std::to_string(bytes) + " bytes, the tensor to receive it " +
                         std::to_string(this->bytes()) + "; receive it into one as large"));
}

Mailbox::Mailbox(Transport& transport, int rank, int size)
    : transport_(transport), rank_(rank), senders_(size), channels_(size) {}

void Mailbox::post(RecvWork& receiver) {
  for (int source = 0; source < static_cast<int>(channels_.size()); ++source) {
    auto& unclaimed = channels_[source].unclaimed;
    const auto message = std::find_if(unclaimed.begin(), unclaimed.end(), [&](const Message& candidate) {
      return receiver.accepts(source, candidate.header.tag);
    });
    if (message == unclaimed.end()) continue;
    receiver.source_ = source;
    receiver.arrived_ = true;
    if (message->header.bytes != receiver.bytes()) {
      receiver.fail(message->header.bytes);
    } else if (message->header.bytes > 0) {
      std::memcpy(receiver.buffer_.data_ptr(), message->bytes.get(), message->header.bytes);
    }
    unclaimed.erase(message);
    return;
  }
  waiting_.push_back(&receiver);
}

bool Mailbox::progress() {
  bool moved = false;
  for (int source = 0; source < static_cast<int>(channels_.size()); ++source) {
    if (source != rank_) moved = read(source) || moved;
  }
  return moved;
}

// Advances one peer's channel without waiting; returns whether something has moved.
bool Mailbox::read(int source) {
  auto& channel = channels_[source];
  using State = Channel::State;
  for (bool moved = false;; moved = true) {
    switch (channel.state) {
      case State::kIdle:
        if (!awaited(source)) return moved;
        channel.request = transport_.recv(&channel.header, sizeof channel.header, source);
        channel.state = State::kHeader;
        break;
      case State::kHeader:
      case State::kBody: {
        const auto progress = channel.request->test();
        if (progress != Progress::kComplete) return moved || progress == Progress::kMoved;
        channel.request.reset();
        if (channel.state == State::kHeader) {
          channel.state = channel.header.tag == kFarewellTag ? State::kClosed : State::kHeld;
        } else {
          deliver(source);
        }
        break;
      }
      case State::kHeld:
        place(source);
        if (channel.state == State::kHeld) return moved;
        break;
      case State::kClosed: return moved;
    }
  }
}

// Starts to read the message whose header has come: into its receiver's buffer, or into a new one if a receiver waits
// for a later message. Otherwise the message stays with its sender.
void Mailbox::place(int source) {
  auto& channel = channels_[source];
  const auto bytes = channel.header.bytes;
  channel.receiver = claim(source, channel.header.tag);
  if (!channel.receiver && !awaited(source)) return;
  char* target = nullptr;
  if (channel.receiver && channel.receiver->bytes() == bytes) {
    target = static_cast<char*>(channel.receiver->buffer_.data_ptr());
  } else {
    channel.body = std::make_unique_for_overwrite<char[]>(bytes);
    target = channel.body.get();
  }
  if (bytes == 0) {
    deliver(source);
    return;
  }
  channel.request = transport_.recv(target, bytes, source);
  channel.state = Channel::State::kBody;
}

void Mailbox::deliver(int source) {
  auto& channel = channels_[source];
  if (auto* receiver = channel.receiver) {
    if (receiver->bytes() != channel.header.bytes) receiver->fail(channel.header.bytes);
    receiver->arrived_ = true;
  } else {
    channel.unclaimed.push_back({channel.header, std::move(channel.body)});
    // A receive that asked for it while it was being read is in the queue already.
    if (auto* late = claim(source, channel.header.tag)) post(*late);
  }
  channel.receiver = nullptr;
  channel.body.reset();
  channel.state = Channel::State::kIdle;
}

// Removes the first receiver of a message from the queue and returns it; nullptr if there is none.
RecvWork* Mailbox::claim(int source, int64_t tag) {
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const RecvWork* receiver) { return receiver->accepts(source, tag); });
  if (found == waiting_.end()) return nullptr;
  auto* receiver = *found;
  waiting_.erase(found);
  receiver->source_ = source;
  return receiver;
}

bool Mailbox::awaited(int source) const {
  return std::any_of(waiting_.begin(), waiting_.end(), [&](const RecvWork* receiver) {
    return receiver->source_ == kAnySource || receiver->source_ == source;
  });
}

bool Mailbox::listening() const {
  return std::any_of(channels_.begin(), channels_.end(),
                     [](const Channel& channel) { return channel.request != nullptr; });
}

}  // namespace cpudist
