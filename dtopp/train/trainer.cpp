#include "dtopp/train/trainer.h"

#include <algorithm>
#include <chrono>

#include "dtopp/train/schedule.h"
#include "dtopp/train/step_decision.h"

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

Trainer::Trainer(const RunConfig& config, Model model, TrainingData data, const at::TensorOptions& compute)
    : config_(config),
      model_(std::move(model)),
      data_(std::move(data)),
      store_(model_.parameters, compute),
      controller_(config.routing, config.model.num_experts, model_.num_routed_layers, compute.device()) {
  losses_ = model_.bind([this](const std::string& name) { return store_.compute(name); });
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
  for (const ParameterSpec& spec : store_.specs()) {
    if (spec.role == ParameterRole::kRouterScale) scales.push_back(store_.master(spec.name));
  }
  if (scales.empty()) return at::empty({0}, at::device(store_.device()).dtype(at::kFloat));
  return at::stack(scales);
}

void Trainer::accumulate_gradients(RoutingInputs inputs, const std::function<bool()>& stop, StepSums& sums) {
  const int64_t size = config_.training.micro_batch_size;
  const int64_t micro_batches = config_.training.global_batch_size / size;
  if (config_.loss.batch_statistics == BatchStatistics::kGlobal) inputs.earlier = &sums.activations;
  for (int64_t micro = 0; micro < micro_batches; ++micro) {
    if ((sums.stop_asked = stop())) return;
    const double wait = now();
    const Batch batch =
        data_.training_batch(static_cast<uint64_t>(state_.sample_position + micro * size), size);
    sums.data_seconds += now() - wait;
    const BatchLosses losses = losses_(batch.to(store_.device()), inputs);
    (losses.total / static_cast<double>(micro_batches)).backward();
    store_.collect_gradients();
    sums.losses.add(losses.total.detach(), losses.values);
    sums.activations.add(losses.activations);
    if (model_.num_routed_layers > 0)
      sums.most_pairs_L = at::maximum(sums.most_pairs_L, losses.activations.selected());
  }
}

at::Tensor Trainer::halts(const StepSums& sums) {
  const std::vector<int64_t>& limits = pair_limits_.limits_L();
  if (limits.empty()) return halted_;
  const at::Tensor limits_L = to_device(at::tensor(limits, at::kLong), store_.device());
  return halted_.logical_or(sums.most_pairs_L.gt(limits_L).any());
}

bool Trainer::step(const std::function<bool()>& stop) {
  const double begin = now();
  StepStates states;
  states.threshold_C = controller_.thresholds();
  states.scale_L = scales();
  StepSums sums;
  sums.activations = ActivationStatistics(model_.num_routed_layers);
  sums.most_pairs_L = at::zeros({model_.num_routed_layers}, at::device(store_.device()).dtype(at::kLong));
  RoutingInputs inputs = routing();
  inputs.max_pairs = pair_limits_.limits_L();
  store_.clear_gradients();
  accumulate_gradients(std::move(inputs), stop, sums);
  if (is_abandoned(sums)) return false;
  state_.step += 1;
  state_.sample_position += config_.training.global_batch_size;
  state_.tokens += config_.training.global_batch_size * model_.tokens_per_sample;
  StepResult result;
  result.step = state_.step;
  result.tokens = state_.tokens;
  result.lr = learning_rate(config_.optimizer, state_.step, config_.training.steps);
  result.data_seconds = sums.data_seconds;
  halted_ = halts(sums);
  const StepNumbers numbers(sums, store_.gradient_norm(), halted_);
  apply(numbers, result.lr, states);
  in_flight_.emplace_back(std::move(result), numbers, states, begin);
  return true;
}

void Trainer::apply(const StepNumbers& numbers, double lr, StepStates& states) {
  const StepDecision decision = decide(numbers, config_.optimizer);
  store_.adamw_step(config_.optimizer, lr, decision.divisor, decision.applied);
  store_.clear_gradients();
  if (model_.num_routed_layers > 0)
    controller_.update(numbers.selected_L(), numbers.shape().tokens, decision.applied);
  states.applied = decision.applied;
  states.new_threshold_C = controller_.thresholds();
  states.new_error_sum_C = controller_.error_sums();
}

std::optional<StepResult> Trainer::next_result(size_t in_flight) {
  if (in_flight_.size() <= in_flight) return std::nullopt;
  auto [result, thresholds, error_sums] = in_flight_.front().read();
  if (must_run_again(result)) {
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
  state_.tokens -= steps * config_.training.global_batch_size * model_.tokens_per_sample;
  in_flight_.clear();
  halted_ = at::zeros_like(halted_);
  pair_limits_.forget();
}

std::optional<ValidationResult> Trainer::validate(int64_t tokens, const std::function<bool()>& stop) const {
  const at::NoGradGuard no_grad;
  const auto wanted = static_cast<uint64_t>(std::max<int64_t>(1, tokens / model_.tokens_per_sample));
  const uint64_t samples = std::min(wanted, data_.validation_samples);
  ValidationResult result;
  result.activations = ActivationStatistics(model_.num_routed_layers);
  const RoutingInputs inputs = routing();
  at::Tensor sum = at::zeros({}, at::device(store_.device()).dtype(at::kDouble));
  for (uint64_t index = 0; index < samples;) {
    if (stop()) return std::nullopt;
    const auto count = static_cast<int64_t>(
        std::min<uint64_t>(static_cast<uint64_t>(config_.training.micro_batch_size), samples - index));
    const BatchLosses losses = losses_(data_.validation_batch(index, count).to(store_.device()), inputs);
    sum += losses.value(model_.validation_loss).to(at::kDouble) * count;
    result.activations.add(losses.activations);
    index += static_cast<uint64_t>(count);
  }
  result.loss = sum.item<double>() / static_cast<double>(samples);
  return result;
}

}  // namespace dtopp
