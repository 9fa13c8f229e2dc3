#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/evaluate.h"
#include "cli/option_checks.h"
#include "dtopp/base/format.h"
#include "dtopp/eval/perplexity.h"
#include "dtopp/eval/routing_file.h"
#include "dtopp/eval/token_counts.h"
#include "dtopp/inference/expert_budget.h"

namespace dtopp::cli {
namespace {

using nlohmann::ordered_json;

struct TextOptions : EvaluateOptions {
  std::vector<std::string> texts;
  std::string dump_routing, replay_routing;
  std::string counts = "as-is";
  uint64_t counts_seed = 1;
  bool by_document = false;
  std::vector<double> sweep;  // targets of active experts
};

struct MeasuredText {
  eval::EvaluationText text;
  std::optional<int64_t> bytes;        // that the predicted tokens spell; nullopt without a tokenizer
  std::optional<int64_t> end_of_text;  // with --by-document
};

MeasuredText open_measured_text(const TextOptions& options, const checkpoint::Checkpoint& checkpoint,
                                const config::ModelConfig& config) {
  MeasuredText measured{open_texts(options, options.texts, checkpoint, config), {}, {}};
  if (!options.by_document && !checkpoint.has_tokenizer() && options.inference.tokenizer.empty())
    return measured;
  const data::Tokenizer tokenizer =
      inference::load_tokenizer(checkpoint, options.inference.tokenizer, config.vocab_size);
  if (options.by_document) {
    measured.end_of_text = tokenizer.end_of_text();
    measured.text.begin_with(*measured.end_of_text);
  }
  const int64_t bytes = eval::predicted_bytes(measured.text, tokenizer);
  if (bytes > 0) measured.bytes = bytes;
  return measured;
}

// The columns of routing files: the tokens that the model reads, up to the last but one.
int64_t num_tokens_of(const MeasuredText& measured) {
  return std::max<int64_t>(static_cast<int64_t>(measured.text.size()) - 1, 0);
}

// The texts, and the options that change their loss.
ordered_json measured_json(const TextOptions& options, eval::CountsRule rule) {
  ordered_json json = {{"texts", options.texts}};
  if (options.by_document) json["by_document"] = true;
  if (rule != eval::CountsRule::kAsIs)
    json.update({{"counts", options.counts}, {"counts_seed", options.counts_seed}});
  if (!options.replay_routing.empty()) json["replay_routing"] = options.replay_routing;
  return json;
}

// Names the results in a folder: "text-by-document-novels", "text-sweep-train+validation".
std::string kind_of_results(const TextOptions& options, eval::CountsRule rule) {
  std::string kind = "text";
  if (!options.sweep.empty()) kind += "-sweep";
  if (options.by_document) kind += "-by-document";
  if (!options.replay_routing.empty()) kind += "-replay";
  if (rule != eval::CountsRule::kAsIs) kind += "-" + options.counts;
  std::ranges::replace(kind, ':', '-');
  return kind_of(kind, options.texts);
}

ordered_json perplexity_json(const eval::Perplexity& result, const std::optional<int64_t>& bytes) {
  ordered_json json = {{"nll", result.nll}, {"perplexity", result.perplexity()}, {"tokens", result.tokens}};
  if (bytes) json.update({{"bits_per_byte", result.bits_per_byte(*bytes)}, {"bytes", *bytes}});
  if (result.activations.num_layers() > 0) json["active_experts"] = result.activations.summary().mean;
  for (const eval::SourcePerplexity& source : result.sources) {
    ordered_json one = {{"source", source.name}, {"nll", source.nll}, {"tokens", source.tokens}};
    if (source.activations.num_layers() > 0) one["active_experts"] = source.activations.summary().mean;
    json["sources"].push_back(std::move(one));
  }
  return json;
}

void print_summary(const checkpoint::Checkpoint& checkpoint, const eval::Perplexity& result,
                   const std::optional<int64_t>& bytes) {
  std::printf("checkpoint   %s\n", checkpoint.path().c_str());
  std::printf("tokens       %lld\n", static_cast<long long>(result.tokens));
  std::printf("nll          %.6f nats per token\n", result.nll);
  std::printf("perplexity   %.4f\n", result.perplexity());
  if (bytes)
    std::printf("compression  %.4f bits per byte (%lld bytes)\n", result.bits_per_byte(*bytes),
                static_cast<long long>(*bytes));
  if (result.activations.num_layers() > 0) {
    const moe::ActivationSummary active = result.activations.summary();
    std::printf("experts      %.4f per token (standard deviation %.4f)\n", active.mean, active.deviation);
  }
  for (const eval::SourcePerplexity& source : result.sources) {
    std::printf("  %-20s %.6f nats per token, %lld tokens", source.name.c_str(), source.nll,
                static_cast<long long>(source.tokens));
    if (source.activations.num_layers() > 0) std::printf(", %.4f experts", source.activations.summary().mean);
    std::printf("\n");
  }
}

eval::Perplexity perplexity_of(const TextOptions& options, const MeasuredText& measured,
                               const inference::InferenceModel& model, distributed::Collectives& ranks,
                               eval::PerplexityOptions how = {}) {
  ConsoleWatch watch(ranks);
  watch.begin("text", "tok",
              std::max<uint64_t>(measured.text.size(), 1) - 1);  // without the first, which is not predicted
  how.end_of_text = measured.end_of_text;
  eval::Perplexity result =
      eval::measure_perplexity(model, measured.text, options.batch_size, ranks, watch, how);
  watch.end();
  result.nll = without_nan_sign(result.nll);
  for (eval::SourcePerplexity& source : result.sources) source.nll = without_nan_sign(source.nll);
  if (ranks.rank() == 0 && !std::isfinite(result.nll))
    std::fprintf(
        stderr,
        "dtopp: warning: %s: the loss is not finite, so the model's parameters are not usable; use an "
        "earlier checkpoint\n",
        options.inference.checkpoint.c_str());
  return result;
}

eval::CountsRule counts_rule(const TextOptions& options) {
  const auto& rules = eval::counts_rules();
  return std::ranges::find(rules, options.counts, [](const auto& rule) { return rule.first; })->second;
}

// Makes the routers of --replay-routing or --counts; null: the model's own.
std::unique_ptr<eval::BatchRouters> make_routers(const TextOptions& options, const MeasuredText& measured,
                                                 const inference::InferenceModel& model,
                                                 distributed::Collectives& ranks) {
  if (!options.replay_routing.empty())
    return std::make_unique<eval::RoutingReplay>(options.replay_routing, model, num_tokens_of(measured));
  const eval::CountsRule rule = counts_rule(options);
  if (rule == eval::CountsRule::kAsIs) return nullptr;
  ConsoleWatch watch(ranks);
  watch.begin("counts", "tok", std::max<uint64_t>(measured.text.size(), 1) - 1);
  return std::make_unique<eval::TokenCounts>(model, measured.text, rule, options.counts_seed,
                                             options.batch_size, ranks, watch);
}

// Measures the perplexity with --dump-routing, --replay-routing and --counts, if they are given.
eval::Perplexity routed_perplexity(const TextOptions& options, const MeasuredText& measured,
                                   const inference::InferenceModel& model, distributed::Collectives& ranks) {
  const auto routers = make_routers(options, measured, model, ranks);
  if (options.dump_routing.empty())
    return perplexity_of(options, measured, model, ranks, {.routers = routers.get()});
  if (ranks.size() > 1) throw UsageError("--dump-routing: needs a single process; omit --processes");
  eval::RoutingDump dump(model, num_tokens_of(measured));
  eval::Perplexity result =
      perplexity_of(options, measured, model, ranks, {.observer = &dump, .routers = routers.get()});
  dump.write(options.dump_routing);
  return result;
}

ordered_json sweep_perplexity(const TextOptions& options, const MeasuredText& measured,
                              const at::Tensor& windows_BL, inference::InferenceModel& model,
                              distributed::Collectives& ranks) {
  ordered_json results = ordered_json::array();
  const bool table = !options.json && ranks.rank() == 0;
  if (table) std::printf("%8s %10s %12s %10s\n", "target", "nll", "perplexity", "experts");
  for (const double target : options.sweep) {
    model.routing = solve_thresholds(model, windows_BL, target);
    const eval::Perplexity result = perplexity_of(options, measured, model, ranks);
    ordered_json entry = perplexity_json(result, measured.bytes);
    entry["target_experts"] = target;
    results.push_back(std::move(entry));
    if (table)
      std::printf("%8g %10.6f %12.4f %10.4f\n", target, result.nll, result.perplexity(),
                  result.activations.summary().mean);
  }
  return {{"sweep", std::move(results)}};
}

void evaluate_text(const TextOptions& options, distributed::Collectives& ranks) {
  const checkpoint::Checkpoint checkpoint =
      open_shared_checkpoint(options, config::ModelType::kLanguageModel, ranks);
  require_sweep(options.sweep, checkpoint.config());
  inference::InferenceModel model = load_model(options.inference, checkpoint);
  model.routing.ranks = &ranks;
  const config::ModelConfig& config = model.config.model;
  const MeasuredText measured = open_measured_text(options, checkpoint, config);
  require_same_work(options, checkpoint,
                    {measured.text.size(), options.by_document, options.counts, options.counts_seed}, ranks);
  const eval::CountsRule rule = counts_rule(options);
  ordered_json json = measured_json(options, rule);
  tasks::EvaluatedModel evaluated = evaluated_model(options, checkpoint, {});
  std::filesystem::path file;
  if (!options.sweep.empty()) {
    file = output_file(options, kind_of_results(options, rule), evaluated, ranks, json);
    const at::Tensor windows_BL = target_windows(options.inference, checkpoint, config, &measured.text);
    json.update(sweep_perplexity(options, measured, windows_BL, model, ranks));
  } else {
    meet_target(model, options.inference, checkpoint, &measured.text);
    if (options.replay_routing.empty()) evaluated = evaluated_model(options, checkpoint, model.routing);
    file = output_file(options, kind_of_results(options, rule), evaluated, ranks, json);
    const eval::Perplexity result = routed_perplexity(options, measured, model, ranks);
    json.update(perplexity_json(result, measured.bytes));
    if (!options.json && ranks.rank() == 0) print_summary(checkpoint, result, measured.bytes);
  }
  if (ranks.rank() == 0) report(options, file, labeled(evaluated, json), "");  // the table is already printed
}

}  // namespace

void add_evaluate_text(CLI::App& evaluate) {
  auto options = std::make_shared<TextOptions>();
  CLI::App* verb =
      evaluate.add_subcommand("text", "Measure the loss, perplexity and bits per byte of a text");
  add_inference_options(*verb, options->inference, "the text that is evaluated");
  add_text_option(*verb, options->texts);
  verb->add_option("--dump-routing", options->dump_routing,
                   "write the experts of each token and layer to this safetensors file")
      ->check(in_existing_folder());
  verb->add_option("--replay-routing", options->replay_routing,
                   "use the experts of a --dump-routing file instead of the router's selection")
      ->excludes(verb->get_option("--target-experts"));
  verb->add_flag("--by-document", options->by_document,
                 "predict each document on its own, from its first token to its end of text")
      ->excludes("--dump-routing")
      ->excludes("--replay-routing");
  std::vector<std::string> rules;
  for (const auto& [name, rule] : eval::counts_rules()) rules.push_back(name);
  verb->add_option(
          "--counts", options->counts,
          "number of experts of a token: as the router selects (as-is), the mean of all tokens and layers "
          "(uniform), or that of another token of the same layer, source or window (permuted:layer, …)")
      ->check(CLI::IsMember(rules))
      ->excludes("--replay-routing")
      ->excludes("--by-document");
  verb->add_option("--counts-seed", options->counts_seed, "seed of --counts")
      ->capture_default_str()
      ->check(not_negative<uint64_t>())
      ->needs("--counts");
  add_sweep_option(*verb, options->sweep,
                   {"--target-experts", "--dump-routing", "--replay-routing", "--counts"});
  add_evaluate_options(*verb, *options);
  verb->get_option("--dump-routing")->excludes(verb->get_option("--processes"));
  verb->callback([options] {
    evaluate_on_ranks(*options, [&](distributed::Collectives& ranks) { evaluate_text(*options, ranks); });
  });
}

}  // namespace dtopp::cli
