#include "dtopp/train/run.h"

#include <chrono>
#include <fstream>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/ops/linear.h"
#include "dtopp/train/matrix_rate.h"
#include "dtopp/train/metrics.h"
#include "dtopp/train/plan.h"
#include "dtopp/train/run_records.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;

at::ScalarType compute_type(Precision precision) {
  if (precision == Precision::kAuto) return has_bf16_matmul(at::kCPU) ? at::kBFloat16 : at::kFloat;
  return precision == Precision::kBf16 ? at::kBFloat16 : at::kFloat;
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// "VmRSS", "VmHWM": kilobytes in /proc/self/status.
uint64_t process_memory(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) return std::stoull(line.substr(key.size() + 1)) * 1024;
  }
  return 0;
}

void refuse_other_configuration(const RunConfig& config) {
  const fs::path path = fs::path(config.output) / "config.yaml";
  if (!fs::exists(path)) return;
  const RunConfig there = load_run_config(path, {});
  std::string keys;
  for (const std::string& key : differing_keys(there, config)) {
    if (affects_result(key)) keys += (keys.empty() ? "" : ", ") + key;
  }
  if (keys.empty()) return;
  throw UsageError(config.output + " holds a run of another configuration (different: " + keys +
                   "): choose another output, or the same configuration to resume");
}

class Run {
 public:
  Run(const RunConfig& config, const RunObserver& observer, const std::function<bool()>& stop,
      const Probes& probes)
      : config_(config), observer_(observer), stop_(stop), probes_(probes), directory_(config.output) {}

  RunSummary train();

 private:
  void prepare_directory();
  void open_or_resume();
  void train_step();
  void validate();
  bool validation_is_due() const;
  void save();
  [[noreturn]] void stop_here();
  StepRates rates(const StepResult& result);
  MetricRecord new_record() const {
    return {trainer_->state().step, trainer_->state().tokens, wall_time(), {}};
  }
  void say(const std::string& text) const {
    if (observer_.message) observer_.message(text);
  }
  bool finished() const { return trainer_->state().step >= config_.training.steps; }
  bool complete() const { return finished() && !validation_is_due(); }

  const RunConfig& config_;
  const RunObserver& observer_;
  const std::function<bool()>& stop_;
  const Probes& probes_;
  fs::path directory_;
  std::optional<Trainer> trainer_;
  std::optional<MetricsWriter> metrics_;
  fs::path last_checkpoint_;
  bool unsaved_ = false;  // the trainer's state is not in last_checkpoint_
  double flops_per_token_ = 0;
  double matrix_rate_ = 0;
  double recent_step_seconds_ = 0;
};

RunSummary Run::train() {
  refuse_other_configuration(config_);
  prepare_directory();
  const DirectoryLock lock(directory_);
  open_or_resume();
  RunSummary summary{directory_, {}, 0, 0, complete()};
  if (!summary.already_complete) {
    say("measured matrix rate: " + std::to_string(static_cast<int64_t>(matrix_rate_ / 1e9)) + " GFLOP/s on " +
        std::to_string(at::get_num_threads()) + " threads");
  }
  if (validation_is_due()) validate();
  while (!finished()) {
    train_step();
    const int64_t step = trainer_->state().step;
    if (validation_is_due()) validate();
    if (config_.checkpoint.every > 0 && step % config_.checkpoint.every == 0) save();
  }
  if (unsaved_) save();
  summary.checkpoint = last_checkpoint_;
  summary.steps = trainer_->state().step;
  summary.tokens = trainer_->state().tokens;
  return summary;
}

void Run::prepare_directory() {
  std::error_code error;
  fs::create_directories(directory_ / "checkpoints", error);
  if (error) throw DataError(directory_.string() + ": cannot be created: " + error.message());
}

void Run::open_or_resume() {
  const Plan plan = make_plan(config_);
  require_memory(plan, available_memory());
  const at::ScalarType type = compute_type(config_.training.precision);
  trainer_.emplace(config_, language_model_task(config_), type);
  flops_per_token_ = static_cast<double>(plan.flops_per_token);
  const auto checkpoint = newest_checkpoint(directory_ / "checkpoints",
                                            [this](const std::string& text) { say("warning: " + text); });
  if (checkpoint) {
    trainer_->restore(*checkpoint);
    last_checkpoint_ = checkpoint->path();
    say("resuming from " + last_checkpoint_.string());
  } else {
    trainer_->initialise();
    unsaved_ = true;
  }
  if (complete()) return;
  write_file_atomically(directory_ / "config.yaml", to_yaml(config_));
  metrics_.emplace(directory_, checkpoint ? trainer_->state().step : -1, config_.logging.tensorboard,
                   trainer_->state().last_validation_step);
  matrix_rate_ = measure_matrix_rate(type);
  if (trainer_->task().validation_samples == 0 && config_.validation.every > 0) {
    say("no data.validation: training without validation");
  }
}

void Run::train_step() {
  const std::optional<StepResult> result = trainer_->step(stop_);
  if (!result) stop_here();
  unsaved_ = true;
  const StepRates speed = rates(*result);
  const TrainingState& state = trainer_->state();
  const bool last = finished();
  if (config_.logging.every > 0 && (state.step % config_.logging.every == 0 || last || result->skipped)) {
    MetricRecord record = new_record();
    add_step(*result, state.skipped_steps, config_.routing, record);
    add_rates(speed, result->data_seconds / result->seconds, record);
    metrics_->write(record);
    if (observer_.step) observer_.step(state.step, *result, speed);
  }
  if (result->skipped) {
    say("step " + std::to_string(state.step) + " was skipped: its loss or gradient is not finite (" +
        std::to_string(state.consecutive_skips) + " in a row)");
    if (state.consecutive_skips > config_.training.max_skips) {
      save();
      throw NumericalError(
          "step " + std::to_string(state.step) + ": " + std::to_string(state.consecutive_skips) +
          " non-finite steps in a row (training.max_skips " + std::to_string(config_.training.max_skips) +
          "): lower optimizer.lr or look at the data; the last good parameters are in " +
          last_checkpoint_.string());
    }
  }
}

StepRates Run::rates(const StepResult& result) {
  StepRates speed;
  const auto tokens =
      static_cast<double>(config_.training.global_batch_size * trainer_->task().tokens_per_sample);
  speed.tokens_per_second = tokens / result.seconds;
  speed.tflops = speed.tokens_per_second * flops_per_token_ * 1e-12;
  speed.mfu = speed.tflops * 1e12 / matrix_rate_;
  recent_step_seconds_ =
      recent_step_seconds_ == 0 ? result.seconds : 0.9 * recent_step_seconds_ + 0.1 * result.seconds;
  speed.seconds_left =
      recent_step_seconds_ * static_cast<double>(config_.training.steps - trainer_->state().step);
  speed.memory_bytes = process_memory("VmRSS");
  speed.memory_peak_bytes = process_memory("VmHWM");
  return speed;
}

// Before the first step, every validation.every steps and after the last one.
bool Run::validation_is_due() const {
  const TrainingState& state = trainer_->state();
  const bool something = trainer_->task().validation_samples > 0 || probes_;
  if (config_.validation.every == 0 || !something) return false;
  if (state.last_validation_step == state.step) return false;
  return state.step % config_.validation.every == 0 || finished();
}

void Run::validate() {
  std::optional<ValidationResult> loss;
  if (trainer_->task().validation_samples > 0) {
    loss = trainer_->validate(config_.validation.tokens, stop_);
    if (!loss) stop_here();
  }
  ProbeResults accuracies;
  if (probes_) {
    auto measured = probes_([this](const std::string& name) { return trainer_->parameters().master(name); },
                            trainer_->routing());
    if (!measured) stop_here();
    accuracies = std::move(*measured);
  }
  MetricRecord record = new_record();
  if (loss) add_validation(*loss, record);
  for (const auto& [task, accuracy] : accuracies) {
    record.values.emplace_back("eval/" + task + "/accuracy", accuracy);
  }
  metrics_->write(record);
  trainer_->mark_validated();
  unsaved_ = true;
  if (observer_.validation) observer_.validation(record.step, loss ? &*loss : nullptr, accuracies);
}

void Run::save() {
  const ParameterStore& store = trainer_->parameters();
  const CheckpointContents contents{trainer_->state(), store.parameter_views(), store.moment_views(),
                                    to_yaml(config_), trainer_->task().tokenizer_json};
  last_checkpoint_ = save_checkpoint(directory_ / "checkpoints", contents, config_.checkpoint.keep);
  unsaved_ = false;
}

void Run::stop_here() {
  if (unsaved_) save();
  throw Stopped("stopped at step " + std::to_string(trainer_->state().step) + ", saved as " +
                last_checkpoint_.string() + ": start the same command again to go on");
}

}  // namespace

RunSummary run_training(const RunConfig& config, const RunObserver& observer,
                        const std::function<bool()>& stop, const Probes& probes) {
  if (config.training.device == Device::kCuda) {
    throw UsageError("training.device: this build has no CUDA support; use cpu or auto");
  }
  if (config.training.threads > 0) at::set_num_threads(static_cast<int>(config.training.threads));
  return Run(config, observer, stop, probes).train();
}

}  // namespace dtopp
