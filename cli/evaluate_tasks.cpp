#include <cstdio>
#include <filesystem>
#include <iomanip>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/evaluate.h"
#include "cli/stop_signals.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/manifest.h"
#include "dtopp/base/progress.h"
#include "dtopp/config/run_config.h"
#include "dtopp/eval/expert_budget.h"
#include "dtopp/eval/task_run.h"

namespace dtopp::cli {
namespace {

nlohmann::ordered_json to_json(const PromptCounts& counts) {
  return {{"items", counts.items},
          {"sequences", counts.sequences},
          {"cut_sequences", counts.cut_sequences},
          {"tokens", counts.tokens},
          {"longest", counts.longest}};
}

void print_counts(const std::vector<TaskRequests>& prepared) {
  std::printf("%-18s %8s %10s %8s %12s %8s\n", "task", "items", "sequences", "cut", "tokens", "longest");
  for (const TaskRequests& requests : prepared) {
    const PromptCounts counts = count_prompts(requests);
    std::printf("%-18s %8lld %10lld %8lld %12lld %8lld\n", std::string(requests.task.name).c_str(),
                static_cast<long long>(counts.items), static_cast<long long>(counts.sequences),
                static_cast<long long>(counts.cut_sequences), static_cast<long long>(counts.tokens),
                static_cast<long long>(counts.longest));
  }
}

void dump_prompts(OutputFile& file, const std::vector<TaskRequests>& prepared) {
  for (const TaskRequests& requests : prepared) {
    for (size_t i = 0; i < requests.data_sets.size(); ++i) {
      for (const Request& request : requests.requests[i])
        file.write(dump_line(requests.task, requests.data_sets[i], request, nullptr, nullptr) + "\n");
    }
  }
}

// Everything short of a model.
void report_prompts(const EvaluateOptions& options, const std::vector<TaskRequests>& prepared) {
  if (!options.dump.empty())
    write_file_atomically(options.dump, [&](OutputFile& file) { dump_prompts(file, prepared); });
  nlohmann::ordered_json json = {{"tasks", nlohmann::ordered_json::object()}};
  for (const TaskRequests& requests : prepared)
    json["tasks"][std::string(requests.task.name)] = to_json(count_prompts(requests));
  if (!options.output.empty()) write_file_atomically(options.output, json.dump(2) + "\n");
  if (options.json)
    std::printf("%s\n", json.dump().c_str());
  else
    print_counts(prepared);
}

// Where the finished tasks of an evaluation wait for the others: beside what the command writes.
std::filesystem::path parts_beside(const std::string& file) { return file.empty() ? file : file + ".parts"; }

std::filesystem::path parts_of(const EvaluateOptions& options) {
  return parts_beside(options.output.empty() ? options.dump : options.output);
}

std::filesystem::path parts_at(const EvaluateOptions& options, double target) {
  std::ostringstream name;
  name << options.output << "." << target;
  return parts_beside(options.output.empty() ? std::string() : name.str());
}

void remove_parts(const std::filesystem::path& parts) {
  if (!parts.empty()) std::filesystem::remove_all(parts);
}

// What a kept result must have been computed with.
nlohmann::ordered_json run_key(const Checkpoint& checkpoint, const InferenceModel& model) {
  nlohmann::ordered_json thresholds = nlohmann::ordered_json::array();
  for (const at::Tensor& threshold : model.routing.threshold) thresholds.push_back(threshold.item<double>());
  return {{"checkpoint", hash_file(checkpoint.path() / kManifestName)},
          {"thresholds", std::move(thresholds)}};
}

std::vector<TaskResult> measure(const EvaluateOptions& options, const Checkpoint& checkpoint,
                                const InferenceModel& model, const Tokenizer& tokenizer,
                                const std::vector<TaskRequests>& prepared,
                                const std::filesystem::path& parts) {
  std::unique_ptr<ProgressBar> bar;
  std::string shown;
  TaskRunHooks hooks;
  hooks.stop = stop_requested;
  hooks.message = [](const std::string& text) { std::fprintf(stderr, "dtopp: %s\n", text.c_str()); };
  hooks.progress = [&](const std::string& task, size_t done, size_t total) {
    if (task != shown) bar = std::make_unique<ProgressBar>(task, "items", total);
    shown = task;
    bar->update(done);
  };
  const TaskRunOptions run{options.batch_size * model.config.model.sequence_length, parts,
                           run_key(checkpoint, model)};
  return run_tasks(model, tokenizer, prepared, run, hooks);
}

void write_dump(const EvaluateOptions& options, const std::vector<TaskRequests>& prepared) {
  if (options.dump.empty()) return;
  write_file_atomically(options.dump, [&](OutputFile& file) {
    for (const TaskRequests& requests : prepared) {
      file.write(read_dump_part(parts_of(options), requests.task));
    }
  });
}

void print_results(const EvaluateOptions& options, const std::vector<TaskResult>& results,
                   const nlohmann::ordered_json& json) {
  if (options.json) {
    std::printf("%s\n", json.dump().c_str());
  } else {
    std::printf("%s%s", format_categories(results).c_str(),
                (options.paper ? format_table_with_paper(results) : format_table(results)).c_str());
  }
}

// Accuracy against the number of active experts.
void sweep(const EvaluateOptions& options, const Checkpoint& checkpoint, InferenceModel& model,
           const Tokenizer& tokenizer, const std::vector<TaskRequests>& prepared) {
  const at::Tensor windows_BL = target_windows(options.inference, checkpoint, model.config.model);
  nlohmann::ordered_json entries = nlohmann::ordered_json::array();
  std::string table = "  target   average\n";
  for (const double target : options.sweep) {
    model.routing = solve_thresholds(model, windows_BL, target);
    const auto results = measure(options, checkpoint, model, tokenizer, prepared, parts_at(options, target));
    nlohmann::ordered_json entry = to_json(results);
    entry["target_experts"] = target;
    entries.push_back(std::move(entry));
    std::ostringstream line;
    line << std::setw(8) << target << std::fixed << std::setprecision(1) << std::setw(10)
         << 100 * average(results) << "\n";
    table += line.str();
  }
  const nlohmann::ordered_json json = {{"sweep", std::move(entries)}};
  if (!options.output.empty()) write_file_atomically(options.output, json.dump(2) + "\n");
  for (const double target : options.sweep) remove_parts(parts_at(options, target));
  std::printf("%s", options.json ? (json.dump() + "\n").c_str() : table.c_str());
}

}  // namespace

void evaluate_tasks(const EvaluateOptions& options) {
  const std::vector<Task> tasks = select_tasks(options.tasks);
  if (!options.text.empty()) throw UsageError("--text means nothing to --tasks " + options.tasks);
  if (options.data.empty())
    throw UsageError("--tasks " + options.tasks + " needs --data DIR with their files");
  const Checkpoint checkpoint = open_named_checkpoint(options.inference);
  const RunConfig config =
      parse_run_config(checkpoint.config_yaml(), (checkpoint.path() / "config.yaml").string());
  const Tokenizer tokenizer = load_tokenizer(options.inference, checkpoint, config.model.vocab_size);
  const int64_t limit = options.limit > 0 ? options.limit : std::numeric_limits<int64_t>::max();
  std::vector<TaskRequests> prepared;
  prepared.reserve(tasks.size());
  for (const Task& task : tasks) prepared.push_back(prepare_requests(task, options.data, tokenizer, limit));
  if (options.dry_run) return report_prompts(options, prepared);
  for (const TaskRequests& requests : prepared)
    require_sequence_length(requests, config.model.sequence_length);
  stop_on_signals();
  InferenceModel model = load_model(options.inference, checkpoint);
  if (!options.sweep.empty()) return sweep(options, checkpoint, model, tokenizer, prepared);
  meet_target(model, options.inference, checkpoint);
  const auto results = measure(options, checkpoint, model, tokenizer, prepared, parts_of(options));
  const nlohmann::ordered_json json = to_json(results);
  write_dump(options, prepared);
  if (!options.output.empty()) write_file_atomically(options.output, json.dump(2) + "\n");
  remove_parts(parts_of(options));
  print_results(options, results, json);
}

}  // namespace dtopp::cli
