// Point-to-point messages with tags. The transport's send and recv, which carry them, have no tags.
//
// Each message is sent as a header (tag, size) and, unless it is empty, its bytes. Messages between two ranks keep
// their order, so a receiver reads header after header from a peer, and stores unexpected messages: those that no
// posted receive matches. This makes receives from any source possible. A message whose size differs from that of its
// receive is an error instead of a buffer overrun.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <vector>

#include "transport.hpp"
#include "work.hpp"

namespace cpudist {

class Endpoint;

constexpr int kAnySource = -1;
constexpr int64_t kDisconnectTag = -1;  // tag of the last message to a peer that still has a receive posted

struct Header {
  int64_t tag;
  int64_t bytes;
};

class SendWork final : public AsyncWork {
 public:
  SendWork(Call call, std::shared_ptr<Endpoint> endpoint, const at::Tensor& tensor, int destination, int tag);
  void start() override;
  Progress advance() override;
  void release() override;

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
  void release() override;
  int sourceRank() const override { return source_; }

 private:
  friend class TagMatcher;

  bool accepts(int source, int64_t tag) const;
  int64_t bytes() const { return static_cast<int64_t>(buffer_.nbytes()); }
  void fail(int64_t bytes);

  at::Tensor tensor_;
  at::Tensor buffer_;  // tensor_ itself if it is contiguous
  int source_;         // kAnySource until a message has matched
  int tag_;
  bool arrived_ = false;
};

class TagMatcher {
 public:
  TagMatcher(Transport& transport, int rank, int size);

  // The sends to a peer, oldest first. One message is in flight at a time, so that they arrive in this order.
  std::deque<const SendWork*>& senders(int destination) { return senders_[destination]; }

  // Gives the receiver a stored unexpected message that matches, or adds the receiver to the queue of posted receives.
  void post(RecvWork& receiver);

  // Reads the messages that receivers wait for; returns whether something has moved.
  bool progress();

  // Whether a receive from this rank is posted with the transport.
  bool listens_to(int source) const { return incoming_[source].request != nullptr; }
  bool listening() const;

 private:
  struct Message {
    Header header;
    std::unique_ptr<char[]> bytes;
  };

  // The messages from one peer: the one being read, and unexpected ones, which came before their receive was posted.
  struct Incoming {
    enum class State { kIdle, kHeader, kHeld, kBody, kClosed } state = State::kIdle;
    Header header{};
    RequestPtr request;
    std::unique_ptr<char[]> body;  // of a message that has no receiver, or a receiver of another size
    RecvWork* receiver = nullptr;  // of the message being read; nullptr: none yet
    std::list<Message> unexpected;
  };

  bool read(int source);
  void place(int source);
  void deliver(int source);
  RecvWork* match_posted(int source, int64_t tag);
  bool awaited(int source) const;

  Transport& transport_;
  int rank_;
  std::vector<std::deque<const SendWork*>> senders_;  // by destination rank
  std::vector<Incoming> incoming_;                    // by source rank
  std::list<RecvWork*> posted_;                       // oldest first
};

}  // namespace cpudist
