#include <cstdio>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/evaluate.h"
#include "cli/option_checks.h"
#include "cli/stop_signals.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/stop_scope.h"
#include "dtopp/eval/task_run.h"
#include "dtopp/inference/expert_budget.h"
#include "dtopp/tasks/dump.h"

namespace dtopp::cli {
namespace {

struct TasksOptions : EvaluateOptions {
  std::string tasks = "all";
  std::string data;  // the folder with the task files
  std::string dump;
  int64_t limit = 0;          // maximum of items per data set; 0: no limit
  std::vector<double> sweep;  // targets of active experts
  bool dry_run = false;
  bool paper = false;
};

nlohmann::ordered_json to_json(const tasks::PromptCounts& counts) {
  return {{"items", counts.items},
          {"sequences", counts.sequences},
          {"cut_sequences", counts.cut_sequences},
          {"tokens", counts.tokens},
          {"longest", counts.longest}};
}

nlohmann::ordered_json all_counts(const std::vector<tasks::TaskRequests>& prepared) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const tasks::TaskRequests& requests : prepared)
    json[std::string(requests.task.name)] = to_json(tasks::count_prompts(requests));
  return json;
}

void print_counts(const std::vector<tasks::TaskRequests>& prepared) {
  std::printf("%-18s %8s %10s %8s %12s %8s\n", "task", "items", "sequences", "cut", "tokens", "longest");
  for (const tasks::TaskRequests& requests : prepared) {
    const tasks::PromptCounts counts = tasks::count_prompts(requests);
    std::printf("%-18s %8lld %10lld %8lld %12lld %8lld\n", std::string(requests.task.name).c_str(),
                static_cast<long long>(counts.items), static_cast<long long>(counts.sequences),
                static_cast<long long>(counts.cut_sequences), static_cast<long long>(counts.tokens),
                static_cast<long long>(counts.longest));
  }
}

// Reports the prompts and their counts for --dry-run, without running the model.
void report_prompts(const TasksOptions& options, const std::vector<tasks::TaskRequests>& prepared) {
  if (!options.dump.empty())
    write_file_atomically(options.dump, [&](OutputFile& file) { tasks::write_prompts(file, prepared); });
  report(options, options.output, {{"tasks", all_counts(prepared)}}, "");
  if (!options.json) print_counts(prepared);
}

// The inputs of a model's evaluation.
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
  const std::filesystem::path file =
      output_file(options, "tasks", evaluated, evaluation.ranks, nlohmann::ordered_json::object());
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
  report(options, file, labeled(evaluated, to_json(results, left_out)),
         tasks::format_categories(results) + table);
  kept.remove();
}

// Measures accuracy at each target of --sweep-target.
void sweep(TaskEvaluation& evaluation) {
  const TasksOptions& options = evaluation.options;
  inference::InferenceModel& model = evaluation.model;
  const at::Tensor windows_BL = target_windows(options.inference, evaluation.checkpoint, model.config.model);
  const tasks::EvaluatedModel evaluated = evaluated_model(options, evaluation.checkpoint, {});
  const std::filesystem::path file =
      output_file(options, "tasks-sweep", evaluated, evaluation.ranks, nlohmann::ordered_json::object());
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
  report(options, file, labeled(evaluated, to_json(budgets, evaluation.left_out)),
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

}  // namespace

void add_evaluate_tasks(CLI::App& evaluate) {
  auto options = std::make_shared<TasksOptions>();
  CLI::App* verb = evaluate.add_subcommand("tasks", "Measure the accuracy on the paper's 13 benchmark tasks");
  add_inference_options(*verb, options->inference);
  verb->add_option("--tasks", options->tasks,
                   "all (every task whose prompts fit the model's sequence length), or task names such as "
                   "copa,arc_easy")
      ->capture_default_str();
  verb->add_option("--data", options->data, "folder with the task files, NAME.jsonl[.gz|.zst]")->required();
  verb->add_option("--limit", options->limit, "evaluate only the first LIMIT items per data set")
      ->check(positive<int64_t>());
  verb->add_option("--dump", options->dump, "write one JSON line per item, with its prompt, to this file")
      ->check(in_existing_folder());
  verb->add_flag("--paper", options->paper,
                 "show the results of the paper's 1.3B models beside those of this model");
  add_sweep_option(*verb, options->sweep, {"--target-experts", "--dump", "--paper"});
  add_evaluate_options(*verb, *options);
  verb->add_flag("--dry-run", options->dry_run, "prepare the prompts without running the model")
      ->excludes(verb->get_option("--processes"));
  verb->callback([options] {
    tasks::select_tasks(options->tasks);  // refuses an unknown task before ranks start
    evaluate_on_ranks(*options, [&](distributed::Collectives& ranks) { evaluate_tasks(*options, ranks); });
  });
}

}  // namespace dtopp::cli
