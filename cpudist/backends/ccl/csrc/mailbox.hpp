// Point-to-point messages with tags, over oneCCL's send and recv, which have none.
//
// Each message goes as a header (tag, size) and, when it is not empty, its bytes. Messages between two ranks keep their
// order, so a receiver reads header after header from a peer and puts aside what nobody has asked for yet. That also
// gives "any source", and an error instead of a buffer overrun where sizes differ.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include <oneapi/ccl.hpp>

#include "operation.hpp"

namespace cpudist {

class Communicator;

constexpr int kAnySource = -1;

struct Header {
  int64_t tag;
  int64_t bytes;
};

// Consecutive memory of one message on its way to or from a peer: piece by piece, each when the one before is complete,
// because oneCCL does not keep the order of what is under way together.
class Transfer {
 public:
  using Issue = std::function<ccl::event(char* data, size_t bytes)>;

  void begin(void* data, size_t bytes);
  // Moves on; true once all is through.
  bool advance(const Issue& issue);

 private:
  char* data_ = nullptr;
  size_t left_ = 0;
  std::optional<ccl::event> piece_;
};

class SendOperation final : public Operation {
 public:
  SendOperation(Call call, std::shared_ptr<Communicator> communicator, const at::Tensor& tensor, int destination,
                int tag);
  bool advance() override;

 private:
  std::shared_ptr<Communicator> communicator_;
  at::Tensor buffer_;
  int destination_;
  Header header_;
  Transfer transfer_;
  enum class State { kNew, kInLine, kHeader, kBody } state_ = State::kNew;
};

class ReceiveOperation final : public Operation {
 public:
  ReceiveOperation(Call call, std::shared_ptr<Communicator> communicator, const at::Tensor& tensor, int source,
                   int tag);
  bool advance() override;
  int sourceRank() const override { return source_; }

 private:
  friend class Mailbox;

  bool accepts(int source, int64_t tag) const;
  void fail(int64_t bytes);

  std::shared_ptr<Communicator> communicator_;
  at::Tensor tensor_;
  at::Tensor buffer_;  // tensor_ itself where that is contiguous
  int source_;         // kAnySource until a message has matched
  int tag_;
  bool posted_ = false;
  bool arrived_ = false;
};

class Mailbox {
 public:
  explicit Mailbox(const ccl::communicator& communicator);

  // Those who send to a peer, oldest first; one message at a time, for the same reason.
  std::deque<const SendOperation*>& senders(int destination) { return senders_[destination]; }

  // Gives the receiver a message that came earlier, or lets it wait for one.
  void post(ReceiveOperation& receiver);

  // Reads what has come, as far as somebody waits for it.
  void progress();

  // Whether oneCCL still holds memory of this mailbox.
  bool listening() const;

 private:
  struct Message {
    Header header;
    at::Tensor bytes;
  };

  // What comes from one peer: the message being read, and those read before anybody asked for them.
  struct Channel {
    enum class State { kIdle, kHeader, kHeld, kBody } state = State::kIdle;
    Header header{};
    Transfer transfer;
    at::Tensor body;
    ReceiveOperation* receiver = nullptr;  // whose the body is; nullptr: nobody's yet
    std::list<Message> unclaimed;
  };

  void read(int source);
  void place(int source);
  void deliver(int source);
  ReceiveOperation* claim(int source, int64_t tag);
  bool awaited(int source) const;

  const ccl::communicator& communicator_;
  std::vector<std::deque<const SendOperation*>> senders_;  // by destination rank
  std::vector<Channel> channels_;                          // by source rank
  std::list<ReceiveOperation*> waiting_;                   // oldest first
};

}  // namespace cpudist
