#include "dtopp/train/run.h"

#include <algorithm>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/path_kind.h"
#include "dtopp/device/available_memory.h"
#include "dtopp/device/compute_device.h"
#include "dtopp/device/device.h"
#include "dtopp/device/known_devices.h"
#include "dtopp/device/matrix_rate.h"
#include "dtopp/distributed/groups/rank_agreement.h"
#include "dtopp/models/registry/make_model.h"
#include "dtopp/moe/budget_watch.h"
#include "dtopp/plan/plan.h"
#include "dtopp/runs/metrics.h"
#include "dtopp/runs/run_directory.h"
#include "dtopp/train/console_line.h"
#include "dtopp/train/rank_checks.h"
#include "dtopp/train/run_beginning.h"
#include "dtopp/train/run_directory.h"
#include "dtopp/train/run_records.h"
#include "dtopp/train/run_saving.h"
#include "dtopp/train/step_decision.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;

class Run {
 public:
  Run(const RunConfig& config, const ConsoleLog& log, const StopToken& stop,
      const std::vector<std::unique_ptr<Periodic>>& evaluations, const ProcessGroups& groups,
      const BeginActivity& begin)
      : config_(config),
        log_(groups.rank() == 0 ? log : ConsoleLog()),
        stop_(stop),
        evaluations_(evaluations),
        begin_(begin),
        path_(config.output),
        groups_(groups),
        device_(groups.device),
        budget_(config.routing) {}

  RunSummary train();

 private:
  Collectives& ranks() const { return *groups_.world; }
  RankLayout layout() const { return {groups_.size(), 1, groups_.dims().ep_size}; }
  Device planned_device() const { return device_.is_cpu() ? Device::kCpu : Device::kCuda; }
  // Whether this rank writes files and logs.
  bool first() const { return groups_.rank() == 0; }
  // Locks the directory for this run. Refuses a directory with another configuration's run.
  void hold_directory();
  void check_memory();
  void open_or_resume(Model model, TrainingData data);
  void begin_metering(at::ScalarType type);
  void train_step();
  void begin(int64_t step, const char* activity) const {
    if (begin_) begin_(step, activity);
  }
  // Processes results until at most `in_flight` issued steps are left.
  void take_results(size_t in_flight);
  void record(const StepResult& result);
  // Names the micro-batch size to lower training.micro_batch_size to.
  [[noreturn]] void out_of_memory() const;
  [[noreturn]] void give_up(const StepResult& result);
  bool validation_is_due() const;
  bool is_due(const Periodic& evaluation) const { return evaluation.is_due(trainer_->state(), finished()); }
  bool anything_is_due() const;
  // Validates and runs the evaluations that are due. `resumed`: leaves out those that an earlier process of
  // this run has done.
  void evaluate(bool resumed);
  bool saving_is_due() const {
    return config_.checkpoint.every > 0 && trainer_->state().step % config_.checkpoint.every == 0;
  }
  void save();
  [[noreturn]] void stop_here();
  bool finished() const { return trainer_->state().step >= config_.training.steps; }
  bool complete() const { return finished() && !validation_is_due(); }

  const RunConfig& config_;
  ConsoleLog log_;  // prints on rank 0 only
  StopToken stop_;
  const std::vector<std::unique_ptr<Periodic>>& evaluations_;
  const BeginActivity& begin_;
  fs::path path_;
  const ProcessGroups& groups_;
  at::Device device_;
  std::optional<RunDirectory> directory_;
  std::optional<Trainer> trainer_;
  std::optional<MetricsWriter> metrics_;  // on rank 0 only, like meter_
  std::optional<StepMeter> meter_;
  BudgetWatch budget_;
  fs::path last_checkpoint_;
  bool stop_requested_ = false;  // on any rank
  bool unsaved_ = false;         // whether the trainer's state is newer than last_checkpoint_
  double flops_per_token_ = 0;
  uint64_t memory_ = 0;  // of this rank, free at the start
};

RunSummary Run::train() {
  check_configuration(config_, ranks());
  const bool there = path_kind(path_) != PathKind::kNothing;
  // An existing run is refused at once. A new run writes nothing before its data is known to fit.
  if (there) hold_directory();
  check_memory();
  Model model = make_model(config_);
  TrainingData data = model.open_data(Verify::kChanged);
  check_data(data, *groups_.world);
  if (!there) hold_directory();
  open_or_resume(std::move(model), std::move(data));
  RunSummary summary{path_, {}, 0, 0, complete()};
  if (!summary.already_complete) evaluate(/*resumed=*/true);
  while (!finished()) {
    train_step();
    // All of these need the step's result first, because the step may have to run again.
    if (anything_is_due() || saving_is_due() || finished()) take_results(0);
    evaluate(/*resumed=*/false);
    if (saving_is_due() && unsaved_) save();
  }
  if (unsaved_) save();
  summary.checkpoint = last_checkpoint_;
  summary.steps = trainer_->state().step;
  summary.tokens = trainer_->state().tokens;
  return summary;
}

void Run::hold_directory() {
  if (!first()) return;
  directory_.emplace(path_);
  refuse_other_configuration(config_);
}

void Run::check_memory() {
  const Plan plan = make_plan(config_, layout(), planned_device());
  const auto memory = free_device_memory(device_);
  memory_ = memory ? *memory : available_memory() / static_cast<uint64_t>(groups_.ranks_here);
  require_memory(plan, memory_);
  flops_per_token_ = static_cast<double>(plan.flops_per_token);
}

void Run::open_or_resume(Model model, TrainingData data) {
  const at::ScalarType type = compute_type(config_.training.precision, device_);
  trainer_.emplace(config_, std::move(model), std::move(data), at::device(device_).dtype(type), groups_);
  const auto own = begin_or_resume(*trainer_, config_, log_);
  unsaved_ = !own;
  if (own) last_checkpoint_ = *own;
  if (complete() || !first()) return;
  directory_->keep();
  write_file_atomically(config_file_of(path_), to_yaml(config_));
  metrics_.emplace(path_, own ? trainer_->state().step : -1, config_.logging.tensorboard,
                   trainer_->state().last_validation_step);
  begin_metering(type);
  if (trainer_->data().validation_samples == 0 && config_.validation.every > 0) {
    log_.message("no data.validation: training without validation");
  }
}

void Run::begin_metering(at::ScalarType type) {
  StepYardstick yardstick{.flops_per_token = flops_per_token_,
                          .tokens = static_cast<double>(trainer_->step_tokens()),
                          .last_step = config_.training.steps,
                          .matrix_rate = measure_matrix_rate(at::device(device_).dtype(type))};
  if (!device_.is_cpu())
    yardstick.peak_rate = data_sheet_rate(device_facts(device_).name, type == at::kBFloat16);
  meter_.emplace(yardstick, groups_);
  log_.message(device_line(describe_device(device_), yardstick));
}

void Run::train_step() {
  begin(trainer_->state().step + 1, "step");
  if (meter_) meter_->begin();
  try {
    if (!trainer_->step(stop_)) stop_here();
  } catch (const c10::OutOfMemoryError&) {
    out_of_memory();
  }
  // On a device, one step stays in flight while the host continues. The number is fixed: if it depended on
  // arrivals, the state at the start of a step would depend on timing.
  take_results(device_.is_cpu() ? 0 : 1);
  if (stop_requested_) stop_here();
}

void Run::take_results(size_t in_flight) {
  while (const auto result = trainer_->next_result(in_flight)) {
    unsaved_ = true;
    record(*result);
    if (result->skipped) log_.message(skipped_line(*result));
    stop_requested_ = stop_requested_ || (result->stop_requested && groups_.size() > 1);
    if (gives_up(*result, config_.training)) give_up(*result);
  }
}

void Run::record(const StepResult& result) {
  if (!first()) return;
  begin(result.step, "report");
  const StepRates speed = meter_->rates(result);
  if (const auto warning = budget_.observe(result.step, result.activations.layer_means()))
    log_.warning(*warning);
  const bool last = result.step == config_.training.steps;
  if (result.step % config_.logging.every != 0 && !last && !result.skipped) return;
  MetricRecord record = record_now(result.step, result.tokens);
  add_step(result, record);
  add_sources(trainer_->data(), result.sample_position, record);
  add_rates(speed, result.data_seconds / result.seconds, record);
  metrics_->write(record);
  log_.line(console_line(config_, result.step, result, speed));
}

void Run::out_of_memory() const {
  throw ResourceError(
      out_of_memory_line(config_, largest_micro_batch(config_, layout(), planned_device(), memory_)));
}

void Run::give_up(const StepResult& result) {
  while (const auto later = trainer_->next_result(0)) record(*later);
  save();
  throw NumericalError(given_up_line(config_, result, last_checkpoint_));
}

// True before the first step, every validation.every steps and after the last step.
bool Run::validation_is_due() const {
  const TrainingState& state = trainer_->state();
  if (config_.validation.every == 0 || state.last_validation_step == state.step) return false;
  if (trainer_->data().validation_samples == 0 && config_.validation.tasks.empty()) return false;
  return state.step % config_.validation.every == 0 || finished();
}

bool Run::anything_is_due() const {
  return validation_is_due() ||
         std::ranges::any_of(evaluations_, [&](const auto& evaluation) { return is_due(*evaluation); });
}

void Run::evaluate(bool resumed) {
  if (!anything_is_due()) return;
  const TrainingState& state = trainer_->state();
  MetricRecord record = record_now(state.step, state.tokens);
  const bool validates = validation_is_due();
  std::optional<ValidationResult> loss;
  if (validates && trainer_->data().validation_samples > 0) {
    begin(state.step, "validation");
    loss = trainer_->validate(config_.validation.tokens, stop_);
    if (!loss) stop_here();
    add_validation(*loss, record);
  }
  Measurements measured;
  for (const auto& evaluation : evaluations_) {
    if (!is_due(*evaluation)) continue;
    if (resumed && any_rank(ranks(), first() && evaluation->is_done(state))) continue;
    begin(state.step, "evaluation");
    const auto results = evaluation->run(*trainer_, stop_);
    if (!results) stop_here();
    measured.insert(measured.end(), results->begin(), results->end());
  }
  for (const auto& [name, value] : measured) record.values.emplace_back("eval/" + name, value);
  begin(state.step, "report");
  if (first() && !record.values.empty()) {
    metrics_->write(record);
    log_.message(validation_line(state.step, loss ? &*loss : nullptr, measured));
  }
  if (!validates) return;
  trainer_->mark_validated();
  unsaved_ = true;
}

void Run::save() {
  take_results(0);
  begin(trainer_->state().step, "save");
  if (metrics_) metrics_->sync();  // a run resumed from this checkpoint does not write these lines again
  last_checkpoint_ = save_run(*trainer_, config_, ranks());
  unsaved_ = false;
}

void Run::stop_here() {
  take_results(0);
  if (unsaved_) save();
  throw Stopped("stopped at step " + std::to_string(trainer_->state().step) + ", saved as " +
                last_checkpoint_.string() + "; run the same command again to resume");
}

}  // namespace

RunSummary run_training(const RunConfig& config, const ConsoleLog& log, const StopToken& stop,
                        const std::vector<std::unique_ptr<Periodic>>& evaluations,
                        const ProcessGroups& groups, const BeginActivity& begin) {
  if (config.training.deterministic) make_deterministic(groups.device);
  if (config.training.threads > 0) at::set_num_threads(static_cast<int>(config.training.threads));
  return Run(config, log, stop, evaluations, groups, begin).train();
}

}  // namespace dtopp
