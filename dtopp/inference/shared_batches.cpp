#include "dtopp/inference/shared_batches.h"

#include <algorithm>

namespace dtopp::inference {

SharedBatches::SharedBatches(std::vector<uint64_t> ends, distributed::Collectives& ranks, Watch& watch)
    : ends_(std::move(ends)), ranks_(ranks), watch_(watch) {}

std::optional<size_t> SharedBatches::next() {
  if (in_round_) end_round();
  while (!stopped_ && first_ < ends_.size()) {
    const bool stop = watch_.stop_requested();
    stops_ = at::full({1}, stop ? 1.0 : 0.0, at::kDouble);
    // The reduction overlaps the computation: a rank waits only until the others have started their batch.
    agreement_ = ranks_.all_reduce_sum(stops_, "stop");
    in_round_ = true;
    const size_t mine = first_ + static_cast<size_t>(ranks_.rank());
    if (!stop && mine < ends_.size()) return mine;
    end_round();
  }
  return std::nullopt;
}

void SharedBatches::end_round() {
  in_round_ = false;
  agreement_.wait();
  stopped_ = stops_.item<double>() != 0;
  if (stopped_) return;
  first_ += static_cast<size_t>(ranks_.size());
  watch_.update(ends_[std::min(ends_.size(), first_) - 1]);
}

}  // namespace dtopp::inference
