#include "dtopp/train/run.h"

#include <omp.h>
#include <sys/resource.h>
#include <unistd.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/device/available_memory.h"
#include "dtopp/device/device.h"
#include "dtopp/device/known_devices.h"
#include "dtopp/models/batch.h"
#include "dtopp/moe/make_router.h"
#include "dtopp/runs/run_history.h"
#include "dtopp/train/start.h"
#include "dtopp/train/step.h"

namespace dtopp::train {
namespace {

// Training comes first, but on a busy machine the thread must not starve: a stop may wait for it.
constexpr int kNiceness = 5;

// A shorter wait for the previous checkpoint is not worth a warning.
constexpr double kNoticeableSeconds = 1;

// A pending save that was abandoned. All its ranks throw it at the same piece.
struct Abandoned : Stopped {
  using Stopped::Stopped;
};

class RanksOfRun final : public checkpoint::SavingRanks {
 public:
  RanksOfRun(const optim::ParameterStore& parameters, const std::vector<Tensor>& shards,
             distributed::Collectives& ranks, const std::atomic<bool>* abandoned)
      : parameters_(parameters), shards_(shards), ranks_(ranks), abandoned_(abandoned) {}

  int64_t rank() const override { return ranks_.rank(); }
  int64_t size() const override { return ranks_.size(); }
  std::vector<std::string> gather(const std::string& text) override {
    return distributed::gather_bytes(ranks_, text, "save");
  }
  void collect(const std::vector<checkpoint::TensorByteRange>& by_rank, const TakeBytes& take) override {
    if (abandoned_ != nullptr && distributed::any_of(ranks_, *abandoned_))
      throw Abandoned("the checkpoint was abandoned");
    parameters_.collect_saved(by_rank, shards_, ranks_, take);
  }
  void check(const std::exception_ptr& error) override {
    const std::vector<std::string> failed = gather(error ? "failed" : "");
    if (error) std::rethrow_exception(error);
    for (size_t rank = 0; rank < failed.size(); ++rank)
      if (!failed[rank].empty())
        throw distributed::RankLost("rank ", rank, " could not save its part of the checkpoint");
  }

 private:
  const optim::ParameterStore& parameters_;
  const std::vector<Tensor>& shards_;
  distributed::Collectives& ranks_;
  const std::atomic<bool>* abandoned_;  // null: training waits for this save
};

// The router's state, on a CPU without a copy.
ops::NamedTensors router_of(const Trainer& trainer) {
  const auto router = trainer.routing().router;
  return router ? moe::host_state(*router) : ops::NamedTensors();
}

// Copies everything but the tensors; `router` must live as long as the result.
checkpoint::CheckpointContents contents_of(const Trainer& trainer, const config::RunConfig& config,
                                           const ops::NamedTensors& router) {
  const optim::ParameterStore& parameters = trainer.parameters();
  return {trainer.state(),          parameters.parameter_sources(), parameters.slot_sources(),
          config::to_yaml(config),  trainer.data().tokenizer_json,  trainer.data().images_json,
          parameters.ema_sources(), moe::router_sources(router)};
}

// Makes this thread one of low priority whose operators start no further threads.
void yield_to_training() {
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNiceness);
  at::get_num_threads();  // torch sets the number of a new thread at its first use
  omp_set_num_threads(1);
}

std::string layer_key(size_t layer, const char* name) { return format("layer_%02zu/%s", layer, name); }

void add_activations(const std::string& prefix, const moe::ActivationSummary& summary,
                     runs::MetricRecord& record) {
  record.values.emplace_back(prefix + "active_experts", summary.mean);
  record.values.emplace_back(prefix + "active_experts_std", summary.deviation);
  record.values.emplace_back(prefix + "imbalance", summary.imbalance);
  record.values.emplace_back(prefix + "dead_experts", static_cast<double>(summary.dead_experts));
}

// The value that all layers share, or their mean.
double shared_or_mean(const std::vector<double>& values) {
  if (values.size() == 1) return values[0];
  double mean = 0;
  for (const double value : values) mean += value / static_cast<double>(values.size());
  return mean;
}

// Shares of all (token, layer) pairs.
void add_shares(const moe::ActivationStatistics& activations, bool may_be_empty, runs::MetricRecord& record) {
  const Tensor histogram = activations.histogram().sum(0).cpu();
  const auto* pairs_N = histogram.const_data_ptr<int64_t>();
  const auto all = static_cast<double>(activations.tokens() * activations.num_layers());
  for (const runs::CountRange& range : runs::count_ranges(histogram.numel() - 1)) {
    const int64_t pairs = std::reduce(pairs_N + range.first, pairs_N + range.last + 1);
    record.values.emplace_back(range.metric(), static_cast<double>(pairs) / all);
  }
  if (may_be_empty) record.values.emplace_back("moe/empty_share", static_cast<double>(pairs_N[0]) / all);
}

void add_routing(const StepResult& result, const config::ModelConfig& model, runs::MetricRecord& record) {
  auto& values = record.values;
  const moe::ActivationSummary all = result.activations.summary();
  add_activations("moe/", all, record);
  if (model.shared_experts > 0)
    values.emplace_back("moe/active_ffn", all.mean + static_cast<double>(model.shared_experts));
  values.emplace_back("moe/token_mean_std", result.activations.token_mean_deviation());
  // Otherwise every token has the same number of experts.
  const bool may_be_empty = model.zero_experts > 0 || result.may_select_none;
  if (may_be_empty || result.router_values("threshold") != nullptr)
    add_shares(result.activations, may_be_empty, record);
  for (const auto& [name, by_layer] : result.router)
    values.emplace_back("moe/" + name, shared_or_mean(by_layer));
  const auto layers = static_cast<size_t>(result.activations.num_layers());
  const size_t by_id = layers - result.scales.size();  // first layers, without theta
  for (size_t layer = 0; layer < layers; ++layer) {
    add_activations("moe/" + layer_key(layer, ""), result.activations.summary(static_cast<int64_t>(layer)),
                    record);
    for (const auto& [name, by_layer] : result.router)
      values.emplace_back("moe/" + layer_key(layer, name.c_str()), by_layer[by_layer.size() > 1 ? layer : 0]);
    if (!result.scales.empty() && layer >= by_id)
      values.emplace_back("moe/" + layer_key(layer, "scale"), result.scales[layer - by_id]);
  }
}

void add_held_out_routing(const std::string& prefix, const moe::ActivationStatistics& activations,
                          runs::MetricRecord& record) {
  if (activations.num_layers() == 0) return;
  const moe::ActivationSummary all = activations.summary();
  record.values.emplace_back(prefix + "active_experts", all.mean);
  record.values.emplace_back(prefix + "active_experts_std", all.deviation);
  record.values.emplace_back(prefix + "token_mean_std", activations.token_mean_deviation());
}

runs::MetricRecord record_now(int64_t step, int64_t tokens) {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  return {step, tokens, std::chrono::duration<double>(since_1970).count(), {}};
}

// Adds train/… and, for a model with routers, moe/… in total and per layer.
void add_step(const StepResult& result, const config::ModelConfig& model, runs::MetricRecord& record) {
  auto& values = record.values;
  values.emplace_back("train/loss", result.loss);
  for (const auto& [name, value] : result.losses) values.emplace_back("train/" + name, value);
  values.emplace_back("train/lr", result.lr);
  values.emplace_back("train/grad_norm", result.grad_norm);
  values.emplace_back("train/skipped_steps", static_cast<double>(result.skipped_steps));
  if (result.activations.num_layers() > 0) add_routing(result, model, record);
}

// Adds data/… if sources have weights: their use up to `position`.
void add_sources(const models::TrainingData& data, int64_t position, runs::MetricRecord& record) {
  if (!data.sources) return;
  for (const models::SourceUse& use : data.sources->use(static_cast<uint64_t>(position))) {
    record.values.emplace_back("data/" + use.name + "/share", use.share);
    record.values.emplace_back("data/" + use.name + "/epoch", use.epochs);
  }
}

// Adds train/active_flops, as `plan` counts them for the pairs of all steps so far, and, for a model with
// routers, train/active_experts_mean.
void add_work(const StepResult& result, const plan::Plan& plan, runs::MetricRecord& record) {
  const auto tokens = static_cast<double>(result.tokens), pairs = static_cast<double>(result.assignments);
  const auto layers = static_cast<double>(result.activations.num_layers());
  double flops = tokens * static_cast<double>(plan.fixed_flops_per_token);
  if (layers > 0) {
    flops += pairs * (static_cast<double>(plan.flops_per_expert) / layers);
    record.values.emplace_back("train/active_experts_mean", pairs / (tokens * layers));
  }
  record.values.emplace_back("train/active_flops", flops);
}

// Adds throughput/…, memory/… and, with several ranks, comm/…. data_share: the share of the step spent
// waiting for data.
void add_rates(const StepRates& rates, double data_share, runs::MetricRecord& record) {
  auto& values = record.values;
  values.emplace_back("throughput/tokens_per_second", rates.tokens_per_second);
  values.emplace_back("throughput/seconds", rates.seconds);
  values.emplace_back("throughput/tflops", rates.tflops);
  if (rates.mfu) values.emplace_back("throughput/mfu", *rates.mfu);
  values.emplace_back("throughput/data_share", data_share);
  values.emplace_back("memory/resident_bytes", static_cast<double>(rates.memory_bytes));
  values.emplace_back("memory/peak_bytes", static_cast<double>(rates.memory_peak_bytes));
  if (rates.sent_bytes) values.emplace_back("comm/bytes", *rates.sent_bytes);
  if (rates.exposed_share) values.emplace_back("comm/exposed_share", *rates.exposed_share);
}

void add_validation(const models::ValidationResult& result, runs::MetricRecord& record) {
  record.values.emplace_back("val/loss", result.loss);
  if (result.ema_loss) record.values.emplace_back("val/ema_loss", *result.ema_loss);
  for (const models::ValidationGroup& group : result.groups) {
    record.values.emplace_back("val/loss_" + group.name, group.loss);
    if (group.active_experts_L.empty()) continue;
    const auto& active_L = group.active_experts_L;
    const double sum = std::accumulate(active_L.begin(), active_L.end(), 0.0);
    record.values.emplace_back("val/active_experts_" + group.name,
                               sum / static_cast<double>(active_L.size()));
  }
  add_held_out_routing("val/", result.activations, record);
  for (int64_t layer = 0; layer < result.activations.num_layers(); ++layer) {
    record.values.emplace_back("val/" + layer_key(static_cast<size_t>(layer), "active_experts"),
                               result.activations.summary(layer).mean);
  }
  if (result.mixture_loss) record.values.emplace_back("val/mixture_loss", *result.mixture_loss);
  for (const models::ValidationSource& source : result.sources) {
    const std::string prefix = "val/" + source.name + "/";
    record.values.emplace_back(prefix + "loss", source.loss);
    add_held_out_routing(prefix, source.activations, record);
  }
}

// 2.9e-3 rather than printf's 2.9e-03.
std::string scientific(double value) {
  std::string text = format("%.1e", value);
  const size_t exponent = text.find('e') + 2;
  if (text[exponent] == '0') text.erase(exponent, 1);
  if (text[exponent - 1] == '+') text.erase(exponent - 1, 1);
  return text;
}

std::string threshold_text(const std::vector<double>& thresholds) {
  const auto [low, high] = std::minmax_element(thresholds.begin(), thresholds.end());
  const std::string least = format("%.3f", *low), most = format("%.3f", *high);
  return least == most ? least : least + "-" + most;
}

std::string routing_text(const config::RunConfig& config, const StepResult& result) {
  const config::RoutingConfig& routing = config.routing;
  if (result.activations.num_layers() == 0) return "";
  const moe::ActivationSummary summary = result.activations.summary();
  std::string text = format(" | experts %.2f", summary.mean);
  if (config::holds_target(routing.method))
    text += format("/%.3g", config::mean_experts_at(routing, result.step - 1, config.training.steps));
  if (const auto* p = result.router_values("threshold")) text.append(" | p ").append(threshold_text(*p));
  return text.append(format(" | imbalance %.1f", summary.imbalance));
}

}  // namespace

RunSaver::RunSaver(const Trainer& trainer, const config::RunConfig& config,
                   const distributed::ProcessGroups& groups, const runs::RunDirectory& directory,
                   const std::optional<runs::MetricsWriter>& metrics, ConsoleLog log)
    : trainer_(trainer),
      config_(config),
      groups_(groups),
      directory_(directory),
      metrics_(metrics),
      log_(std::move(log)) {}

RunSaver::~RunSaver() {
  abandon();
  if (pending_.valid()) pending_.wait();
}

void RunSaver::allocate_snapshot(uint64_t bytes, uint64_t room) {
  const auto text = [](uint64_t count) { return format_bytes(static_cast<double>(count)); };
  const bool fits = bytes <= room;
  if (!fits && config_.checkpoint.asynchronous == config::Asynchronous::kTrue)
    throw ResourceError("checkpoint.asynchronous: its snapshot needs ", text(bytes), " of memory and ",
                        text(room), " are left; set it to false");
  if (distributed::any_of(*groups_.world, !fits))
    return log_.message("training waits while checkpoints are written: no memory for a snapshot of " +
                        text(bytes));
  snapshot_.emplace(trainer_.parameters().saved_shards());
}

RunSaver::Written RunSaver::write(const checkpoint::CheckpointContents& contents,
                                  const std::vector<Tensor>& shards, distributed::Collectives& ranks,
                                  const std::atomic<bool>* abandoned) const {
  if (metrics_) metrics_->sync();  // a run resumed from this checkpoint does not write these lines again
  RanksOfRun saving(trainer_.parameters(), shards, ranks, abandoned);
  Written written{checkpoint::save_checkpoint(runs::checkpoints_of(config_.output), contents,
                                              config_.checkpoint.keep, saving)};
  if (groups_.rank() == 0) directory_.record_saved(contents.state.step);
  written.end = steady_seconds();
  return written;
}

void RunSaver::save() {
  wait();
  const double begin = steady_seconds();
  const ops::NamedTensors router = router_of(trainer_);
  const Written written = write(contents_of(trainer_, config_, router), trainer_.parameters().saved_shards(),
                                *groups_.world, nullptr);
  newest_ = written.path;
  times_ = {written.end - begin, written.end - begin};
}

void RunSaver::start(const StopToken& stop) {
  if (!snapshot_) return save();
  const double due = steady_seconds();
  wait(stop);
  begin_ = steady_seconds();
  if (begin_ - due > kNoticeableSeconds && !std::exchange(has_warned_, true))
    log_.warning(format("training waited %.1f s for the checkpoint before this one; raise checkpoint.every",
                        begin_ - due));
  snapshot_->take(trainer_.parameters().saved_shards());
  ops::NamedTensors router;
  for (const auto& [name, tensor] : router_of(trainer_)) router.emplace_back(name, tensor.clone());
  checkpoint::CheckpointContents contents = contents_of(trainer_, config_, router);
  abandoned_ = false;
  // `router` holds the bytes that `contents` refers to.
  pending_ = std::async(std::launch::async, [this, router, contents = std::move(contents)] {
    yield_to_training();
    return write(contents, snapshot_->get(), *groups_.saving, &abandoned_);
  });
  stall_ = steady_seconds() - due;
}

void RunSaver::poll() {
  if (!pending_.valid() || pending_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
  try {
    finish();
  } catch (const distributed::RankLost&) {
    lost_ = std::current_exception();
  }
}

void RunSaver::wait(const StopToken& stop) {
  if (lost_) std::rethrow_exception(lost_);
  if (!pending_.valid()) return;
  while (pending_.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready)
    if (stop.stop_requested()) abandon();
  finish();
}

void RunSaver::finish() {
  try {
    const Written written = pending_.get();
    newest_ = written.path;
    times_ = {stall_, written.end - begin_};
  } catch (const Abandoned&) {  // the caller saves a newer state
  }
}

Run::Run(const config::RunConfig& config, Trainer& trainer, runs::RunDirectory& directory,
         distributed::Cluster& cluster, const plan::Plan& plan, uint64_t memory, const ConsoleLog& log,
         const StopToken& stop)
    : config_(config),
      trainer_(trainer),
      directory_(directory),
      cluster_(cluster),
      groups_(cluster.groups()),
      plan_(plan),
      memory_(memory),
      log_(log),
      stop_(stop),
      saver_(trainer, config, groups_, directory, metrics_, log),
      budget_(config.routing, config.training.steps) {}

void Run::profile(int64_t steps) {
  if (!groups_.device.is_cpu())
    throw UsageError(
        "--profile measures a CPU, and a CUDA device computes behind the program; set logging.trace_step to "
        "record its kernels");
  profile_steps_ = steps;
}

RunSummary Run::train() {
  if (config_.logging.trace_step > 0 && groups_.device.is_cpu())
    throw UsageError("logging.trace_step records a CUDA device; use --profile on a CPU");
  std::optional<StopScope> begins(stop_);
  const auto own = begin_or_resume(trainer_, config_, log_);
  begins.reset();
  last_step_ = last_step();
  unsaved_ = !own;
  if (own) saver_.resumed_from(*own);
  RunSummary summary{config_.output, {}, 0, 0, complete()};
  if (summary.already_complete && cluster_.is_main_rank()) directory_.finish_save(trainer_.state().step);
  if (!summary.already_complete && plan_.snapshot_bytes > 0)
    saver_.allocate_snapshot(plan_.snapshot_bytes, snapshot_room());
  if (!summary.already_complete && cluster_.is_main_rank()) open_outputs(own.has_value());
  if (!summary.already_complete) evaluate(/*resumed=*/true);
  while (!ended()) {
    train_step();
    // All of these need the step's result first, because the step may have to run again.
    if (anything_is_due() || saving_is_due() || finished()) take_results(0);
    evaluate(/*resumed=*/false);
    if (saving_is_due() && unsaved_) save();
  }
  if (unsaved_) save_now();
  if (profile_) summary.profile = save_profile();
  summary.checkpoint = saver_.newest_checkpoint();
  summary.steps = trainer_.state().step;
  summary.tokens = trainer_.state().tokens;
  return summary;
}

int64_t Run::last_step() const {
  if (profile_steps_ == 0) return config_.training.steps;
  const int64_t left = config_.training.steps - trainer_.state().step;
  if (left < profile_steps_)
    throw UsageError("--profile ", profile_steps_, ": ", config_.output, " has ", left, " of its ",
                     config_.training.steps, " steps left; choose another output, or fewer steps");
  return trainer_.state().step + profile_steps_;
}

void Run::open_outputs(bool resumed) {
  directory_.keep(resumed ? trainer_.state().step : 0);
  metrics_.emplace(config_.output, resumed ? trainer_.state().step : -1, config_.logging.tensorboard,
                   trainer_.state().last_validation_step);
  const at::Device& device = groups_.device;
  const at::ScalarType type = device::compute_type(config_.training.precision, device);
  StepYardstick yardstick{.fixed_flops_per_token = static_cast<double>(plan_.fixed_flops_per_token),
                          .flops_per_expert = static_cast<double>(plan_.flops_per_expert),
                          .tokens = static_cast<double>(trainer_.step_tokens()),
                          .last_step = last_step_,
                          .seconds_before = runs::last_value(config_.output, "throughput/seconds"),
                          .matrix_rate = device::measure_matrix_rate(at::device(device).dtype(type))};
  if (!device.is_cpu())
    yardstick.peak_rate = device::data_sheet_rate(device::device_facts(device).name, type == at::kBFloat16);
  meter_.emplace(yardstick, groups_);
  if (profile_steps_ > 0) {
    profile_.emplace();
    rates_ = {yardstick.matrix_rate, device::measure_memory_rate()};
  }
  log_.message(run_line(config_, plan_, profile_steps_ > 0 ? profile_steps_ : config_.training.steps));
  const auto gflops = [](double rate) { return static_cast<int64_t>(rate / 1e9); };
  log_.message(concat(
      "training on ", device::describe_device(device), " in ", (type == at::kBFloat16 ? "bf16" : "fp32"),
      ", measured at ", gflops(yardstick.matrix_rate), " GFLOP/s",
      (yardstick.peak_rate ? concat(" (data sheet: ", gflops(*yardstick.peak_rate), ")") : ""),
      "; output: ", config_.output));
  if (trainer_.data().validation_samples == 0 && config_.validation.every > 0)
    log_.message("no data.validation: training without validation");
}

void Run::train_step() {
  saver_.poll();
  // A trace begins on an idle device. An earlier step may have to run first, again.
  if (next_is_traced()) take_results(0);
  const bool traced = next_is_traced();
  std::optional<StepTrace> trace;
  if (traced && cluster_.is_main_rank()) trace.emplace();
  cluster_.begin(trainer_.state().step + 1, "step");
  if (meter_) meter_->begin();
  std::optional<StepProfile::Recording> recording;
  if (profile_) recording.emplace(*profile_, trainer_.state().step + 1);
  try {
    const bool stopped = !trainer_.step(stop_);
    recording.reset();
    if (stopped) stop_here();
  } catch (const c10::OutOfMemoryError&) {
    const config::Device device = groups_.device.is_cpu() ? config::Device::kCpu : config::Device::kCuda;
    throw ResourceError(
        out_of_memory_line(config_, plan::largest_micro_batch(config_, plan_.dims, device, memory_)));
  }
  // On a device, one step stays in flight while the host continues. The number is fixed: if it depended on
  // arrivals, the state at the start of a step would depend on timing.
  take_results(groups_.device.is_cpu() || traced ? 0 : 1);
  if (trace) {
    const fs::path path = fs::path(config_.output) / "trace.json";
    trace->save(path);
    log_.message(concat("step ", config_.logging.trace_step, " is recorded in ", path,
                        "; open it at https://ui.perfetto.dev"));
  }
  if (stop_requested_) stop_here();
}

std::string Run::save_profile() const {
  const fs::path folder = config_.output;
  // Other work on the machine slows a measurement, so the greater of two is nearer to the limit.
  const at::ScalarType type = device::compute_type(config_.training.precision, groups_.device);
  std::string table = profile_->table(
      {std::max(rates_.flops, device::measure_matrix_rate(at::device(groups_.device).dtype(type))),
       std::max(rates_.bytes, device::measure_memory_rate())});
  write_file_atomically(folder / "profile.txt", table);
  profile_->save_trace(folder / "trace.json");
  log_.message(concat("the parts of a step are in ", folder / "profile.txt", ", its operators in ",
                      folder / "trace.json", "; open that at https://ui.perfetto.dev"));
  return table;
}

void Run::take_results(size_t in_flight) {
  while (const auto result = trainer_.next_result(in_flight)) {
    unsaved_ = true;
    record(*result);
    if (result->skipped)
      log_.message(concat("step ", result->step,
                          " was skipped: its loss or gradient is not finite or too large (",
                          result->consecutive_skips, " in a row); see dtopp replay ", config_.output,
                          " --step ", result->step));
    stop_requested_ = stop_requested_ || (result->stop_requested && groups_.size() > 1);
    if (!gives_up(*result, config_.training)) continue;
    while (const auto later = trainer_.next_result(0)) record(*later);
    save_now();
    throw NumericalError(
        "step ", result->step, ": ", result->consecutive_skips,
        " non-finite steps in a row (training.max_skips ", config_.training.max_skips,
        "); lower optimizer.lr or check the data; the parameters before the skipped steps are "
        "in ",
        saver_.newest_checkpoint());
  }
}

void Run::record(const StepResult& result) {
  if (!cluster_.is_main_rank()) return;
  cluster_.begin(result.step, "report");
  const StepRates speed = meter_->rates(result);
  if (const auto warning = budget_.observe(result.step, result.activations.layer_means()))
    log_.warning(*warning);
  show(result, speed, result.step == last_step_);
  const bool last = result.step == config_.training.steps;
  if (result.step % config_.logging.every != 0 && !last && !result.skipped) return;
  runs::MetricRecord record = record_now(result.step, result.tokens);
  add_step(result, config_.model, record);
  add_sources(trainer_.data(), result.sample_position, record);
  add_work(result, plan_, record);
  add_rates(speed, result.data_seconds / result.seconds, record);
  if (const auto times = saver_.take_times()) {
    record.values.emplace_back("checkpoint/stall_seconds", times->stall);
    record.values.emplace_back("checkpoint/write_seconds", times->write);
  }
  metrics_->write(record);
}

void Run::show(const StepResult& result, const StepRates& speed, bool is_last) {
  const bool is_first = std::exchange(shows_first_, false);
  const bool stays = is_last || (!log_.on_terminal() && (is_first || result.skipped ||
                                                         result.step % config_.logging.console_every == 0));
  if (!stays && !log_.on_terminal()) return;
  const std::string line = console_line(config_, result.step, result, speed);
  stays ? log_.line(line) : log_.status(line);
}

// True before the first step, every validation.every steps and after the last step.
bool Run::validation_is_due() const {
  const checkpoint::TrainingState& state = trainer_.state();
  if (config_.validation.every == 0 || state.last_validation_step == state.step) return false;
  if (trainer_.data().validation_samples == 0 && config_.validation.tasks.empty()) return false;
  return state.step % config_.validation.every == 0 || finished();
}

bool Run::anything_is_due() const {
  return validation_is_due() ||
         std::ranges::any_of(evaluations_, [&](const auto& evaluation) { return is_due(*evaluation); });
}

void Run::evaluate(bool resumed) {
  if (!anything_is_due()) return;
  const checkpoint::TrainingState& state = trainer_.state();
  runs::MetricRecord record = record_now(state.step, state.tokens);
  const bool validates = validation_is_due();
  std::optional<models::ValidationResult> loss;
  if (validates && trainer_.data().validation_samples > 0) {
    cluster_.begin(state.step, "validation");
    loss = trainer_.validate(config_.validation.tokens, stop_);
    if (!loss) stop_here();
    add_validation(*loss, record);
  }
  Measurements measured;
  for (const auto& evaluation : evaluations_) {
    if (!is_due(*evaluation)) continue;
    if (resumed &&
        distributed::any_of(trainer_.ranks(), cluster_.is_main_rank() && evaluation->is_done(state)))
      continue;
    cluster_.begin(state.step, "evaluation");
    const auto results = evaluation->run(trainer_, stop_);
    if (!results) stop_here();
    measured.insert(measured.end(), results->begin(), results->end());
  }
  for (const auto& [name, value] : measured) record.values.emplace_back("eval/" + name, value);
  cluster_.begin(state.step, "report");
  if (cluster_.is_main_rank() && !record.values.empty()) {
    metrics_->write(record);
    log_.message(validation_line(state.step, loss ? &*loss : nullptr, measured));
  }
  if (!validates) return;
  trainer_.mark_validated();
  unsaved_ = true;
}

uint64_t Run::snapshot_room() const {
  // The allocator of page-locked memory rounds each tensor up to a power of two.
  if (!groups_.device.is_cpu())
    return device::available_memory() / static_cast<uint64_t>(cluster_.local_size()) / 2;
  return memory_ - std::min(memory_, plan_.memory_bytes());
}

void Run::save() {
  if (ended()) return save_now();
  cluster_.begin(trainer_.state().step, "save");
  saver_.start(stop_);
  unsaved_ = false;
}

void Run::save_now() {
  take_results(0);
  cluster_.begin(trainer_.state().step, "save");
  saver_.save();
  unsaved_ = false;
}

void Run::stop_here() {
  take_results(0);
  if (unsaved_) {
    saver_.abandon();
    save_now();
  }
  cluster_.begin(trainer_.state().step, "save");
  saver_.wait();
  throw Stopped(stop_.is_past_deadline() ? "training.max_hours has passed: " : "", "stopped at step ",
                trainer_.state().step, ", saved as ", saver_.newest_checkpoint(),
                "; run the same command again to resume");
}

std::string run_line(const config::RunConfig& config, const plan::Plan& plan, int64_t steps) {
  const auto count = [](auto number) { return format_count(static_cast<double>(number)); };
  std::string line = count(plan.parameters) + " parameters";
  if (plan.active_parameters != plan.parameters)
    line += ", " + count(plan.active_parameters) + " active per token";
  return concat(line, "; ", steps, " steps of ", config.training.global_batch_size, " x ",
                config.model.tokens_per_sample(),
                " tokens: ", count(plan.tokens_per_step * static_cast<uint64_t>(steps)), " tokens");
}

std::string console_line(const config::RunConfig& config, int64_t step, const StepResult& result,
                         const StepRates& rates) {
  std::string line = "step " + std::to_string(step) + "/" + std::to_string(config.training.steps);
  line.append(format(" | loss %.3f", without_nan_sign(result.loss)));
  if (result.skipped) line.append(" | skipped");
  line.append(" | ").append(format_count(rates.tokens_per_second)).append(" tok/s");
  line.append(" | ").append(format_duration(rates.seconds));
  if (rates.seconds_left >= 0.05)
    line.append(", ").append(format_duration(rates.seconds_left)).append(" left");
  line.append(routing_text(config, result));
  line.append(format(" | grad %.2f", without_nan_sign(result.grad_norm)));
  if (!result.skipped) line.append(" | lr ").append(scientific(result.lr));
  if (rates.mfu) line.append(format(" | MFU %.0f %%", *rates.mfu * 100));
  return line.append(" | ").append(format_bytes(static_cast<double>(rates.memory_bytes)));
}

std::string validation_line(int64_t step, const models::ValidationResult* loss,
                            const Measurements& measured) {
  std::string parts;
  const auto add = [&](const std::string& name, double value) {
    parts += (parts.empty() ? " " : ", ") + name + " " + std::to_string(without_nan_sign(value));
  };
  if (loss != nullptr) add("loss", loss->loss);
  if (loss != nullptr && loss->activations.num_layers() > 0)
    add("active experts", loss->activations.summary().mean);
  for (const auto& [name, value] : measured) add(name, value);
  return "validation at step " + std::to_string(step) + ":" + parts;
}

std::string out_of_memory_line(const config::RunConfig& config, std::optional<int64_t> planned) {
  const int64_t size = config.training.micro_batch_size;
  const bool recomputes = config.training.recompute == config::Recompute::kLayer;
  const int64_t smaller = planned && *planned < size ? *planned : size / 2;
  return concat(
      "out of memory with training.micro_batch_size=", size, ": ",
      (recomputes ? "" : "set training.recompute to layer, or "),
      (size == 1 ? "make the model smaller" : concat("lower training.micro_batch_size to ", smaller)));
}

}  // namespace dtopp::train
