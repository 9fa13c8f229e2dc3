// Implements `dtopp evaluate`: the loss, the tasks, the experts and the routing of trained models.
#include <sstream>

#include "cli/commands.h"
#include "cli/inference.h"
#include "cli/option_checks.h"
#include "cli/ranks.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"
#include "dtopp/base/manifest.h"
#include "dtopp/base/stop.h"
#include "dtopp/device/device.h"
#include "dtopp/distributed/collectives.h"
#include "dtopp/eval/activation_analysis.h"
#include "dtopp/eval/evaluation.h"
#include "dtopp/eval/scoring.h"
#include "dtopp/eval/token_counts.h"
#include "dtopp/inference/expert_budget.h"
#include "dtopp/tasks/evaluation_files.h"

namespace dtopp::cli {
namespace {

struct EvaluateOptions {
  InferenceOptions inference;
  std::string output;
  int64_t batch_size = 8;
  int64_t processes = 0;  // processes to start; 0: this process evaluates, alone or as a rank
  bool json = false;
};

void add_evaluate_options(CLI::App& command, EvaluateOptions& options) {
  add_checked(command, "--output", options.output,
              "also write the results as JSON to this file; in a folder, to a file whose name contains "
              "the texts or images, the checkpoint's step, the budget and the precision",
              in_existing_folder());
  add_number(command, "--batch-size", options.batch_size, "sequences or images per batch",
             positive<int64_t>());
  command.add_flag("--json", options.json, "print the results as one JSON object");
  add_processes_option(command, options.processes);
}

void add_text_option(CLI::App& command, std::vector<std::string>& texts) {
  command
      .add_option("--text", texts,
                  "text file (.jsonl[.gz|.zst] has one document per line, any other file is one document) or "
                  "folder of tokens; repeat it to measure several texts, together and each on its own")
      ->allow_extra_args(false)
      ->required();
}

void add_sweep_option(CLI::App& command, std::vector<double>& targets,
                      const std::vector<std::string>& excluded) {
  CLI::Option* option =
      add_checked(command, "--sweep-target", targets,
                  "measure at each of these numbers of active experts per token, e.g. 2,4,8,12",
                  positive<double>())
          ->delimiter(',');
  for (const std::string& name : excluded) option->excludes(command.get_option(name));
}

void require_sweep(const std::vector<double>& targets, const config::RunConfig& config) {
  for (const double target : targets) inference::require_target(config, target, "--sweep-target");
}

// Calls measure(options, ranks) on every rank. With --processes, this process starts the ranks and exits with
// their status.
template <class Options>
void evaluate_on_ranks(const Options& options, void (*measure)(const Options&, distributed::Collectives&)) {
  const launch::LaunchEnvironment environment = own_launch_environment();
  if (options.processes > 0) {
    device::require_device(options.inference.device, "--device");
    end_process(run_processes(environment, {.processes = options.processes}));
  }
  run_rank(environment, "lower --batch-size", [&](distributed::Cluster& cluster) {
    std::optional<StopScope> begins(stop_token());
    cluster.join(std::chrono::seconds(config::ParallelConfig{}.timeout));
    const distributed::ProcessGroups& groups = cluster.connect(at::kCPU, /*ep_size=*/1);
    cluster.begin(0, "evaluation");
    begins.reset();
    measure(options, *groups.world);
  });
}

// Opens, on every rank, the checkpoint that rank 0 finds for options.inference.checkpoint. Throws UsageError
// if its model has another type, or if there are several ranks and the device is not the CPU.
checkpoint::Checkpoint open_shared_checkpoint(const EvaluateOptions& options, config::ModelType type,
                                              distributed::Collectives& ranks) {
  const StopScope begins(stop_token());
  if (ranks.size() == 1) return open_named_checkpoint(options.inference, type);
  if (!device::compute_device(options.inference.device, "--device").is_cpu())
    throw UsageError(
        "--device: evaluation with several ranks needs cpu; set --device cpu, or start one process");
  if (ranks.rank() > 0)
    return checkpoint::Checkpoint(distributed::broadcast_bytes(ranks, "", /*root=*/0, "start"),
                                  checkpoint::CheckpointUse::kInference);
  checkpoint::Checkpoint checkpoint = open_named_checkpoint(options.inference, type);
  distributed::broadcast_bytes(ranks, checkpoint.path().string(), /*root=*/0, "start");
  return checkpoint;
}

// Throws RanksDiffer if a rank's checkpoint, batch size, precision or `amount` of data differs from that of
// rank 0.
void require_same_work(const EvaluateOptions& options, const checkpoint::Checkpoint& checkpoint,
                       const ordered_json& amount, distributed::Collectives& ranks) {
  const ordered_json work = {{"checkpoint", hash_file(checkpoint.path() / kManifestName)},
                             {"batch_size", options.batch_size},
                             {"precision", c10::toString(compute_type(options.inference))},
                             {"amount", amount}};
  if (const auto difference = distributed::find_difference(dump_json(work), ranks))
    throw distributed::RanksDiffer(ExitStatus::kUsage,
                                   difference->name() +
                                       " would not measure the same as rank 0; start all ranks "
                                       "with the same checkpoint, data and options");
}

// Returns the checkpoint's step, --target-experts, the precision and the thresholds p of `routing`, which
// label results.
tasks::EvaluatedModel evaluated_model(const EvaluateOptions& options,
                                      const checkpoint::Checkpoint& checkpoint, const moe::Routing& routing) {
  tasks::EvaluatedModel model{checkpoint.state().step, options.inference.target_experts};
  model.in_bf16 = compute_type(options.inference) == at::kBFloat16;
  if (routing.router) model.p = routing.router->metric("threshold");
  return model;
}

// Returns the kind of the results of `paths`, from their names without folders and endings:
// "text-sweep-train+validation", at most 120 bytes.
std::string kind_of(std::string kind, const std::vector<std::string>& paths) {
  constexpr size_t kLongest = 120;  // bytes; a file name may have 255
  for (const std::string& path : paths) {
    fs::path name = without_trailing_slash(fs::path(path).lexically_normal()).filename();
    if (name.extension() == ".gz" || name.extension() == ".zst") name = name.stem();
    kind += (&path == paths.data() ? "-" : "+") + name.stem().string();
  }
  if (kind.size() <= kLongest) return kind;
  size_t end = kLongest;
  while ((static_cast<unsigned char>(kind[end]) & 0xC0U) == 0x80U) --end;  // within a UTF-8 character
  return kind.substr(0, end);
}

// Returns the file for results of `kind` (see results_file); empty without --output and on other ranks than
// rank 0. Call it before the evaluation, because it refuses a file that would be lost.
fs::path output_file(const EvaluateOptions& options, const std::string& kind,
                     const tasks::EvaluatedModel& model, const distributed::Collectives& ranks,
                     const ordered_json& measured) {
  if (options.output.empty() || ranks.rank() > 0) return {};
  return tasks::results_file(options.output, kind, model, measured);
}

// Writes the results behind their label to `file`, unless its name is empty, and prints both as JSON (--json)
// or as the table. Only rank 0 calls it.
void report(const EvaluateOptions& options, const fs::path& file, ordered_json json,
            const ordered_json& results, const std::string& table) {
  json.update(results);
  if (!file.empty()) write_file_atomically(file, dump_json(json, 2) + "\n");
  std::printf("%s", options.json ? (dump_json(json) + "\n").c_str() : table.c_str());
}

// The number of tokens that the model reads: without the last, which is only predicted.
uint64_t tokens_read(const eval::EvaluationText& text) { return std::max<uint64_t>(text.size(), 1) - 1; }

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
  MeasuredText measured{open_texts(options.inference, options.texts, checkpoint, config), {}, {}};
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
  std::printf("tokens       %ld\n", result.tokens);
  std::printf("nll          %.6f nats per token\n", result.nll);
  std::printf("perplexity   %.4f\n", result.perplexity());
  if (bytes)
    std::printf("compression  %.4f bits per byte (%ld bytes)\n", result.bits_per_byte(*bytes), *bytes);
  if (result.activations.num_layers() > 0) {
    const moe::ActivationSummary active = result.activations.summary();
    std::printf("experts      %.4f per token (standard deviation %.4f)\n", active.mean, active.deviation);
  }
  for (const eval::SourcePerplexity& source : result.sources) {
    std::printf("  %-20s %.6f nats per token, %ld tokens", source.name.c_str(), source.nll, source.tokens);
    if (source.activations.num_layers() > 0) std::printf(", %.4f experts", source.activations.summary().mean);
    std::printf("\n");
  }
}

eval::Perplexity perplexity_of(const TextOptions& options, const MeasuredText& measured,
                               const inference::InferenceModel& model, distributed::Collectives& ranks,
                               eval::PerplexityOptions how = {}) {
  ConsoleWatch watch(ranks);
  watch.begin("text", "tok", tokens_read(measured.text));
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
  return enum_named<eval::CountsRule>(options.counts).value();
}

// Makes the routers of --replay-routing or --counts; null: the model's own.
std::unique_ptr<eval::BatchRouters> make_routers(const TextOptions& options, const MeasuredText& measured,
                                                 const inference::InferenceModel& model,
                                                 distributed::Collectives& ranks) {
  if (!options.replay_routing.empty())
    return std::make_unique<eval::RoutingReplay>(options.replay_routing, model, tokens_read(measured.text));
  const eval::CountsRule rule = counts_rule(options);
  if (rule == eval::CountsRule::kAsIs) return nullptr;
  ConsoleWatch watch(ranks);
  watch.begin("counts", "tok", tokens_read(measured.text));
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
  eval::RoutingDump dump(model, tokens_read(measured.text));
  eval::Perplexity result =
      perplexity_of(options, measured, model, ranks, {.observer = &dump, .routers = routers.get()});
  dump.write(options.dump_routing);
  return result;
}

ordered_json sweep_perplexity(const TextOptions& options, const MeasuredText& measured,
                              const Tensor& windows_BL, inference::InferenceModel& model,
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
  fs::path file;
  if (!options.sweep.empty()) {
    file = output_file(options, kind_of_results(options, rule), evaluated, ranks, json);
    const Tensor windows_BL = target_windows(options.inference, checkpoint, config, &measured.text);
    json.update(sweep_perplexity(options, measured, windows_BL, model, ranks));
  } else {
    meet_target(model, options.inference, checkpoint, &measured.text);
    if (options.replay_routing.empty()) evaluated = evaluated_model(options, checkpoint, model.routing);
    file = output_file(options, kind_of_results(options, rule), evaluated, ranks, json);
    const eval::Perplexity result = routed_perplexity(options, measured, model, ranks);
    json.update(perplexity_json(result, measured.bytes));
    if (!options.json && ranks.rank() == 0) print_summary(checkpoint, result, measured.bytes);
  }
  if (ranks.rank() == 0)
    report(options, file, tasks::to_json(evaluated), json, "");  // the table is already printed
}

void add_evaluate_text(CLI::App& evaluate) {
  auto options = std::make_shared<TextOptions>();
  CLI::App* command =
      evaluate.add_subcommand("text", "Measure the loss, perplexity and bits per byte of a text");
  add_inference_options(*command, options->inference, "the text that is evaluated");
  add_text_option(*command, options->texts);
  add_checked(*command, "--dump-routing", options->dump_routing,
              "write the experts of each token and layer to this safetensors file", in_existing_folder());
  command
      ->add_option("--replay-routing", options->replay_routing,
                   "use the experts of a --dump-routing file instead of the router's selection")
      ->excludes(command->get_option("--target-experts"));
  command
      ->add_flag("--by-document", options->by_document,
                 "predict each document on its own, from its first token to its end of text")
      ->excludes("--dump-routing")
      ->excludes("--replay-routing");
  constexpr auto kRules = enum_names(eval::CountsRule());
  add_checked(
      *command, "--counts", options->counts,
      "number of experts of a token: as the router selects (as-is), the mean of all tokens and layers "
      "(uniform), or that of another token of the same layer, source or window (permuted:layer, …)",
      CLI::IsMember(std::vector<std::string>(kRules.begin(), kRules.end())))
      ->excludes("--replay-routing")
      ->excludes("--by-document");
  add_number(*command, "--counts-seed", options->counts_seed, "seed of --counts", not_negative<uint64_t>())
      ->needs("--counts");
  add_sweep_option(*command, options->sweep,
                   {"--target-experts", "--dump-routing", "--replay-routing", "--counts"});
  add_evaluate_options(*command, *options);
  command->get_option("--dump-routing")->excludes(command->get_option("--processes"));
  command->callback([options] { evaluate_on_ranks(*options, evaluate_text); });
}

struct TasksOptions : EvaluateOptions {
  std::string tasks = "all";
  std::string data;  // the folder with the task files
  std::string dump;
  int64_t limit = 0;          // maximum of items per data set; 0: no limit
  std::vector<double> sweep;  // targets of active experts
  bool dry_run = false;
  bool paper = false;
};

ordered_json all_counts(const std::vector<tasks::TaskRequests>& prepared) {
  ordered_json json = ordered_json::object();
  for (const tasks::TaskRequests& requests : prepared) {
    const tasks::PromptCounts counts = tasks::count_prompts(requests);
    json[std::string(requests.task.name)] = {{"items", counts.items},
                                             {"sequences", counts.sequences},
                                             {"cut_sequences", counts.cut_sequences},
                                             {"tokens", counts.tokens},
                                             {"longest", counts.longest}};
  }
  return json;
}

void print_counts(const std::vector<tasks::TaskRequests>& prepared) {
  std::printf("%-18s %8s %10s %8s %12s %8s\n", "task", "items", "sequences", "cut", "tokens", "longest");
  for (const tasks::TaskRequests& requests : prepared) {
    const tasks::PromptCounts counts = tasks::count_prompts(requests);
    std::printf("%-18s %8ld %10ld %8ld %12ld %8ld\n", std::string(requests.task.name).c_str(), counts.items,
                counts.sequences, counts.cut_sequences, counts.tokens, counts.longest);
  }
}

// Reports the prompts and their counts for --dry-run, without running the model.
void report_prompts(const TasksOptions& options, const std::vector<tasks::TaskRequests>& prepared) {
  if (!options.dump.empty())
    write_file_atomically(options.dump, [&](OutputFile& file) { tasks::write_prompts(file, prepared); });
  report(options, options.output, {{"tasks", all_counts(prepared)}}, ordered_json::object(), "");
  if (!options.json) print_counts(prepared);
}

struct TaskEvaluation {
  const TasksOptions& options;
  const checkpoint::Checkpoint& checkpoint;
  const data::Tokenizer& tokenizer;
  distributed::Collectives& ranks;
  inference::InferenceModel model;
  std::vector<tasks::TaskRequests> tasks;
  std::vector<tasks::LongTask> left_out;

  bool first_rank() const { return ranks.rank() == 0; }
  // Stores results beside `output`, unless that is empty. Only rank 0 stores results.
  tasks::KeptResults results_kept_for(const std::string& output) const {
    if (!first_rank()) return {};
    return {tasks::kept_results_of(output), eval::run_key(checkpoint, model, tokenizer, DTOPP_VERSION)};
  }
};

std::vector<tasks::TaskResult> measure(const TaskEvaluation& evaluation, tasks::KeptResults& kept) {
  ConsoleWatch watch(evaluation.ranks);
  const int64_t batch_tokens = evaluation.options.batch_size * evaluation.model.config.model.sequence_length;
  return eval::run_tasks(evaluation.model, evaluation.tokenizer, evaluation.tasks, kept, batch_tokens,
                         evaluation.ranks, watch);
}

void evaluate_once(TaskEvaluation& evaluation) {
  const TasksOptions& options = evaluation.options;
  meet_target(evaluation.model, options.inference, evaluation.checkpoint);
  const tasks::EvaluatedModel evaluated =
      evaluated_model(options, evaluation.checkpoint, evaluation.model.routing);
  const fs::path file = output_file(options, "tasks", evaluated, evaluation.ranks, ordered_json::object());
  tasks::KeptResults kept = evaluation.results_kept_for(file.empty() ? options.dump : file.string());
  const auto results = measure(evaluation, kept);
  if (!evaluation.first_rank()) return;
  if (!options.dump.empty()) {
    write_file_atomically(options.dump, [&](OutputFile& file) {
      for (const tasks::TaskRequests& requests : evaluation.tasks) file.write(kept.dump(requests.task));
    });
  }
  const auto& left_out = evaluation.left_out;
  const std::string table =
      options.paper
          ? tasks::format_table_with_paper(
                results, left_out,
                inference::describe_model(evaluation.model.config, evaluation.checkpoint.state().tokens))
          : format_table(results, left_out);
  report(options, file, tasks::to_json(evaluated), to_json(results, left_out),
         tasks::format_categories(results) + table);
  kept.remove();
}

void sweep(TaskEvaluation& evaluation) {
  const TasksOptions& options = evaluation.options;
  inference::InferenceModel& model = evaluation.model;
  const Tensor windows_BL = target_windows(options.inference, evaluation.checkpoint, model.config.model);
  const tasks::EvaluatedModel evaluated = evaluated_model(options, evaluation.checkpoint, {});
  const fs::path file =
      output_file(options, "tasks-sweep", evaluated, evaluation.ranks, ordered_json::object());
  std::vector<eval::BudgetResult> budgets;
  std::vector<tasks::KeptResults> kept;
  for (const double target : options.sweep) {
    model.routing = solve_thresholds(model, windows_BL, target);
    std::ostringstream name;
    if (!file.empty()) name << file.string() << "." << target;
    kept.push_back(evaluation.results_kept_for(name.str()));
    budgets.push_back({target, measure(evaluation, kept.back())});
  }
  if (!evaluation.first_rank()) return;
  report(options, file, tasks::to_json(evaluated), to_json(budgets, evaluation.left_out),
         format_table(budgets, evaluation.left_out));
  for (const tasks::KeptResults& one : kept) one.remove();
}

std::vector<tasks::TaskRequests> prepare_all(const TasksOptions& options,
                                             const std::vector<tasks::Task>& tasks,
                                             const data::Tokenizer& tokenizer) {
  const StopScope begins(stop_token());
  const int64_t limit = options.limit > 0 ? options.limit : std::numeric_limits<int64_t>::max();
  std::vector<tasks::TaskRequests> prepared;
  prepared.reserve(tasks.size());
  for (const tasks::Task& task : tasks) {
    end_if_stopped();
    prepared.push_back(tasks::prepare_requests(task, options.data, tokenizer, limit));
  }
  return prepared;
}

void evaluate_tasks(const TasksOptions& options, distributed::Collectives& ranks) {
  const std::vector<tasks::Task> tasks = tasks::select_tasks(options.tasks);
  const checkpoint::Checkpoint checkpoint =
      open_shared_checkpoint(options, config::ModelType::kLanguageModel, ranks);
  const config::RunConfig run_config = checkpoint.config();
  require_sweep(options.sweep, run_config);
  const config::ModelConfig& config = run_config.model;
  const data::Tokenizer tokenizer =
      inference::load_tokenizer(checkpoint, options.inference.tokenizer, config.vocab_size);
  std::vector<tasks::TaskRequests> prepared = prepare_all(options, tasks, tokenizer);
  require_same_work(options, checkpoint, all_counts(prepared), ranks);
  if (options.dry_run) {
    if (ranks.rank() == 0) report_prompts(options, prepared);
    return;
  }
  std::vector<tasks::LongTask> left_out =
      tasks::take_out_long_tasks(prepared, options.tasks, config.sequence_length);
  if (ranks.rank() == 0) std::fprintf(stderr, "%s", tasks::format_left_out(left_out).c_str());
  TaskEvaluation evaluation{options,
                            checkpoint,
                            tokenizer,
                            ranks,
                            load_model(options.inference, checkpoint),
                            std::move(prepared),
                            std::move(left_out)};
  evaluation.model.routing.ranks = &ranks;
  if (options.sweep.empty())
    evaluate_once(evaluation);
  else
    sweep(evaluation);
}

void add_evaluate_tasks(CLI::App& evaluate) {
  auto options = std::make_shared<TasksOptions>();
  CLI::App* command =
      evaluate.add_subcommand("tasks", "Measure the accuracy on the paper's 13 benchmark tasks");
  add_inference_options(*command, options->inference);
  command
      ->add_option("--tasks", options->tasks,
                   "all (every task whose prompts fit the model's sequence length), or task names such as "
                   "copa,arc_easy")
      ->capture_default_str();
  command->add_option("--data", options->data, "folder with the task files, NAME.jsonl[.gz|.zst]")
      ->required();
  add_checked(*command, "--limit", options->limit, "evaluate only the first LIMIT items per data set",
              positive<int64_t>());
  add_checked(*command, "--dump", options->dump,
              "write one JSON line per item, with its prompt, to this file", in_existing_folder());
  command->add_flag("--paper", options->paper,
                    "show the results of the paper's 1.3B models beside those of this model");
  add_sweep_option(*command, options->sweep, {"--target-experts", "--dump", "--paper"});
  add_evaluate_options(*command, *options);
  command->add_flag("--dry-run", options->dry_run, "prepare the prompts without running the model")
      ->excludes(command->get_option("--processes"));
  command->callback([options] {
    tasks::select_tasks(options->tasks);  // refuses an unknown task before ranks start
    evaluate_on_ranks(*options, evaluate_tasks);
  });
}

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
  const eval::EvaluationText text = open_texts(options.inference, options.texts, checkpoint, config);
  require_same_work(options, checkpoint, text.size(), ranks);
  meet_target(model, options.inference, checkpoint, &text);
  const tasks::EvaluatedModel evaluated = evaluated_model(options, checkpoint, model.routing);
  ordered_json json = {{"texts", options.texts}};
  const fs::path file = output_file(options, kind_of("experts", options.texts), evaluated, ranks, json);
  std::vector<int64_t> ids(text.size());
  text.read(0, ids);
  std::vector<uint64_t> begins;
  for (const eval::TextSegment& source : text.segments()) begins.push_back(source.begin);
  ConsoleWatch watch(ranks);
  watch.begin("experts", "tok", tokens_read(text));
  const eval::ActivationAnalysis analysis = eval::analyze_activations(
      model, text, eval::find_token_kinds(ids, tokenizer, config.sequence_length, begins), options.batch_size,
      ranks, watch);
  watch.end();
  if (ranks.rank() > 0) return;
  json.update(to_json(analysis, model));
  report(options, file, tasks::to_json(evaluated), json, eval::format_table(analysis));
}

void add_evaluate_experts(CLI::App& evaluate) {
  auto options = std::make_shared<ExpertsOptions>();
  CLI::App* command =
      evaluate.add_subcommand("experts", "Measure which experts the tokens of a text activate");
  add_inference_options(*command, options->inference, "the text that is evaluated");
  add_text_option(*command, options->texts);
  add_evaluate_options(*command, *options);
  command->callback([options] { evaluate_on_ranks(*options, evaluate_experts); });
}

struct ImagesOptions : EvaluateOptions {
  std::string images;  // a folder of prepared images
  std::string dump;
  int64_t limit = 0;  // maximum of images; 0: no limit
};

// Measures the raw parameters or their EMA. Thresholds are solved first if targets_of returns targets.
models::ValidationResult measure(const EvaluateOptions& options, inference::ParameterKind kind,
                                 inference::DiffusionModel& model, const models::TrainingData& data,
                                 int64_t images, distributed::Collectives& ranks) {
  model.routing.ranks = &ranks;
  const auto targets = inference::targets_of(model.config, kind, options.inference.target_experts);
  if (!targets.empty()) model.routing = eval::solve_for_images(model, data, targets);
  ConsoleWatch watch(ranks);
  watch.begin(kind == inference::ParameterKind::kRaw ? "images" : "EMA", "images",
              static_cast<uint64_t>(images));
  return eval::measure_diffusion(model, model.routing, data, images, options.batch_size, ranks, watch);
}

void evaluate_images(const ImagesOptions& options, distributed::Collectives& ranks) {
  if (!options.dump.empty() && ranks.size() > 1)
    throw UsageError("--dump: needs a single process; omit --processes");
  const checkpoint::Checkpoint checkpoint =
      open_shared_checkpoint(options, config::ModelType::kDiffusionTransformer, ranks);
  const at::Device device = set_up_device(options.inference);
  inference::DiffusionModel model =
      inference::load_diffusion_model(checkpoint, inference::ParameterKind::kRaw, device);
  std::optional<StopScope> begins(stop_token());
  const models::TrainingData data = eval::open_evaluation_images(checkpoint, model.config, options.images);
  begins.reset();
  eval::DiffusionEvaluation evaluation;
  const auto all = static_cast<int64_t>(data.validation_samples);
  evaluation.images = options.limit > 0 ? std::min(options.limit, all) : all;
  require_same_work(options, checkpoint, {{"images", evaluation.images}, {"hash", data.validation_hashes}},
                    ranks);
  ordered_json json = {{"folder", options.images}, {"images", evaluation.images}};
  const std::string kind =
      evaluation.images < all ? "images-first-" + std::to_string(evaluation.images) : "images";
  const fs::path file = output_file(options, kind_of(kind, {options.images}),
                                    evaluated_model(options, checkpoint, {}), ranks, json);
  evaluation.raw = measure(options, inference::ParameterKind::kRaw, model, data, evaluation.images, ranks);
  const tasks::EvaluatedModel evaluated = evaluated_model(options, checkpoint, model.routing);
  if (!options.dump.empty()) {
    ConsoleWatch watch(ranks);
    watch.begin("dump", "images", static_cast<uint64_t>(evaluation.images));
    eval::dump_predictions(model, data, evaluation.images, options.batch_size, options.dump, watch);
  }
  if (model.config.diffusion.ema_decay != 0) {
    model = inference::load_diffusion_model(checkpoint, inference::ParameterKind::kEma, device);
    evaluation.ema = measure(options, inference::ParameterKind::kEma, model, data, evaluation.images, ranks);
  }
  if (ranks.rank() > 0) return;
  json.update(to_json(evaluation));
  report(options, file, tasks::to_json(evaluated), json, eval::format_table(evaluation));
}

void add_evaluate_images(CLI::App& evaluate) {
  auto options = std::make_shared<ImagesOptions>();
  CLI::App* command =
      evaluate.add_subcommand("images", "Measure the loss of a diffusion transformer on held-out images");
  add_checkpoint_options(*command, options->inference);
  add_checked(*command, "--target-experts", options->inference.target_experts,
              "mean number of active experts per token, for which p is solved on the first images",
              positive<double>());
  command->add_option("--images", options->images, "folder of prepared images")->required();
  add_checked(*command, "--limit", options->limit, "measure only the first LIMIT images",
              positive<int64_t>());
  add_checked(*command, "--dump", options->dump,
              "write images, noise, t and predictions to this safetensors file", in_existing_folder());
  add_evaluate_options(*command, *options);
  command->get_option("--dump")->excludes(command->get_option("--processes"));
  command->callback([options] { evaluate_on_ranks(*options, evaluate_images); });
}

}  // namespace

void add_evaluate(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "evaluate", "Evaluate a checkpoint: benchmark tasks, loss on text or images, use of experts");
  command->require_subcommand(1);
  add_evaluate_tasks(*command);
  add_evaluate_text(*command);
  add_evaluate_experts(*command);
  add_evaluate_images(*command);
}

}  // namespace dtopp::cli
