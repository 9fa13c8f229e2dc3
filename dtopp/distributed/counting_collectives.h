// Counts the collectives of one rank, their bytes and their time, and tracks the current one.
//
// Collective:    as the wrapped group; counting adds no communication
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "dtopp/distributed/collectives.h"

namespace dtopp::distributed {
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
