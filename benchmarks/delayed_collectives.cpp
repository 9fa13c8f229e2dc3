#include "benchmarks/delayed_collectives.h"

#include <algorithm>
#include <thread>

namespace dtopp::distributed {
Wire::Clock::time_point Wire::arrival(int64_t bytes) {
  const std::chrono::duration<double> occupied(static_cast<double>(bytes) / bytes_per_second_);
  free_ = std::max(free_, Clock::now()) + std::chrono::ceil<Clock::duration>(occupied);
  return free_ + std::chrono::ceil<Clock::duration>(latency_);
}

namespace {

struct DelayedOperation final : Pending::Operation {
  DelayedOperation(Pending inner, Wire::Clock::time_point arrival)
      : inner(std::move(inner)), arrival(arrival) {}

  void wait() override {
    inner.wait();
    std::this_thread::sleep_until(arrival);
  }
  bool done() override { return Wire::Clock::now() >= arrival && inner.done(); }

  Pending inner;
  Wire::Clock::time_point arrival;
};

}  // namespace

Pending DelayedCollectives::start(const Collective& collective) {
  const Wire::Clock::time_point arrival = wire_->arrival(bytes_sent(collective, rank(), size()));
  return Pending(std::make_unique<DelayedOperation>(inner_->start(collective), arrival));
}

}  // namespace dtopp::distributed
