#include "dtopp/train/step_result.h"

#include <cmath>
#include <stdexcept>

namespace dtopp {
double StepResult::loss_named(std::string_view name) const {
  for (const auto& [candidate, value] : losses) {
    if (candidate == name) return value;
  }
  throw std::invalid_argument("StepResult: no loss named " + std::string(name));
}

StepInFlight::Arrival StepInFlight::read() const {
  const StepNumbers numbers = copy_.get();
  Arrival arrival{known_, numbers.list("new_threshold"), numbers.list("new_error_sum")};
  StepResult& result = arrival.result;

  const auto count = static_cast<double>(shape_.micro_batches);
  const std::vector<double> sums = numbers.list("losses");
  result.loss = sums[0] / count;
  for (size_t i = 0; i < shape_.loss_names.size(); ++i)
    result.losses.emplace_back(shape_.loss_names[i], sums[i + 1] / count);
  result.grad_norm = std::sqrt(numbers.number("grad_squares"));
  result.overflowed = numbers.number("overflowed") != 0;
  result.stop_requested = numbers.number("stop_requested") != 0;
  for (const double most : numbers.list("max_assignments"))
    result.max_assignments_L.push_back(static_cast<int64_t>(most));
  result.activations = ActivationStatistics::from_vector(numbers["activations"], shape_.routed_layers,
                                                         shape_.num_experts, shape_.tokens);
  result.skipped = numbers.number("applied") == 0 && !result.overflowed;
  result.scales = numbers.list("scale");
  // One threshold may apply to all layers.
  const std::vector<double> thresholds = numbers.list("threshold"), solved = numbers.list("solved");
  for (size_t layer = 0; layer < static_cast<size_t>(shape_.routed_layers); ++layer) {
    result.thresholds.push_back(thresholds[thresholds.size() > 1 ? layer : 0]);
    if (!solved.empty()) result.solved.push_back(solved[solved.size() > 1 ? layer : 0]);
  }
  return arrival;
}

}  // namespace dtopp
