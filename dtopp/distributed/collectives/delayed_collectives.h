// Collectives over a slow wire, by sleeping: for tests, and to measure how much of the communication is
// hidden behind computation on a machine that has no such wire.
#pragma once

#include <chrono>

#include "dtopp/distributed/collectives/collectives.h"

namespace dtopp {

// A rank's way out, shared by the groups that use it: bytes occupy it one collective after another, and
// arrive `latency` after the last one left. From the threads that may start collectives.
class Wire {
 public:
  using Clock = std::chrono::steady_clock;
  Wire(std::chrono::duration<double> latency, double bytes_per_second)
      : latency_(latency), bytes_per_second_(bytes_per_second) {}
  // From now on; of what was given to it before nothing changes.
  void set(std::chrono::duration<double> latency, double bytes_per_second) {
    latency_ = latency;
    bytes_per_second_ = bytes_per_second;
  }
  // When bytes that are given to it now have arrived.
  Clock::time_point arrival(int64_t bytes);

 private:
  std::chrono::duration<double> latency_;
  double bytes_per_second_;
  Clock::time_point free_ = Clock::now();
};

// A collective is done no earlier than what this rank sends has arrived. Starting never blocks.
class DelayedCollectives final : public Collectives {
 public:
  DelayedCollectives(std::unique_ptr<Collectives> inner, std::shared_ptr<Wire> wire)
      : Collectives(inner->rank(), inner->size()), inner_(std::move(inner)), wire_(std::move(wire)) {}
  Pending start(const Collective& collective) override;

 private:
  std::unique_ptr<Collectives> inner_;
  std::shared_ptr<Wire> wire_;
};

}  // namespace dtopp
