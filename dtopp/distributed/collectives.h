// Defines the collectives that ranks run, independent of the transport.
//
// Every rank of a group starts the same collectives in the same order, from one thread at a time. That thread
// may change. A group must outlive the collectives that it started.
//
// Tensors are contiguous, and the tensors of one collective are on one device, of the same type on every
// rank. Every implementation accepts CPU tensors; some accept one more device (process_groups.h).
//
// Throws:        c10::Error if a tensor does not fit (a programming error); RankLost if another rank or a
//                connection fails; ResourceError if this rank's own device fails. The last two come from the
//                start or from wait().
// Collective:    every rank of the group, in the same order
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "dtopp/base/errors.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp::distributed {

// The first line of a transport's message, without the source location that Gloo puts in front.
inline std::string reason_of(const std::exception& error) {
  const auto* from_torch = dynamic_cast<const c10::Error*>(&error);
  std::string text = from_torch ? from_torch->what_without_backtrace() : error.what();
  text = text.substr(0, text.find('\n'));
  const size_t place_end = text.starts_with('[') ? text.find("] ") : std::string::npos;
  return place_end == std::string::npos ? text : text.substr(place_end + 2);
}

// Another rank, or the connection to it, failed. The error is not this rank's own.
struct RankLost : ResourceError {
  using ResourceError::ResourceError;
};

// A collective that was started.
//
// If it is destroyed without wait(), the collective still runs and keeps its tensors; its result and its
// error are lost. An error elsewhere can therefore unwind the stack without blocking.
class [[nodiscard]] Pending {
 public:
  // Implements one Pending. wait() is called at most once.
  struct Operation {
    virtual ~Operation() = default;
    virtual void wait() = 0;
    virtual bool done() = 0;
  };

  Pending() = default;  // an operation that is done
  explicit Pending(std::unique_ptr<Operation> operation) : operation_(std::move(operation)) {}

  // Returns when the result is complete. For a device tensor, the result is visible to work that this thread
  // later issues to its current stream; the host does not wait and does not get the device's errors here
  // (DeviceGroups::failure). Later calls return at once.
  void wait() {
    if (const std::unique_ptr<Operation> operation = std::move(operation_)) operation->wait();
  }
  // Whether wait() would return or throw without waiting for another rank.
  bool done() const { return !operation_ || operation_->done(); }

 private:
  std::unique_ptr<Operation> operation_;
};

// Rows (dimension 0) of `out` per source rank and of `in` per destination rank. Empty vectors mean equal
// parts.
struct Splits {
  std::vector<int64_t> out{}, in{};
};

// The arguments of one collective.
struct Collective {
  enum class Kind { kAllToAll, kAllGather, kAllReduceSum, kBroadcast, kBarrier };
  Kind kind = Kind::kBarrier;
  const char* what = "";  // name for counters and errors, such as "gather"; a literal
  Tensor out{}, in{};     // `in` is unused by all-reduce and broadcast
  Splits splits{};        // all-to-all only
  int64_t root = 0;       // broadcast only
};

// Bytes that `rank` sends to the other ranks of `size`. S is the size of `in` (or of `out` if `in` is
// unused):
//
// all-to-all   the bytes of its rows for other ranks
// all-gather   (size - 1) S
// all-reduce   2 S (size - 1) / size
// broadcast    (size - 1) S on the root, 0 elsewhere
int64_t bytes_sent(const Collective& collective, int64_t rank, int64_t size);

class Collectives {
 public:
  Collectives(int64_t rank, int64_t size) : rank_(rank), size_(size) {}
  virtual ~Collectives() = default;
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  // This rank's index in the group, and the number of ranks in the group. Roots and Splits use the same
  // index.
  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }

  // These functions start a collective. Do not read `out` or write `in` until wait() has returned. `out` and
  // `in` are [rows, …], of any one type, and equal in all dimensions but the first. Parts may be empty.
  Pending all_to_all(Tensor out, Tensor in, Splits splits, const char* what);
  // `out` is the concatenation of the ranks' `in`, which have equal sizes. `in` may be this rank's part of
  // `out`.
  Pending all_gather(Tensor out, Tensor in, const char* what);
  // Replaces `values` by their sum over the ranks. f64 only. The order of additions must not matter: use
  // whole numbers whose sum is below 2^53, or floats that are zero on all ranks but one.
  Pending all_reduce_sum(Tensor values, const char* what);
  // Copies the root's `values` to every rank.
  Pending broadcast(Tensor values, int64_t root, const char* what);
  // Done when every rank has started it.
  Pending barrier(const char* what);

  // Starts a collective whose tensors were checked. The functions above and wrappers of Collectives call it.
  virtual Pending start(const Collective& collective) = 0;

 private:
  const int64_t rank_, size_;
};

// Returns the root's bytes on every rank; the bytes of other ranks are ignored. Blocks. Uses CPU tensors.
std::string broadcast_bytes(Collectives& collectives, std::string bytes, int64_t root, const char* what);

// Returns every rank's bytes, in rank order. Blocks. Uses CPU tensors.
std::vector<std::string> gather_bytes(Collectives& collectives, const std::string& bytes, const char* what);

// The ranks have different programs, configurations, data or devices. All ranks throw it with the same
// message.
struct RanksDiffer : Error {
  using Error::Error;
};

// A rank whose text differs from rank 0's.
struct RankDifference {
  int64_t rank;
  std::string there, first;  // the texts of `rank` and of rank 0

  std::string name() const { return "rank " + std::to_string(rank); }
};

// Returns the first such rank, on all ranks; nullopt if all texts are equal. Collective.
std::optional<RankDifference> find_difference(const std::string& mine, Collectives& ranks);

// Throws RanksDiffer if ranks mix CPUs and CUDA devices, or if two ranks use one CUDA device. `identity`
// identifies this rank's device: device_identity() (device/device.h), "cpu" for every CPU. Collective.
void check_devices(const std::string& identity, Collectives& ranks);

// Whether `here` is true on any rank; the same result on all ranks. Collective.
bool any_of(Collectives& ranks, bool here);

// A group of one rank. It copies `in` to `out`, unless they share memory.
class SingleRank final : public Collectives {
 public:
  SingleRank() : Collectives(0, 1) {}
  Pending start(const Collective& collective) override;
};

struct Traffic {
  int64_t calls = 0;
  int64_t bytes = 0;   // sent by this rank to other ranks (bytes_sent)
  double seconds = 0;  // host time in wait(); on a CPU, the time that computation did not hide

  Traffic& operator+=(const Traffic& other) {
    calls += other.calls;
    bytes += other.bytes;
    seconds += other.seconds;
    return *this;
  }
};

// Shared by all groups of a rank: ordinals then number its collectives in one order, the same on every rank.
// Thread-safe.
class CollectiveCounts {
 public:
  struct Current {
    const char* what = "";
    int64_t ordinal = 0;   // 1 for the first collective; 0 before it
    bool waiting = false;  // inside wait(), or wait() threw
  };

  std::map<std::string, Traffic> traffic() const;  // by `what`
  Traffic total() const;
  // The collective that the rank waits for; if it waits for none, the one that it started last.
  Current current() const;

  // For CountingCollectives. started() returns the ordinal.
  int64_t started(const char* what, int64_t bytes);
  void waiting(const char* what, int64_t ordinal);
  void arrived(const char* what, double seconds);

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Traffic> traffic_;
  Current last_, waited_for_;
};

// Counts the collectives of one rank, their bytes and their time, and tracks the current one. Counting adds
// no communication.
class CountingCollectives final : public Collectives {
 public:
  CountingCollectives(std::unique_ptr<Collectives> inner, std::shared_ptr<CollectiveCounts> counts)
      : Collectives(inner->rank(), inner->size()), inner_(std::move(inner)), counts_(std::move(counts)) {}
  Pending start(const Collective& collective) override;

 private:
  std::unique_ptr<Collectives> inner_;
  std::shared_ptr<CollectiveCounts> counts_;
};

}  // namespace dtopp::distributed
