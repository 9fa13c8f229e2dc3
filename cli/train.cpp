#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cli/ranks.h"
#include "cli/standard_streams.h"
#include "cli/stop_signals.h"
#include "cli/verbs.h"
#include "dtopp/device/compute_device.h"
#include "dtopp/device/device.h"
#include "dtopp/eval/in_training/probes.h"
#include "dtopp/eval/in_training/training_grids.h"
#include "dtopp/launch/launch_environment.h"
#include "dtopp/models/registry/make_model.h"
#include "dtopp/ops/moe_ffn/cuda/tune/tuner.h"
#include "dtopp/plan/expert_parallel.h"
#include "dtopp/train/console_line.h"
#include "dtopp/train/run.h"

namespace dtopp::cli {
namespace {

struct TrainOptions {
  std::string config;
  std::vector<std::string> overrides;
  bool verify = false;
  int64_t processes = 0;
};

// Assumes a single node if the launcher does not report the number of local ranks or nodes have unequal
// numbers.
RankLayout layout_on(const LaunchEnvironment& environment, const RunConfig& config) {
  const bool even =
      environment.local_world_size > 0 && environment.world_size % environment.local_world_size == 0;
  return {.ranks = environment.world_size,
          .nodes = even ? environment.world_size / environment.local_world_size : 1,
          .expert_parallel = config.parallel.expert_parallel.ranks.value_or(1)};
}

int64_t expert_parallel_on(const RankLayout& layout, const RunConfig& config, const at::Device& device) {
  const auto memory = free_device_memory(device);
  return expert_parallel_of(
      config, layout, device.is_cpu() ? Device::kCpu : Device::kCuda,
      memory ? *memory : available_memory() / static_cast<uint64_t>(layout.node_ranks()));
}

void train_run(const TrainOptions& options) {
  const LaunchEnvironment environment = own_launch_environment();
  const RunConfig config = load_run_config(options.config, options.overrides);
  if (options.processes > 0) {
    require_device(config.training.device, "training.device");
    std::exit(run_processes(environment, options.processes));
  }
  const RankLayout layout = layout_on(environment, config);
  check_layout(layout, config.model);
  const bool is_main_rank = environment.rank == 0;
  stop_rank_on_signals(environment);
  const ConsoleLog log(stderr);
  RunSummary summary;
  const JoinOptions join{
      .timeout = std::chrono::seconds(config.parallel.timeout),
      .device =
          [&](int64_t local_rank) {
            const at::Device device = compute_device(config.training.device, "training.device", local_rank);
            choose_fused_kernels(config, device, print_message);
            return device;
          },
      .expert_parallel =
          [&](const at::Device& device) { return expert_parallel_on(layout, config, device); }};
  run_as_rank(environment, join, [&](const Rank& rank) {
    // Verify every byte of the data, including files that an earlier start verified. All ranks do it: each
    // reads the files on its own machine, and all take equally long.
    if (options.verify) make_model(config).open_data(Verify::kAll);
    std::vector<std::unique_ptr<Periodic>> evaluations;
    for (auto make : {make_probes, make_training_grids})
      if (auto evaluation = make(config)) evaluations.push_back(std::move(evaluation));
    summary = run_training(config, log, stop_token(), evaluations, rank.groups, rank.begin);
  });
  if (!is_main_rank) return;
  if (summary.already_complete)
    print_message(summary.directory.string() + ": the run is complete; nothing left to train");
  std::printf("run         %s\n", summary.directory.c_str());
  std::printf("steps       %lld\n", static_cast<long long>(summary.steps));
  std::printf("tokens      %lld\n", static_cast<long long>(summary.tokens));
  std::printf("checkpoint  %s\n", summary.checkpoint.c_str());
}

}  // namespace

void add_train(CLI::App& app) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* verb = app.add_subcommand("train", "Train a model, or resume a stopped run");
  verb->add_option("config", options->config, "YAML configuration file of the run")->required();
  verb->add_option("overrides", options->overrides,
                   "configuration values as key.path=value, e.g. method=top_k training.steps=100");
  verb->add_flag("--verify", options->verify,
                 "verify every byte of the training data, including files verified before (docs/files.md)");
  verb->add_option("--processes", options->processes,
                   "number of ranks to start on this machine, one process per rank (docs/scale.md)")
      ->check(CLI::Range(1, 4096));
  verb->callback([options] { train_run(*options); });
}

}  // namespace dtopp::cli
