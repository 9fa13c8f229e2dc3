#include "dtopp/train/step_sums.h"

namespace dtopp::train {

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

}  // namespace dtopp::train
