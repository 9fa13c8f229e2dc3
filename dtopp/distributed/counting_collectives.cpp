#include "dtopp/distributed/counting_collectives.h"

#include <chrono>

namespace dtopp::distributed {
std::map<std::string, Traffic> CollectiveCounts::traffic() const {
  const std::lock_guard lock(mutex_);
  return traffic_;
}

Traffic CollectiveCounts::total() const {
  const std::lock_guard lock(mutex_);
  Traffic sum;
  for (const auto& [what, traffic] : traffic_) sum += traffic;
  return sum;
}

CollectiveCounts::Current CollectiveCounts::current() const {
  const std::lock_guard lock(mutex_);
  return waited_for_.waiting ? waited_for_ : last_;
}

int64_t CollectiveCounts::started(const char* what, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  Traffic& traffic = traffic_[what];
  ++traffic.calls;
  traffic.bytes += bytes;
  last_ = {what, last_.ordinal + 1, false};
  return last_.ordinal;
}

void CollectiveCounts::waiting(const char* what, int64_t ordinal) {
  const std::lock_guard lock(mutex_);
  waited_for_ = {what, ordinal, true};
}

void CollectiveCounts::arrived(const char* what, double seconds) {
  const std::lock_guard lock(mutex_);
  traffic_[what].seconds += seconds;
  waited_for_.waiting = false;
}

namespace {

struct CountedOperation final : Pending::Operation {
  CountedOperation(Pending inner, std::shared_ptr<CollectiveCounts> counts, const char* what, int64_t ordinal)
      : inner(std::move(inner)), counts(std::move(counts)), what(what), ordinal(ordinal) {}

  void wait() override {
    using Clock = std::chrono::steady_clock;
    counts->waiting(what, ordinal);
    const Clock::time_point begin = Clock::now();
    inner.wait();
    counts->arrived(what, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  bool done() override { return inner.done(); }

  Pending inner;
  std::shared_ptr<CollectiveCounts> counts;
  const char* what;
  int64_t ordinal;
};

}  // namespace

Pending CountingCollectives::start(const Collective& collective) {
  const int64_t ordinal = counts_->started(collective.what, bytes_sent(collective, rank(), size()));
  return Pending(
      std::make_unique<CountedOperation>(inner_->start(collective), counts_, collective.what, ordinal));
}

}  // namespace dtopp::distributed
