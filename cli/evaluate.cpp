#include "cli/evaluate.h"

#include <cstdio>
#include <memory>
#include <string>

#include "cli/verbs.h"
#include "dtopp/base/errors.h"

namespace dtopp::cli {
namespace {

// What would be ignored is more likely a mistake.
void refuse_task_options(const CLI::App& verb) {
  for (const char* name : {"--data", "--limit", "--dump", "--dry-run", "--tokenizer"}) {
    if (verb.count(name) > 0) throw UsageError(std::string(name) + " means nothing to --tasks perplexity");
  }
}

}  // namespace

Checkpoint open_named_checkpoint(const EvaluateOptions& options) {
  return open_checkpoint(options.checkpoint, [](const std::string& text) {
    std::fprintf(stderr, "dtopp: warning: %s\n", text.c_str());
  });
}

void add_evaluate(CLI::App& app) {
  auto options = std::make_shared<EvaluateOptions>();
  CLI::App* verb = app.add_subcommand("evaluate", "Measure a checkpoint");
  verb->add_option("checkpoint", options->checkpoint, "a checkpoint, or a run directory (its newest one)")
      ->required();
  verb->add_option("--tasks", options->tasks,
                   "what to measure: perplexity, all, or names such as copa,arc_easy")
      ->required();
  verb->add_option("--text", options->text, "perplexity: a .txt or .jsonl[.gz|.zst] file, or a token folder");
  verb->add_option("--data", options->data, "tasks: the folder with their files, NAME.jsonl[.gz|.zst]");
  verb->add_option("--limit", options->limit, "tasks: only the first items of each data set")
      ->check(CLI::PositiveNumber);
  verb->add_option("--dump", options->dump, "tasks: write a JSON line for each item, prompts included");
  verb->add_flag("--dry-run", options->dry_run, "tasks: make the prompts, run no model");
  verb->add_option("--tokenizer", options->tokenizer,
                   "tasks: a tokenizer.json, if the checkpoint holds none");
  verb->add_option("--output", options->output, "write the results to this JSON file too");
  verb->add_option("--batch-size", options->batch_size, "sequences computed at once")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  verb->add_option("--threads", options->threads, "0: every core")->check(CLI::NonNegativeNumber);
  verb->add_flag("--json", options->json, "print the results as one JSON object");
  verb->callback([options, verb] {
    if (options->tasks != "perplexity") return evaluate_tasks(*options);
    refuse_task_options(*verb);
    evaluate_perplexity(*options);
  });
}

}  // namespace dtopp::cli
