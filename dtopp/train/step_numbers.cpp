#include "dtopp/train/step_numbers.h"

namespace dtopp {
namespace {

constexpr int64_t kTokenSums = 2;

StepShape shape_of(const StepSums& sums) {
  StepShape shape{sums.losses.names(), sums.losses.micro_batches(), sums.activations.tokens(),
                  sums.most_pairs_L.numel()};
  if (shape.routed_layers > 0) shape.num_experts = sums.activations.expert_counts().size(1);
  return shape;
}

}  // namespace

void LossSums::add(const at::Tensor& total, const std::vector<std::pair<std::string, at::Tensor>>& terms) {
  std::vector<at::Tensor> values = {total};
  for (const auto& [name, value] : terms) values.push_back(value);
  if (micro_batches_ == 0) {
    sums_ = at::zeros({static_cast<int64_t>(values.size())}, total.options().dtype(at::kDouble));
    for (const auto& [name, value] : terms) names_.push_back(name);
  }
  sums_ += at::stack(values);
  micro_batches_ += 1;
}

StepNumbers::StepNumbers(const StepSums& sums, const at::Tensor& grad_norm, const at::Tensor& halted)
    : shape_(shape_of(sums)) {
  const auto list = [](const at::Tensor& value) { return value.to(at::kDouble).reshape({-1}); };
  std::vector<at::Tensor> lists = {sums.losses.sums(), list(grad_norm).square(), list(halted)};
  if (shape_.routed_layers > 0) {
    lists.push_back(list(sums.most_pairs_L));
    lists.push_back(list(sums.activations.token_sums()));
    lists.push_back(list(sums.activations.expert_counts()));
    lists.push_back(list(sums.activations.histogram()));
  }
  values_ = at::cat(lists);
}

int64_t StepNumbers::size(const StepShape& shape) {
  const int64_t decided_by = shape.num_losses() + 2;
  if (shape.routed_layers == 0) return decided_by;
  return decided_by + kTokenSums + shape.routed_layers * (1 + shape.num_experts + shape.num_experts + 1);
}

at::Tensor StepNumbers::counts_LE() const {
  const int64_t L = shape_.routed_layers, E = shape_.num_experts;
  return part(sums_at() + kTokenSums, L * E).view({L, E});
}

ActivationStatistics StepNumbers::activations() const {
  const int64_t L = shape_.routed_layers, E = shape_.num_experts;
  if (L == 0) return ActivationStatistics();
  const at::Tensor histogram_LN = part(sums_at() + kTokenSums + L * E, L * (E + 1)).view({L, E + 1});
  return {counts_LE().to(at::kLong), histogram_LN.to(at::kLong), part(sums_at(), kTokenSums).to(at::kLong),
          shape_.tokens};
}

}  // namespace dtopp
