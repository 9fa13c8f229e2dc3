// The whole configuration of a run: one struct a section, each with the list of its fields, which parsing,
// printing, overrides and the suggestion for a mistyped key share.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "dtopp/config/data_config.h"
#include "dtopp/config/model_config.h"
#include "dtopp/config/optimizer_config.h"
#include "dtopp/config/routing_config.h"

namespace dtopp {

struct ConfigNode;

enum class BatchStatistics { kMicroBatch, kGlobal };
enum class Precision { kFp32, kBf16, kAuto };
enum class Device { kAuto, kCpu, kCuda };

constexpr auto enum_names(BatchStatistics) {
  return std::array<std::pair<BatchStatistics, std::string_view>, 2>{
      {{BatchStatistics::kMicroBatch, "micro_batch"}, {BatchStatistics::kGlobal, "global"}}};
}
constexpr auto enum_names(Precision) {
  return std::array<std::pair<Precision, std::string_view>, 3>{
      {{Precision::kFp32, "fp32"}, {Precision::kBf16, "bf16"}, {Precision::kAuto, "auto"}}};
}
constexpr auto enum_names(Device) {
  return std::array<std::pair<Device, std::string_view>, 3>{
      {{Device::kAuto, "auto"}, {Device::kCpu, "cpu"}, {Device::kCuda, "cuda"}}};
}

// Coefficients of the auxiliary losses (paper, Appendix "Loss Designs").
struct LossConfig {
  double lm_z = 1.0e-4;
  double load_balance = 1.0e-4;
  double dynamic = 1.0e-3;
  double router_z = 0.0;
  RouterZOn router_z_on = RouterZOn::kRaw;
  BatchStatistics batch_statistics = BatchStatistics::kMicroBatch;  // whose f enters the load-balance loss
};

// The section as a model of this type has it.
template <class Losses>
struct LossSection {
  Losses& losses;
  ModelType type;
};

struct TrainingConfig {
  int64_t steps = 95367;
  int64_t global_batch_size = 512;  // samples an optimiser step: sequences, images
  int64_t micro_batch_size = 8;     // samples a forward and backward
  int64_t seed = 1;
  Precision precision = Precision::kBf16;  // auto: bf16 where the hardware multiplies it, else fp32
  Device device = Device::kAuto;
  bool deterministic = false;  // the same bits each time on a CUDA device too
  int64_t threads = 0;         // 0: every core this process may use
  int64_t max_skips = 10;      // non-finite steps in a row before the run ends with status 6
  // Checkpoints, or runs of which the newest is taken; empty: the run begins from its seed.
  std::string initialize_from;  // whose parameters it begins with
  std::string cooldown_from;    // which it goes on from, parameters, moments and all
};

// A number, or auto.
struct ExpertParallel {
  std::optional<int64_t> ranks = 1;  // none: auto
};
void read_value(const ConfigNode& node, const std::string& key, ExpertParallel& value);
std::string print_value(const ExpertParallel& value);

// How the work is shared out among ranks.
struct ParallelConfig {
  ExpertParallel expert_parallel;  // ranks of a node that share the experts of each layer; auto: the fewest
                                   // with which the run fits in memory
  bool reproducible = true;        // the same bits at every power-of-two number of ranks
  int64_t timeout = 60;            // seconds a rank may be silent (distributed/membership/rank_records.h)
};

struct ValidationConfig {
  int64_t every = 1000;
  int64_t tokens = 1000000;
  std::vector<std::string> tasks;
  std::string task_data = "eval/data";
  int64_t task_limit = 0;
};

struct CheckpointConfig {
  int64_t every = 1000;
  int64_t keep = 2;  // newest checkpoints that stay; 0: all
};

struct LoggingConfig {
  int64_t every = 1;
  bool tensorboard = true;
};

struct RunConfig {
  std::string name;
  ModelConfig model;
  RoutingConfig routing;
  LossConfig loss;
  DiffusionConfig diffusion;  // of a diffusion transformer
  OptimizerConfig optimizer;
  DataConfig data;
  TrainingConfig training;
  ParallelConfig parallel;
  ValidationConfig validation;
  CheckpointConfig checkpoint;
  LoggingConfig logging;
  std::string output;
};

template <class Losses, class Visitor>
void visit_fields(const LossSection<Losses>& section, Visitor&& field) {
  if (section.type == ModelType::kLanguageModel) field("lm_z", section.losses.lm_z);
  field("load_balance", section.losses.load_balance);
  field("dynamic", section.losses.dynamic);
  field("router_z", section.losses.router_z);
  field("router_z_on", section.losses.router_z_on);
  field("batch_statistics", section.losses.batch_statistics);
}

template <class Config, class Visitor>
requires std::same_as<std::remove_const_t<Config>, TrainingConfig>
void visit_fields(Config& config, Visitor&& field) {
  field("steps", config.steps);
  field("global_batch_size", config.global_batch_size);
  field("micro_batch_size", config.micro_batch_size);
  field("seed", config.seed);
  field("precision", config.precision);
  field("device", config.device);
  field("deterministic", config.deterministic);
  field("threads", config.threads);
  field("max_skips", config.max_skips);
  field("initialize_from", config.initialize_from);
  field("cooldown_from", config.cooldown_from);
}

template <class Config, class Visitor>
requires std::same_as<std::remove_const_t<Config>, ParallelConfig>
void visit_fields(Config& config, Visitor&& field) {
  field("expert_parallel", config.expert_parallel);
  field("reproducible", config.reproducible);
  field("timeout", config.timeout);
}

template <class Config, class Visitor>
requires std::same_as<std::remove_const_t<Config>, ValidationConfig>
void visit_fields(Config& config, Visitor&& field) {
  field("every", config.every);
  field("tokens", config.tokens);
  field("tasks", config.tasks);
  field("task_data", config.task_data);
  field("task_limit", config.task_limit);
}

template <class Config, class Visitor>
requires std::same_as<std::remove_const_t<Config>, CheckpointConfig>
void visit_fields(Config& config, Visitor&& field) {
  field("every", config.every);
  field("keep", config.keep);
}

template <class Config, class Visitor>
requires std::same_as<std::remove_const_t<Config>, LoggingConfig>
void visit_fields(Config& config, Visitor&& field) {
  field("every", config.every);
  field("tensorboard", config.tensorboard);
}

template <class Config, class Visitor>
requires std::same_as<std::remove_const_t<Config>, RunConfig>
void visit_fields(Config& config, Visitor&& field) {
  field("name", config.name);
  field("model", config.model);
  field("routing", config.routing);
  LossSection losses{config.loss, config.model.type};
  field("loss", losses);
  if (config.model.type == ModelType::kDiffusionTransformer) field("diffusion", config.diffusion);
  field("optimizer", config.optimizer);
  DataSection data{config.data, config.model.type};
  field("data", data);
  field("training", config.training);
  field("parallel", config.parallel);
  field("validation", config.validation);
  field("checkpoint", config.checkpoint);
  field("logging", config.logging);
  field("output", config.output);
}

// Reads `path` (with its chain of `base:` files, each relative to the file that names it), applies the
// `key.path=value` overrides in order and validates. UsageError names file, line and key, and for an unknown
// key the nearest known one.
RunConfig load_run_config(const std::filesystem::path& path, const std::vector<std::string>& overrides);

// What load_run_config makes of a tree that is laid together already.
RunConfig run_config_of(const ConfigNode& tree);

// load_run_config for who trains nothing (plan, a checkpoint's config.yaml): data.train and output may be
// missing.
RunConfig load_model_run_config(const std::filesystem::path& path, const std::vector<std::string>& overrides);

// What load_model_run_config reads, from a text; `source` is what errors call it. No `base:`.
RunConfig parse_run_config(const std::string& yaml, const std::string& source);

// The configuration as YAML, every key written out; load_run_config reads it back to an equal value.
std::string to_yaml(const RunConfig& config);

// Throws UsageError (InvalidValue of config/config.h, which names the key) for values that cannot work
// together. Where model.num_experts is 1 the routing section is not looked at.
void validate(const RunConfig& config);

// The same without the demand for data.train and output.
void validate_values(const RunConfig& config);

// The keys ("training.seed") whose values differ, in field order.
std::vector<std::string> differing_keys(const RunConfig& a, const RunConfig& b);

// Whether a run may not change `key` between start and resume. Free are: name, output, what is reported and
// when (validation.*, data.validation, checkpoint.*, logging.*, diffusion.samples_every and sample_classes),
// when it gives up (training.max_skips), and
// how the work is laid out (training.threads, device, deterministic, micro_batch_size, parallel.*), which
// changes rounding and, for loss.batch_statistics: micro_batch, over which tokens f is taken. training.steps
// is not: the schedule depends on it.
bool affects_result(const std::string& key);

}  // namespace dtopp
