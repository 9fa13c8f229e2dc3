#include "dtopp/tasks/evaluation_files.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/json.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

void read_tasks(const Json& tasks, Evaluations& evaluations) {
  for (const auto& [name, task] : tasks.items())
    evaluations.tasks[name] = {task.at("accuracy").get<double>(), task.at("stderr").get<double>()};
}

void read_activations(const Json& json, Evaluations& evaluations) {
  evaluations.layers.clear();
  evaluations.kinds.clear();
  for (const Json& layer : json.at("layers"))
    evaluations.layers.push_back({layer.at("histogram"), layer.at("expert_load")});
  for (const auto& [by, kinds] : json.at("tokens_by").items()) {
    for (const Json& kind : kinds)
      evaluations.kinds.push_back(
          {by, kind.at("kind"), kind.at("tokens"), kind.at("mean"), kind.at("deviation")});
  }
}

void read_sweep(const Json& sweep, Evaluations& evaluations) {
  for (const Json& point : sweep) {
    const double target = point.at("target_experts");
    if (point.contains("nll"))
      evaluations.loss_sweep.push_back({point.value("active_experts", target), point.at("nll")});
    else
      evaluations.accuracy_sweep.push_back({target, point.at("average")});
  }
  const auto by_experts = [](const SweepPoint& a, const SweepPoint& b) { return a.experts < b.experts; };
  std::ranges::sort(evaluations.loss_sweep, by_experts);
  std::ranges::sort(evaluations.accuracy_sweep, by_experts);
}

void read_one(const fs::path& file, Evaluations& evaluations) {
  const Json json = parse_json(read_file(file, uint64_t{1} << 28));
  if (json.is_discarded()) throw DataError(file.string() + ": invalid JSON");
  if (!json.is_object()) return;
  try {
    if (json.contains("tasks") && json.contains("average"))
      read_tasks(json["tasks"], evaluations);
    else if (json.contains("layers") && json.contains("tokens_by"))
      read_activations(json, evaluations);
    else if (json.contains("sweep"))
      read_sweep(json["sweep"], evaluations);
  } catch (const Json::exception& error) {
    throw DataError(file.string() + ": is not a file of `dtopp evaluate --output`: " + error.what());
  }
}

}  // namespace

Evaluations read_evaluations(const fs::path& run) {
  std::vector<fs::path> files;
  for (const fs::path& path : list_directory(run)) {
    if (path.extension() == ".json" && fs::is_regular_file(path)) files.push_back(path);
  }
  std::ranges::sort(files);
  Evaluations evaluations;
  for (const fs::path& file : files) read_one(file, evaluations);
  return evaluations;
}

}  // namespace dtopp
