#include "dtopp/eval/in_training/probes.h"

#include <cerrno>
#include <limits>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/path_kind.h"
#include "dtopp/data/tokens/token_file.h"
#include "dtopp/eval/scoring.h"
#include "dtopp/tasks/results.h"
#include "dtopp/tasks/task_requests.h"

namespace dtopp {
namespace {

Tokenizer training_tokenizer(const DataConfig& data) {
  for (const std::string& folder : data.train_paths()) {
    if (const auto path = tokenizer_beside(folder)) return Tokenizer::load(*path);
  }
  for (const std::string& path : data.train_paths()) {
    const bool absent =
        path_kind(path) == PathKind::kNothing && path_kind(path + ".idx") == PathKind::kNothing;
    if (absent) throw file_error("open", path, ENOENT);
  }
  throw UsageError(
      "validation.tasks: no data of data.train has a tokenizer.json; prepare it with dtopp prepare text, or "
      "set validation.tasks=[]");
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

struct PreparedProbes {
  RunConfig config;
  Tokenizer tokenizer;
  std::vector<TaskRequests> tasks;
};

// Returns the accuracy of one task; nullopt if stopped, NaN if a log probability is not finite.
std::optional<double> accuracy(const PreparedProbes& probes, const InferenceModel& model,
                               const TaskRequests& requests, Collectives& ranks,
                               const std::function<bool()>& stop) {
  const int64_t batch_tokens = probes.config.training.micro_batch_size * probes.config.model.sequence_length;
  const BatchHooks hooks = {[](uint64_t /*done*/) {}, stop};
  const auto scored = score_task(model, probes.tokenizer, requests, batch_tokens, ranks, hooks);
  if (!scored) return std::nullopt;
  std::vector<Tally> tallies;
  try {
    for (size_t i = 0; i < requests.data_sets.size(); ++i)
      tallies.push_back(tally(requests.data_sets[i], judge_all(requests, i, (*scored)[i].scores)));
  } catch (const NumericalError&) {  // training continues and may recover
    return std::numeric_limits<double>::quiet_NaN();
  }
  return summarize(requests.task, tallies).accuracy;
}

}  // namespace

Probes make_probes(const RunConfig& config, const std::function<bool()>& stop) {
  if (config.validation.tasks.empty() || config.validation.every == 0) return {};
  const std::vector<Task> tasks = select_tasks(joined(config.validation.tasks));
  auto probes = std::make_shared<PreparedProbes>(
      PreparedProbes{config, training_tokenizer(config.data), std::vector<TaskRequests>()});
  const int64_t limit =
      config.validation.task_limit > 0 ? config.validation.task_limit : std::numeric_limits<int64_t>::max();
  for (const Task& task : tasks) {
    probes->tasks.push_back(prepare_requests(task, config.validation.task_data, probes->tokenizer, limit));
  }
  take_out_long_tasks(probes->tasks, joined(config.validation.tasks), config.model.sequence_length);
  return [probes, stop](const ParameterLookup& parameter, const RoutingInputs& routing,
                        Collectives& ranks) -> std::optional<ProbeResults> {
    const at::NoGradGuard no_grad;
    InferenceModel model{probes->config,
                         bind_language_model(probes->config.model, probes->config.routing, parameter),
                         routing};
    model.model.end_of_text = probes->tokenizer.end_of_text();
    ProbeResults results;
    for (const TaskRequests& requests : probes->tasks) {
      const auto share = accuracy(*probes, model, requests, ranks, stop);
      if (!share) return std::nullopt;
      results.emplace_back(requests.task.name, *share);
    }
    return results;
  };
}

}  // namespace dtopp
