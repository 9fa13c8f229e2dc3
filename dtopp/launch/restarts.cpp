#include "dtopp/launch/restarts.h"

#include <algorithm>

#include "dtopp/base/errors.h"

namespace dtopp::launch {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{125}, kLongestPause{60'000};
constexpr int64_t kDoublings = 9;  // from the first pause to one beyond the longest

milliseconds pause_before(int64_t restart) {
  return std::min(kLongestPause, kFirstPause * (1 << std::min(restart - 1, kDoublings)));
}

}  // namespace

Restart Restarts::after(const RanksEnd& end, int64_t step) {
  attempts_at_step_ = step == step_ ? attempts_at_step_ + 1 : 0;
  step_ = step;
  if (allowed_ == 0 || end.stopped || end.status != static_cast<int>(ExitStatus::kResource)) return {};
  if (attempts_at_step_ > 1)
    return {.message = "not restarted: two attempts in a row saved no newer checkpoint"};
  if (used_ == allowed_)
    return {.message = "not restarted: all " + std::to_string(allowed_) + " restarts are used"};
  ++used_;
  return {.again = true,
          .pause = pause_before(used_),
          .message = "restart " + std::to_string(used_) + " of " + std::to_string(allowed_) + " from step " +
                     std::to_string(step)};
}

}  // namespace dtopp::launch
