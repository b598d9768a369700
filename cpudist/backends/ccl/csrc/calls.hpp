// What this rank is doing in communication, for whoever asks from another thread: who waits in what, and since when.
#pragma once

#include "work.hpp"

namespace cpudist {

struct CallUnderWay {
  Call call;
  size_t bytes;                    // of the tensors that hold the result
  std::optional<at::Tensor> like;  // the first of them
  double seconds;                  // since it was called
};

struct Calls {
  std::vector<CallUnderWay> under_way;  // oldest first; after a failure those that failed with it
  std::vector<CallGroup> groups;        // with the collective that each completed last
};

}  // namespace cpudist
