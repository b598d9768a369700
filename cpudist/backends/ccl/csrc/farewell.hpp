// The last work of a group: completes the receives that were posted for messages that do not come.
#pragma once

#include "endpoint.hpp"
#include "work.hpp"

namespace cpudist {

// A receive from any source posts a receive to every rank, and all but one stay posted after a message has come. A
// transport with posted receives cannot be freed, and MPI reports a rank that ends without freeing it as crashed. So
// each rank tells all others to which ranks it listens, and those send it an empty message.
class FarewellWork final : public AsyncWork {
 public:
  FarewellWork(Call call, std::shared_ptr<Endpoint> endpoint);
  void start() override;
  Progress advance() override;

 private:
  std::vector<char> flags_;  // of all ranks: flags_[r * size + s] is whether
                             // rank r listens to rank s
  RequestPtr all_gather_;
  std::vector<int> listeners_;  // ranks that wait for this rank's farewell
  Header header_;
  std::vector<RequestPtr> farewells_;
};

}  // namespace cpudist
