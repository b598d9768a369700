// A collective as a schedule: the calls of the transport that it consists of, and what is to be done with the results.
#pragma once

#include <functional>
#include <optional>

#include <ATen/ThreadLocalState.h>

#include "endpoint.hpp"
#include "work.hpp"

namespace cpudist {

struct Schedule {
  std::vector<std::function<RequestPtr(Transport&)>> calls;
  std::vector<std::function<void()>> finish;  // take results to where the caller wants them
  std::vector<at::Tensor> buffers;            // what the transport reads and writes; kept until all is done
};

class CollectiveWork final : public AsyncWork {
 public:
  CollectiveWork(Call call, std::shared_ptr<Endpoint> endpoint, c10d::OpType type, const char* profiling_title,
                 std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs, Schedule schedule);
  void start() override;
  Progress advance() override;

 private:
  void finish();

  Schedule schedule_;
  // The caller's modes (inference_mode, no_grad), for the results may be copied in another thread.
  std::optional<at::ThreadLocalState> caller_;
  std::vector<RequestPtr> requests_;  // under way, oldest first
};

}  // namespace cpudist
