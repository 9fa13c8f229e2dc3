#include "dtopp/inference/shared_batches.h"

#include <algorithm>

namespace dtopp {

bool compute_batches(size_t batches, Collectives& ranks, const BatchHooks& hooks,
                     const std::function<void(size_t batch)>& compute) {
  const auto size = static_cast<size_t>(ranks.size());
  for (size_t first = 0; first < batches; first += size) {
    const size_t mine = first + static_cast<size_t>(ranks.rank());
    const bool stop = hooks.stop();
    const at::Tensor stops = at::full({1}, stop ? 1.0 : 0.0, at::kDouble);
    // The reduction overlaps the computation: a rank waits only until the others have started their batch.
    Pending agreement = ranks.all_reduce_sum(stops, "stop");
    if (!stop && mine < batches) compute(mine);
    agreement.wait();
    if (stops.item<double>() != 0) return false;
    hooks.progress(std::min(batches, first + size));
  }
  return true;
}

}  // namespace dtopp
