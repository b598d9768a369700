// An allreduce of float32 that crosses the network in another format.
#pragma once

#include "../kernels/reduce.hpp"
#include "../kernels/wire.hpp"
#include "../traffic.hpp"
#include "pieces.hpp"

namespace cpudist::oneccl {

// Memory that calls use in turn: fresh memory from the kernel costs a page fault every 4 KB.
class Buffers {
 public:
  struct Buffer {
    Scratch memory;
    size_t bytes = 0;

    std::byte* get() const { return memory.get(); }
  };

  Buffer take(size_t bytes) {
    if (free_.empty() || free_.back().bytes < bytes) return {allocate(bytes), bytes};
    auto buffer = std::move(free_.back());
    free_.pop_back();
    return buffer;
  }

  void give_back(Buffer& buffer) {
    if (buffer.memory && free_.size() < kMost) free_.push_back(std::move(buffer));
    buffer = {};
  }

 private:
  static constexpr size_t kMost = 32;  // two for each piece that is in flight on either communicator

  std::vector<Buffer> free_;
};

// Each rank owns a share of every piece. It receives the others' values of its share in the format of the wire, adds
// them in float32 in the order own, first rank, second rank, …, converts the sum once, and sends it to all. So the
// bytes are those of an allreduce in that format, and all ranks decode the same result.
//
// The two halves have communicators of their own: each is then called in the order of pieces and requests, although
// shares are complete at different times on different ranks.
class Exchange final : public Request {
 public:
  // `residual` may be null. Otherwise it holds an error of earlier calls for each value, on this rank. They are added,
  // and replaced by the errors of this call.
  Exchange(Communicator& shares, Communicator& sums, Buffers& buffers, float* output, float* residual, size_t count,
           Wire wire, bool average)
      : shares_(shares),
        sums_(sums),
        buffers_(buffers),
        output_(output),
        residual_(residual),
        count_(count),
        wire_(wire),
        kernels_(kernels::wire_kernels(wire)),
        average_(average),
        ranks_(static_cast<size_t>(shares.size())),
        own_(static_cast<size_t>(shares.rank())),
        pieces_((count + kMost - 1) / kMost) {
    if (pieces_.empty()) return;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      for (size_t r = 0; r < ranks_; ++r) converted_to += share(i, r).bytes;
    }
    converted_from += count * sizeof(float);
    shares_.order.push_back(this);
    sums_.order.push_back(this);
  }

  Progress test() override {
    if (sent_ < pieces_.size() && shares_.may_issue(this)) {
      send_shares();
    } else if (added_ < sent_ && shares_.complete(*pieces_[added_].call)) {
      add_shares();
    } else if (gathered_ < added_ && sums_.may_issue(this)) {
      gather_sums();
    } else if (collected_ < gathered_ && sums_.complete(*pieces_[collected_].call)) {
      decode_sums();
    } else if (collected_ < pieces_.size()) {
      return Progress::kWaiting;
    }
    return collected_ == pieces_.size() ? Progress::kComplete : Progress::kMoved;
  }

 private:
  static constexpr size_t kMost = (size_t{2} << 20) / sizeof(float);  // values of a piece

  struct Piece {
    std::optional<ccl::event> call;
    Buffers::Buffer outgoing;  // what this rank sends
    Buffers::Buffer incoming;
  };

  // The part of a piece that a rank owns; `first` counts from the begin of the tensor.
  kernels::WireShare share(size_t piece, size_t rank) const {
    const size_t first = piece * kMost;
    auto part = kernels::wire_share(wire_, std::min(kMost, count_ - first), rank, ranks_);
    part.first += first;
    return part;
  }

  void give_back(Piece& piece) {
    buffers_.give_back(piece.outgoing);
    buffers_.give_back(piece.incoming);
  }

  float* residual(size_t first) const { return residual_ == nullptr ? nullptr : residual_ + first; }

  void add_residual(const kernels::WireShare& part) {
    if (residual_ != nullptr) kernels::add(residual_ + part.first, output_ + part.first, part.count);
  }

  void send_shares() {
    auto& piece = pieces_[sent_];
    ccl::vector_class<size_t> sent(ranks_, 0);
    ccl::vector_class<size_t> received(ranks_, share(sent_, own_).bytes);
    received[own_] = 0;
    for (size_t r = 0; r < ranks_; ++r) {
      if (r != own_) sent[r] = share(sent_, r).bytes;
    }
    piece.outgoing = buffers_.take(std::max<size_t>(sum(sent), 1));
    piece.incoming = buffers_.take(std::max<size_t>(sum(received), 1));
    auto* next = piece.outgoing.get();
    for (size_t r = 0; r < ranks_; ++r) {
      const auto part = share(sent_, r);
      add_residual(part);
      if (r == own_) continue;
      kernels_.encode(output_ + part.first, next, residual(part.first), part.count);
      next += part.bytes;
    }
    piece.call = shares_.issue(
        ccl::alltoallv(piece.outgoing.get(), sent, piece.incoming.get(), received, ccl::datatype::int8, shares_.raw()));
    if (++sent_ == pieces_.size()) shares_.order.pop_front();
  }

  void add_shares() {
    auto& piece = pieces_[added_];
    const auto own = share(added_++, own_);
    for (size_t peer = 0; peer + 1 < ranks_; ++peer) {
      kernels_.add(piece.incoming.get() + peer * own.bytes, output_ + own.first, own.count);
    }
    give_back(piece);
    if (average_) {
      auto* const sums = output_ + own.first;
      kernels::divide(sums, sums, own.count, DataType::kFloat32, static_cast<int>(ranks_));
    }
  }

  void gather_sums() {
    auto& piece = pieces_[gathered_];
    const auto own = share(gathered_, own_);
    ccl::vector_class<size_t> lengths;
    size_t total = 0;
    for (size_t r = 0; r < ranks_; ++r) {
      lengths.push_back(share(gathered_, r).bytes);
      total += lengths.back();
    }
    piece.outgoing = buffers_.take(std::max<size_t>(own.bytes, 1));
    piece.incoming = buffers_.take(total);
    kernels_.encode(output_ + own.first, piece.outgoing.get(), residual(own.first), own.count);
    if (residual_ != nullptr && average_) scale_residual(own);
    // Into one buffer: with one for each rank, oneCCL (2022.1) does not return before all ranks have called it.
    piece.call = sums_.issue(ccl::allgatherv(piece.outgoing.get(), own.bytes, piece.incoming.get(), lengths,
                                             ccl::datatype::int8, sums_.raw()));
    if (++gathered_ == pieces_.size()) sums_.order.pop_front();
  }

  // The error of an average is `ranks_` times as large in the next sum.
  void scale_residual(const kernels::WireShare& part) {
    for (size_t i = 0; i < part.count; ++i) residual_[part.first + i] *= static_cast<float>(ranks_);
  }

  void decode_sums() {
    auto& piece = pieces_[collected_];
    const auto* next = piece.incoming.get();
    for (size_t r = 0; r < ranks_; ++r) {
      const auto part = share(collected_, r);
      kernels_.decode(next, output_ + part.first, part.count);
      next += part.bytes;
    }
    give_back(piece);
    ++collected_;
  }

  Communicator& shares_;
  Communicator& sums_;
  Buffers& buffers_;
  float* const output_;
  float* const residual_;
  const size_t count_;
  const Wire wire_;
  const kernels::WireKernels kernels_;
  const bool average_;
  const size_t ranks_;
  const size_t own_;
  std::vector<Piece> pieces_;
  size_t sent_ = 0;       // pieces whose shares are on their way
  size_t added_ = 0;      // pieces of which this rank has the sums of its share
  size_t gathered_ = 0;   // pieces whose sums are on their way
  size_t collected_ = 0;  // pieces that are complete
};

}  // namespace cpudist::oneccl
