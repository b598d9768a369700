// Point-to-point messages with tags, over a transport's send and recv, which have none.
//
// Each message goes as a header (tag, size) and, when it is not empty, its bytes. Messages between two ranks keep their
// order, so a receiver reads header after header from a peer and puts aside what nobody has asked for yet. That also
// gives "any source", and an error instead of a buffer overrun where sizes differ.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/ThreadLocalState.h>

#include "transport.hpp"
#include "work.hpp"

namespace cpudist {

class Endpoint;

constexpr int kAnySource = -1;
constexpr int64_t kFarewellTag = -1;  // of the last message to a peer that listens in vain

struct Header {
  int64_t tag;
  int64_t bytes;
};

class SendWork final : public AsyncWork {
 public:
  SendWork(Call call, std::shared_ptr<Endpoint> endpoint, const at::Tensor& tensor, int destination, int tag);
  void start() override;
  Progress advance() override;

 private:
  at::Tensor buffer_;
  int destination_;
  Header header_;
  RequestPtr request_;
  enum class State { kQueued, kHeader, kBody } state_ = State::kQueued;
};

class RecvWork final : public AsyncWork {
 public:
  RecvWork(Call call, std::shared_ptr<Endpoint> endpoint, const at::Tensor& tensor, int source, int tag);
  void start() override;
  Progress advance() override;
  int sourceRank() const override { return source_; }

 private:
  friend class Mailbox;

  bool accepts(int source, int64_t tag) const;
  int64_t bytes() const { return static_cast<int64_t>(buffer_.nbytes()); }
  void fail(int64_t bytes);
  void finish();

  at::Tensor tensor_;
  at::Tensor buffer_;  // tensor_ itself where that is contiguous
  std::optional<at::ThreadLocalState> caller_;
  int source_;  // kAnySource until a message has matched
  int tag_;
  bool arrived_ = false;
};

class Mailbox {
 public:
  Mailbox(Transport& transport, int rank, int size);

  // Those who send to a peer, oldest first; one message at a time, so that they arrive in this order.
  std::deque<const SendWork*>& senders(int destination) { return senders_[destination]; }

  // Gives the receiver a message that came earlier, or lets it wait for one.
  void post(RecvWork& receiver);

  // Reads what has come, as far as somebody waits for it; true when something has moved.
  bool progress();

  // Whether the transport still holds memory of this mailbox, for a message from this source or any.
  bool listens_to(int source) const { return channels_[source].request != nullptr; }
  bool listening() const;

 private:
  struct Message {
    Header header;
    std::unique_ptr<char[]> bytes;
  };

  // What comes from one peer: the message being read, and those read before anybody asked for them.
  struct Channel {
    enum class State { kIdle, kHeader, kHeld, kBody, kClosed } state = State::kIdle;
    Header header{};
    RequestPtr request;
    std::unique_ptr<char[]> body;  // of a message that has no receiver, or the wrong one
    RecvWork* receiver = nullptr;  // whose the message is; nullptr: nobody's yet
    std::list<Message> unclaimed;
  };

  bool read(int source);
  void place(int source);
  void deliver(int source);
  RecvWork* claim(int source, int64_t tag);
  bool awaited(int source) const;

  Transport& transport_;
  int rank_;
  std::vector<std::deque<const SendWork*>> senders_;  // by destination rank
  std::vector<Channel> channels_;                     // by source rank
  std::list<RecvWork*> waiting_;                      // oldest first
};

}  // namespace cpudist
