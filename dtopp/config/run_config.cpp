#include "dtopp/config/run_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "dtopp/config/config.h"

namespace dtopp {
namespace {

constexpr int64_t kMostThreads = 4096;
constexpr int64_t kLongestTimeout = 86400;  // seconds

void require_at_least(const char* key, int64_t least, int64_t value) {
  if (value < least)
    throw InvalidValue(key, "must be at least " + std::to_string(least) + ", is " + std::to_string(value));
}

void require_between(const char* key, int64_t least, int64_t most, int64_t value) {
  if (value < least || value > most)
    throw InvalidValue(key, "must lie in [" + std::to_string(least) + ", " + std::to_string(most) + "], is " +
                                std::to_string(value));
}

void require_not_negative(const char* key, double value) {
  if (!(value >= 0)) throw InvalidValue(key, "must not be negative, is " + config_detail::print_value(value));
}

void validate(const LossConfig& loss) {
  require_not_negative("loss.lm_z", loss.lm_z);
  require_not_negative("loss.load_balance", loss.load_balance);
  require_not_negative("loss.dynamic", loss.dynamic);
  require_not_negative("loss.router_z", loss.router_z);
}

void validate(const OptimizerConfig& optimizer, int64_t steps) {
  using config_detail::print_value;
  if (!(optimizer.lr > 0))
    throw InvalidValue("optimizer.lr", "must be above 0, is " + print_value(optimizer.lr));
  require_not_negative("optimizer.min_lr", optimizer.min_lr);
  if (optimizer.min_lr > optimizer.lr)
    throw InvalidValue("optimizer.min_lr",
                       print_value(optimizer.min_lr) + " is above optimizer.lr " + print_value(optimizer.lr));
  require_at_least("optimizer.warmup_steps", 0, optimizer.warmup_steps);
  if (optimizer.warmup_steps > steps)
    throw InvalidValue("optimizer.warmup_steps", std::to_string(optimizer.warmup_steps) +
                                                     " is above training.steps " + std::to_string(steps));
  if (optimizer.betas.size() != 2) throw InvalidValue("optimizer.betas", "must be two numbers, [0.9, 0.95]");
  for (const double beta : optimizer.betas) {
    if (!(beta >= 0 && beta < 1))
      throw InvalidValue("optimizer.betas", "must lie in [0, 1), one is " + print_value(beta));
  }
  if (!(optimizer.eps > 0)) throw InvalidValue("optimizer.eps", "must be above 0");
  require_not_negative("optimizer.weight_decay", optimizer.weight_decay);
  require_not_negative("optimizer.grad_clip", optimizer.grad_clip);
}

void validate(const TrainingConfig& training, int64_t tokens_per_sample) {
  require_at_least("training.steps", 1, training.steps);
  require_at_least("training.global_batch_size", 1, training.global_batch_size);
  require_at_least("training.micro_batch_size", 1, training.micro_batch_size);
  if (training.global_batch_size % training.micro_batch_size != 0)
    throw InvalidValue("training.micro_batch_size", std::to_string(training.micro_batch_size) +
                                                        " does not divide training.global_batch_size " +
                                                        std::to_string(training.global_batch_size));
  int64_t tokens = 0;
  if (__builtin_mul_overflow(training.global_batch_size, tokens_per_sample, &tokens) ||
      __builtin_mul_overflow(tokens, training.steps, &tokens))
    throw InvalidValue("training.steps",
                       "steps x global_batch_size x tokens of a sample is more tokens than can be counted");
  require_at_least("training.seed", 0, training.seed);
  require_between("training.threads", 0, kMostThreads, training.threads);
  require_at_least("training.max_skips", 0, training.max_skips);
}

void validate(const ParallelConfig& parallel, const ModelConfig& model) {
  const char* key = "parallel.expert_parallel";
  const int64_t ranks = parallel.expert_parallel.ranks.value_or(1);
  require_at_least(key, 1, ranks);
  if (ranks > 1 && model.is_dense())
    throw InvalidValue(key, "a dense model has no experts to share; leave it at 1");
  if (model.num_experts % ranks != 0)
    throw InvalidValue(key, std::to_string(ranks) + " does not divide model.num_experts " +
                                std::to_string(model.num_experts));
  require_between("parallel.timeout", 1, kLongestTimeout, parallel.timeout);
}

void validate(const ValidationConfig& validation, ModelType type) {
  require_at_least("validation.every", 0, validation.every);
  if (validation.every > 0) require_at_least("validation.tokens", 1, validation.tokens);
  require_at_least("validation.task_limit", 0, validation.task_limit);
  if (!validation.tasks.empty() && type != ModelType::kLanguageModel)
    throw InvalidValue("validation.tasks", "are put to language models alone; leave them out");
}

void require_paths(const char* key, const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    if (path.empty()) throw InvalidValue(key, "holds an empty path");
  }
}

// Adds the place to what validate() throws.
RunConfig read_run_config(const ConfigNode& tree, bool trains) {
  RunConfig config;
  read_config(tree, config);
  try {
    validate_values(config);
    if (trains) validate(config);
  } catch (const InvalidValue& error) {
    throw UsageError(place_of(tree, error.key) + ": " + error.what());
  }
  return config;
}

RunConfig load(const std::filesystem::path& path, const std::vector<std::string>& overrides, bool trains) {
  ConfigNode tree = load_config_tree(path);
  for (const std::string& argument : overrides) apply_override(tree, argument);
  return read_run_config(tree, trains);
}

}  // namespace

void read_value(const ConfigNode& node, const std::string& key, ExpertParallel& value) {
  const char* expected = "an integer or auto";
  const std::string& text = config_detail::plain_text(node, key, expected);
  value.ranks.reset();
  if (text == "auto") return;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value.ranks.emplace());
  if (stop != end || error != std::errc()) config_detail::throw_wrong_type(node, key, expected);
}

std::string print_value(const ExpertParallel& value) {
  return value.ranks ? std::to_string(*value.ranks) : "auto";
}

RunConfig load_run_config(const std::filesystem::path& path, const std::vector<std::string>& overrides) {
  return load(path, overrides, true);
}

RunConfig run_config_of(const ConfigNode& tree) { return read_run_config(tree, true); }

RunConfig load_model_run_config(const std::filesystem::path& path,
                                const std::vector<std::string>& overrides) {
  return load(path, overrides, false);
}

RunConfig parse_run_config(const std::string& yaml, const std::string& source) {
  return read_run_config(parse_config(yaml, source), false);
}

std::string to_yaml(const RunConfig& config) { return print_config(config); }

void validate_values(const RunConfig& config) {
  validate(config.model);
  if (!config.model.is_dense()) validate(config.routing, config.model.num_experts, config.model.num_layers);
  validate(config.loss);
  if (config.model.type == ModelType::kDiffusionTransformer)
    validate(config.diffusion, config.model.num_classes);
  validate(config.training, config.model.tokens_per_sample());
  validate(config.optimizer, config.training.steps);
  validate(config.parallel, config.model);
  validate(config.validation, config.model.type);
  require_at_least("checkpoint.every", 0, config.checkpoint.every);
  require_at_least("checkpoint.keep", 0, config.checkpoint.keep);
  require_at_least("logging.every", 1, config.logging.every);
  require_paths("data.train", config.data.train);
  require_paths("data.validation", config.data.validation);
}

void validate(const RunConfig& config) {
  validate_values(config);
  if (config.data.train.empty())
    throw InvalidValue("data.train", "names no training data; give the folders that `dtopp prepare` wrote");
  if (config.output.empty()) throw InvalidValue("output", "names no directory for the run");
}

std::vector<std::string> differing_keys(const RunConfig& a, const RunConfig& b) {
  std::vector<std::pair<std::string, std::string>> leaves_a;
  std::vector<std::pair<std::string, std::string>> leaves_b;
  flatten_config(a, "", leaves_a);
  flatten_config(b, "", leaves_b);
  std::vector<std::string> keys;
  for (const auto& leaf : leaves_a) {
    if (std::ranges::find(leaves_b, leaf) == leaves_b.end()) keys.push_back(leaf.first);
  }
  return keys;
}

bool affects_result(const std::string& key) {
  constexpr std::array<std::string_view, 10> kFreeKeys = {"name",
                                                          "output",
                                                          "training.threads",
                                                          "training.device",
                                                          "training.deterministic",
                                                          "training.micro_batch_size",
                                                          "data.validation",
                                                          "training.max_skips",
                                                          "diffusion.samples_every",
                                                          "diffusion.sample_classes"};
  constexpr std::array<std::string_view, 4> kFreeSections = {"parallel.", "validation.", "checkpoint.",
                                                             "logging."};
  for (const std::string_view name : kFreeKeys) {
    if (key == name) return false;
  }
  for (const std::string_view section : kFreeSections) {
    if (key.compare(0, section.size(), section) == 0) return false;
  }
  return true;
}

}  // namespace dtopp
