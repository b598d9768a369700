// The last work of a group: no receive stays posted that no message will answer.
#pragma once

#include "endpoint.hpp"
#include "work.hpp"

namespace cpudist {

// Receives from any source listen to every rank, and still do when one of them has answered. A transport that is
// receiving cannot be freed, and without that MPI takes a rank that ends for one that has crashed. So each rank tells
// all others whom it listens to, and those send it an empty message.
class FarewellWork final : public AsyncWork {
 public:
  FarewellWork(Call call, std::shared_ptr<Endpoint> endpoint);
  void start() override;
  Progress advance() override;

 private:
  std::vector<char> flags_;  // of all ranks: flags_[r * size + s] is whether rank r listens to rank s
  RequestPtr exchange_;
  std::vector<int> listeners_;  // who waits for this rank's farewell
  Header header_;
  std::vector<RequestPtr> farewells_;
};

}  // namespace cpudist
