#include "dtopp/train/step_result.h"

#include <stdexcept>

namespace dtopp {
namespace {

// Returns the numbers of a list from its start.
class Numbers {
 public:
  explicit Numbers(const at::Tensor& list) : next_(list.const_data_ptr<double>()) {}

  double one() { return *next_++; }
  std::vector<double> several(int64_t count) {
    next_ += count;
    return {next_ - count, next_};
  }

 private:
  const double* next_;
};

}  // namespace

double StepResult::loss_named(std::string_view name) const {
  for (const auto& [candidate, value] : losses) {
    if (candidate == name) return value;
  }
  throw std::invalid_argument("StepResult: no loss named " + std::string(name));
}

// One copy for all fields: the fixed cost of a copy exceeds its transfer time.
StepInFlight::StepInFlight(StepResult known, const StepNumbers& numbers, const StepStates& states,
                           double begun)
    : known_(std::move(known)),
      shape_(numbers.shape()),
      controllers_(states.threshold_C.numel()),
      scales_(states.scale_L.numel()),
      solved_(states.solved_C.numel()),
      begun_(begun) {
  const auto list = [](const at::Tensor& value) { return value.to(at::kDouble).view({-1}); };
  const std::vector<at::Tensor> all = {
      at::cat({numbers.values(), list(states.applied), states.threshold_C, list(states.scale_L),
               states.solved_C, states.new_threshold_C, states.new_error_sum_C})};
  copy_ = HostCopy(all);
}

StepInFlight::Arrival StepInFlight::read() const {
  const at::Tensor& all = copy_.get()[0];
  const int64_t size = StepNumbers::size(shape_);
  const StepNumbers numbers(shape_, all.narrow(0, 0, size));
  Arrival arrival{known_, {}, {}};
  StepResult& result = arrival.result;

  const auto count = static_cast<double>(shape_.micro_batches);
  Numbers sums(numbers.loss_sums());
  result.loss = sums.one() / count;
  for (const std::string& name : shape_.loss_names) result.losses.emplace_back(name, sums.one() / count);
  result.grad_norm = numbers.grad_norm().item<double>();
  result.overflowed = numbers.overflowed().item<bool>();
  result.stop_requested = numbers.stop_requested().item<bool>();
  for (const double most : Numbers(numbers.max_assignments_L()).several(shape_.routed_layers))
    result.max_assignments_L.push_back(static_cast<int64_t>(most));
  result.activations = numbers.activations();

  Numbers states(all.narrow(0, size, all.numel() - size));
  result.skipped = states.one() == 0 && !result.overflowed;
  const std::vector<double> thresholds = states.several(controllers_);
  result.scales = states.several(scales_);
  const std::vector<double> solved = states.several(solved_);
  arrival.thresholds = states.several(controllers_);
  arrival.error_sums = states.several(controllers_);
  // One threshold may apply to all layers.
  for (int64_t layer = 0; layer < shape_.routed_layers; ++layer) {
    const size_t controller = controllers_ > 1 ? static_cast<size_t>(layer) : 0;
    result.thresholds.push_back(thresholds[controller]);
    if (solved_ > 0) result.solved.push_back(solved[controller]);
  }
  return arrival;
}

}  // namespace dtopp
