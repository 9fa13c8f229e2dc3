#include "dtopp/train/step.h"

#include <cmath>

namespace dtopp::train {
namespace {

// How the ranks' values of a number become one: their sum, that sum over the first dimension, or the maximum.
enum class Reduce { kSum, kSumRows, kMax };

struct Reduced {
  Tensor StepNumbers::*number;
  Reduce how;
};

// In the order of the all-reduced vector.
constexpr Reduced kReduced[] = {
    {&StepNumbers::losses, Reduce::kSumRows},        {&StepNumbers::grad_squares, Reduce::kSumRows},
    {&StepNumbers::overflowed, Reduce::kSum},        {&StepNumbers::stop_requested, Reduce::kSum},
    {&StepNumbers::max_assignments_L, Reduce::kMax}, {&StepNumbers::activations, Reduce::kSum},
    {&StepNumbers::statistics, Reduce::kSum},        {&StepNumbers::logit_sums, Reduce::kSum}};

// The host reads these, and the metrics of the router.
constexpr Tensor StepNumbers::*kRead[] = {&StepNumbers::losses,
                                          &StepNumbers::grad_squares,
                                          &StepNumbers::overflowed,
                                          &StepNumbers::stop_requested,
                                          &StepNumbers::max_assignments_L,
                                          &StepNumbers::activations,
                                          &StepNumbers::applied,
                                          &StepNumbers::scale_L};

Tensor flat(const Tensor& number) { return number.to(at::kDouble).reshape({-1}); }

// This rank's values. Those of a maximum have a row per rank, zero in the rows of other ranks.
Tensor contribution(const Tensor& number, Reduce how, const distributed::Collectives& ranks) {
  const Tensor values = flat(number);
  if (how != Reduce::kMax) return values;
  return at::cat({values.new_zeros({ranks.rank() * values.numel()}), values,
                  values.new_zeros({(ranks.size() - 1 - ranks.rank()) * values.numel()})});
}

std::vector<double> list(const Tensor& on_host) {
  const Tensor values = on_host.contiguous();
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

// The squares of the gradients' elements then fit f32, and so do the second moments.
constexpr double kLargestNorm = 1e19;

}  // namespace

StepNumbers all_reduce(const StepNumbers& of_rank, distributed::Collectives& ranks) {
  std::vector<Tensor> values;
  for (const auto& [number, how] : kReduced) values.push_back(contribution(of_rank.*number, how, ranks));
  const Tensor all = at::cat(values);
  ranks.all_reduce_sum(all, "step").wait();
  StepNumbers numbers;
  int64_t begin = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto& [number, how] = kReduced[i];
    const Tensor sum = all.narrow(0, begin, values[i].numel());
    const Tensor& mine = of_rank.*number;
    if (how == Reduce::kMax) {
      numbers.*number = sum.view({ranks.size(), mine.numel()}).amax(0);
    } else {
      numbers.*number = how == Reduce::kSumRows ? sum.view(mine.sizes()).sum(0) : sum.view(mine.sizes());
    }
    begin += values[i].numel();
  }
  return numbers;
}

void StepSums::add_losses(int64_t micro_batch, const Tensor& total, const ops::NamedTensors& terms) {
  std::vector<Tensor> values = {total};
  for (const auto& [name, value] : terms) values.push_back(value);
  losses.emplace_back(micro_batch, at::stack(values).to(at::kDouble));
}

void StepSums::add_statistics(const Tensor& of_micro_batch, const Tensor& logit_sums_of_micro_batch) {
  const auto add = [](Tensor& sum, const Tensor& term) {
    if (term.defined()) sum = sum.defined() ? sum + term : term;
  };
  add(statistics, of_micro_batch);
  add(logit_sums, logit_sums_of_micro_batch);
}

StepNumbers StepSums::numbers(const StepShape& shape, const Tensor& squared_norms,
                              const Tensor& overflowed) const {
  const auto options = squared_norms.options();
  const auto or_zeros = [&](const Tensor& sum, at::IntArrayRef sizes) {
    return sum.defined() ? sum.reshape(sizes) : at::zeros(sizes, options);
  };
  StepNumbers numbers;
  numbers.losses = at::zeros({shape.micro_batches, 1 + std::ssize(shape.loss_names)}, options);
  for (const auto& [micro_batch, values] : losses) numbers.losses[micro_batch].copy_(values);
  numbers.grad_squares = squared_norms;
  numbers.overflowed = overflowed;
  numbers.stop_requested = at::full({}, stop_requested ? 1.0 : 0.0, options);
  numbers.max_assignments_L = max_assignments_L;
  numbers.activations = activations.to_vector(shape.num_experts, options.device());
  numbers.statistics = or_zeros(statistics, shape.statistics_shape);
  numbers.logit_sums = or_zeros(logit_sums, shape.logit_sums_shape);
  return numbers;
}

const std::vector<double>* StepResult::router_values(std::string_view name) const {
  for (const auto& [candidate, values] : router)
    if (candidate == name) return &values;
  return nullptr;
}

StepInFlight::StepInFlight(StepResult known, StepShape shape, StepNumbers numbers, double begun,
                           double issued)
    : known_(std::move(known)),
      shape_(std::move(shape)),
      numbers_(std::move(numbers)),
      begun_(begun),
      issued_(issued) {
  numbers_.statistics = numbers_.logit_sums = Tensor();  // large, and the router has used them
  std::vector<Tensor> values;
  for (const auto number : kRead) values.push_back(flat(numbers_.*number));
  for (const auto& [name, metric] : numbers_.router) values.push_back(flat(metric));
  copy_ = ops::HostCopy(std::vector<Tensor>{at::cat(values)});
}

StepResult StepInFlight::read() const {
  const Tensor& all = copy_.get()[0];
  int64_t begin = 0;
  const auto next = [&](const Tensor& on_device) {
    begin += on_device.numel();
    return all.narrow(0, begin - on_device.numel(), on_device.numel());
  };
  StepNumbers numbers;
  for (const auto number : kRead) numbers.*number = next(numbers_.*number);
  StepResult result = known_;
  for (const auto& [name, metric] : numbers_.router) result.router.emplace_back(name, list(next(metric)));

  const auto count = static_cast<double>(shape_.micro_batches);
  const std::vector<double> sums = list(numbers.losses);
  result.loss = sums[0] / count;
  for (size_t i = 0; i < shape_.loss_names.size(); ++i)
    result.losses.emplace_back(shape_.loss_names[i], sums[i + 1] / count);
  result.grad_norm = std::sqrt(numbers.grad_squares.item<double>());
  result.overflowed = numbers.overflowed.item<double>() != 0;
  result.stop_requested = numbers.stop_requested.item<double>() != 0;
  for (const double most : list(numbers.max_assignments_L))
    result.max_assignments_L.push_back(static_cast<int64_t>(most));
  result.activations = moe::ActivationStatistics::from_vector(numbers.activations, shape_.routed_layers,
                                                              shape_.num_experts, shape_.tokens);
  result.skipped = numbers.applied.item<double>() == 0 && !result.overflowed;
  result.scales = list(numbers.scale_L);
  return result;
}

StepDecision decide(const StepNumbers& numbers, const config::OptimizerConfig& config) {
  const Tensor norm = numbers.grad_squares.sqrt();
  const double clip = config.grad_clip;
  const Tensor divisor =
      (clip > 0 ? ((norm + 1e-6) / clip).clamp_min(1.0) : at::ones_like(norm)).to(at::kFloat);
  return {at::isfinite(numbers.losses[0])
              .logical_and(at::isfinite(divisor))
              .logical_and((norm / divisor).le(kLargestNorm))
              .logical_and(numbers.overflowed.eq(0)),
          divisor};
}

}  // namespace dtopp::train
