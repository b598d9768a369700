#include "snapshot.hpp"

namespace cpudist {

PendingCall::PendingCall(AsyncWork& work, Clock::time_point now)
    : call(work.call()), bytes(0), seconds(std::chrono::duration<double>(now - work.started()).count()) {
  for (const auto& tensor : work.result()) {
    bytes += tensor.is_sparse() ? tensor._values().nbytes() : tensor.nbytes();
    if (!like) like = tensor;
  }
}

}  // namespace cpudist
