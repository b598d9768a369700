#include "hierarchy.hpp"

#include <algorithm>
#include <cstring>
#include <map>

#include "kernels/wire.hpp"

namespace cpudist {

Placement::Placement(const std::vector<int>& nodes, int rank)
    : node(0), node_count(0), local_rank(0), local_size(0), even(true) {
  std::map<int, int> sizes;
  for (size_t peer = 0; peer < nodes.size(); ++peer) {
    if (static_cast<int>(peer) == rank) local_rank = sizes[nodes[peer]];
    ++sizes[nodes[peer]];
  }
  node_count = static_cast<int>(sizes.size());
  node = static_cast<int>(std::distance(sizes.begin(), sizes.find(nodes[rank])));
  local_size = sizes[nodes[rank]];
  even = std::all_of(sizes.begin(), sizes.end(), [&](const auto& entry) { return entry.second == local_size; });
}

namespace {

constexpr size_t kPieceBytes = size_t{2} << 20;

// Divides `count` elements into pieces, and each piece among the ranks of a machine.
struct PieceShares {
  PieceShares(size_t count, DataType type, size_t local_size)
      : count(count), most(std::max<size_t>(kPieceBytes / size_of(type), 1)), local_size(local_size) {}

  size_t pieces() const { return pieces_of(count, most); }

  Share of(size_t piece, size_t local_rank) const {
    const auto share = share_of(part(count, piece * most, most), local_rank, local_size);
    return {piece * most + share.first, share.count};
  }

  size_t count;
  size_t most;  // elements of a piece
  size_t local_size;
};

}  // namespace

// Works piece by piece, so that one piece crosses the network while another is reduced.
//
// Each transport must see the same order of calls on all its ranks, although pieces become ready at different times on
// different ranks. So the order is fixed: inside, the reduce_scatters of the first kAhead pieces, then alternately the
// allgather of a piece and the reduce_scatter of the piece kAhead later; across, piece by piece.
class Hierarchy::Allreduce final : public Request {
 public:
  Allreduce(Hierarchy& hierarchy, const void* input, void* output, float* residual, size_t count, DataType type,
            Reduction reduction)
      : hierarchy_(hierarchy),
        input_(static_cast<const char*>(input)),
        output_(static_cast<char*>(output)),
        residual_(residual),
        shares_(count, type, hierarchy.local_size_),
        type_(type),
        reduction_(reduction),
        pieces_(shares_.pieces()) {
    hierarchy_.order_.push_back(this);
  }

  Progress test() override {
    const bool first = !hierarchy_.order_.empty() && hierarchy_.order_.front() == this;
    bool moved = first && call_inside();
    for (size_t i = first_; i < reduced_; ++i) moved = move_on(i) || moved;
    while (first_ < pieces_.size() && pieces_[first_].stage == Stage::kDone) ++first_;
    if (first_ == pieces_.size()) return Progress::kComplete;
    return moved ? Progress::kMoved : Progress::kWaiting;
  }

 private:
  static constexpr size_t kAhead = 8;

  enum class Stage : uint8_t { kReduceScatter, kAwaitsTurn, kAcross, kReduced, kAllgather, kDone };

  struct Piece {
    RequestPtr request;
    Stage stage = Stage::kReduceScatter;
  };

  // Makes the next calls of the fixed order inside the machine, as far as possible; returns whether it made any.
  bool call_inside() {
    bool moved = false;
    for (; gathered_ < pieces_.size(); moved = true) {
      if (reduced_ < pieces_.size() && reduced_ - gathered_ < kAhead) {
        reduce_scatter(reduced_++);
      } else if (pieces_[gathered_].stage == Stage::kReduced) {
        allgather(gathered_++);
      } else {
        return moved;
      }
    }
    hierarchy_.order_.pop_front();
    return true;
  }

  bool move_on(size_t i) {
    auto& piece = pieces_[i];
    if (piece.stage == Stage::kAwaitsTurn && across_ == i) {
      ++across_;
      allreduce_across(i);
    }
    if (!piece.request) return false;
    const auto progress = piece.request->test();
    if (progress != Progress::kComplete) return progress == Progress::kMoved;
    piece.request.reset();
    if (piece.stage == Stage::kReduceScatter) piece.stage = Stage::kAwaitsTurn;
    if (piece.stage == Stage::kAcross) piece.stage = Stage::kReduced;
    if (piece.stage == Stage::kAllgather) piece.stage = Stage::kDone;
    return true;
  }

  // Where a rank's share of a piece lies in a buffer.
  template <typename Byte>
  Byte* at(Byte* buffer, size_t piece, size_t local_rank) const {
    return buffer + shares_.of(piece, local_rank).first * size_of(type_);
  }

  char* own_output(size_t piece) const { return at(output_, piece, static_cast<size_t>(hierarchy_.local_rank_)); }

  template <typename To, typename Byte>
  std::vector<To> all_at(Byte* buffer, size_t piece) const {
    std::vector<To> result;
    for (size_t r = 0; r < hierarchy_.local_size_; ++r) result.push_back(at(buffer, piece, r));
    return result;
  }

  std::vector<size_t> counts(size_t piece) const {
    std::vector<size_t> result;
    for (size_t r = 0; r < hierarchy_.local_size_; ++r) result.push_back(shares_.of(piece, r).count);
    return result;
  }

  void reduce_scatter(size_t i) {
    pieces_[i].request =
        hierarchy_.inside_->reduce_scatter(all_at<const void*>(input_, i), own_output(i), counts(i), type_, reduction_);
  }

  // The average of the machines' averages is the average of all, because machines have equally many ranks.
  void allreduce_across(size_t i) {
    const auto own = shares_.of(i, static_cast<size_t>(hierarchy_.local_rank_));
    auto* data = own_output(i);
    pieces_[i].stage = Stage::kAcross;
    if (residual_ != nullptr) {
      auto* values = reinterpret_cast<float*>(data);
      pieces_[i].request = hierarchy_.across_->allreduce_with_residual(values, residual_ + own.first, own.count);
      return;
    }
    pieces_[i].request = hierarchy_.across_->allreduce(data, data, own.count, type_, reduction_);
  }

  void allgather(size_t i) {
    pieces_[i].stage = Stage::kAllgather;
    pieces_[i].request = hierarchy_.inside_->allgather(own_output(i), all_at<void*>(output_, i), counts(i), type_);
  }

  Hierarchy& hierarchy_;
  const char* input_;
  char* output_;
  float* residual_;  // may be null
  const PieceShares shares_;
  const DataType type_;
  const Reduction reduction_;
  std::vector<Piece> pieces_;
  size_t first_ = 0;     // the pieces before this one are done
  size_t reduced_ = 0;   // pieces whose reduce_scatter has been called
  size_t across_ = 0;    // pieces whose allreduce across has been called
  size_t gathered_ = 0;  // pieces whose allgather has been called
};

Hierarchy::Hierarchy(TransportPtr inside, TransportPtr across, const Placement& placement)
    : inside_(std::move(inside)),
      across_(std::move(across)),
      local_rank_(placement.local_rank),
      local_size_(static_cast<size_t>(placement.local_size)) {}

RequestPtr Hierarchy::allreduce(const void* input, void* output, float* residual, size_t count, DataType type,
                                Reduction reduction) {
  return std::make_unique<Allreduce>(*this, input, output, residual, count, type, reduction);
}

RequestPtr AcrossMachines::allreduce(const void* input, void* output, size_t count, DataType type,
                                     Reduction reduction) {
  if (hierarchy_ && Hierarchy::takes(type, reduction)) {
    return hierarchy_->allreduce(input, output, nullptr, count, type, reduction);
  }
  if (!kernels::converts(wire_, count, type, reduction)) return exact(input, output, count, type, reduction);
  if (input != output) std::memcpy(output, input, count * sizeof(float));
  return compressed(static_cast<float*>(output), nullptr, count, reduction == Reduction::kAverage);
}

RequestPtr AcrossMachines::allreduce_with_residual(float* data, float* residual, size_t count) {
  constexpr auto kType = DataType::kFloat32;
  constexpr auto kReduction = Reduction::kAverage;
  if (hierarchy_) return hierarchy_->allreduce(data, data, residual, count, kType, kReduction);
  if (!kernels::converts(wire_, count, kType, kReduction)) return exact(data, data, count, kType, kReduction);
  return compressed(data, residual, count, /*average=*/true);
}

}  // namespace cpudist
