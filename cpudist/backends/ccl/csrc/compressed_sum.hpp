// The arithmetic of an allreduce of float32 that crosses the network in another format.
#pragma once

#include "kernels/wire.hpp"
#include "traffic.hpp"

namespace cpudist {

// Each rank owns a share of the values. It receives the other ranks' values of this share in the wire's format, adds
// them in float32 to its own, in the order of ranks, converts the sum once, and sends it to all. So as many bytes are
// sent as in an allreduce in that format, and all ranks decode the same result.
class CompressedSum {
 public:
  // A sum or an average, in place. `residual` may be null. Otherwise it holds this rank's errors of earlier calls, one
  // per value. They are added to the values, and replaced by the errors of this call.
  CompressedSum(float* data, float* residual, size_t count, Wire wire, bool average, int rank, int ranks)
      : data_(data),
        residual_(residual),
        count_(count),
        wire_(wire),
        average_(average),
        rank_(rank),
        ranks_(ranks),
        kernels_(kernels::wire_kernels(wire)) {}

  // Bytes of the whole message; the place and the bytes of a rank's share in it. Shares are in the order of ranks.
  size_t bytes() const { return kernels::wire_bytes(wire_, count_); }
  size_t begin(int rank) const { return kernels::wire_bytes(wire_, share(rank).first); }
  size_t bytes_of(int rank) const { return share(rank).bytes; }

  // Writes the other ranks' shares, one after the other.
  void encode_shares(std::byte* to) const {
    converted_from += count_ * sizeof(float);
    converted_to += bytes();
    if (residual_ != nullptr) kernels::add(residual_, data_, count_);
    for (int rank = 0; rank < ranks_; ++rank) {
      if (rank == rank_) continue;
      encode(share(rank), to);
      to += bytes_of(rank);
    }
  }

  // Adds the values that the other ranks have sent for this rank's share, one rank's after the other's.
  void add_shares(const std::byte* from) const {
    const auto own = share(rank_);
    auto* const values = data_ + own.first;
    for (size_t peer = 0; peer + 1 < static_cast<size_t>(ranks_); ++peer) {
      kernels_.add(from + peer * own.bytes, values, own.count);
    }
    if (average_) kernels::divide(values, values, own.count, DataType::kFloat32, ranks_);
  }

  // Encodes the sum of this rank's share, which all ranks get.
  void encode_sum(std::byte* to) const {
    const auto own = share(rank_);
    encode(own, to);
    if (residual_ == nullptr || !average_) return;
    // The next call divides by `ranks_` after it has added the residual, so the stored error is multiplied by it.
    for (size_t i = own.first; i < own.first + own.count; ++i) residual_[i] *= static_cast<float>(ranks_);
  }

  // Decodes the whole message, which has the sums of all ranks' shares.
  void decode_sums(const std::byte* from) const {
    for (int rank = 0; rank < ranks_; ++rank) {
      kernels_.decode(from + begin(rank), data_ + share(rank).first, share(rank).count);
    }
  }

 private:
  kernels::WireShare share(int rank) const {
    return kernels::wire_share(wire_, count_, static_cast<size_t>(rank), static_cast<size_t>(ranks_));
  }
  void encode(const kernels::WireShare& share, std::byte* to) const {
    auto* const lost = residual_ == nullptr ? nullptr : residual_ + share.first;
    kernels_.encode(data_ + share.first, to, lost, share.count);
  }

  float* data_;
  float* residual_;
  size_t count_;
  Wire wire_;
  bool average_;
  int rank_;
  int ranks_;
  kernels::WireKernels kernels_;
};

}  // namespace cpudist
