#include <algorithm>
#include <memory>

#include <nlohmann/json.hpp>

#include "cli/evaluate.h"
#include "dtopp/eval/activation_analysis.h"

namespace dtopp::cli {
namespace {

struct ExpertsOptions : EvaluateOptions {
  std::vector<std::string> texts;
};

void evaluate_experts(const ExpertsOptions& options, distributed::Collectives& ranks) {
  const checkpoint::Checkpoint checkpoint =
      open_shared_checkpoint(options, config::ModelType::kLanguageModel, ranks);
  inference::InferenceModel model = load_model(options.inference, checkpoint);
  model.routing.ranks = &ranks;
  const config::ModelConfig& config = model.config.model;
  const data::Tokenizer tokenizer =
      inference::load_tokenizer(checkpoint, options.inference.tokenizer, config.vocab_size);
  const eval::EvaluationText text = open_texts(options, options.texts, checkpoint, config);
  require_same_work(options, checkpoint, text.size(), ranks);
  meet_target(model, options.inference, checkpoint, &text);
  const tasks::EvaluatedModel evaluated = evaluated_model(options, checkpoint, model.routing);
  nlohmann::ordered_json json = {{"texts", options.texts}};
  const std::filesystem::path file =
      output_file(options, kind_of("experts", options.texts), evaluated, ranks, json);
  std::vector<int64_t> ids(text.size());
  text.read(0, ids);
  std::vector<uint64_t> begins;
  for (const eval::TextSegment& source : text.segments()) begins.push_back(source.begin);
  ConsoleWatch watch(ranks);
  watch.begin("experts", "tok",
              std::max<uint64_t>(text.size(), 1) - 1);  // without the first, which is not predicted
  const eval::ActivationAnalysis analysis = eval::analyze_activations(
      model, text, tasks::find_token_kinds(ids, tokenizer, config.sequence_length, begins),
      options.batch_size, ranks, watch);
  watch.end();
  if (ranks.rank() > 0) return;
  json.update(to_json(analysis, model));
  report(options, file, labeled(evaluated, json), eval::format_table(analysis));
}

}  // namespace

void add_evaluate_experts(CLI::App& evaluate) {
  auto options = std::make_shared<ExpertsOptions>();
  CLI::App* verb = evaluate.add_subcommand("experts", "Measure which experts the tokens of a text activate");
  add_inference_options(*verb, options->inference, "the text that is evaluated");
  add_text_option(*verb, options->texts);
  add_evaluate_options(*verb, *options);
  verb->callback([options] {
    evaluate_on_ranks(*options, [&](distributed::Collectives& ranks) { evaluate_experts(*options, ranks); });
  });
}

}  // namespace dtopp::cli
