// A collective as a schedule: the transport calls that it consists of, and the actions on their results.
#pragma once

#include <functional>

#include "endpoint.hpp"
#include "work.hpp"

namespace cpudist {

struct Schedule {
  std::vector<std::function<RequestPtr(Transport&)>> calls;
  std::vector<std::function<void()>> finish;  // copy results to the caller's tensors
  std::vector<at::Tensor> buffers;            // memory that the transport uses; kept until all calls are complete
};

class CollectiveWork final : public AsyncWork {
 public:
  CollectiveWork(Call call, std::shared_ptr<Endpoint> endpoint, c10d::OpType type, const char* profiling_title,
                 std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs, Schedule schedule);
  void start() override;
  Progress advance() override;
  void release() override;

 private:
  Schedule schedule_;
  std::vector<RequestPtr> requests_;  // in flight, oldest first
};

}  // namespace cpudist
