#include "dtopp/train/trainer.h"

#include <chrono>
#include <cmath>

#include "dtopp/train/schedule.h"

namespace dtopp {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Sums the terms of micro-batches; every micro-batch has the same number of tokens.
class LossSums {
 public:
  void add(const BatchLosses& losses) {
    total_ += losses.total.item<double>();
    if (terms_.empty()) {
      for (const auto& [name, value] : losses.values) terms_.emplace_back(name, 0.0);
    }
    for (size_t i = 0; i < terms_.size(); ++i) terms_[i].second += losses.values[i].second.item<double>();
  }
  void mean_into(StepResult& result, int64_t micro_batches) const {
    const auto count = static_cast<double>(micro_batches);
    result.loss = total_ / count;
    result.losses = terms_;
    for (auto& [name, value] : result.losses) value /= count;
  }

 private:
  double total_ = 0;
  std::vector<std::pair<std::string, double>> terms_;
};

}  // namespace

Trainer::Trainer(const RunConfig& config, TrainingTask task, at::ScalarType compute_type)
    : config_(config),
      task_(std::move(task)),
      store_(task_.parameters, compute_type),
      controller_(config.routing, config.model.num_experts, task_.num_routed_layers) {
  losses_ = task_.bind([this](const std::string& name) { return store_.compute(name); });
  state_.seed = config.training.seed;
  record_controller();
}

void Trainer::initialise() { store_.initialise(static_cast<uint64_t>(config_.training.seed)); }

void Trainer::restore(const Checkpoint& checkpoint) {
  store_.load(checkpoint, /*moments=*/true);
  state_ = checkpoint.state();
  controller_.restore(state_.threshold, state_.error_sum);
}

void Trainer::record_controller() {
  state_.threshold = controller_.thresholds();
  state_.error_sum = controller_.error_sums();
  state_.per_layer = controller_.per_layer();
}

void Trainer::record_inputs(const RoutingInputs& inputs, StepResult& result) const {
  for (const at::Tensor& threshold : inputs.threshold) result.thresholds.push_back(threshold.item<double>());
  if (config_.routing.normalization != Normalization::kDynamic) return;
  for (const ParameterSpec& spec : store_.specs()) {
    if (spec.name.ends_with("mlp.gate.scale"))
      result.scales.push_back(store_.master(spec.name).item<double>());
  }
}

bool Trainer::accumulate_gradients(const RoutingInputs& inputs, const std::function<bool()>& stop,
                                   StepResult& result) {
  const int64_t size = config_.training.micro_batch_size;
  const int64_t micro_batches = config_.training.global_batch_size / size;
  LossSums sums;
  for (int64_t micro = 0; micro < micro_batches; ++micro) {
    if (stop()) return false;
    const double wait = now();
    const at::Tensor batch =
        task_.training_batch(static_cast<uint64_t>(state_.sample_position + micro * size), size);
    result.data_seconds += now() - wait;
    const BatchLosses losses = losses_(batch, inputs);
    (losses.total / static_cast<double>(micro_batches)).backward();
    store_.collect_gradients();
    sums.add(losses);
    result.activations.add(losses.activations);
  }
  sums.mean_into(result, micro_batches);
  return true;
}

std::optional<StepResult> Trainer::step(const std::function<bool()>& stop) {
  const double begin = now();
  StepResult result;
  result.activations = ActivationStatistics(task_.num_routed_layers);
  RoutingInputs inputs = routing();
  if (config_.loss.batch_statistics == BatchStatistics::kGlobal) inputs.earlier = &result.activations;
  record_inputs(inputs, result);
  store_.clear_gradients();
  if (!accumulate_gradients(inputs, stop, result)) return std::nullopt;
  apply_gradients(result);
  state_.sample_position += config_.training.global_batch_size;
  state_.tokens += config_.training.global_batch_size * task_.tokens_per_sample;
  result.seconds = now() - begin;
  return result;
}

void Trainer::apply_gradients(StepResult& result) {
  state_.step += 1;
  result.lr = learning_rate(config_.optimizer, state_.step, config_.training.steps);
  const at::Tensor norm = store_.gradient_norm();
  result.grad_norm = norm.item<double>();
  result.skipped = !std::isfinite(result.loss) || !std::isfinite(result.grad_norm);
  if (result.skipped) {
    state_.skipped_steps += 1;
    state_.consecutive_skips += 1;
  } else {
    state_.consecutive_skips = 0;
    const double clip = config_.optimizer.grad_clip;
    const double divisor = clip > 0 ? std::max(1.0, (result.grad_norm + 1e-6) / clip) : 1.0;
    store_.adamw_step(config_.optimizer, result.lr, state_.step - state_.skipped_steps,
                      at::scalar_tensor(divisor, at::kFloat));
    controller_.update(result.activations.selected(), result.activations.tokens());
    record_controller();
  }
  store_.clear_gradients();
}

std::optional<ValidationResult> Trainer::validate(int64_t tokens, const std::function<bool()>& stop) const {
  const at::NoGradGuard no_grad;
  const auto wanted = static_cast<uint64_t>(std::max<int64_t>(1, tokens / task_.tokens_per_sample));
  const uint64_t samples = std::min(wanted, task_.validation_samples);
  ValidationResult result;
  result.activations = ActivationStatistics(task_.num_routed_layers);
  const RoutingInputs inputs = routing();
  for (uint64_t index = 0; index < samples;) {
    if (stop()) return std::nullopt;
    const auto count = static_cast<int64_t>(
        std::min<uint64_t>(static_cast<uint64_t>(config_.training.micro_batch_size), samples - index));
    const BatchLosses losses = losses_(task_.validation_batch(index, count), inputs);
    result.loss += losses.values.at(0).second.item<double>() * static_cast<double>(count);
    result.activations.add(losses.activations);
    index += static_cast<uint64_t>(count);
  }
  result.loss /= static_cast<double>(samples);
  return result;
}

}  // namespace dtopp
