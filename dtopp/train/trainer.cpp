#include "dtopp/train/trainer.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include <ATen/record_function.h>

#include "dtopp/base/steady_seconds.h"
#include "dtopp/distributed/groups/rank_agreement.h"
#include "dtopp/moe/router_state.h"
#include "dtopp/moe/routers/make_router.h"
#include "dtopp/moe/token_dispatcher.h"
#include "dtopp/optim/schedule.h"
#include "dtopp/train/initial_parameters.h"
#include "dtopp/train/step_decision.h"

namespace dtopp::train {

Trainer::Trainer(const config::RunConfig& config, models::Model model, models::TrainingData data,
                 const at::TensorOptions& compute, distributed::ProcessGroups groups)
    : config_(config),
      model_(std::move(model)),
      data_(std::move(data)),
      groups_(std::move(groups)),
      store_(model_.parameters, compute, config.optimizer, groups_, config.parallel.reproducible),
      local_experts_(std::make_shared<moe::LocalExperts>(capacity_predictor_)) {
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

void Trainer::initialise() {
  store_.initialise(static_cast<uint64_t>(config_.training.seed));
  if (model_.ema_decay > 0) store_.enable_ema(model_.ema_decay);
}

void Trainer::initialise_from(const InitialParameters& parameters) {
  store_.initialise([&](const auto& spec, at::Tensor& whole) { parameters.fill(spec, whole); });
  if (router_) parameters.fill(*router_);
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

at::Tensor Trainer::scales() const {
  std::vector<at::Tensor> scales;
  for (const parameters::ParameterSpec& spec : store_.specs()) {
    if (spec.role == parameters::ParameterRole::kRouterScale)
      scales.push_back(store_.model_param(spec.name).detach());
  }
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

StepShape Trainer::step_shape(int64_t chunks) const {
  StepShape shape{loss_names_, micro_batches(), step_tokens(), chunks, model_.num_routed_layers};
  if (shape.routed_layers == 0) return shape;
  shape.num_experts = config_.model.num_experts;
  shape.statistics_shape = router_->statistics_shape();
  shape.logit_sums_shape = router_->logit_sums_shape();
  return shape;
}

at::Tensor Trainer::overflows(const StepSums& sums) {
  const std::vector<int64_t>& capacities = capacity_predictor_.capacity_L();
  if (capacities.empty()) return overflowed_;
  const at::Tensor capacity_L = ops::to_device(at::tensor(capacities, at::kLong), store_.device());
  return overflowed_.logical_or(sums.max_assignments_L.gt(capacity_L).any());
}

bool Trainer::step(const StopToken& stop) {
  const double begin = steady_seconds();
  if (router_) router_->set_step(state_.step);
  moe::Routing training = routing();
  training.experts = dispatcher_ ? dispatcher_ : local_experts_;
  training.training = true;
  training.recompute = config_.training.recompute;
  const StepSums sums = accumulate_gradients(training, stop);
  if (is_abandoned(sums, groups_.size())) return false;
  const at::Tensor scale_L = scales();
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
  const at::Tensor squared_norms = [&] {
    RECORD_USER_SCOPE(std::string(kGradientNormScope));
    return store_.squared_norms();
  }();
  StepShape shape = step_shape(squared_norms.numel());
  StepNumbers numbers =
      StepNumbers::reduce(shape.schema(), sums.fields(shape, squared_norms, overflows(sums)),
                          squared_norms.options(), *groups_.world);
  overflowed_ = numbers["overflowed"].ne(0);
  numbers.add("scale", scale_L);
  apply(numbers, rates);
  in_flight_.emplace_back(std::move(result), std::move(shape), numbers, begin, steady_seconds());
  return true;
}

void Trainer::apply(StepNumbers& numbers, const optim::LearningRates& rates) {
  const StepDecision decision = decide(numbers, config_.optimizer);
  {
    RECORD_USER_SCOPE(std::string(kUpdateScope));
    store_.step(rates, decision.divisor, decision.applied);
  }
  numbers.add("applied", decision.applied);
  const at::Tensor statistics = numbers.take("statistics"), logit_sums_LS = numbers.take("logit_sums");
  if (!router_) return;
  const moe::ActivationStatistics activations = moe::ActivationStatistics::from_vector(
      numbers["activations"], model_.num_routed_layers, config_.model.num_experts, step_tokens());
  router_->update({activations.tokens_per_expert(), step_tokens(), statistics, logit_sums_LS},
                  decision.applied);
  for (const auto& [name, values] : router_->metrics()) numbers.add(kRouterMetric + name, values);
  if (logit_sums_LS.numel() > 0)
    numbers.add(std::string(kRouterMetric) + "common_logit_share",
                router_->common_logit_share(logit_sums_LS));
}

std::optional<StepResult> Trainer::next_result(size_t in_flight) {
  if (in_flight_.size() <= in_flight) return std::nullopt;
  StepResult result = in_flight_.front().read();
  if (must_run_again(result)) {
    undo(result);
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

void Trainer::undo(const StepResult& overflowed) {
  const int64_t steps = state_.step - overflowed.step + 1;
  state_.step -= steps;
  state_.sample_position -= steps * config_.training.global_batch_size;
  state_.tokens -= steps * step_tokens();
  in_flight_.clear();
  overflowed_ = at::zeros_like(overflowed_);
  capacity_predictor_.forget();
}

}  // namespace dtopp::train
