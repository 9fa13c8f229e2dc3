// What ranks exchange, whatever carries it. Every rank of a group starts the same collectives in the same
// order, from one thread at a time (not always the same one); it outlives what it has started.
//
// Tensors are contiguous, those of a collective on one device: the CPU, or where the implementation serves
// another, too, that (device_groups.h). On all ranks alike. A tensor that does not fit is a mistake of the
// program (TORCH_CHECK); a rank or a connection that fails is a RankLost, when starting or from wait(), this
// rank's own device a ResourceError.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtopp/base/errors.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp {

// Another rank, or the way to it, is gone: what ended this one is not its own failure.
struct RankLost : ResourceError {
  using ResourceError::ResourceError;
};

// A collective that was started. Dropped without wait(), it still takes place and keeps its tensors, so that
// an error elsewhere can unwind past it without blocking; its own result and error are then lost.
class [[nodiscard]] Pending {
 public:
  // What an implementation fills in; wait() is called once at most.
  struct Operation {
    virtual ~Operation() = default;
    virtual void wait() = 0;
    virtual bool done() = 0;
  };

  Pending() = default;  // one that is done
  explicit Pending(std::unique_ptr<Operation> operation) : operation_(std::move(operation)) {}

  // Returns when the result is there; on a device, when work that this thread issues from now on to its
  // current stream sees it: the host has not waited, and learns of a failure otherwise. Another time it
  // returns at once.
  void wait() {
    if (const std::unique_ptr<Operation> operation = std::move(operation_)) operation->wait();
  }
  // Whether wait() would return or throw without waiting for another rank.
  bool done() const { return !operation_ || operation_->done(); }

 private:
  std::unique_ptr<Operation> operation_;
};

// Rows (along dimension 0) of `out` from each rank and of `in` to each, in rank order; none: equal parts.
struct Splits {
  std::vector<int64_t> out{}, in{};
};

// One collective, as Collectives::start takes it.
struct Collective {
  enum class Kind { kAllToAll, kAllGather, kAllReduceSum, kBroadcast, kBarrier };
  Kind kind = Kind::kBarrier;
  const char* what = "";   // "reduce_scatter", "dispatch", …: what is counted and reported under; a literal
  at::Tensor out{}, in{};  // all-reduce and broadcast: `out` alone
  Splits splits{};         // of an all-to-all
  int64_t root = 0;        // of a broadcast
};

// Bytes that `rank` of `size` sends to other ranks, for tensors of S bytes: its rows to others (all-to-all),
// (n - 1) S (all-gather, `in` being S, and broadcast, all of them the root's), 2 S (n - 1) / n (all-reduce).
int64_t bytes_sent(const Collective& collective, int64_t rank, int64_t size);

class Collectives {
 public:
  Collectives(int64_t rank, int64_t size) : rank_(rank), size_(size) {}
  virtual ~Collectives() = default;
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }

  // These start. Until wait() has returned `out` is not read and `in` not written.
  // out, in: [rows, …], of one type and alike but for rows; any type. Parts may be empty.
  Pending all_to_all(at::Tensor out, at::Tensor in, Splits splits, const char* what);
  // out: the ranks' `in` one after another, all of one size. `in` may be this rank's part of `out`.
  Pending all_gather(at::Tensor out, at::Tensor in, const char* what);
  // f64. For whole numbers whose sum is below 2^53, and for floats that are 0 on all ranks but one: order
  // cannot matter.
  Pending all_reduce_sum(at::Tensor values, const char* what);
  // `values` of every rank become the root's.
  Pending broadcast(at::Tensor values, int64_t root, const char* what);
  // Done once every rank has started it.
  Pending barrier(const char* what);

  // Starts one whose tensors fit. For those above and for Collectives that wrap others.
  virtual Pending start(const Collective& collective) = 0;

 private:
  const int64_t rank_, size_;
};

// The root's bytes, whatever those of the others are. Returns when they are there; tensors are on the CPU.
std::string broadcast_bytes(Collectives& collectives, std::string bytes, int64_t root, const char* what);

// Every rank's bytes, in rank order. Returns when they are there; tensors are on the CPU.
std::vector<std::string> gather_bytes(Collectives& collectives, const std::string& bytes, const char* what);

// One rank by itself: copies, where there is anything to copy.
class SingleRank final : public Collectives {
 public:
  SingleRank() : Collectives(0, 1) {}
  Pending start(const Collective& collective) override;
};

}  // namespace dtopp
