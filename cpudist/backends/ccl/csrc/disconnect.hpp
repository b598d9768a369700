// The last work of a group: completes the posted receives whose messages never come.
#pragma once

#include "endpoint.hpp"
#include "work.hpp"

namespace cpudist {

// A receive from any source posts a receive from every rank, and all but one stay posted after the message has come. A
// transport with posted receives cannot be freed, and MPI reports a rank that ends without freeing it as crashed. So
// each rank tells all others from which ranks it has posted receives, and those ranks send it an empty message.
class DisconnectWork final : public AsyncWork {
 public:
  DisconnectWork(Call call, std::shared_ptr<Endpoint> endpoint);
  void start() override;
  Progress advance() override;

 private:
  std::vector<char> flags_;  // per rank: whether it has a receive posted from rank 0, 1, ...; then kMark
  RequestPtr all_gather_;
  std::vector<int> listeners_;  // ranks that wait for this rank's last message
  Header header_;
  std::vector<RequestPtr> notices_;
};

}  // namespace cpudist
