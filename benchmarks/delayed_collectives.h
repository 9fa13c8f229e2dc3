// Simulates a slow network by sleeping, for tests and for measurements of how much communication is hidden
// behind computation.
//
// Collective:    as the wrapped group
#pragma once

#include <chrono>

#include "dtopp/distributed/collectives.h"

namespace dtopp::distributed {
// A rank's outgoing connection, shared by the groups that use it. Collectives occupy it one after another.
// Their bytes arrive `latency` after the last byte has left. Call it from the threads that start collectives.
class Wire {
 public:
  using Clock = std::chrono::steady_clock;
  Wire(std::chrono::duration<double> latency, double bytes_per_second)
      : latency_(latency), bytes_per_second_(bytes_per_second) {}
  // Applies to bytes that are given to the wire from now on.
  void set(std::chrono::duration<double> latency, double bytes_per_second) {
    latency_ = latency;
    bytes_per_second_ = bytes_per_second;
  }
  // The time at which bytes that are given to the wire now arrive.
  Clock::time_point arrival(int64_t bytes);

 private:
  std::chrono::duration<double> latency_;
  double bytes_per_second_;
  Clock::time_point free_ = Clock::now();
};

// A collective is done only after this rank's bytes have arrived. Starting one never blocks.
class DelayedCollectives final : public Collectives {
 public:
  DelayedCollectives(std::unique_ptr<Collectives> inner, std::shared_ptr<Wire> wire)
      : Collectives(inner->rank(), inner->size()), inner_(std::move(inner)), wire_(std::move(wire)) {}
  Pending start(const Collective& collective) override;

 private:
  std::unique_ptr<Collectives> inner_;
  std::shared_ptr<Wire> wire_;
};

}  // namespace dtopp::distributed
