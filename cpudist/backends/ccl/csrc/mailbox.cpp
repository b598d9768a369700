#include "mailbox.hpp"

#include <algorithm>

#include <c10/util/Exception.h>

#include "communicator.hpp"

namespace cpudist {

void Transfer::begin(void* data, size_t bytes) {
  data_ = static_cast<char*>(data);
  left_ = bytes;
}

bool Transfer::advance(const Issue& issue) {
  // MPI counts in 32 bits, so a larger message goes in pieces.
  constexpr size_t kLargestPiece = size_t{1} << 30;
  for (;;) {
    if (piece_ && !piece_->test()) return false;
    piece_.reset();
    if (left_ == 0) return true;
    const size_t bytes = std::min(left_, kLargestPiece);
    piece_ = issue(data_, bytes);
    data_ += bytes;
    left_ -= bytes;
  }
}

SendOperation::SendOperation(Call call, std::shared_ptr<Communicator> communicator, const at::Tensor& tensor,
                             int destination, int tag)
    : Operation(std::move(call), c10d::OpType::SEND, "ccl:send", {tensor}, {tensor}),
      communicator_(std::move(communicator)),
      buffer_(tensor.contiguous()),
      destination_(destination),
      header_{tag, static_cast<int64_t>(buffer_.nbytes())} {}

bool SendOperation::advance() {
  auto& line = communicator_->mailbox().senders(destination_);
  if (state_ == State::kNew) {
    line.push_back(this);
    state_ = State::kInLine;
  }
  if (line.front() != this) return false;
  const auto issue = [this](char* data, size_t bytes) {
    return ccl::send(data, bytes, ccl::datatype::int8, destination_, communicator_->raw());
  };
  if (state_ == State::kInLine) {
    transfer_.begin(&header_, sizeof header_);
    state_ = State::kHeader;
  }
  if (state_ == State::kHeader) {
    if (!transfer_.advance(issue)) return false;
    transfer_.begin(buffer_.data_ptr(), header_.bytes);
    state_ = State::kBody;
  }
  if (!transfer_.advance(issue)) return false;
  line.pop_front();
  return true;
}

ReceiveOperation::ReceiveOperation(Call call, std::shared_ptr<Communicator> communicator, const at::Tensor& tensor,
                                   int source, int tag)
    : Operation(std::move(call), source == kAnySource ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV, "ccl:recv",
                {tensor}, {tensor}),
      communicator_(std::move(communicator)),
      tensor_(tensor),
      buffer_(tensor.contiguous()),
      source_(source),
      tag_(tag) {}

bool ReceiveOperation::advance() {
  auto& mailbox = communicator_->mailbox();
  if (!posted_) {
    posted_ = true;
    mailbox.post(*this);
  }
  if (!arrived_) mailbox.progress();
  if (!arrived_) return false;
  if (!failure_ && !buffer_.is_same(tensor_)) tensor_.copy_(buffer_);
  return true;
}

bool ReceiveOperation::accepts(int source, int64_t tag) const {
  return (source_ == kAnySource || source_ == source) && tag_ == tag;
}

void ReceiveOperation::fail(int64_t bytes) {
  failure_ = std::make_exception_ptr(std::runtime_error(
      "ccl: " + call().describe() + ": the message from rank " + std::to_string(source_) + " (tag " +
      std::to_string(tag_) + ") has " + std::to_string(bytes) + " bytes, the tensor to receive it " +
      std::to_string(buffer_.nbytes())));
}

Mailbox::Mailbox(const ccl::communicator& communicator)
    : communicator_(communicator), senders_(communicator.size()), channels_(communicator.size()) {}

void Mailbox::post(ReceiveOperation& receiver) {
  for (int source = 0; source < static_cast<int>(channels_.size()); ++source) {
    auto& unclaimed = channels_[source].unclaimed;
    const auto message = std::find_if(unclaimed.begin(), unclaimed.end(), [&](const Message& candidate) {
      return receiver.accepts(source, candidate.header.tag);
    });
    if (message == unclaimed.end()) continue;
    receiver.source_ = source;
    receiver.arrived_ = true;
    if (message->header.bytes != static_cast<int64_t>(receiver.buffer_.nbytes())) {
      receiver.fail(message->header.bytes);
    } else if (message->header.bytes > 0) {
      std::memcpy(receiver.buffer_.data_ptr(), message->bytes.data_ptr(), message->header.bytes);
    }
    unclaimed.erase(message);
    return;
  }
  waiting_.push_back(&receiver);
}

void Mailbox::progress() {
  for (int source = 0; source < static_cast<int>(channels_.size()); ++source) {
    if (source != communicator_.rank()) read(source);
  }
}

// Takes one peer's channel as far as it goes without waiting.
void Mailbox::read(int source) {
  auto& channel = channels_[source];
  using State = Channel::State;
  const auto issue = [&](char* data, size_t bytes) {
    return ccl::recv(data, bytes, ccl::datatype::int8, source, communicator_);
  };
  for (;;) {
    switch (channel.state) {
      case State::kIdle:
        if (!awaited(source)) return;
        channel.transfer.begin(&channel.header, sizeof channel.header);
        channel.state = State::kHeader;
        break;
      case State::kHeader:
        if (!channel.transfer.advance(issue)) return;
        channel.state = State::kHeld;
        break;
      case State::kHeld:
        place(source);
        if (channel.state == State::kHeld) return;
        break;
      case State::kBody:
        if (!channel.transfer.advance(issue)) return;
        deliver(source);
        channel.state = State::kIdle;
        break;
    }
  }
}

// Finds a place for the message whose header has come: its receiver's buffer, or one of its own when somebody waits for
// a message behind it. Otherwise it stays with its sender.
void Mailbox::place(int source) {
  auto& channel = channels_[source];
  channel.receiver = claim(source, channel.header.tag);
  if (!channel.receiver && !awaited(source)) return;
  const bool fits =
      channel.receiver && static_cast<int64_t>(channel.receiver->buffer_.nbytes()) == channel.header.bytes;
  channel.body = fits ? channel.receiver->buffer_ : at::empty({channel.header.bytes}, at::kByte);
  channel.transfer.begin(channel.body.data_ptr(), channel.header.bytes);
  channel.state = Channel::State::kBody;
}

void Mailbox::deliver(int source) {
  auto& channel = channels_[source];
  if (auto* receiver = channel.receiver) {
    if (static_cast<int64_t>(receiver->buffer_.nbytes()) != channel.header.bytes) receiver->fail(channel.header.bytes);
    receiver->arrived_ = true;
  } else {
    channel.unclaimed.push_back({channel.header, channel.body});
    // Whoever asked for it while it was being read stands in line already.
    if (auto* late = claim(source, channel.header.tag)) post(*late);
  }
  channel.receiver = nullptr;
  channel.body.reset();
}

// The first in line for a message, taken out of the line.
ReceiveOperation* Mailbox::claim(int source, int64_t tag) {
  const auto found = std::find_if(waiting_.begin(), waiting_.end(), [&](const ReceiveOperation* receiver) {
    return receiver->accepts(source, tag);
  });
  if (found == waiting_.end()) return nullptr;
  auto* receiver = *found;
  waiting_.erase(found);
  receiver->source_ = source;
  return receiver;
}

bool Mailbox::awaited(int source) const {
  return std::any_of(waiting_.begin(), waiting_.end(), [&](const ReceiveOperation* receiver) {
    return receiver->source_ == kAnySource || receiver->source_ == source;
  });
}

bool Mailbox::listening() const {
  return std::any_of(channels_.begin(), channels_.end(), [](const Channel& channel) {
    return channel.state == Channel::State::kHeader || channel.state == Channel::State::kBody;
  });
}

}  // namespace cpudist
