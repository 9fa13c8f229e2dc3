#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/program_version.h"
#include "cli/ranks.h"
#include "cli/standard_streams.h"
#include "cli/stop_signals.h"
#include "cli/verbs.h"
#include "dtopp/base/stop_scope.h"
#include "dtopp/device/available_memory.h"
#include "dtopp/device/compute_device.h"
#include "dtopp/device/device.h"
#include "dtopp/distributed/membership/failure.h"
#include "dtopp/eval/in_training/probes.h"
#include "dtopp/eval/in_training/training_grids.h"
#include "dtopp/models/registry/make_model.h"
#include "dtopp/ops/moe_ffn/cuda/tune/tuner.h"
#include "dtopp/plan/expert_parallel.h"
#include "dtopp/train/rank_checks.h"
#include "dtopp/train/run.h"

namespace dtopp::cli {
namespace {

struct TrainOptions {
  std::string config;
  std::vector<std::string> overrides;
  bool verify = false;
  int64_t processes = 0;
  int64_t restarts = 0;
};

// The memory that this rank may use.
uint64_t rank_memory(const distributed::Cluster& cluster, const at::Device& device) {
  const auto memory = device::free_device_memory(device);
  return memory ? *memory : device::available_memory() / static_cast<uint64_t>(cluster.local_size());
}

void print_summary(const train::RunSummary& summary) {
  if (summary.already_complete)
    print_message(summary.directory.string() + ": the run is complete; nothing left to train");
  std::printf("run         %s\n", summary.directory.c_str());
  std::printf("steps       %lld\n", static_cast<long long>(summary.steps));
  std::printf("tokens      %lld\n", static_cast<long long>(summary.tokens));
  std::printf("checkpoint  %s\n", summary.checkpoint.c_str());
}

// Trains as one rank of `cluster`.
void train_rank(distributed::Cluster& cluster, const TrainOptions& options) {
  std::optional<StopScope> begins(stop_token());
  const config::RunConfig config = config::load_run_config(options.config, options.overrides);
  const bool is_main_rank = cluster.is_main_rank();

  cluster.join(std::chrono::seconds(config.parallel.timeout));
  const at::Device device =
      device::compute_device(config.training.device, "training.device", cluster.local_rank());
  const config::Device kind = device.is_cpu() ? config::Device::kCpu : config::Device::kCuda;
  ops::choose_fused_kernels(config, device, print_message);
  distributed::ParallelDims dims{.world_size = cluster.size(), .nodes = cluster.nodes()};
  dims.ep_size = plan::expert_parallel_of(config, dims, kind, rank_memory(cluster, device));
  const distributed::ProcessGroups& groups = cluster.connect(device, dims.ep_size);
  train::check_configuration(config, *groups.world);
  train::agree_on_kernels(config, device, *groups.world);
  if (config.training.deterministic) device::make_deterministic(device);
  if (config.training.threads > 0) at::set_num_threads(static_cast<int>(config.training.threads));

  // Refuses another run's directory before anything is read.
  runs::RunDirectory directory(config, is_main_rank);
  const plan::Plan plan = plan::make_plan(config, {groups.size(), 1, groups.dims().ep_size}, kind);
  const uint64_t memory = rank_memory(cluster, device);
  plan::require_memory(config, plan, kind, memory);
  models::Model model = models::make_model(config);
  // With --verify, every rank reads every byte: each reads the files of its own machine, and all take equally
  // long.
  models::TrainingData data =
      models::open_training_data(config, options.verify ? data::Verify::kAll : data::Verify::kChanged);
  train::check_data(data, *groups.world);
  std::unique_ptr<train::Periodic> probes = eval::make_probes(config),
                                   grids = eval::make_training_grids(config);

  directory.create();
  const at::TensorOptions compute =
      at::device(device).dtype(device::compute_type(config.training.precision, device));
  train::Trainer trainer(config, std::move(model), std::move(data), compute, groups);
  train::Run run(config, trainer, directory, cluster, plan, memory,
                 is_main_rank ? ConsoleLog(stderr) : ConsoleLog(), stop_token());
  run.add(std::move(probes));
  run.add(std::move(grids));
  begins.reset();  // from here on, a stop saves
  const train::RunSummary summary = run.train();
  if (is_main_rank) print_summary(summary);
}

void train(const TrainOptions& options) {
  const launch::LaunchEnvironment environment = own_launch_environment();
  if (options.processes > 0) {
    const config::RunConfig config = config::load_run_config(options.config, options.overrides);
    device::require_device(config.training.device, "training.device");
    std::exit(run_processes(environment, {.processes = options.processes,
                                          .restarts = options.restarts,
                                          .checkpoints = runs::checkpoints_of(config.output)}));
  }
  stop_rank_on_signals(environment);
  distributed::Cluster cluster(environment, program_version);
  cluster.run([&] {
    distributed::with_memory_advice(
        "set training.recompute to layer, or lower training.micro_batch_size or the model's size",
        [&] { train_rank(cluster, options); });
  });
}

}  // namespace

void add_train(CLI::App& app) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* verb = app.add_subcommand("train", "Train a model, or resume a stopped run");
  verb->add_option("config", options->config, "YAML configuration file of the run")->required();
  verb->add_option("overrides", options->overrides,
                   "configuration values as key.path=value, e.g. method=top_k training.steps=100");
  verb->add_flag(
      "--verify", options->verify,
      "verify every byte of the training data, including files verified before (docs/reference/files.md)");
  CLI::Option* processes = verb->add_option("--processes", options->processes,
                                            "number of ranks to start on this machine, one process per rank "
                                            "(docs/how-to/many-processes.md)")
                               ->check(CLI::Range(1, 4096));
  verb->add_option(
          "--restarts", options->restarts,
          "start the ranks of --processes again from the newest checkpoint after a lost rank, at most "
          "this many times")
      ->check(CLI::NonNegativeNumber)
      ->needs(processes);
  verb->callback([options] { train(*options); });
}

}  // namespace dtopp::cli
