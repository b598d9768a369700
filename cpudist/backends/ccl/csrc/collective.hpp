// A collective as a plan: the oneCCL calls to issue, in order, and what remains to be done when they are complete.
#pragma once

#include <functional>

#include "communicator.hpp"

namespace cpudist {

// A oneCCL call under way, and memory that only it needs.
struct Issued {
  Issued(ccl::event call, at::Tensor memory = {}) : event(std::move(call)), scratch(std::move(memory)) {}

  ccl::event event;
  at::Tensor scratch;
};

struct Plan {
  using Step = std::function<Issued(const ccl::communicator&)>;

  std::vector<Step> steps;
  std::vector<std::function<void()>> after;  // takes results to where the caller wants them
  std::vector<at::Tensor> buffers;           // what oneCCL reads and writes; kept until the end

  void keep(const std::vector<at::Tensor>& tensors) { buffers.insert(buffers.end(), tensors.begin(), tensors.end()); }

  // One step per piece of `count` elements: issue(offset, length, communicator).
  template <typename Issue>
  void add_pieces(size_t count, size_t element_size, Issue issue) {
    // A large message is 4 to 5 times slower as one call than in pieces (docs/performance.md).
    constexpr size_t kPieceBytes = size_t{4} << 20;
    const size_t most = kPieceBytes / element_size;
    for (size_t offset = 0; offset < count; offset += most) {
      const size_t length = std::min(most, count - offset);
      steps.push_back([=](const ccl::communicator& comm) { return issue(offset, length, comm); });
    }
  }
};

class Collective final : public Operation {
 public:
  Collective(Call call, c10d::OpType type, const char* profiling_title, std::vector<at::Tensor> inputs,
             std::vector<at::Tensor> outputs, std::shared_ptr<Communicator> communicator, Plan plan);
  bool advance() override;

 private:
  std::shared_ptr<Communicator> communicator_;
  Plan plan_;
  bool in_turn_ = false;
  size_t issued_ = 0;
  size_t completed_ = 0;
  std::vector<Issued> calls_;
};

}  // namespace cpudist
