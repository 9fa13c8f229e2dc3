
#include "cli/commands.h"
#include "cli/option_checks.h"
#include "cli/ranks.h"
#include "dtopp/base/cpu_cores.h"
#include "dtopp/base/stop.h"
#include "dtopp/device/device.h"
#include "dtopp/eval/in_training.h"
#include "dtopp/models/make_model.h"
#include "dtopp/train/start.h"

namespace dtopp::cli {
namespace {

struct TrainOptions {
  std::string config;
  std::vector<std::string> overrides;
  bool verify = false;
  int64_t processes = 0;
  int64_t restarts = 0;
  int64_t profile = 0;
};

void print_summary(const train::RunSummary& summary) {
  if (summary.already_complete)
    print_message(summary.directory.string() + ": the run is complete; nothing left to train");
  std::printf("run         %s\n", summary.directory.c_str());
  std::printf("steps       %ld\n", summary.steps);
  std::printf("tokens      %ld\n", summary.tokens);
  std::printf("checkpoint  %s\n", summary.checkpoint.c_str());
  if (!summary.profile.empty()) std::printf("\n%s", summary.profile.c_str());
}

using Clock = std::chrono::steady_clock;

// A signal stops the run, and so do `hours` since `begin` unless they are 0. Only the main rank counts them,
// because it prints the reason.
StopToken stop_after(double hours, Clock::time_point begin) {
  if (hours == 0) return stop_token();
  const std::chrono::duration<double> seconds(3600 * hours);
  return stop_token().until(begin + std::chrono::duration_cast<Clock::duration>(seconds));
}

void warn_of_threads(int64_t threads, const ConsoleLog& log) {
  const int64_t cores = cpu_cores();
  if (threads > 2 * cores)
    log.warning("training.threads: " + std::to_string(threads) + " threads on " + std::to_string(cores) +
                " cores slow the run down; set it to " + std::to_string(cores) +
                ", or to 0 for one per core");
}

void train_rank(distributed::Cluster& cluster, const TrainOptions& options) {
  const Clock::time_point begin = Clock::now();
  std::optional<StopScope> begins(stop_token());
  const config::RunConfig config = config::load_run_config(options.config, options.overrides);
  const bool is_main_rank = cluster.is_main_rank();
  const ConsoleLog log = is_main_rank ? ConsoleLog(stderr) : ConsoleLog();
  const distributed::ProcessGroups& groups = connect_ranks(cluster, config);
  warn_of_threads(config.training.threads, log);

  // Refuses another run's directory before anything is read.
  runs::RunDirectory directory(config, is_main_rank);
  const TrainingMemory memory = require_training_memory(cluster, config, groups);
  // With --verify, every rank reads every byte: each reads the files of its own machine, and all take equally
  // long.
  models::TrainingData data =
      models::open_training_data(config, options.verify ? data::Verify::kAll : data::Verify::kChanged);
  train::check_data(data, *groups.world);
  std::unique_ptr<train::Periodic> probes = eval::make_probes(config),
                                   grids = eval::make_training_grids(config),
                                   texts = eval::make_training_texts(config, log);

  directory.require_space(memory.plan.checkpoint_bytes, log);
  directory.create();
  train::Trainer trainer = make_trainer(config, std::move(data), groups);
  train::Run run(config, trainer, directory, cluster, memory.plan, memory.available, log,
                 is_main_rank ? stop_after(config.training.max_hours, begin) : stop_token());
  run.add(std::move(probes));
  run.add(std::move(grids));
  run.add(std::move(texts));
  if (options.profile > 0) run.profile(options.profile);
  begins.reset();  // from here on, a stop saves
  const train::RunSummary summary = run.train();
  if (is_main_rank) print_summary(summary);
}

// Finds errors that all ranks would have, before any rank starts.
void check_ranks(const config::RunConfig& config, int64_t processes) {
  plan::make_plan(config, {processes, 1, config.parallel.expert_parallel.ranks.value_or(1)},
                  config.training.device);
  const auto is_missing = [](const std::string& path) {
    return path_kind(path) == PathKind::kNothing && path_kind(path + ".idx") == PathKind::kNothing;
  };
  // Opening data may take long, so only data with an error is opened here.
  if (std::ranges::any_of(config::paths_of(config.data.train), is_missing) ||
      std::ranges::any_of(config::paths_of(config.data.validation), is_missing))
    models::open_training_data(config, data::Verify::kSizes);
}

void train(const TrainOptions& options) {
  const launch::LaunchEnvironment environment = own_launch_environment();
  if (options.processes > 0) {
    const config::RunConfig config = config::load_run_config(options.config, options.overrides);
    device::require_device(config.training.device, "training.device");
    check_ranks(config, options.processes);
    end_process(run_processes(environment, {.processes = options.processes,
                                            .restarts = options.restarts,
                                            .checkpoints = runs::checkpoints_of(config.output)}));
  }
  run_rank(environment,
           "set training.recompute to layer, or lower training.micro_batch_size or the model's size",
           [&](distributed::Cluster& cluster) { train_rank(cluster, options); });
}

}  // namespace

void add_train(CLI::App& app) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command = app.add_subcommand("train", "Train a model, or resume a stopped run");
  command->add_option("config", options->config, "YAML configuration file of the run")->required();
  command->add_option("overrides", options->overrides,
                      "configuration values as key.path=value, e.g. method=top_k training.steps=100");
  command->add_flag(
      "--verify", options->verify,
      "verify every byte of the training data, including files verified before (docs/reference/files.md)");
  CLI::Option* processes = add_processes_option(*command, options->processes);
  add_checked(
      *command, "--restarts", options->restarts,
      "after a lost rank, start the ranks of --processes again from the newest checkpoint, at most this "
      "many times",
      not_negative<int64_t>())
      ->needs(processes);
  add_checked(
      *command, "--profile", options->profile,
      "train this many steps on a CPU, then exit; profile.txt and trace.json of the run show where the "
      "time of all steps but the first went",
      between(2, 1000));
  command->callback([options] { train(*options); });
}

}  // namespace dtopp::cli
