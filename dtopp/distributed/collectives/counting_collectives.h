// What a rank's collectives cost, and which one it is at.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "dtopp/distributed/collectives/collectives.h"

namespace dtopp {

struct Traffic {
  int64_t calls = 0;
  int64_t bytes = 0;   // sent by this rank to others, as bytes_sent has it
  double seconds = 0;  // the host's in wait(): on a CPU what computation did not hide

  Traffic& operator+=(const Traffic& other) {
    calls += other.calls;
    bytes += other.bytes;
    seconds += other.seconds;
    return *this;
  }
};

// Shared by all groups of a rank, so that its collectives have one order, the same on every rank. From any
// thread.
class CollectiveCounts {
 public:
  struct Current {
    const char* what = "";
    int64_t ordinal = 0;   // 1 for the first that was started; 0: none was
    bool waiting = false;  // in wait(), or failed there
  };

  std::map<std::string, Traffic> traffic() const;  // by `what`
  Traffic total() const;
  // The collective that the rank waits for, else the last one that it started.
  Current current() const;

  // For CountingCollectives. The ordinal.
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

}  // namespace dtopp
