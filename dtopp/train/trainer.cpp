#include "dtopp/train/trainer.h"

#include <algorithm>
#include <chrono>

#include "dtopp/train/schedule.h"

namespace dtopp {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<double> doubles(const at::Tensor& values) {
  const at::Tensor host = values.cpu();
  return {host.const_data_ptr<double>(), host.const_data_ptr<double>() + host.numel()};
}

}  // namespace

Trainer::Trainer(const RunConfig& config, TrainingTask task, const at::TensorOptions& compute)
    : config_(config),
      task_(std::move(task)),
      store_(task_.parameters, compute),
      controller_(config.routing, config.model.num_experts, task_.num_routed_layers, compute.device()) {
  losses_ = task_.bind([this](const std::string& name) { return store_.compute(name); });
  state_.seed = config.training.seed;
  state_.threshold = doubles(controller_.thresholds());
  state_.error_sum = doubles(controller_.error_sums());
  state_.per_layer = controller_.per_layer();
  if (!compute.device().is_cpu()) predict_pairs(kPairMargin);
  halted_ = at::zeros({}, at::device(store_.device()).dtype(at::kBool));
}

void Trainer::initialise() { store_.initialise(static_cast<uint64_t>(config_.training.seed)); }

void Trainer::restore(const Checkpoint& checkpoint) {
  store_.load(checkpoint, /*moments=*/true);
  state_ = checkpoint.state();
  controller_.restore(state_.threshold, state_.error_sum);
}

at::Tensor Trainer::scales() const {
  std::vector<at::Tensor> scales;
  if (config_.routing.normalization == Normalization::kDynamic) {
    for (const ParameterSpec& spec : store_.specs()) {
      if (spec.name.ends_with("mlp.gate.scale")) scales.push_back(store_.master(spec.name));
    }
  }
  if (scales.empty()) return at::empty({0}, at::device(store_.device()).dtype(at::kFloat));
  return at::stack(scales);
}

bool Trainer::accumulate_gradients(const RoutingInputs& inputs, const std::function<bool()>& stop,
                                   StepResult& result, StepNumbers& numbers) {
  const int64_t size = config_.training.micro_batch_size;
  const int64_t micro_batches = config_.training.global_batch_size / size;
  for (int64_t micro = 0; micro < micro_batches; ++micro) {
    if (stop()) return false;
    const double wait = now();
    const at::Tensor batch =
        task_.training_batch(static_cast<uint64_t>(state_.sample_position + micro * size), size);
    result.data_seconds += now() - wait;
    const BatchLosses losses = losses_(to_device(batch, store_.device()), inputs);
    (losses.total / static_cast<double>(micro_batches)).backward();
    store_.collect_gradients();
    numbers.losses.add(losses.total.detach(), losses.values);
    numbers.activations.add(losses.activations);
    if (task_.num_routed_layers > 0)
      numbers.most_pairs_L = at::maximum(numbers.most_pairs_L, losses.activations.selected());
  }
  return true;
}

bool Trainer::step(const std::function<bool()>& stop) {
  const double begin = now();
  StepResult result;
  StepNumbers numbers;
  numbers.activations = ActivationStatistics(task_.num_routed_layers);
  numbers.threshold_C = controller_.thresholds();
  numbers.scale_L = scales();
  numbers.most_pairs_L = at::zeros({task_.num_routed_layers}, at::device(store_.device()).dtype(at::kLong));
  RoutingInputs inputs = routing();
  inputs.max_pairs = pair_limits_.limits_L();
  if (config_.loss.batch_statistics == BatchStatistics::kGlobal) inputs.earlier = &numbers.activations;
  store_.clear_gradients();
  if (!accumulate_gradients(inputs, stop, result, numbers)) return false;
  state_.step += 1;
  state_.sample_position += config_.training.global_batch_size;
  state_.tokens += config_.training.global_batch_size * task_.tokens_per_sample;
  result.step = state_.step;
  result.tokens = state_.tokens;
  result.lr = learning_rate(config_.optimizer, state_.step, config_.training.steps);
  if (!inputs.max_pairs.empty()) {
    const at::Tensor limits_L = to_device(at::tensor(inputs.max_pairs, at::kLong), store_.device());
    halted_ = halted_.logical_or(numbers.most_pairs_L.gt(limits_L).any());
  }
  numbers.halted = halted_;
  apply_gradients(result.lr, numbers);
  in_flight_.emplace_back(std::move(result), numbers, begin);
  return true;
}

void Trainer::apply_gradients(double lr, StepNumbers& numbers) {
  numbers.grad_norm = store_.gradient_norm();
  numbers.applied = at::isfinite(numbers.losses.sums()[0])
                        .logical_and(at::isfinite(numbers.grad_norm))
                        .logical_and(numbers.halted.logical_not());
  const double clip = config_.optimizer.grad_clip;
  const at::Tensor norm = numbers.grad_norm.to(at::kDouble);
  const at::Tensor divisor = clip > 0 ? ((norm + 1e-6) / clip).clamp_min(1.0) : at::ones_like(norm);
  store_.adamw_step(config_.optimizer, lr, divisor.to(at::kFloat), numbers.applied);
  store_.clear_gradients();
  if (task_.num_routed_layers > 0) {
    controller_.update(numbers.activations.selected(), numbers.activations.tokens(), numbers.applied);
  }
  numbers.new_threshold_C = controller_.thresholds();
  numbers.new_error_sum_C = controller_.error_sums();
}

std::optional<StepResult> Trainer::next_result(size_t in_flight) {
  if (in_flight_.empty() || (in_flight_.size() <= in_flight && !in_flight_.front().arrived()))
    return std::nullopt;
  auto [result, thresholds, error_sums] = in_flight_.front().read();
  if (result.halted) {
    undo(result);
    return std::nullopt;
  }
  pair_limits_.observe(result.most_pairs_L);
  const double arrival = now();
  // Of steps that follow each other without a pause, what lies between their ends.
  result.seconds = arrival - std::max(in_flight_.front().begun(), last_arrival_);
  last_arrival_ = arrival;
  in_flight_.pop_front();
  state_.skipped_steps += result.skipped ? 1 : 0;
  state_.consecutive_skips = result.skipped ? state_.consecutive_skips + 1 : 0;
  state_.threshold = std::move(thresholds);
  state_.error_sum = std::move(error_sums);
  result.skipped_steps = state_.skipped_steps;
  result.consecutive_skips = state_.consecutive_skips;
  return result;
}

void Trainer::undo(const StepResult& halted) {
  const int64_t steps = state_.step - halted.step + 1;
  state_.step -= steps;
  state_.sample_position -= steps * config_.training.global_batch_size;
  state_.tokens -= steps * config_.training.global_batch_size * task_.tokens_per_sample;
  in_flight_.clear();
  halted_ = at::zeros_like(halted_);
  pair_limits_.forget();
}

std::optional<ValidationResult> Trainer::validate(int64_t tokens, const std::function<bool()>& stop) const {
  const at::NoGradGuard no_grad;
  const auto wanted = static_cast<uint64_t>(std::max<int64_t>(1, tokens / task_.tokens_per_sample));
  const uint64_t samples = std::min(wanted, task_.validation_samples);
  ValidationResult result;
  result.activations = ActivationStatistics(task_.num_routed_layers);
  const RoutingInputs inputs = routing();
  at::Tensor sum = at::zeros({}, at::device(store_.device()).dtype(at::kDouble));
  for (uint64_t index = 0; index < samples;) {
    if (stop()) return std::nullopt;
    const auto count = static_cast<int64_t>(
        std::min<uint64_t>(static_cast<uint64_t>(config_.training.micro_batch_size), samples - index));
    const at::Tensor batch = to_device(task_.validation_batch(index, count), store_.device());
    const BatchLosses losses = losses_(batch, inputs);
    sum += losses.values.at(0).second.to(at::kDouble) * count;
    result.activations.add(losses.activations);
    index += static_cast<uint64_t>(count);
  }
  result.loss = sum.item<double>() / static_cast<double>(samples);
  return result;
}

}  // namespace dtopp
