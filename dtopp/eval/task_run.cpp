#include "dtopp/eval/task_run.h"

#include <optional>

#include "dtopp/base/errors.h"
#include "dtopp/base/format.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/manifest.h"
#include "dtopp/device/device.h"
#include "dtopp/distributed/rank_agreement.h"
#include "dtopp/eval/scoring.h"
#include "dtopp/tasks/task_requests.h"

namespace dtopp::eval {
namespace {

using nlohmann::ordered_json;

// Returns one tally per data set; nullopt if stopped before the end.
std::optional<std::vector<tasks::Tally>> run_task(const inference::InferenceModel& model,
                                                  const data::Tokenizer& tokenizer,
                                                  const tasks::TaskRequests& requests,
                                                  tasks::KeptResults& kept, int64_t batch_tokens,
                                                  distributed::Collectives& ranks, inference::Watch& watch) {
  const std::string name(requests.task.name);
  size_t total = 0;
  for (const auto& data_set : requests.requests) total += data_set.size();
  watch.begin(name, "items", total);
  const auto scored = score_task(model, tokenizer, requests, batch_tokens, ranks, watch);
  if (!scored) return std::nullopt;
  std::vector<tasks::Tally> tallies;
  std::string dump;
  for (size_t i = 0; i < requests.data_sets.size(); ++i) {
    const tasks::DataSet& data = requests.data_sets[i];
    const std::vector<tasks::Scores>& of_data = (*scored)[i].scores;
    const std::vector<tasks::Answer> answers = tasks::judge_all(requests, i, of_data);
    tallies.push_back(tasks::tally(data, answers));
    tallies.back().experts = (*scored)[i].experts;
    for (size_t n = 0; n < of_data.size() && kept.keeps(); ++n) {
      dump += tasks::dump_line(requests.task, data, requests.requests[i][n], &of_data[n], &answers[n]) + "\n";
    }
  }
  if (!kept.keep(requests, tallies, std::move(dump)))
    watch.message(name + ": the finished task is not stored: " + kept.folder().string() +
                  " has other files of its names; move them to another folder");
  return tallies;
}

}  // namespace

std::vector<tasks::TaskResult> run_tasks(const inference::InferenceModel& model,
                                         const data::Tokenizer& tokenizer,
                                         std::span<const tasks::TaskRequests> tasks, tasks::KeptResults& kept,
                                         int64_t batch_tokens, distributed::Collectives& ranks,
                                         inference::Watch& watch) {
  std::vector<tasks::TaskResult> results;
  for (const tasks::TaskRequests& requests : tasks) {
    const std::string name(requests.task.name);
    auto tallies = kept.find(requests);
    if (tallies)
      watch.message(name + ": finished by an earlier run; results taken from " + kept.folder().string());
    if (!distributed::any_of(ranks, tallies.has_value())) {
      tallies = run_task(model, tokenizer, requests, kept, batch_tokens, ranks, watch);
      if (!tallies) {
        throw Stopped("stopped in " + name + " after " + std::to_string(results.size()) +
                      " finished tasks; " +
                      (kept.keeps() ? "run the same command again to resume"
                                    : "they are not kept without --output or --dump"));
      }
    }
    if (tallies) results.push_back(tasks::summarize(requests.task, *tallies));
  }
  return results;
}

ordered_json run_key(const checkpoint::Checkpoint& checkpoint, const inference::InferenceModel& model,
                     const data::Tokenizer& tokenizer, const std::string& version) {
  // "cpu" alone: a CPU's description names the number of threads, which may differ on resume.
  const at::Device device = model.device();
  return {{"checkpoint", hash_file(checkpoint.path() / kManifestName)},
          {"thresholds",
           model.routing.router ? model.routing.router->metric("threshold") : std::vector<double>()},
          {"tokenizer", tokenizer.hash()},
          {"precision", c10::toString(model.model.embed_VD().scalar_type())},
          {"device", device.is_cpu() ? "cpu" : device::describe_device(device)},
          {"version", version}};
}

ordered_json to_json(std::span<const BudgetResult> sweep, std::span<const tasks::LongTask> left_out) {
  ordered_json entries = ordered_json::array();
  for (const BudgetResult& budget : sweep) {
    ordered_json entry = to_json(budget.results, left_out);
    entry["target_experts"] = budget.target_experts;
    entries.push_back(std::move(entry));
  }
  return {{"sweep", std::move(entries)}};
}

std::string format_table(std::span<const BudgetResult> sweep, std::span<const tasks::LongTask> left_out) {
  std::string table = tasks::format_left_out(left_out) + "  target   average\n";
  for (const BudgetResult& budget : sweep)
    table += format("%8g%10.1f\n", budget.target_experts, 100 * tasks::average(budget.results));
  return table;
}

}  // namespace dtopp::eval
