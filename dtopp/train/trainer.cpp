#include "dtopp/train/trainer.h"

#include <sstream>

#include <ATen/record_function.h>

#include "dtopp/base/progress.h"
#include "dtopp/distributed/tree_sum.h"
#include "dtopp/models/solve_thresholds.h"
#include "dtopp/moe/experts.h"
#include "dtopp/moe/make_router.h"
#include "dtopp/optim/optimizer.h"
#include "dtopp/train/start.h"

namespace dtopp::train {
Trainer::Trainer(const config::RunConfig& config, models::Model model, models::TrainingData data,
                 const at::TensorOptions& compute, distributed::ProcessGroups groups)
    : config_(config),
      model_(std::move(model)),
      data_(std::move(data)),
      groups_(std::move(groups)),
      store_(model_.parameters, compute, config.optimizer, groups_, config.parallel.reproducible) {
  if (model_.num_routed_layers > 0) router_ = moe::make_router(config, compute.device());
  losses_ = model_.bind([this](const std::string& name) { return store_.model_param(name); });
  state_.seed = config.training.seed;
  record_training_data();
  // With expert parallelism, the ranks exchange the exact number of pairs.
  if (!compute.device().is_cpu() && groups_.dims().ep_size == 1) predict_capacity(moe::kCapacityMargin);
  overflowed_ = at::zeros({}, at::device(store_.device()).dtype(at::kBool));
  if (groups_.dims().ep_size > 1)
    dispatcher_ =
        std::make_shared<moe::AllToAllTokenDispatcher>(*groups_.ep_dispatch, config.parallel.reproducible);
}

void Trainer::initialize() {
  store_.initialize(static_cast<uint64_t>(config_.training.seed));
  if (model_.ema_decay > 0) store_.enable_ema(model_.ema_decay);
}

void Trainer::initialize_from(const InitialParameters& parameters) {
  store_.initialize([&](const auto& spec, Tensor& whole) { parameters.fill(spec, whole); });
  if (router_)
    moe::load_expert_normalization(*router_, parameters.checkpoint().router(),
                                   parameters.checkpoint().path());
  if (model_.ema_decay > 0) store_.enable_ema(model_.ema_decay);
}

void Trainer::restore(const checkpoint::Checkpoint& checkpoint) {
  store_.load(checkpoint);
  if (model_.ema_decay > 0) {
    store_.enable_ema(model_.ema_decay);
    store_.load_ema(checkpoint);
  }
  state_ = checkpoint.state();
  record_training_data();  // a cool-down may train on other data
  if (router_) moe::load_router(*router_, checkpoint.router(), checkpoint.path());
}

void Trainer::record_training_data() {
  state_.training_data.clear();
  for (const auto& [source, hash] : data_.training_hashes) state_.training_data.push_back(hash);
}

Tensor Trainer::scales() const {
  std::vector<Tensor> scales;
  for (const parameters::ParameterSpec& spec : store_.specs())
    if (spec.role == parameters::ParameterRole::kRouterScale)
      scales.push_back(store_.model_param(spec.name).detach());
  if (scales.empty()) return at::empty({0}, at::device(store_.device()).dtype(at::kFloat));
  return at::stack(scales);
}

void Trainer::share_loss_names() {
  if (groups_.size() == 1 || std::exchange(names_are_shared_, true)) return;
  std::string names;
  for (const std::string& name : loss_names_) names += name + "\n";
  std::istringstream lines(distributed::broadcast_bytes(*groups_.world, names, /*root=*/0, "start"));
  loss_names_.clear();
  for (std::string name; std::getline(lines, name);) loss_names_.push_back(name);
}

StepShape Trainer::step_shape() const {
  StepShape shape{loss_names_, micro_batches(), step_tokens(), model_.num_routed_layers};
  if (shape.routed_layers == 0) return shape;
  shape.num_experts = config_.model.num_experts;
  shape.statistics_shape = router_->statistics_shape();
  shape.logit_sums_shape = router_->logit_sums_shape();
  return shape;
}

Tensor Trainer::overflows(const StepSums& sums) {
  const std::vector<int64_t>& capacities = capacity_predictor_.capacity_L();
  if (capacities.empty()) return overflowed_;
  const Tensor capacity_L = ops::to_device(at::tensor(capacities, at::kLong), store_.device());
  return overflowed_.logical_or(sums.max_assignments_L.gt(capacity_L).any());
}

bool Trainer::step(const StopToken& stop) {
  const double begin = steady_seconds();
  if (router_) router_->set_step(state_.step);
  moe::Routing training = routing();
  training.experts = dispatcher_;
  training.capacities = &capacity_predictor_;
  training.training = true;
  training.recompute = config_.training.recompute;
  const StepSums sums = accumulate_gradients(training, stop);
  if (is_abandoned(sums, groups_.size())) return false;
  const Tensor scale_L = scales();
  share_loss_names();
  state_.step += 1;
  state_.sample_position += config_.training.global_batch_size;
  state_.tokens += step_tokens();
  StepResult result;
  result.step = state_.step;
  result.tokens = state_.tokens;
  result.sample_position = state_.sample_position;
  const optim::LearningRates rates =
      optim::learning_rates(config_.optimizer, state_.step, config_.training.steps);
  result.lr = rates.lr;
  result.data_seconds = sums.data_seconds;
  result.may_select_none = config::may_select_none(config_.routing.method);
  const Tensor squared_norms = [&] {
    RECORD_USER_SCOPE(std::string(kGradientNormScope));
    return store_.squared_norms();
  }();
  StepShape shape = step_shape();
  StepNumbers numbers = all_reduce(sums.numbers(shape, squared_norms, overflows(sums)), *groups_.world);
  overflowed_ = numbers.overflowed.ne(0);
  numbers.scale_L = scale_L;
  apply(numbers, rates);
  in_flight_.emplace_back(std::move(result), std::move(shape), std::move(numbers), begin, steady_seconds());
  return true;
}

void Trainer::apply(StepNumbers& numbers, const optim::LearningRates& rates) {
  const StepDecision decision = decide(numbers, config_.optimizer);
  {
    RECORD_USER_SCOPE(std::string(kUpdateScope));
    store_.step(rates, decision.divisor, decision.applied);
  }
  numbers.applied = decision.applied;
  if (!router_) return;
  const moe::ActivationStatistics activations = moe::ActivationStatistics::from_vector(
      numbers.activations, model_.num_routed_layers, config_.model.num_experts, step_tokens());
  router_->update({activations.tokens_per_expert(), step_tokens(), numbers.statistics, numbers.logit_sums},
                  decision.applied);
  numbers.router = router_->metrics();
  if (numbers.logit_sums.numel() > 0)
    numbers.router.emplace_back("common_logit_share", router_->common_logit_share(numbers.logit_sums));
}

std::optional<StepResult> Trainer::next_result(size_t in_flight) {
  if (in_flight_.size() <= in_flight) return std::nullopt;
  StepResult result = in_flight_.front().read();
  if (must_run_again(result)) {  // from the state before it, as all later steps
    const int64_t steps = state_.step - result.step + 1;
    state_.step -= steps;
    state_.sample_position -= steps * config_.training.global_batch_size;
    state_.tokens -= steps * step_tokens();
    in_flight_.clear();
    overflowed_ = at::zeros_like(overflowed_);
    capacity_predictor_.forget();
    return std::nullopt;
  }
  capacity_predictor_.observe(result.max_assignments_L);
  const double arrival = steady_seconds();
  // For consecutive steps without a pause, the time between their ends. On a device that waits for the host,
  // the last two steps seem to end at once.
  const StepInFlight& step = in_flight_.front();
  result.seconds = std::max(arrival - std::max(step.begun(), last_arrival_), step.issue_seconds());
  last_arrival_ = arrival;
  in_flight_.pop_front();
  state_.skipped_steps += result.skipped ? 1 : 0;
  state_.consecutive_skips = result.skipped ? state_.consecutive_skips + 1 : 0;
  if (result.activations.num_layers() > 0)
    state_.assignments += result.activations.num_assignments().sum().item<int64_t>();
  result.assignments = state_.assignments;
  result.skipped_steps = state_.skipped_steps;
  result.consecutive_skips = state_.consecutive_skips;
  return result;
}

// The ranks of an EP group take its micro-batches in turn. The micro-batches that they process at a time are
// an aligned range of the step's (tree_sum.h).
StepSums Trainer::accumulate_gradients(const moe::Routing& inputs, const StopToken& stop) {
  StepSums sums;
  sums.activations = moe::ActivationStatistics(model_.num_routed_layers);
  sums.max_assignments_L =
      at::zeros({model_.num_routed_layers}, at::device(store_.device()).dtype(at::kLong));
  const distributed::ParallelDims dims = groups_.dims();
  const int64_t rank = groups_.rank();
  const distributed::MicroBatchRange range =
      distributed::local_micro_batches(micro_batches(), dims.edp_rank(rank), dims.edp_size(), dims.ep_size);
  if (range.begin >= range.end) store_.finish_all_gather();
  store_.begin_step((range.end - range.begin + dims.ep_size - 1) / dims.ep_size);
  for (int64_t first = range.begin; first < range.end; first += dims.ep_size) {
    sums.stop_requested = sums.stop_requested || stop.stop_requested();
    if (is_abandoned(sums, groups_.size())) return sums;
    const int64_t micro_batch = first + dims.ep_rank(rank);
    if (micro_batch < range.end) {
      accumulate_micro_batch(micro_batch, inputs, sums);
    } else {
      forward_empty();
    }
    RECORD_USER_SCOPE(std::string(kGradientSumsScope));
    store_.end_micro_batch();
  }
  RECORD_USER_SCOPE(std::string(kGradientSumsScope));
  store_.finish_gradients();
  return sums;
}

void Trainer::accumulate_micro_batch(int64_t micro_batch, const moe::Routing& inputs, StepSums& sums) {
  RECORD_USER_SCOPE(std::string(kMicroBatchScope) + std::to_string(micro_batch));
  const int64_t size = config_.training.micro_batch_size;
  const double wait = steady_seconds();
  const int64_t position = state_.sample_position + micro_batch * size;
  const models::Batch batch = data_.training->read(static_cast<uint64_t>(position), size);
  sums.data_seconds += steady_seconds() - wait;
  const models::BatchLosses losses = losses_(batch.to(store_.device()), inputs);
  {
    RECORD_USER_SCOPE(std::string(kBackwardScope));
    (losses.total / static_cast<double>(micro_batches())).backward();
  }
  sums.add_losses(micro_batch, losses.total.detach(), losses.values);
  sums.activations.add(losses.activations);
  sums.add_statistics(losses.statistics, losses.logit_sums);
  if (model_.num_routed_layers > 0)
    sums.max_assignments_L = at::maximum(sums.max_assignments_L, losses.activations.num_assignments());
  if (loss_names_.empty())
    for (const auto& [name, value] : losses.values) loss_names_.push_back(name);
}

// Layer after layer: other ranks need the experts of a layer before they gather the parameters of later ones.
void Trainer::forward_empty() const {
  const auto ends_with = [](const parameters::ParameterSpec& spec, std::string_view end) {
    return spec.role == parameters::ParameterRole::kExpert && spec.name.ends_with(end);
  };
  Tensor x_TD, gates_TE, gate_up;
  int64_t layer = 0;
  for (const parameters::ParameterSpec& spec : store_.specs()) {
    const Tensor weight = store_.model_param(spec.name);
    if (!dispatcher_) continue;
    if (ends_with(spec, "gate_up_proj")) gate_up = weight;
    if (!ends_with(spec, "down_proj")) continue;
    if (!x_TD.defined()) {
      const auto options = weight.options();
      x_TD = at::empty({0, config_.model.hidden_size}, options).requires_grad_();
      gates_TE = at::empty({0, config_.model.num_experts}, options.dtype(at::kFloat)).requires_grad_();
    }
    x_TD = dispatcher_->forward(layer++, x_TD, gates_TE, gate_up, weight,
                                config_.training.recompute != config::Recompute::kNone);
  }
  if (x_TD.defined() && at::GradMode::is_enabled()) x_TD.sum().backward();
}

std::optional<models::ValidationResult> Trainer::validate(int64_t tokens, const StopToken& stop) {
  const auto wanted = static_cast<uint64_t>(std::max<int64_t>(1, tokens / model_.tokens_per_sample));
  const std::vector<models::HeldOutSource> sources = models::first_of_each(data_, wanted);
  std::optional<models::ValidationResult> result = validate_with(parallel_routing(), sources, stop);
  if (!result || model_.ema_decay == 0) return result;
  swap_ema();
  const std::optional<models::ValidationResult> ema_result = validate_with(solved_routing(), sources, stop);
  swap_ema();
  if (!ema_result) return std::nullopt;
  result->ema_loss = ema_result->loss;
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
