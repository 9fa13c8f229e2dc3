#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/evaluate.h"
#include "dtopp/eval/perplexity.h"
#include "dtopp/eval/routing_file.h"
#include "dtopp/inference/expert_budget.h"

namespace dtopp::cli {
namespace {

using nlohmann::ordered_json;

struct TextOptions : EvaluateOptions {
  std::string text;
  std::string dump_routing, replay_routing;
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
  MeasuredText measured{open_text(options, options.text, checkpoint, config), {}, {}};
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

ordered_json perplexity_json(const eval::Perplexity& result, const std::optional<int64_t>& bytes) {
  ordered_json json = {{"nll", result.nll}, {"perplexity", result.perplexity()}, {"tokens", result.tokens}};
  if (bytes) json.update({{"bits_per_byte", result.bits_per_byte(*bytes)}, {"bytes", *bytes}});
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
}

eval::Perplexity perplexity_of(const TextOptions& options, const MeasuredText& measured,
                               const inference::InferenceModel& model, distributed::Collectives& ranks,
                               eval::WindowObserver* observer = nullptr,
                               const eval::RoutingReplay* replay = nullptr) {
  ConsoleWatch watch(ranks);
  watch.begin("text", "tok",
              std::max<uint64_t>(measured.text.size(), 1) - 1);  // without the first, which is not predicted
  return eval::measure_perplexity(model, measured.text, options.batch_size, ranks, watch, observer, replay,
                                  measured.end_of_text);
}

// Measures the perplexity with --dump-routing and --replay-routing, if they are given.
eval::Perplexity routed_perplexity(const TextOptions& options, const MeasuredText& measured,
                                   const inference::InferenceModel& model, distributed::Collectives& ranks) {
  const int64_t num_tokens = std::max<int64_t>(static_cast<int64_t>(measured.text.size()) - 1, 0);
  std::optional<eval::RoutingReplay> replay;
  if (!options.replay_routing.empty()) replay.emplace(options.replay_routing, model, num_tokens);
  const eval::RoutingReplay* replayed = replay ? &*replay : nullptr;
  if (options.dump_routing.empty()) return perplexity_of(options, measured, model, ranks, nullptr, replayed);
  if (ranks.size() > 1) throw UsageError("--dump-routing: needs a single process; omit --processes");
  eval::RoutingDump dump(model, num_tokens);
  const eval::Perplexity result = perplexity_of(options, measured, model, ranks, &dump, replayed);
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
    const double experts = result.activations.summary().mean;
    ordered_json entry = perplexity_json(result, measured.bytes);
    entry["target_experts"] = target;
    entry["active_experts"] = experts;
    results.push_back(std::move(entry));
    if (table) std::printf("%8g %10.6f %12.4f %10.4f\n", target, result.nll, result.perplexity(), experts);
  }
  return {{"sweep", std::move(results)}};
}

void evaluate_text(const TextOptions& options, distributed::Collectives& ranks) {
  const checkpoint::Checkpoint checkpoint =
      open_shared_checkpoint(options, config::ModelType::kLanguageModel, ranks);
  inference::InferenceModel model = load_model(options.inference, checkpoint);
  model.routing.ranks = &ranks;
  const config::ModelConfig& config = model.config.model;
  const MeasuredText measured = open_measured_text(options, checkpoint, config);
  require_same_work(options, checkpoint, {measured.text.size(), options.by_document}, ranks);
  ordered_json json;
  tasks::EvaluatedModel evaluated{checkpoint.state().step};
  std::filesystem::path file;
  if (!options.sweep.empty()) {
    file = output_file(options, "text-sweep", evaluated, ranks);
    const at::Tensor windows_BL = target_windows(options.inference, checkpoint, config, &measured.text);
    json = sweep_perplexity(options, measured, windows_BL, model, ranks);
  } else {
    meet_target(model, options.inference, checkpoint, &measured.text);
    if (options.replay_routing.empty()) evaluated = evaluated_model(options, checkpoint, model.routing);
    file = output_file(options, "text", evaluated, ranks);
    const eval::Perplexity result = routed_perplexity(options, measured, model, ranks);
    json = perplexity_json(result, measured.bytes);
    if (!options.json && ranks.rank() == 0) print_summary(checkpoint, result, measured.bytes);
  }
  if (ranks.rank() == 0) report(options, file, labeled(evaluated, json), "");  // the table is already printed
}

}  // namespace

void add_evaluate_text(CLI::App& evaluate) {
  auto options = std::make_shared<TextOptions>();
  CLI::App* verb =
      evaluate.add_subcommand("text", "Measure the loss, perplexity and bits per byte of a text");
  add_inference_options(*verb, options->inference);
  add_text_option(*verb, options->text);
  verb->add_option("--dump-routing", options->dump_routing,
                   "write the experts of each token and layer to this safetensors file");
  verb->add_option("--replay-routing", options->replay_routing,
                   "use the experts of a --dump-routing file instead of the router's selection")
      ->excludes(verb->get_option("--target-experts"));
  verb->add_flag("--by-document", options->by_document,
                 "predict each document on its own, from its first token to its end of text")
      ->excludes("--dump-routing")
      ->excludes("--replay-routing");
  add_sweep_option(*verb, options->sweep, {"--target-experts", "--dump-routing", "--replay-routing"});
  add_evaluate_options(*verb, *options);
  verb->get_option("--dump-routing")->excludes(verb->get_option("--processes"));
  verb->callback([options] {
    evaluate_on_ranks(*options, [&](distributed::Collectives& ranks) { evaluate_text(*options, ranks); });
  });
}

}  // namespace dtopp::cli
