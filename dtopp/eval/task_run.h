// Runs a model on prepared tasks, one after another. Finished tasks are kept beside the output, so that an
// interrupted evaluation goes on with the next one.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "dtopp/eval/inference_model.h"
#include "dtopp/tasks/results.h"
#include "dtopp/tasks/task_requests.h"

namespace dtopp {

struct TaskRunOptions {
  int64_t batch_tokens = 8192;  // computed at once
  // Where finished tasks wait for the rest; empty: nowhere, and there are no dump lines.
  std::filesystem::path parts;
  // What a finished task must have been computed with to count: the checkpoint, the thresholds.
  nlohmann::ordered_json key;
};

struct TaskRunHooks {
  std::function<void(const std::string& task, size_t done, size_t total)> progress;  // items
  std::function<void(const std::string& text)> message;
  std::function<bool()> stop;
};

// The results in the order of `tasks`. Stopped once `stop` says so; finished tasks are kept where there is a
// place for them. NumericalError where a log probability is not finite.
std::vector<TaskResult> run_tasks(const InferenceModel& model, const Tokenizer& tokenizer,
                                  std::span<const TaskRequests> tasks, const TaskRunOptions& options,
                                  const TaskRunHooks& hooks);

// The dump lines of a finished task, as dump_line makes them, each with its end.
std::string read_dump_part(const std::filesystem::path& parts, const Task& task);

}  // namespace dtopp
