#include "dtopp/train/step.h"

#include <algorithm>
#include <stdexcept>

namespace dtopp::train {
namespace {

int64_t elements(const std::vector<int64_t>& shape) { return c10::multiply_integers(shape); }

// This rank's values of a field. Only kMaxOverRanks has a row per rank, zero in those of other ranks.
at::Tensor contribution(const StepField& field, const ops::NamedTensors& local,
                        const at::TensorOptions& options, const distributed::Collectives& ranks) {
  const int64_t size = elements(field.shape);
  const auto found =
      std::ranges::find_if(local, [&](const auto& tensor) { return tensor.first == field.name; });
  const bool given = found != local.end() && found->second.defined();
  if (given && found->second.numel() != size)
    throw std::invalid_argument("StepNumbers: " + field.name + " has " +
                                std::to_string(found->second.numel()) + " numbers instead of " +
                                std::to_string(size));
  const at::Tensor values = given ? found->second.to(at::kDouble).reshape({-1}) : at::zeros({size}, options);
  if (field.reduce != Reduce::kMaxOverRanks) return values;
  return at::cat({at::zeros({ranks.rank() * size}, options), values,
                  at::zeros({(ranks.size() - 1 - ranks.rank()) * size}, options)});
}

// The result of a field, from the sum of all ranks' contributions.
at::Tensor result(const StepField& field, const at::Tensor& sum, int64_t ranks) {
  if (field.reduce == Reduce::kMaxOverRanks) return sum.view({ranks, elements(field.shape)}).amax(0);
  const at::Tensor shaped = sum.view(field.shape);
  return field.reduce == Reduce::kSumRows ? shaped.sum(0) : shaped;
}

}  // namespace

StepNumbers StepNumbers::reduce(const StepSchema& schema, const ops::NamedTensors& local,
                                const at::TensorOptions& options, distributed::Collectives& ranks) {
  const auto in_f64 = options.dtype(at::kDouble);
  std::vector<at::Tensor> lists;
  for (const StepField& field : schema) lists.push_back(contribution(field, local, in_f64, ranks));
  const at::Tensor all = at::cat(lists);
  ranks.all_reduce_sum(all, "step").wait();
  StepNumbers numbers;
  int64_t begin = 0;
  for (size_t i = 0; i < schema.size(); ++i) {
    const int64_t size = lists[i].numel();
    numbers.add(schema[i].name, result(schema[i], all.narrow(0, begin, size), ranks.size()));
    begin += size;
  }
  return numbers;
}

void StepNumbers::add(std::string name, const at::Tensor& value) {
  if (has(name)) throw std::invalid_argument("StepNumbers: two numbers named " + name);
  values_.emplace_back(std::move(name), value.to(at::kDouble));
}

bool StepNumbers::has(std::string_view name) const {
  return std::ranges::any_of(values_, [&](const auto& value) { return value.first == name; });
}

at::Tensor StepNumbers::take(std::string_view name) {
  at::Tensor value = (*this)[name];
  std::erase_if(values_, [&](const auto& candidate) { return candidate.first == name; });
  return value;
}

std::vector<double> StepNumbers::list(std::string_view name) const {
  const at::Tensor values = (*this)[name].contiguous();
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

StepNumbers::Copy::Copy(const StepNumbers& numbers) {
  std::vector<at::Tensor> lists;
  for (const auto& [name, value] : numbers.values_) {
    fields_.push_back({name, value.sizes().vec()});
    lists.push_back(value.reshape({-1}));
  }
  copy_ = ops::HostCopy(std::vector<at::Tensor>{at::cat(lists)});
}

StepNumbers StepNumbers::Copy::get() const {
  const at::Tensor& all = copy_.get()[0];
  StepNumbers numbers;
  int64_t begin = 0;
  for (const StepField& field : fields_) {
    const int64_t size = elements(field.shape);
    numbers.values_.emplace_back(field.name, all.narrow(0, begin, size).view(field.shape));
    begin += size;
  }
  return numbers;
}

StepSchema StepShape::schema() const {
  return {{"losses", {micro_batches, 1 + static_cast<int64_t>(loss_names.size())}, Reduce::kSumRows},
          {"grad_squares", {chunks}, Reduce::kSumRows},
          {"overflowed", {}},
          {"stop_requested", {}},
          {"max_assignments", {routed_layers}, Reduce::kMaxOverRanks},
          {"activations", {moe::ActivationStatistics::vector_size(routed_layers, num_experts)}},
          {"statistics", statistics_shape},
          {"logit_sums", logit_sums_shape}};
}

void StepSums::add_losses(int64_t micro_batch, const at::Tensor& total, const ops::NamedTensors& terms) {
  std::vector<at::Tensor> values = {total};
  for (const auto& [name, value] : terms) values.push_back(value);
  losses.emplace_back(micro_batch, at::stack(values).to(at::kDouble));
}

void StepSums::add_statistics(const at::Tensor& of_micro_batch, const at::Tensor& logit_sums_of_micro_batch) {
  const auto add = [](at::Tensor& sum, const at::Tensor& term) {
    if (term.defined()) sum = sum.defined() ? sum + term : term;
  };
  add(statistics, of_micro_batch);
  add(logit_sums, logit_sums_of_micro_batch);
}

ops::NamedTensors StepSums::fields(const StepShape& shape, const at::Tensor& squared_norms,
                                   const at::Tensor& overflowed) const {
  const auto options = squared_norms.options();
  const at::Tensor losses_MN =
      at::zeros({shape.micro_batches, 1 + static_cast<int64_t>(shape.loss_names.size())}, options);
  for (const auto& [micro_batch, values] : losses) losses_MN[micro_batch].copy_(values);
  return {{"losses", losses_MN},
          {"grad_squares", squared_norms},
          {"overflowed", overflowed},
          {"stop_requested", at::full({}, stop_requested ? 1.0 : 0.0, options)},
          {"max_assignments", max_assignments_L},
          {"activations", activations.to_vector(shape.num_experts, options.device())},
          {"statistics", statistics},
          {"logit_sums", logit_sums}};
}

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

namespace {

// The squares of the gradients' elements then fit f32, and so do the second moments.
constexpr double kLargestNorm = 1e19;

}  // namespace

StepDecision decide(const StepNumbers& numbers, const config::OptimizerConfig& config) {
  const at::Tensor norm = numbers["grad_squares"].sqrt();
  const double clip = config.grad_clip;
  const at::Tensor divisor =
      (clip > 0 ? ((norm + 1e-6) / clip).clamp_min(1.0) : at::ones_like(norm)).to(at::kFloat);
  return {at::isfinite(numbers["losses"][0])
              .logical_and(at::isfinite(divisor))
              .logical_and((norm / divisor).le(kLargestNorm))
              .logical_and(numbers["overflowed"].eq(0)),
          divisor};
}

}  // namespace dtopp::train
