#include <cstdio>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/evaluate.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/data/tokenizer.h"
#include "dtopp/eval/results.h"
#include "dtopp/eval/task_requests.h"
#include "dtopp/train/run_config.h"

namespace dtopp::cli {
namespace {

// The checkpoint's tokenizer, or the one named for a checkpoint without; its ids are ids of the model.
Tokenizer load_tokenizer(const EvaluateOptions& options, const Checkpoint& checkpoint, int64_t vocab_size) {
  const bool has_own = std::filesystem::is_regular_file(checkpoint.tokenizer_path());
  if (!has_own && options.tokenizer.empty())
    throw UsageError(checkpoint.path().string() +
                     " holds no tokenizer.json (its run was trained on bare token files): pass --tokenizer");
  const std::string path = has_own ? checkpoint.tokenizer_path().string() : options.tokenizer;
  Tokenizer tokenizer = Tokenizer::load(path);
  if (has_own && !options.tokenizer.empty() && Tokenizer::load(options.tokenizer).hash() != tokenizer.hash())
    throw UsageError("--tokenizer " + options.tokenizer +
                     ": not the one the checkpoint was trained with; leave " + "it out");
  if (tokenizer.vocab_size() > vocab_size)
    throw UsageError(path + ": a tokenizer of " + std::to_string(tokenizer.vocab_size()) +
                     " ids does not fit the checkpoint's model.vocab_size of " + std::to_string(vocab_size));
  return tokenizer;
}

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

}  // namespace

void evaluate_tasks(const EvaluateOptions& options) {
  const std::vector<Task> tasks = select_tasks(options.tasks);
  if (!options.text.empty()) throw UsageError("--text means nothing to --tasks " + options.tasks);
  if (options.data.empty())
    throw UsageError("--tasks " + options.tasks + " needs --data DIR with their files");
  const Checkpoint checkpoint = open_named_checkpoint(options);
  const RunConfig config =
      parse_run_config(checkpoint.config_yaml(), (checkpoint.path() / "config.yaml").string());
  const Tokenizer tokenizer = load_tokenizer(options, checkpoint, config.model.vocab_size);
  const int64_t limit = options.limit > 0 ? options.limit : std::numeric_limits<int64_t>::max();
  std::vector<TaskRequests> prepared;
  prepared.reserve(tasks.size());
  for (const Task& task : tasks) prepared.push_back(prepare_requests(task, options.data, tokenizer, limit));
  if (options.dry_run) return report_prompts(options, prepared);
  for (const TaskRequests& requests : prepared)
    require_sequence_length(requests, config.model.sequence_length);
  throw UsageError("--tasks " + options.tasks + ": this version runs a model for perplexity only; " +
                   "--dry-run makes the prompts");
}

}  // namespace dtopp::cli
