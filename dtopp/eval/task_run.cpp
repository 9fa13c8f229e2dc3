#include "dtopp/eval/task_run.h"

#include <optional>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/eval/scoring.h"

namespace dtopp {
namespace {

using nlohmann::ordered_json;

std::filesystem::path part_path(const std::filesystem::path& parts, const Task& task, const char* extension) {
  return parts / (std::string(task.name) + extension);
}

ordered_json part_key(const TaskRunOptions& options, const TaskRequests& requests) {
  ordered_json key = options.key;
  key["sha256"] = requests.task.sha256;
  ordered_json counts = ordered_json::array();
  for (const auto& data_set : requests.requests) counts.push_back(data_set.size());
  key["items"] = std::move(counts);
  return key;
}

// The tallies of a task that an earlier run finished with the same key.
std::optional<std::vector<Tally>> read_part(const TaskRunOptions& options, const TaskRequests& requests) {
  if (options.parts.empty()) return std::nullopt;
  const auto path = part_path(options.parts, requests.task, ".json");
  if (!std::filesystem::is_regular_file(path)) return std::nullopt;
  // Whatever is not as write_part leaves it is computed again.
  const ordered_json part = ordered_json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  if (!part.is_object() || part.value("key", ordered_json()) != part_key(options, requests)) {
    return std::nullopt;
  }
  std::vector<Tally> tallies;
  for (size_t i = 0; i < requests.data_sets.size(); ++i) {
    const ordered_json& sums = part.at("tallies").at(i);
    if (sums.size() != 4) return std::nullopt;
    tallies.push_back({requests.data_sets[i].category, sums.at(0), sums.at(1), sums.at(2), sums.at(3)});
  }
  return tallies;
}

void write_part(const TaskRunOptions& options, const TaskRequests& requests,
                const std::vector<Tally>& tallies, const std::string& dump) {
  if (options.parts.empty()) return;
  make_directories(options.parts);
  ordered_json part = {{"key", part_key(options, requests)}, {"tallies", ordered_json::array()}};
  for (const Tally& tally : tallies)
    part["tallies"].push_back({tally.correct, tally.items, tally.nll, tally.tokens});
  write_file_atomically(part_path(options.parts, requests.task, ".jsonl"), dump);
  write_file_atomically(part_path(options.parts, requests.task, ".json"), part.dump() + "\n");
}

// nullopt when stopped before the end.
std::optional<std::vector<Tally>> run_task(const InferenceModel& model, const Tokenizer& tokenizer,
                                           const TaskRequests& requests, const TaskRunOptions& options,
                                           const TaskRunHooks& hooks) {
  std::vector<Tally> tallies;
  std::string dump;
  size_t total = 0, done = 0;
  for (const auto& data_set : requests.requests) total += data_set.size();
  for (size_t i = 0; i < requests.data_sets.size(); ++i) {
    const DataSet& data = requests.data_sets[i];
    const auto scores = score_requests(
        model, tokenizer, requests.requests[i], options.batch_tokens,
        [&](size_t scored) { hooks.progress(std::string(requests.task.name), done + scored, total); },
        hooks.stop);
    if (scores.size() < requests.requests[i].size()) return std::nullopt;
    const std::vector<Answer> answers = judge_all(requests, i, scores);
    tallies.push_back(tally(data, answers));
    for (size_t n = 0; n < scores.size() && !options.parts.empty(); ++n) {
      dump += dump_line(requests.task, data, requests.requests[i][n], &scores[n], &answers[n]) + "\n";
    }
    done += scores.size();
  }
  write_part(options, requests, tallies, dump);
  return tallies;
}

}  // namespace

std::vector<TaskResult> run_tasks(const InferenceModel& model, const Tokenizer& tokenizer,
                                  std::span<const TaskRequests> tasks, const TaskRunOptions& options,
                                  const TaskRunHooks& hooks) {
  std::vector<TaskResult> results;
  for (const TaskRequests& requests : tasks) {
    auto tallies = read_part(options, requests);
    if (tallies) {
      hooks.message(std::string(requests.task.name) + ": finished by an earlier run, taken from " +
                    options.parts.string());
    } else {
      tallies = run_task(model, tokenizer, requests, options, hooks);
    }
    if (!tallies) {
      throw Stopped("stopped in " + std::string(requests.task.name) + " after " +
                    std::to_string(results.size()) + " finished tasks; " +
                    (options.parts.empty() ? "with --output or --dump they would have been kept"
                                           : "the same command goes on from there"));
    }
    results.push_back(summarize(requests.task, *tallies));
  }
  return results;
}

std::string read_dump_part(const std::filesystem::path& parts, const Task& task) {
  return read_file(part_path(parts, task, ".jsonl"));
}

}  // namespace dtopp
