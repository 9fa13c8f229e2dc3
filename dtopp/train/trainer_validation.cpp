#include <algorithm>

#include "dtopp/distributed/groups/rank_agreement.h"
#include "dtopp/models/held_out_sources.h"
#include "dtopp/models/solve_thresholds.h"
#include "dtopp/train/trainer.h"

namespace dtopp::train {

std::optional<models::ValidationResult> Trainer::validate(int64_t tokens, const StopToken& stop) {
  const auto wanted = static_cast<uint64_t>(std::max<int64_t>(1, tokens / model_.tokens_per_sample));
  const std::vector<models::HeldOutSource> sources = models::first_of_each(data_, wanted);
  std::optional<models::ValidationResult> result = validate_with(parallel_routing(), sources, stop);
  if (!result || model_.ema_decay == 0) return result;
  swap_ema();
  const std::optional<models::ValidationResult> of_ema = validate_with(solved_routing(), sources, stop);
  swap_ema();
  if (!of_ema) return std::nullopt;
  result->ema_loss = of_ema->loss;
  return result;
}

moe::Routing Trainer::solved_routing() const {
  // Without a controller, p is part of the configuration.
  if (!router_ || !config::has_controller(config_.routing.method)) return parallel_routing();
  return models::solve_on_validation(model_, config_, router_->config().experts, store_.device(), losses_,
                                     data_, parallel_routing());
}

SolvedStart Trainer::solve_initial_thresholds() {
  const at::NoGradGuard no_grad;
  const int64_t samples = std::max<int64_t>(1, models::kSolveTokens / model_.tokens_per_sample);
  const models::Batch batch = data_.training->read(/*position=*/0, samples).to(store_.device());
  const auto mean_experts = [&](const moe::Routing& with) {
    return losses_(batch, with).activations.summary().mean;
  };
  const moe::Routing solved = models::solve_thresholds(config_, router_->config().experts, store_.device(),
                                                       mean_experts, parallel_routing());
  const std::vector<double> thresholds = solved.router->metric("threshold");
  router_->start_at(thresholds);
  return {thresholds, mean_experts(solved), samples * model_.tokens_per_sample};
}

std::optional<models::ValidationResult> Trainer::validate_with(
    const moe::Routing& inputs, const std::vector<models::HeldOutSource>& sources,
    const StopToken& stop) const {
  const at::NoGradGuard no_grad;
  models::ValidationSums sums(model_, config_.model.num_experts, sources, config_.training.micro_batch_size,
                              store_.device());
  for (int64_t first = 0; first < sums.num_batches(); first += groups_.size()) {
    if (distributed::any_of(*groups_.world, stop.stop_requested())) return std::nullopt;
    const int64_t b = first + groups_.rank();
    if (b >= sums.num_batches()) {
      forward_empty();
      continue;
    }
    const models::Batch batch =
        data_.validation->read(sums.first_sample(b), sums.size_of(b)).to(store_.device());
    sums.add(b, batch, losses_(batch, inputs));
  }
  return sums.result(*groups_.world);
}

}  // namespace dtopp::train
