#include "dtopp/train/step_result.h"

#include <stdexcept>

namespace dtopp::train {
double StepResult::loss_named(std::string_view name) const {
  for (const auto& [candidate, value] : losses) {
    if (candidate == name) return value;
  }
  throw std::invalid_argument("StepResult: no loss named " + std::string(name));
}

const std::vector<double>* StepResult::router_values(std::string_view name) const {
  for (const auto& [candidate, values] : router) {
    if (candidate == name) return &values;
  }
  return nullptr;
}

StepResult StepInFlight::read() const {
  const StepNumbers numbers = copy_.get();
  StepResult result = known_;

  const auto count = static_cast<double>(shape_.micro_batches);
  const std::vector<double> sums = numbers.list("losses");
  result.loss = sums[0] / count;
  for (size_t i = 0; i < shape_.loss_names.size(); ++i)
    result.losses.emplace_back(shape_.loss_names[i], sums[i + 1] / count);
  result.grad_norm = numbers["grad_squares"].sqrt().item<double>();
  result.overflowed = numbers.number("overflowed") != 0;
  result.stop_requested = numbers.number("stop_requested") != 0;
  for (const double most : numbers.list("max_assignments"))
    result.max_assignments_L.push_back(static_cast<int64_t>(most));
  result.activations = moe::ActivationStatistics::from_vector(numbers["activations"], shape_.routed_layers,
                                                              shape_.num_experts, shape_.tokens);
  result.skipped = numbers.number("applied") == 0 && !result.overflowed;
  result.scales = numbers.list("scale");
  for (const auto& [name, values] : numbers.all())
    if (name.starts_with(kRouterMetric))
      result.router.emplace_back(name.substr(std::string_view(kRouterMetric).size()), numbers.list(name));
  return result;
}

}  // namespace dtopp::train
