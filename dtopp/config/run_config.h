// Defines the whole configuration of a run: one struct per section. Each struct has one list of its fields,
// which parsing, printing, overrides and the suggestions for mistyped keys share.
#pragma once

#include "dtopp/config/config_tree.h"
#include "dtopp/config/data_config.h"
#include "dtopp/config/model_config.h"
#include "dtopp/config/routing_config.h"

namespace dtopp::config {

enum class Schedule { kCosine, kWsd, kConstant, kLinear };  // of the learning rate (optim/optimizer.h)

constexpr auto enum_names(Schedule) {
  return std::to_array<std::string_view>({"cosine", "wsd", "constant", "linear"});
}

enum class OptimizerMethod { kAdamW, kMuon };  // optim/optimizer.h

constexpr auto enum_names(OptimizerMethod) { return std::to_array<std::string_view>({"adamw", "muon"}); }

struct OptimizerConfig {
  OptimizerMethod method = OptimizerMethod::kAdamW;
  double lr = 3.0e-3;
  double min_lr = 3.0e-5;
  Schedule schedule = Schedule::kCosine;
  int64_t warmup_steps = 2500;
  double router_lr_factor = 1.0;    // of the rate of the routers' parameters (optim/optimizer.h)
  int64_t router_warmup_steps = 0;  // in which it rises from 0, too
  int64_t decay_steps = 0;          // wsd: number of last steps in which lr falls to min_lr
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1.0e-8;
  double momentum = 0.95;  // of muon
  double weight_decay = 3.3e-2;
  double grad_clip = 1.0;  // global norm; 0: off
};

void visit_fields(SectionOf<OptimizerConfig> auto& config, auto&& field) {
  field("method", config.method);
  field("lr", config.lr);
  field("min_lr", config.min_lr);
  field("schedule", config.schedule);
  field("warmup_steps", config.warmup_steps);
  field("router_lr_factor", config.router_lr_factor);
  field("router_warmup_steps", config.router_warmup_steps);
  field("decay_steps", config.decay_steps);
  field("betas", config.betas);
  field("eps", config.eps);
  field("momentum", config.momentum);
  field("weight_decay", config.weight_decay);
  field("grad_clip", config.grad_clip);
}

enum class BatchStatistics { kMicroBatch, kGlobal };
enum class Precision { kFp32, kBf16, kAuto };
enum class Device { kAuto, kCpu, kCuda };
enum class Recompute { kNone, kMoe, kLayer };
enum class Asynchronous { kAuto, kTrue, kFalse };

constexpr auto enum_names(BatchStatistics) {
  return std::to_array<std::string_view>({"micro_batch", "global"});
}
constexpr auto enum_names(Precision) { return std::to_array<std::string_view>({"fp32", "bf16", "auto"}); }
constexpr auto enum_names(Device) { return std::to_array<std::string_view>({"auto", "cpu", "cuda"}); }

constexpr auto enum_names(Recompute) { return std::to_array<std::string_view>({"none", "moe", "layer"}); }
constexpr auto enum_names(Asynchronous) { return std::to_array<std::string_view>({"auto", "true", "false"}); }

// Coefficients of the auxiliary losses (paper, Appendix "Loss Designs").
struct LossConfig {
  double lm_z = 1.0e-4;
  double load_balance = 1.0e-4;
  double dynamic = 1.0e-3;
  double router_z = 0.0;
  double sequence_balance = 0.0;  // top_k_bias: load balance within each sequence
  RouterZOn router_z_on = RouterZOn::kRaw;
  // Tokens over which the load-balance loss takes f.
  BatchStatistics batch_statistics = BatchStatistics::kMicroBatch;
};

struct TrainingConfig {
  int64_t steps = 95367;            // the learning-rate schedule spans them
  int64_t global_batch_size = 512;  // samples per optimizer step: sequences or images
  int64_t micro_batch_size = 8;     // samples per forward and backward pass
  // Activations that the backward pass computes again instead of storing them. moe: the experts' products
  // with W_gate and W_up. layer: these, attention, norms and a dense feed-forward layer. No bit changes.
  Recompute recompute = Recompute::kNone;
  int64_t seed = 1;
  Precision precision = Precision::kBf16;  // auto: bf16 if the hardware multiplies it, else fp32
  Device device = Device::kAuto;
  bool deterministic = false;  // the same bits in every run on a CUDA device too
  int64_t threads = 0;         // 0: all cores available to this process
  int64_t max_skips = 10;      // non-finite steps in a row before the run ends with status 6
  double max_hours = 0;        // a start of the run saves and stops after them with status 75; 0: no limit
  // Each is a checkpoint, or a run whose newest checkpoint is used. Empty: training starts from the seed.
  std::string initialize_from;  // start from its parameters only
  std::string cooldown_from;    // resume from it, with parameters, moments and all other state
  // The noise of experts that initialize_from copies from a dense model: its standard deviation relative to
  // the root mean square of the weights.
  double upcycle_noise = 0;
};

// The degree of expert parallelism: a number, or auto.
struct ExpertParallel {
  std::optional<int64_t> ranks = 1;  // nullopt: auto
};
void read_value(const ConfigNode& node, const std::string& key, ExpertParallel& value);
std::string print_value(const ExpertParallel& value);

// Distributes the work over ranks.
struct ParallelConfig {
  // Ranks of a node that share the experts of each layer. auto: the fewest with which the run fits in memory.
  ExpertParallel expert_parallel;
  bool reproducible = true;  // the same bits for every power-of-two number of ranks
  int64_t timeout = 60;      // seconds after which a silent rank is lost (distributed/rank_records.h)
};

struct ValidationConfig {
  int64_t every = 1000;                 // steps; 0: never
  int64_t tokens = 1000000;             // held-out tokens per validation
  std::vector<std::string> tasks;       // benchmark tasks at each validation (tasks/task.h)
  std::string task_data = "data/eval";  // folder of their files
  int64_t task_limit = 0;               // items per task or category; 0: all
  int64_t samples = 0;                  // texts to generate at each validation (eval/in_training)
};

struct CheckpointConfig {
  int64_t every = 1000;  // steps; 0: only the last one
  int64_t keep = 2;      // number of newest checkpoints to keep; 0: all
  // Whether training continues while a checkpoint is written. auto: if its snapshot fits into memory.
  Asynchronous asynchronous = Asynchronous::kAuto;
};

struct LoggingConfig {
  int64_t every = 1;            // steps per line of metrics
  int64_t console_every = 100;  // steps per line of the console, unless that is a terminal
  bool tensorboard = true;
  int64_t trace_step = 0;  // on a CUDA device, the step to record in trace.json; 0: none
};

struct RunConfig {
  std::string name;
  ModelConfig model;
  RoutingConfig routing;
  LossConfig loss;
  DiffusionConfig diffusion;  // diffusion transformers only
  OptimizerConfig optimizer;
  DataConfig data;
  TrainingConfig training;
  ParallelConfig parallel;
  ValidationConfig validation;
  CheckpointConfig checkpoint;
  LoggingConfig logging;
  std::string output;
};

template <SectionOf<LossConfig> Losses>
void visit_fields(const TypedSection<Losses>& section, auto&& field) {
  if (section.type == ModelType::kLanguageModel) field("lm_z", section.values.lm_z);
  field("load_balance", section.values.load_balance);
  field("dynamic", section.values.dynamic);
  field("router_z", section.values.router_z);
  field("router_z_on", section.values.router_z_on);
  field("sequence_balance", section.values.sequence_balance);
  field("batch_statistics", section.values.batch_statistics);
}

void visit_fields(SectionOf<TrainingConfig> auto& config, auto&& field) {
  field("steps", config.steps);
  field("global_batch_size", config.global_batch_size);
  field("micro_batch_size", config.micro_batch_size);
  field("recompute", config.recompute);
  field("seed", config.seed);
  field("precision", config.precision);
  field("device", config.device);
  field("deterministic", config.deterministic);
  field("threads", config.threads);
  field("max_skips", config.max_skips);
  field("max_hours", config.max_hours);
  field("initialize_from", config.initialize_from);
  field("cooldown_from", config.cooldown_from);
  field("upcycle_noise", config.upcycle_noise);
}

void visit_fields(SectionOf<ParallelConfig> auto& config, auto&& field) {
  field("expert_parallel", config.expert_parallel);
  field("reproducible", config.reproducible);
  field("timeout", config.timeout);
}

void visit_fields(SectionOf<ValidationConfig> auto& config, auto&& field) {
  field("every", config.every);
  field("tokens", config.tokens);
  field("tasks", config.tasks);
  field("task_data", config.task_data);
  field("task_limit", config.task_limit);
  field("samples", config.samples);
}

void visit_fields(SectionOf<CheckpointConfig> auto& config, auto&& field) {
  field("every", config.every);
  field("keep", config.keep);
  field("asynchronous", config.asynchronous);
}

void visit_fields(SectionOf<LoggingConfig> auto& config, auto&& field) {
  field("every", config.every);
  field("console_every", config.console_every);
  field("tensorboard", config.tensorboard);
  field("trace_step", config.trace_step);
}

void visit_fields(SectionOf<RunConfig> auto& config, auto&& field) {
  field("name", config.name);
  field("model", config.model);
  field("routing", config.routing);
  TypedSection losses{config.loss, config.model.type};
  field("loss", losses);
  if (config.model.type == ModelType::kDiffusionTransformer) field("diffusion", config.diffusion);
  field("optimizer", config.optimizer);
  TypedSection data{config.data, config.model.type};
  field("data", data);
  field("training", config.training);
  field("parallel", config.parallel);
  field("validation", config.validation);
  field("checkpoint", config.checkpoint);
  field("logging", config.logging);
  field("output", config.output);
}

// Reads `path` with its chain of `base:` files (each relative to the file that names it), applies the
// `key.path=value` overrides in order, and validates.
//
// Throws:        UsageError with file, line and key; for an unknown key also the nearest known one
RunConfig load_run_config(const std::filesystem::path& path, const std::vector<std::string>& overrides);

// The configuration in a tree that is already merged, validated like load_run_config.
RunConfig run_config_of(const ConfigNode& tree);

// Like load_run_config, for commands that do not train (plan) and for a checkpoint's config.yaml: data.train
// and output may be missing.
RunConfig load_model_run_config(const std::filesystem::path& path, const std::vector<std::string>& overrides);

// Like load_model_run_config, from a text without `base:`. Errors call the text `source`.
RunConfig parse_run_config(const std::string& yaml, const std::string& source);

// The configuration as YAML with every key. load_run_config reads it back to an equal value.
std::string to_yaml(const RunConfig& config);

// Checks that the values work together. It ignores the routing section if model.num_experts is 1. data.train
// and output may be missing.
//
// Throws:        InvalidValue (config/config.h), a UsageError that names the key
void validate_values(const RunConfig& config);

// The keys of `a` ("training.seed") that `b` lacks or that have another value in `b`, in field order.
std::vector<std::string> differing_keys(const RunConfig& a, const RunConfig& b);

// True if `key` must not change between start and resume. The names, reports and their times, limits after
// which a run ends, and the execution may change. The execution changes rounding. With loss.batch_statistics:
// micro_batch it also changes over which tokens f is taken. training.steps must not change, because the
// schedule spans them.
bool affects_result(const std::string& key);

}  // namespace dtopp::config
