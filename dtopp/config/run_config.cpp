#include "dtopp/config/run_config.h"

#include <set>

#include "dtopp/config/config.h"

namespace dtopp::config {
namespace {

using detail::print_value;

void validate_schedule(const OptimizerConfig& config, int64_t steps) {
  require_at_least("optimizer.warmup_steps", 0, config.warmup_steps);
  if (config.warmup_steps > steps)
    throw InvalidValue("optimizer.warmup_steps", config.warmup_steps, " is above training.steps ", steps);
  require_at_least("optimizer.decay_steps", 0, config.decay_steps);
  if (config.schedule != Schedule::kWsd) return;
  if (config.decay_steps == 0)
    throw InvalidValue("optimizer.decay_steps",
                       "is not set; schedule wsd needs the number of last steps in which lr falls to min_lr");
  if (config.decay_steps > steps - config.warmup_steps)
    throw InvalidValue("optimizer.decay_steps", config.decay_steps, " is above training.steps ", steps,
                       " minus optimizer.warmup_steps ", config.warmup_steps);
}

void validate(const OptimizerConfig& config, int64_t steps) {
  if (!(config.lr > 0)) throw InvalidValue("optimizer.lr", "must be above 0, is ", print_value(config.lr));
  require_not_negative("optimizer.min_lr", config.min_lr);
  if (config.min_lr > config.lr)
    throw InvalidValue("optimizer.min_lr", print_value(config.min_lr), " is above optimizer.lr ",
                       print_value(config.lr));
  validate_schedule(config, steps);
  if (!(config.router_lr_factor > 0))
    throw InvalidValue("optimizer.router_lr_factor", "must be above 0, is ",
                       print_value(config.router_lr_factor));
  require_at_least("optimizer.router_warmup_steps", 0, config.router_warmup_steps);
  if (config.betas.size() != 2) throw InvalidValue("optimizer.betas", "must be two numbers, [0.9, 0.95]");
  for (const double beta : config.betas)
    if (!(beta >= 0 && beta < 1))
      throw InvalidValue("optimizer.betas", "must lie in [0, 1), one is ", print_value(beta));
  if (!(config.eps > 0)) throw InvalidValue("optimizer.eps", "must be above 0");
  require_share("optimizer.momentum", config.momentum);
  require_not_negative("optimizer.weight_decay", config.weight_decay);
  require_not_negative("optimizer.grad_clip", config.grad_clip);
}

constexpr int64_t kMostThreads = 4096;
constexpr int64_t kLongestTimeout = 86400;  // seconds
constexpr double kMostHours = 1e6;

// Losses that only some methods have.
void validate_router_losses(const LossConfig& loss, const RoutingConfig& routing, const ModelConfig& model) {
  for (const auto& [key, weight] :
       {std::pair("loss.load_balance", loss.load_balance), std::pair("loss.dynamic", loss.dynamic),
        std::pair("loss.router_z", loss.router_z)})
    if (weight != 0 && !has_logits(routing.method))
      throw InvalidValue(key, "hash has no router to train; set it to 0 (or method=hash)");
  if (routing.method == RoutingMethod::kRelu && loss.load_balance != 0)
    throw InvalidValue("loss.load_balance", "must be 0 for relu, which moves the weight itself");
  const bool is_sigmoid = routing.method == RoutingMethod::kTopKBias && model.zero_experts == 0;
  if (loss.sequence_balance != 0 && !is_sigmoid)
    throw InvalidValue("loss.sequence_balance",
                       "needs routing.method: top_k_bias without zero experts; set it to 0");
}

void validate(const TrainingConfig& training, const ModelConfig& model) {
  require_at_least("training.steps", 1, training.steps);
  require_at_least("training.global_batch_size", 1, training.global_batch_size);
  require_at_least("training.micro_batch_size", 1, training.micro_batch_size);
  if (training.global_batch_size % training.micro_batch_size != 0)
    throw InvalidValue("training.micro_batch_size", training.micro_batch_size,
                       " does not divide training.global_batch_size ", training.global_batch_size);
  int64_t tokens = 0;
  if (__builtin_mul_overflow(training.global_batch_size, model.tokens_per_sample(), &tokens) ||
      __builtin_mul_overflow(tokens, training.steps, &tokens))
    throw InvalidValue("training.steps",
                       "steps x global_batch_size x tokens per sample overflows a 64-bit count");
  if (training.recompute == Recompute::kMoe && model.is_dense())
    throw InvalidValue("training.recompute",
                       "moe needs experts, and a dense model has none; set layer or none");
  require_at_least("training.seed", 0, training.seed);
  require_between("training.threads", 0, kMostThreads, training.threads);
  require_at_least("training.max_skips", 0, training.max_skips);
  require_between("training.max_hours", 0, kMostHours, training.max_hours);
  require_not_negative("training.upcycle_noise", training.upcycle_noise);
  if (!training.initialize_from.empty() && !training.cooldown_from.empty())
    throw InvalidValue("training.initialize_from",
                       "a run starts with another run's parameters or resumes that run "
                       "(training.cooldown_from); set one of them");
}

void validate(const ParallelConfig& parallel, const ModelConfig& model) {
  const char* key = "parallel.expert_parallel";
  const int64_t ranks = parallel.expert_parallel.ranks.value_or(1);
  require_at_least(key, 1, ranks);
  if (ranks > 1 && model.is_dense())
    throw InvalidValue(key, "a dense model has no experts to share; leave it at 1");
  if (model.num_experts % ranks != 0)
    throw InvalidValue(key, ranks, " does not divide model.num_experts ", model.num_experts);
  require_between("parallel.timeout", 1, kLongestTimeout, parallel.timeout);
}

void validate(const ValidationConfig& validation, ModelType type, const DataConfig& data) {
  require_at_least("validation.every", 0, validation.every);
  if (validation.every > 0) require_at_least("validation.tokens", 1, validation.tokens);
  require_at_least("validation.task_limit", 0, validation.task_limit);
  if (!validation.tasks.empty() && type != ModelType::kLanguageModel)
    throw InvalidValue("validation.tasks", "need a language model; leave them out");
  require_at_least("validation.samples", 0, validation.samples);
  if (validation.samples == 0) return;
  if (type != ModelType::kLanguageModel)
    throw InvalidValue("validation.samples", "need a language model; set diffusion.samples_every instead");
  if (data.validation.empty())
    throw InvalidValue("validation.samples",
                       "continue held-out texts; set data.validation, or leave them out");
}

// Replaces "{method}" in the name or the output of a preset.
void insert_method(std::string& text, const std::string& method) {
  constexpr std::string_view kPlaceholder = "{method}";
  const size_t at = text.find(kPlaceholder);
  if (at != std::string::npos) text.replace(at, kPlaceholder.size(), method);
}

bool is_set(const ConfigNode& tree, const std::string& key) {
  const size_t dot = key.find('.');
  const ConfigNode* section = tree.find(key.substr(0, dot));
  return section != nullptr && section->find(key.substr(dot + 1)) != nullptr;
}

// Reads and validates the configuration. It adds the location to the errors of validate().
RunConfig read_run_config(ConfigNode tree, bool trains) {
  for (const char* key : {"variants", "seeds", "measure"})
    if (const ConfigNode* node = tree.find(key))
      throw UsageError(node->location(), ": ", key, ": belongs to a study; run the file with dtopp study");
  take(tree, "methods");
  const std::optional<ConfigNode> method = take(tree, "method");
  RunConfig config;
  read_config(tree, config);
  if (method) {
    insert_method(config.name, method->text);
    insert_method(config.output, method->text);
  }
  try {
    validate_values(config);
    if (trains && config.data.train.empty())
      throw InvalidValue("data.train", "names no training data; give the folders that `dtopp prepare` wrote");
    if (trains && config.output.empty()) throw InvalidValue("output", "names no directory for the run");
  } catch (const MissingValue& error) {
    if (!is_set(tree, error.key)) throw UsageError(tree.location(), ": ", error.what());
    throw UsageError(location_of(tree, error.key), ": ", error.key, ": must be at least 1, is 0");
  } catch (const InvalidValue& error) {
    throw UsageError(location_of(tree, error.key), ": ", error.what());
  }
  return config;
}

RunConfig load(const fs::path& path, const std::vector<std::string>& overrides, bool trains) {
  ConfigNode tree = load_config_tree(path);
  apply_overrides(tree, overrides);
  return read_run_config(std::move(tree), trains);
}

// Every sample needs a source with a number of experts.
void validate_sources(const RunConfig& config) {
  const std::vector<SourceExperts>& by_source = config.routing.top_k_by_source;
  if (by_source.empty() || config.model.is_dense() || config.data.train.empty()) return;
  constexpr char kKey[] = "routing.top_k_by_source";
  if (!config.data.is_weighted())
    throw InvalidValue(kKey, "needs sources with weights in data.train; give each a weight");
  if (!config.data.validation.empty() && !config.data.validates_by_source())
    throw InvalidValue(kKey, "needs a name for the source of data.validation; give it one of data.train");
  if (!config.validation.tasks.empty())
    throw InvalidValue(kKey, "tasks have no source; set validation.tasks to []");
  if (config.validation.samples > 0)
    throw InvalidValue(kKey, "generated texts have no source; set validation.samples to 0");
  std::vector<std::string> names = source_names(config.data.train);
  for (const std::string& name : source_names(config.data.validation)) names.push_back(name);
  for (const std::string& name : names)
    if (std::ranges::find(by_source, name, &SourceExperts::source) == by_source.end())
      throw InvalidValue(kKey, "has no number for the source ", name, " of data.train or data.validation");
  for (const SourceExperts& one : by_source)
    if (std::ranges::find(names, one.source) == names.end())
      throw InvalidValue(kKey, "no source of data.train or data.validation has the name ", one.source);
}

}  // namespace

void read_value(const ConfigNode& node, const std::string& key, ExpertParallel& value) {
  const char* expected = "an integer or auto";
  const std::string text = detail::plain_text(node, key, expected);
  value.ranks.reset();
  if (text == "auto") return;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value.ranks.emplace());
  if (stop != end || error != std::errc()) detail::throw_wrong_type(node, key, expected);
}

std::string print_value(const ExpertParallel& value) {
  return value.ranks ? std::to_string(*value.ranks) : "auto";
}

RunConfig load_run_config(const fs::path& path, const std::vector<std::string>& overrides) {
  return load(path, overrides, true);
}

RunConfig run_config_of(const ConfigNode& tree) { return read_run_config(tree, true); }

RunConfig load_model_run_config(const fs::path& path, const std::vector<std::string>& overrides) {
  return load(path, overrides, false);
}

RunConfig parse_run_config(const std::string& yaml, const std::string& source) {
  return read_run_config(parse_config(yaml, source), false);
}

std::string to_yaml(const RunConfig& config) { return print_config(config); }

void validate_values(const RunConfig& config) {
  validate(config.model);
  if (!config.model.is_dense()) {
    validate(config.routing, config.model);
    // A run that starts from other parameters solves for its first p.
    if (!config.training.initialize_from.empty() && has_controller(config.routing.method) &&
        config.routing.controller == Controller::kPi && config.routing.ki == 0)
      throw InvalidValue(
          "routing.ki",
          "must be positive with training.initialize_from, because the sum of errors holds the "
          "first threshold");
  }
  require_not_negative("loss.lm_z", config.loss.lm_z);
  require_not_negative("loss.load_balance", config.loss.load_balance);
  require_not_negative("loss.dynamic", config.loss.dynamic);
  require_not_negative("loss.router_z", config.loss.router_z);
  require_not_negative("loss.sequence_balance", config.loss.sequence_balance);
  if (!config.model.is_dense()) validate_router_losses(config.loss, config.routing, config.model);
  if (config.model.type == ModelType::kDiffusionTransformer)
    validate(config.diffusion, config.model.num_classes);
  validate(config.training, config.model);
  validate(config.optimizer, config.training.steps);
  validate(config.parallel, config.model);
  validate(config.validation, config.model.type, config.data);
  require_at_least("checkpoint.every", 0, config.checkpoint.every);
  require_at_least("checkpoint.keep", 0, config.checkpoint.keep);
  require_at_least("logging.every", 1, config.logging.every);
  require_at_least("logging.console_every", 1, config.logging.console_every);
  require_at_least("logging.trace_step", 0, config.logging.trace_step);
  validate(config.data, config.model);
  validate_sources(config);
}

std::vector<std::string> differing_keys(const RunConfig& a, const RunConfig& b) {
  const auto leaves_b = flatten_config(b);
  std::vector<std::string> keys;
  for (const auto& leaf : flatten_config(a))
    if (std::ranges::find(leaves_b, leaf) == leaves_b.end()) keys.push_back(leaf.first);
  return keys;
}

bool affects_result(const std::string& key) {
  // With a dot at the end: all keys of a section.
  static const std::set<std::string_view> kFree = {"name",
                                                   "output",
                                                   "parallel.",
                                                   "validation.",
                                                   "checkpoint.",
                                                   "logging.",
                                                   "training.threads",
                                                   "training.device",
                                                   "training.deterministic",
                                                   "training.micro_batch_size",
                                                   "training.recompute",
                                                   "training.max_skips",
                                                   "training.max_hours",
                                                   "data.validation",
                                                   "diffusion.samples_every",
                                                   "diffusion.sample_classes"};
  return !kFree.contains(key) && !kFree.contains(std::string_view(key).substr(0, key.find('.') + 1));
}

}  // namespace dtopp::config
