#include "dtopp/models/solve_thresholds.h"

#include "dtopp/moe/expert_bias.h"

namespace dtopp::models {

moe::Routing solve_thresholds(const config::RunConfig& config, const std::vector<double>& targets,
                              const at::Device& device, MeanExperts forward, const moe::Routing& routing) {
  const at::NoGradGuard no_grad;
  moe::Routing solved = routing;
  const Tensor bias_LE = moe::centered_bias_of(routing.router.get());
  if (config::has_controller(config.routing.method) &&
      config.routing.scope == config::ThresholdScope::kLayer) {
    const auto router = std::make_shared<moe::SolvingRouter>(config, targets, device, routing.ranks, bias_LE);
    solved.router = router;
    forward(solved);
    solved.router = std::make_shared<moe::TopPRouter>(config, router->thresholds_L(), bias_LE);
    return solved;
  }
  const auto use = [&](double p) {
    solved.router = std::make_shared<moe::TopPRouter>(
        config, at::full({1}, p, at::device(device).dtype(at::kDouble)), bias_LE);
  };
  const double target =
      std::accumulate(targets.begin(), targets.end(), 0.0) / static_cast<double>(targets.size());
  const auto count = [&](double candidate) {
    use(candidate);
    return moe::broadcast_number(routing.ranks, forward(solved));  // all ranks then need equally many passes
  };
  use(moe::solve_threshold(target, count));
  return solved;
}

moe::Routing solve_on_validation(const Model& model, const config::RunConfig& config,
                                 const std::vector<double>& targets, const at::Device& device,
                                 const LossFunction& losses, const TrainingData& data,
                                 const moe::Routing& routing) {
  const auto room = static_cast<uint64_t>(std::max<int64_t>(1, kSolveTokens / model.tokens_per_sample));
  const auto samples = static_cast<int64_t>(std::min(room, data.validation_samples));
  const Batch batch = data.validation->read(0, samples).to(device);
  return solve_thresholds(
      config, targets, device,
      [&](const moe::Routing& with) { return losses(batch, with).activations.summary().mean; }, routing);
}

}  // namespace dtopp::models
