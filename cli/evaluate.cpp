#include "cli/evaluate.h"

#include <cstdio>
#include <memory>
#include <string>

#include "cli/verbs.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/json.h"

namespace dtopp::cli {
namespace {

// An option that would be ignored is refused: it is more likely a mistake.
void refuse_idle_options(const EvaluateOptions& options) {
  if (options.sweep.empty()) {
    if (options.inference.target_experts == 0 && !options.inference.target_text.empty())
      throw UsageError("--target-text means nothing without a number of experts");
    return;
  }
  if (options.inference.target_experts != 0)
    throw UsageError("--target-experts means nothing to --sweep-target, which names its own");
  if (!options.dump.empty())
    throw UsageError("--dump means nothing to --sweep-target: one dump holds one budget");
}

void refuse_task_options(const CLI::App& verb, const std::string& tasks) {
  for (const char* name : {"--data", "--limit", "--dump", "--dry-run", "--paper"}) {
    if (verb.count(name) > 0) throw UsageError(std::string(name) + " means nothing to --tasks " + tasks);
  }
}

}  // namespace

EvaluationText open_text(const EvaluateOptions& options, const Checkpoint& checkpoint,
                         const ModelConfig& config) {
  return {options.text, config.vocab_size,
          [&] { return load_tokenizer(checkpoint, options.inference.tokenizer, config.vocab_size); }};
}

void report(const EvaluateOptions& options, const nlohmann::ordered_json& json, const std::string& table) {
  if (!options.output.empty()) write_file_atomically(options.output, dump_json(json, 2) + "\n");
  std::printf("%s", options.json ? (dump_json(json) + "\n").c_str() : table.c_str());
}

void add_evaluate(CLI::App& app) {
  auto options = std::make_shared<EvaluateOptions>();
  CLI::App* verb = app.add_subcommand("evaluate", "Measure a checkpoint");
  add_inference_options(*verb, options->inference);
  verb->add_option("--tasks", options->tasks,
                   "what to measure: perplexity, activations (the experts that tokens use), all (the tasks "
                   "whose prompts "
                   "fit the model's sequence length), or names such as copa,arc_easy")
      ->required();
  verb->add_option(
      "--text", options->text,
      "perplexity, activations: a text file (.jsonl[.gz|.zst]: a document a line; any other name: one "
      "document), or a token folder");
  verb->add_option("--data", options->data, "tasks: the folder with their files, NAME.jsonl[.gz|.zst]");
  verb->add_option("--limit", options->limit, "tasks: only the first items of each data set")
      ->check(CLI::PositiveNumber);
  verb->add_option("--dump", options->dump, "tasks: write a JSON line for each item, prompts included");
  verb->add_flag("--dry-run", options->dry_run, "tasks: make the prompts, run no model");
  verb->add_flag("--paper", options->paper,
                 "tasks: beside the table the paper's own results, which are of its 1.3B models");
  verb->add_option("--sweep-target", options->sweep,
                   "measure at each of these numbers of active experts, e.g. 2,4,8,12")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  verb->add_option("--output", options->output, "write the results to this JSON file too");
  verb->add_option("--batch-size", options->batch_size, "sequences computed at once")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  verb->add_flag("--json", options->json, "print the results as one JSON object");
  verb->callback([options, verb] {
    refuse_idle_options(*options);
    if (options->tasks != "perplexity" && options->tasks != "activations") return evaluate_tasks(*options);
    refuse_task_options(*verb, options->tasks);
    if (options->text.empty())
      throw UsageError("--tasks " + options->tasks + " needs --text FILE (a text file or a token folder)");
    if (options->tasks == "perplexity") return evaluate_perplexity(*options);
    if (!options->sweep.empty()) throw UsageError("--sweep-target means nothing to --tasks activations");
    evaluate_activations(*options);
  });
}

}  // namespace dtopp::cli
