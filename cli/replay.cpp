#include "dtopp/train/replay.h"

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/option_checks.h"
#include "cli/ranks.h"
#include "dtopp/base/json.h"
#include "dtopp/base/stop.h"
#include "dtopp/device/device.h"
#include "dtopp/models/make_model.h"
#include "dtopp/runs/metrics.h"
#include "dtopp/runs/run_history.h"
#include "dtopp/train/start.h"

namespace dtopp::cli {
namespace {

struct ReplayOptions {
  std::string run;
  int64_t step = 0;
  int64_t processes = 0;
  bool json = false;
};

config::RunConfig config_of(const ReplayOptions& options) {
  auto config = runs::config_of(options.run);
  if (!config) throw UsageError(options.run, ": holds no run; name the folder of a run");
  if (options.step > config->training.steps)
    throw UsageError("--step: the run has ", config->training.steps, " steps; name one of them");
  config->output = options.run;
  return *config;
}

// Trains from the last checkpoint before the step to the state before it, without writing anything.
void train_to(train::Trainer& trainer, const ReplayOptions& options, const ConsoleLog& log) {
  const int64_t first = trainer.state().step;
  log.message("repeating steps " + std::to_string(first + 1) + " to " + std::to_string(options.step));
  ConsoleWatch watch(trainer.ranks());
  watch.begin("replay", "steps", static_cast<uint64_t>(options.step - 1 - first));
  while (trainer.state().step < options.step - 1) {
    const bool finished = trainer.step(stop_token());
    const auto result = trainer.next_result(0);
    if (!finished || (result && result->stop_requested))
      throw Stopped("stopped at step ", trainer.state().step, "; the run is unchanged");
    watch.update(static_cast<uint64_t>(trainer.state().step - first));
  }
  watch.end();
}

// Warns if the run logged another loss for the step.
void compare_with_run(const ReplayOptions& options, double loss, const ConsoleLog& log) {
  const runs::RunHistory history = runs::read_run_history(fs::path(options.run) / runs::kMetricsFile);
  const auto found = history.series.find("train/loss");
  if (found == history.series.end()) return;
  const auto at = std::ranges::lower_bound(found->second.steps, options.step);
  if (at == found->second.steps.end() || *at != options.step) return;
  const double logged = found->second.values[static_cast<size_t>(at - found->second.steps.begin())];
  if (logged == loss || (!std::isfinite(logged) && !std::isfinite(loss))) return;
  log.warning(
      format("the run logged a loss of %.17g for this step, this replay computed %.17g: another processor, "
             "number of threads or of ranks, or a fault of memory",
             logged, loss));
}

void replay_rank(distributed::Cluster& cluster, const ReplayOptions& options) {
  std::optional<StopScope> begins(stop_token());
  const ConsoleLog log = cluster.is_main_rank() ? ConsoleLog(stderr) : ConsoleLog();
  config::RunConfig config = config_of(options);
  if (!config.parallel.reproducible)
    log.warning("parallel.reproducible is off: only as many --processes as the run had give the same bits");
  config.training.recompute = config::Recompute::kNone;  // each operation once
  const bool was_deterministic = std::exchange(config.training.deterministic, true);
  const distributed::ProcessGroups& groups = connect_ranks(cluster, config);
  if (!was_deterministic && !groups.device.is_cpu())
    log.warning("training.deterministic was off: the last bits may differ from those of the run");
  require_training_memory(cluster, config, groups);
  models::TrainingData data = models::open_training_data(config, data::Verify::kChanged);
  train::check_data(data, *groups.world);
  train::Trainer trainer = make_trainer(config, std::move(data), groups);
  train::begin_or_resume(trainer, config, log, options.step);
  begins.reset();
  cluster.begin(options.step, "replay");
  train_to(trainer, options, log);
  const ordered_json replay = train::replay_step(trainer, config.training.micro_batch_size);
  if (cluster.is_main_rank()) {
    compare_with_run(options, replay["loss"].get<double>(), log);
    std::printf("%s", (options.json ? dump_json(replay) + "\n" : train::replay_text(replay)).c_str());
    flush_standard_output();
  }
  if (!replay["origin"].is_null() || !replay["finite"].get<bool>())
    throw NumericalError("step ", options.step, " is not finite");
}

void replay(const ReplayOptions& options) {
  const launch::LaunchEnvironment environment = own_launch_environment();
  if (options.processes > 0) {
    device::require_device(config_of(options).training.device, "training.device");
    end_process(run_processes(environment, {.processes = options.processes}));
  }
  run_rank(environment, "use more --processes",
           [&](distributed::Cluster& cluster) { replay_rank(cluster, options); });
}

}  // namespace

void add_replay(CLI::App& app) {
  auto options = std::make_shared<ReplayOptions>();
  CLI::App* command =
      app.add_subcommand("replay", "Repeat one training step, and name the first tensor that is not finite");
  command->add_option("run", options->run, "folder of the run; nothing in it changes")->required();
  add_checked(*command, "--step", options->step, "the step to repeat", positive<int64_t>())->required();
  command->add_flag("--json", options->json, "print one JSON object");
  add_processes_option(*command, options->processes);
  command->callback([options] { replay(*options); });
}

}  // namespace dtopp::cli
