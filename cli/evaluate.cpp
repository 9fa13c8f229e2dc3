#include "cli/evaluate.h"

#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "cli/option_checks.h"
#include "cli/ranks.h"
#include "cli/stop_signals.h"
#include "cli/verbs.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"
#include "dtopp/base/manifest.h"
#include "dtopp/base/progress.h"
#include "dtopp/device/compute_device.h"
#include "dtopp/distributed/groups/rank_agreement.h"
#include "dtopp/tasks/task.h"

namespace dtopp::cli {
namespace {

bool measures_text(const EvaluateOptions& options) {
  return options.tasks == "perplexity" || options.tasks == "activations";
}

bool measures_images(const EvaluateOptions& options) { return options.tasks == "diffusion"; }

void refuse_options(std::initializer_list<const char*> names, const EvaluateOptions& options,
                    const CLI::App& verb) {
  for (const char* name : names) {
    if (verb.count(name) > 0)
      throw UsageError(std::string(name) + ": cannot be used with --tasks " + options.tasks);
  }
}

// Refuses options that would have no effect, because they are probably mistakes.
void refuse_idle_options(const EvaluateOptions& options) {
  if (options.dry_run && options.processes > 0)
    throw UsageError("--processes: cannot be used with --dry-run, which runs in one process");
  if (options.sweep.empty()) {
    if (options.inference.target_experts == 0 && !options.inference.target_text.empty())
      throw UsageError("--target-text: needs --target-experts or --sweep-target");
    return;
  }
  if (options.inference.target_experts != 0)
    throw UsageError("--target-experts: cannot be used with --sweep-target, which sets its own targets");
  if (!options.dump.empty())
    throw UsageError("--dump: cannot be used with --sweep-target; a dump holds the results of one target");
  if (options.paper)
    throw UsageError("--paper: cannot be used with --sweep-target; the paper's results have one target");
}

void check_routing_options(const EvaluateOptions& options, const CLI::App& verb) {
  if (options.tasks != "perplexity")
    return refuse_options({"--dump-routing", "--replay-routing"}, options, verb);
  if (!options.dump_routing.empty() && options.processes > 1)
    throw UsageError("--dump-routing: needs a single process; omit --processes");
  if (!options.dump_routing.empty() && !options.sweep.empty())
    throw UsageError("--dump-routing: cannot be used with --sweep-target; a dump holds one target");
  if (!options.replay_routing.empty() && (!options.sweep.empty() || options.inference.target_experts != 0))
    throw UsageError("--replay-routing: cannot be used with a target of experts; the file sets the experts");
}

// Checks the options as far as possible before ranks start.
void check_options(const EvaluateOptions& options, const CLI::App& verb) {
  refuse_idle_options(options);
  check_routing_options(options, verb);
  if (measures_images(options)) {
    refuse_options(
        {"--data", "--text", "--dry-run", "--paper", "--tokenizer", "--target-text", "--sweep-target"},
        options, verb);
    if (options.images.empty())
      throw UsageError("--tasks diffusion: needs --images DIR (a folder that dtopp prepare images wrote)");
    return;
  }
  refuse_options({"--images"}, options, verb);
  if (!measures_text(options)) {
    select_tasks(options.tasks);
    if (!options.text.empty()) throw UsageError("--text: cannot be used with --tasks " + options.tasks);
    if (options.data.empty())
      throw UsageError("--tasks " + options.tasks + ": needs --data DIR with the task files");
    return;
  }
  refuse_options({"--data", "--limit", "--dump", "--dry-run", "--paper"}, options, verb);
  if (options.text.empty())
    throw UsageError("--tasks " + options.tasks + ": needs --text FILE (a text file or a token folder)");
  if (options.tasks == "activations" && !options.sweep.empty())
    throw UsageError("--sweep-target: cannot be used with --tasks activations");
}

void evaluate(const EvaluateOptions& options, const CLI::App& verb) {
  check_options(options, verb);
  const LaunchEnvironment environment = own_launch_environment();
  if (options.processes > 0) {
    require_device(options.inference.device, "--device");
    std::exit(run_processes(environment, options.processes));
  }
  if (!options.dry_run) stop_rank_on_signals(environment);
  const JoinOptions join{.timeout = std::chrono::seconds(ParallelConfig{}.timeout)};
  run_as_rank(environment, join, [&](const Rank& rank) {
    Collectives& ranks = *rank.groups.world;
    if (rank.begin) rank.begin(0, "evaluation");
    if (options.tasks == "perplexity") return evaluate_perplexity(options, ranks);
    if (options.tasks == "activations") return evaluate_activations(options, ranks);
    if (measures_images(options)) return evaluate_diffusion(options, ranks);
    evaluate_tasks(options, ranks);
  });
}

}  // namespace

Checkpoint open_shared_checkpoint(const EvaluateOptions& options, Collectives& ranks) {
  const ModelType type =
      measures_images(options) ? ModelType::kDiffusionTransformer : ModelType::kLanguageModel;
  if (ranks.size() == 1) return open_named_checkpoint(options.inference, type);
  if (!compute_device(options.inference.device, "--device").is_cpu())
    throw UsageError(
        "--device: evaluation with several ranks needs cpu; set --device cpu, or start one process");
  if (ranks.rank() > 0)
    return Checkpoint(broadcast_bytes(ranks, "", /*root=*/0, "start"), CheckpointUse::kInference);
  Checkpoint checkpoint = open_named_checkpoint(options.inference, type);
  broadcast_bytes(ranks, checkpoint.path().string(), /*root=*/0, "start");
  return checkpoint;
}

void require_same_work(const EvaluateOptions& options, const Checkpoint& checkpoint,
                       const nlohmann::ordered_json& amount, Collectives& ranks) {
  const nlohmann::ordered_json work = {{"checkpoint", hash_file(checkpoint.path() / kManifestName)},
                                       {"batch_size", options.batch_size},
                                       {"amount", amount}};
  if (const auto difference = find_difference(dump_json(work), ranks))
    throw RanksDiffer(ExitStatus::kUsage, difference->name() +
                                              " would not measure the same as rank 0; start all ranks "
                                              "with the same checkpoint, data and options");
}

BatchHooks watch(const char* label, const char* unit, uint64_t total, const Collectives& ranks) {
  if (ranks.rank() > 0) return {[](uint64_t /*done*/) {}, stop_requested};
  const auto bar = std::make_shared<ProgressBar>(label, unit, total);
  return {[bar](uint64_t done) { bar->update(done); }, stop_requested};
}

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
  CLI::App* verb = app.add_subcommand(
      "evaluate", "Evaluate a checkpoint: perplexity, expert activations, tasks or loss on images");
  add_inference_options(*verb, options->inference);
  verb->add_option(
          "--tasks", options->tasks,
          "what to measure: perplexity, activations (active experts per token), diffusion (loss on "
          "images), all (every task whose prompts fit the model's sequence length), or task names such "
          "as copa,arc_easy")
      ->required();
  verb->add_option(
      "--text", options->text,
      "perplexity, activations: a text file (.jsonl[.gz|.zst]: one document per line; any other name: "
      "one document), or a token folder");
  verb->add_option("--data", options->data, "tasks: folder with the task files, NAME.jsonl[.gz|.zst]");
  verb->add_option("--images", options->images, "diffusion: folder of prepared images");
  verb->add_option("--limit", options->limit,
                   "evaluate only the first LIMIT items per data set (tasks) or images (diffusion)")
      ->check(CLI::PositiveNumber);
  verb->add_option(
      "--dump", options->dump,
      "tasks: write one JSON line per item, with its prompt, to this file; diffusion: write images, "
      "noise, t and predictions to this safetensors file");
  verb->add_option("--dump-routing", options->dump_routing,
                   "perplexity: write the experts of each token and layer to this safetensors file");
  verb->add_option("--replay-routing", options->replay_routing,
                   "perplexity: use the experts of a --dump-routing file instead of the router's selection");
  verb->add_flag("--dry-run", options->dry_run, "tasks: prepare the prompts without running the model");
  verb->add_flag("--paper", options->paper,
                 "tasks: show the results of the paper's 1.3B models beside those of this model");
  verb->add_option("--sweep-target", options->sweep,
                   "measure at each of these numbers of active experts per token, e.g. 2,4,8,12")
      ->delimiter(',')
      ->check(finite_number())
      ->check(CLI::PositiveNumber);
  verb->add_option("--output", options->output, "also write the results to this JSON file");
  verb->add_option("--batch-size", options->batch_size, "sequences or images per batch")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  verb->add_flag("--json", options->json, "print the results as one JSON object");
  verb->add_option("--processes", options->processes,
                   "number of ranks to start on this machine, one process per rank (docs/scale.md)")
      ->check(CLI::Range(1, 4096));
  verb->callback([options, verb] { evaluate(*options, *verb); });
}

}  // namespace dtopp::cli
