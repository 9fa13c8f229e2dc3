#include "dtopp/plan/new_run.h"

#include <cstdlib>

#include "dtopp/config/config.h"
#include "dtopp/plan/plan.h"

namespace dtopp::plan {
namespace {

constexpr int64_t kSmallestHidden = 64;
constexpr double kNear = 0.05;  // sizes this near to the wish count as equal
constexpr double kFar = 0.25;   // a size this far from the wish is refused
constexpr double kTokensPerParameter = 20, kMostPasses = 4;
constexpr int64_t kMostCpuTokens = 8192;  // per micro-batch
constexpr int64_t kFewestSteps = 500, kLongestWarmup = 2500;
constexpr double kRateExponent = -0.1250, kBatchExponent = 0.3271;  // DeepSeek LLM, section 3.1
constexpr const char* kStudy = "benchmarks/studies/balance.md";
constexpr const char* kLaw = "DeepSeek LLM (arXiv 2401.02954, 3.1)";
constexpr const char* kPaper = "the DTop-p paper's (arXiv 2512.13996)";

// The reasons of new_run that depend on nothing.
constexpr std::pair<const char*, const char*> kReasons[] = {
    {"model.num_heads",
     "head size 64 (Vaswani et al. 2017); below a hidden size of 256, 32 as in configs/quickstart.yaml"},
    {"model.num_experts",
     "--experts; by default 8 of 64, as in the DTop-p paper (docs/how-to/choose-experts.md)"},
    {"model.sequence_length", "--sequence; by default 1024, as in GPT-2 (Radford et al. 2019)"},
    {"routing.method", "tokens use different numbers of experts (arXiv 2512.13996)"},
    {"routing.experts", "--experts: the mean number per token"},
    {"routing.controller",
     "meets that mean from the second step on (docs/how-to/choose-experts.md, section 5)"},
    {"routing.normalization", kPaper},
    {"routing.expert_normalization", "keeps routers from collapsing (benchmarks/studies/balance.md)"},
    {"loss.lm_z", kPaper},
    {"loss.load_balance", kPaper},
    {"loss.dynamic", kPaper},
    {"optimizer.betas", kPaper},
    {"optimizer.weight_decay", kPaper},
    {"optimizer.grad_clip", kPaper},
    {"optimizer.min_lr", "lr / 100, as in the DTop-p paper"},
    {"optimizer.schedule", "half a cosine over all steps, as in the DTop-p paper"},
    {"optimizer.warmup_steps",
     "a quarter of the steps (benchmarks/studies/balance.md), at most the 2,500 of the DTop-p paper"},
    {"training.precision", "bf16 if the hardware multiplies it, else fp32 (docs/how-to/gpu.md)"},
    {"validation.every", "ten times in the run"},
    {"validation.tokens", "about 1 % of the run's time, at least configs/quickstart.yaml's 65,536"},
    {"checkpoint.every", "a stop loses at most a tenth of the run"},
    {"checkpoint.keep", "the newest ones; 0 keeps all"},
    {"logging.console_every", "a hundred lines"}};

// The nearest multiple of `step`, at least one.
int64_t multiple(double value, int64_t step) {
  return step * std::max<int64_t>(1, std::llround(value / static_cast<double>(step)));
}

int64_t power_of_two(double value) { return int64_t{1} << std::max(0L, std::lround(std::log2(value))); }

double two_digits(double value) { return std::strtod(format("%.1e", value).c_str(), nullptr); }

// The ratios that stay the same when a model grows. head_size 0: 64, or 32 below a hidden size of 256.
struct Ratios {
  double aspect = 0, ffn = 0;  // D / L, F / D
  int64_t head_size = 0;
};

// Returns false if the heads do not divide the hidden size.
bool resize(config::ModelConfig& model, const Ratios& ratios, int64_t hidden, int64_t layers) {
  const int64_t small = hidden < 256 ? 32 : 64, head = ratios.head_size > 0 ? ratios.head_size : small;
  const int64_t heads = hidden / head, key_heads = model.chosen_kv_heads * heads;
  if (hidden % head != 0 || (key_heads > 0 && key_heads % model.num_heads != 0)) return false;
  if (key_heads > 0) model.chosen_kv_heads = key_heads / model.num_heads;
  model.hidden_size = hidden;
  model.num_layers = layers;
  model.num_heads = heads;
  model.ffn_hidden_size = multiple(ratios.ffn * static_cast<double>(hidden), 16);
  return true;
}

// Sets the hidden size and the layers with the active parameters nearest to `wish`. Among sizes within kNear,
// the aspect decides; it is at most a factor of two from the ratio. Active parameters are linear in layers.
void find_size(config::RunConfig& config, const Ratios& ratios, int64_t wish) {
  std::pair<double, double> best{HUGE_VAL, 0};
  config::ModelConfig chosen;
  double smallest = 0;
  for (int64_t hidden = kSmallestHidden;; hidden += hidden < 256 ? 32 : 64) {
    const double wide = static_cast<double>(hidden) / ratios.aspect;
    const int64_t fewest = std::max<int64_t>(1, std::lround(std::ceil(wide / 2)));
    config::RunConfig one = config, two = config;
    if (!resize(one.model, ratios, hidden, 1) || !resize(two.model, ratios, hidden, 2)) continue;
    const auto first = static_cast<double>(make_plan(one).active_parameters);
    const double layer = static_cast<double>(make_plan(two).active_parameters) - first;
    const auto active_of = [&](int64_t layers) { return first + layer * static_cast<double>(layers - 1); };
    if (smallest == 0) smallest = active_of(fewest);
    if (active_of(fewest) > 2 * static_cast<double>(wish) && best.first < HUGE_VAL) break;
    for (int64_t layers = fewest; static_cast<double>(layers) <= std::max(1.0, 2 * wide); ++layers) {
      const double miss = std::abs(active_of(layers) / static_cast<double>(wish) - 1);
      const std::pair place{miss <= kNear ? 0 : miss,
                            std::abs(std::log2(wide / static_cast<double>(layers)))};
      if (place >= best) continue;
      best = place;
      chosen = one.model;
      chosen.num_layers = layers;
    }
  }
  if (best.first > kFar) {
    const double embedding = static_cast<double>(config.model.vocab_size * kSmallestHidden);
    throw UsageError("--active ", format_count(static_cast<double>(wish)), " is too small: with ",
                     config.model.vocab_size, " tokens the smallest model has ", format_count(smallest),
                     " active parameters, and its embedding ", format_count(embedding),
                     "; raise --active, or prepare the text with a smaller tokenizer");
  }
  config.model = chosen;
}

// FLOPs of training without embedding and output projection: C of DeepSeek LLM.
double law_flops(const config::RunConfig& config, const Plan& plan, double tokens) {
  const int64_t embedding = config.model.vocab_size * config.model.hidden_size;
  return tokens * (static_cast<double>(plan.flops_per_token) - 6 * static_cast<double>(embedding));
}

void set_steps(config::RunConfig& config, double tokens) {
  const auto per_step = static_cast<double>(config.training.global_batch_size * config.model.sequence_length);
  config.training.steps = std::max<int64_t>(1, std::lround(std::ceil(tokens / per_step)));
}

void use_data(NewRun& run, const NewRunData& data) {
  config::RunConfig& config = run.config;
  config.data.train = data.train;
  config.data.validation = data.validation;
  config.model.vocab_size = (data.vocab_size + 63) / 64 * 64;
  run.reasons["model.vocab_size"] =
      std::to_string(data.vocab_size) + " tokens of the tokenizer, as a multiple of 64 (nanochat)";
  for (const auto& [name, tokens] :
       {std::pair("--data", data.train_tokens), std::pair("--validation", data.validation_tokens)}) {
    if (tokens <= static_cast<uint64_t>(config.model.sequence_length))
      throw UsageError(name, ": the ", tokens, " tokens are too few for a sequence of ",
                       config.model.sequence_length, " and its next token; shorten sequences or add text");
  }
}

void explain_data(NewRun& run, const NewRunData& data, double tokens) {
  const auto given = static_cast<double>(data.train_tokens);
  run.reasons["data.train"] =
      format("%s tokens, read %.3g times; more than 4 passes gain little (Muennighoff et al. 2023)",
             format_count(given).c_str(), tokens / given);
  run.reasons["data.validation"] =
      format_count(static_cast<double>(data.validation_tokens)) + " tokens that training never reads";
}

void explain_size(NewRun& run, int64_t wish, const std::string& aspect) {
  const config::ModelConfig& model = run.config.model;
  const auto active = static_cast<double>(make_plan(run.config).active_parameters);
  run.reasons["model.hidden_size"] =
      format("%s active parameters, %+.1f %% from --active; steps of 64, below 256 of 32",
             format_count(active).c_str(), 100 * (active / static_cast<double>(wish) - 1));
  run.reasons["model.num_layers"] =
      format("hidden_size / num_layers is %.3g, ",
             static_cast<double>(model.hidden_size) / static_cast<double>(model.num_layers)) +
      aspect;
}

}  // namespace

NewRun new_run(const NewRunSize& size, const NewRunData& data) {
  NewRun run{{}, {std::begin(kReasons), std::end(kReasons)}};
  config::RunConfig& config = run.config;
  auto& reasons = run.reasons;
  const auto K = static_cast<double>(size.experts);
  config.model.sequence_length = size.sequence_length;
  config.model.num_experts = size.num_experts;
  config.routing.experts = {K};
  config.routing.controller = config::Controller::kSolve;
  config.routing.expert_normalization = config::ExpertNormalization::kRunning;
  config.training.global_batch_size = config.training.micro_batch_size = 1;
  config.training.precision = config::Precision::kAuto;
  use_data(run, data);
  find_size(config, {64, 8.0 / 3 / K}, size.active);
  explain_size(run, size.active, "near 64 (nanochat), from 32 to 128");
  reasons["model.ffn_hidden_size"] =
      format("of one expert: 8/3 hidden_size / %ld in steps of 16, a SwiGLU FFN in all (Touvron et al. 2023)",
             size.experts);

  const Plan plan = make_plan(config);
  const double enough = kTokensPerParameter * static_cast<double>(plan.active_parameters),
               most = kMostPasses * static_cast<double>(data.train_tokens);
  const double tokens = size.tokens ? static_cast<double>(*size.tokens) : std::min(enough, most);
  reasons["training.steps"] =
      format_count(tokens) + " tokens: " +
      (size.tokens      ? "--tokens"
       : enough <= most ? "20 per active parameter (Hoffmann et al. 2022)"
                        : "four passes over the data (Muennighoff et al. 2023), fewer than 20 per parameter");
  explain_data(run, data, tokens);

  const double flops = law_flops(config, plan, tokens);
  config.optimizer.lr = two_digits(0.3118 * std::pow(flops, kRateExponent));
  config.optimizer.min_lr = two_digits(config.optimizer.lr / 100);
  reasons["optimizer.lr"] = format(
      "%s: 0.3118 C^-0.125, C = %.2g FLOPs without embedding. The law was fitted from 1e17 to 2e19; our "
      "lab of 2.4e13 agrees (%s)",
      kLaw, flops, kStudy);
  const double batch = 0.2920 * std::pow(flops, kBatchExponent);
  int64_t& sequences = config.training.global_batch_size;
  sequences = power_of_two(batch / static_cast<double>(size.sequence_length));
  for (set_steps(config, tokens); sequences > 1 && config.training.steps < kFewestSteps;) {
    sequences /= 2;
    set_steps(config, tokens);
  }
  reasons["training.global_batch_size"] =
      format("%s: 0.292 C^0.3271 = %s tokens, as a power of two that leaves at least 500 steps", kLaw,
             format_count(batch).c_str());

  const int64_t steps = config.training.steps;
  config.optimizer.warmup_steps = std::min(steps / 4, kLongestWarmup);
  config.validation.every = config.checkpoint.every = std::max<int64_t>(1, steps / 10);
  config.validation.tokens = std::min(static_cast<int64_t>(data.validation_tokens),
                                      std::clamp<int64_t>(std::lround(tokens / 400), 65536, 1000000));
  config.logging.console_every = std::max<int64_t>(1, steps / 100);
  return run;
}

NewRun scaled_run(const config::RunConfig& like, const std::string& source, const NewRunSize& size,
                  const std::optional<NewRunData>& data) {
  const config::ModelConfig& model = like.model;
  if (model.type != config::ModelType::kLanguageModel)
    throw UsageError(source, ": --like needs a language model");
  if (like.routing.experts.size() > 1)
    throw UsageError(source, ": --like needs one number in routing.experts, not one per layer");
  if (!like.training.initialize_from.empty() || !like.training.cooldown_from.empty())
    throw UsageError(source,
                     ": --like needs a run that starts from its seed; training.initialize_from and "
                     "cooldown_from have parameters of one size");
  NewRun run{like, {}};
  config::RunConfig& config = run.config;
  auto& reasons = run.reasons;
  if (data) use_data(run, *data);
  const auto D = static_cast<double>(model.hidden_size);
  config.training.global_batch_size = config.training.micro_batch_size = 1;
  find_size(config,
            {D / static_cast<double>(model.num_layers), static_cast<double>(model.ffn_hidden_size) / D,
             model.hidden_size / model.num_heads},
            size.active);
  explain_size(run, size.active, "near that of " + source);
  reasons["model.num_heads"] = "the head size of " + source;
  reasons["model.ffn_hidden_size"] = "the share of the hidden size in " + source + ", in steps of 16";

  const Plan before = make_plan(like), plan = make_plan(config);
  const auto length = static_cast<double>(model.sequence_length);
  const auto steps_before = static_cast<double>(like.training.steps);
  const double tokens_before = steps_before * static_cast<double>(before.tokens_per_step);
  const double growth =
      static_cast<double>(plan.active_parameters) / static_cast<double>(before.active_parameters);
  const double tokens = size.tokens ? static_cast<double>(*size.tokens) : tokens_before * growth;
  const double ratio = law_flops(config, plan, tokens) / law_flops(like, before, tokens_before);
  const double lr = two_digits(like.optimizer.lr * std::pow(ratio, kRateExponent));
  config.optimizer.min_lr = two_digits(like.optimizer.min_lr * lr / like.optimizer.lr);
  config.optimizer.lr = lr;
  config.training.global_batch_size =
      power_of_two(static_cast<double>(before.tokens_per_step) / length * std::pow(ratio, kBatchExponent));
  set_steps(config, tokens);
  reasons["optimizer.lr"] = format(
      "%g of %s times %.3g^-0.125, the growth of C = FLOPs without embedding "
      "(DeepSeek LLM, arXiv 2401.02954, 3.1)",
      like.optimizer.lr, source.c_str(), ratio);
  reasons["optimizer.min_lr"] = "scaled like lr";
  reasons["training.steps"] =
      format_count(tokens) + " tokens: " + (size.tokens ? "--tokens" : "in proportion to active parameters");
  reasons["training.global_batch_size"] = format("%ld of %s times %.3g^0.3271, as a power of two",
                                                 like.training.global_batch_size, source.c_str(), ratio);
  const double longer = static_cast<double>(config.training.steps) / steps_before;
  for (auto& [key, steps] :
       {std::pair("optimizer.warmup_steps", &config.optimizer.warmup_steps),
        std::pair("optimizer.router_warmup_steps", &config.optimizer.router_warmup_steps),
        std::pair("optimizer.decay_steps", &config.optimizer.decay_steps),
        std::pair("validation.every", &config.validation.every),
        std::pair("checkpoint.every", &config.checkpoint.every)}) {
    if (*steps == 0) continue;
    *steps = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(*steps) * longer));
    reasons[key] = "the share of the steps in " + source;
  }
  if (data) explain_data(run, *data, tokens);
  return run;
}

void fit_micro_batch(NewRun& run, config::Device device, uint64_t memory) {
  config::TrainingConfig& training = run.config.training;
  training.micro_batch_size = 1;
  const std::optional<int64_t> largest = largest_micro_batch(run.config, {}, device, memory);
  if (!largest)
    throw UsageError(
        "a micro-batch of one sequence needs ",
        format_bytes(static_cast<double>(make_plan(run.config, {}, device).memory_bytes())),
        format(" and %.0f %% of ", 100 * (1 - kSpareMemory)), format_bytes(static_cast<double>(memory)),
        " may be used; lower --active, the number of experts or the sequence, or give more --memory");
  training.micro_batch_size = *largest;
  const bool is_cpu = device != config::Device::kCuda;
  while (is_cpu && training.micro_batch_size % 2 == 0 &&
         training.micro_batch_size * run.config.model.sequence_length > kMostCpuTokens)
    training.micro_batch_size /= 2;
  run.reasons["training.micro_batch_size"] =
      format("the largest that leaves %.0f %% of %s free (docs/explanation/plan.md)", 100 * kSpareMemory,
             format_bytes(static_cast<double>(memory)).c_str()) +
      (is_cpu ? concat(", and has at most ", kMostCpuTokens, " tokens: a CPU gains nothing from more") : "");
}

std::string commented_yaml(const NewRun& run, const std::string& otherwise) {
  const auto defaults = config::flatten_config(config::RunConfig());
  std::string text, section;
  for (const auto& [key, value] : config::flatten_config(run.config)) {
    const auto reason = run.reasons.find(key);
    if (reason == run.reasons.end() && std::ranges::count(defaults, std::pair(key, value)) > 0) continue;
    const size_t dot = key.find('.');
    const std::string parent = dot == std::string::npos ? "" : key.substr(0, dot);
    if (parent != std::exchange(section, parent) && !parent.empty()) text += parent + ":\n";
    const std::string name = parent.empty() ? key : "  " + key.substr(dot + 1);
    const std::string& why = reason == run.reasons.end() ? otherwise : reason->second;
    text += format("%-34s # %s\n", concat(name, ": ", value).c_str(), why.c_str());
  }
  return text;
}

}  // namespace dtopp::plan
