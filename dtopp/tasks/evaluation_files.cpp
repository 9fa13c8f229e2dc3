#include "dtopp/tasks/evaluation_files.h"

#include <array>
#include <exception>
#include <system_error>

#include <nlohmann/json.hpp>

#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/json.h"

namespace dtopp::tasks {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxBytes = uint64_t{1} << 28;

EvaluatedModel read_model(const Json& json) {
  return {integer_of(json.at("step")), json.value("target_experts", 0.0),
          json.value("p", std::vector<double>()), json.value("precision", "fp32") == "bf16"};
}

bool of_same_data(const Json& a, const Json& b) {
  return std::ranges::all_of(
      std::array{"texts", "by_document", "counts", "counts_seed", "replay_routing", "folder", "images"},
      [&](const char* key) { return a.value(key, Json()) == b.value(key, Json()); });
}

// Throws UsageError unless `file` is new or empty, or holds earlier results of the same work.
void require_replaceable(const fs::path& file, const EvaluatedModel& model, const Json& measured) {
  if (path_kind(file) == PathKind::kNothing) return;
  const std::string text = read_file(file, kMaxBytes);
  if (text.empty()) return;
  EvaluatedModel stored;
  bool same_data = false;
  try {
    const Json json = parse_json(text, file.string());
    stored = read_model(json);
    same_data = of_same_data(json, measured);
  } catch (const std::exception&) {  // of the reader, or of a member
    throw UsageError(file,
                     ": exists and holds no results of `dtopp evaluate`; name another file, or a folder");
  }
  if (stored != model)
    throw UsageError(file, ": holds the results of ", label_of(stored), ", but these are of ",
                     label_of(model), "; name another file, or a folder");
  if (!same_data)
    throw UsageError(file, ": holds the results of other data or of other options; name another file");
}

// Returns NaN for a member that is missing or null, as a number that is not finite is stored.
double number_or_nan(const Json& json, const char* key) {
  const auto found = json.find(key);
  const bool is_number = found != json.end() && !found->is_null();
  return is_number ? found->get<double>() : std::numeric_limits<double>::quiet_NaN();
}

TextLoss read_loss(const Json& json, std::string text) {
  return {std::move(text), number_or_nan(json, "nll"), number_or_nan(json, "bits_per_byte"),
          number_or_nan(json, "active_experts")};
}

// "a.txt + b.txt", or the file's name if it names no texts.
std::string texts_of(const Json& json, const fs::path& file) {
  std::string texts;
  for (const Json& text : json.value("texts", Json::array({file.filename().string()})))
    texts += (texts.empty() ? "" : " + ") + text.get<std::string>();
  return texts;
}

void read_activations(const Json& json, const fs::path& file, Evaluation& evaluation) {
  TextActivations activations{texts_of(json, file)};
  for (const Json& layer : json.at("layers"))
    activations.layers.push_back({layer.at("histogram"), layer.at("expert_load")});
  for (const auto& [by, kinds] : json.at("tokens_by").items()) {
    for (const Json& kind : kinds)
      activations.kinds.push_back(
          {by, kind.at("kind"), kind.at("tokens"), kind.at("mean"), kind.at("deviation")});
  }
  evaluation.activations.push_back(std::move(activations));
}

// Reads the losses of all texts together and of each source.
void read_texts(const Json& json, const fs::path& file, Evaluation& evaluation) {
  const std::string texts = texts_of(json, file);
  std::string options;
  if (json.value("by_document", false)) options += ", by document";
  if (json.contains("counts")) options += ", counts " + json["counts"].get<std::string>();
  if (json.contains("replay_routing")) options += ", experts of " + json["replay_routing"].get<std::string>();
  evaluation.texts.push_back(read_loss(json, texts + options));
  for (const Json& source : json.value("sources", Json::array()))
    evaluation.texts.push_back(read_loss(source, source.at("source").get<std::string>() + options));
}

// The losses of a sweep belong to the budgets of their own.
void read_sweep(const Json& json, const fs::path& file, std::map<EvaluatedModel, Evaluation>& by_model) {
  EvaluatedModel model = read_model(json);
  std::vector<SweepPoint>& accuracies = by_model[model].accuracy_sweep;
  for (const Json& point : json["sweep"]) {
    const double target = point.at("target_experts");
    if (!point.contains("nll")) {
      accuracies.push_back({target, point.at("average")});
      continue;
    }
    Json texts = json;
    texts.update(point);
    model.target_experts = target;
    read_texts(texts, file, by_model[model]);
  }
  std::ranges::sort(accuracies, {}, &SweepPoint::experts);
}

void read_one(const Json& json, const fs::path& file, std::map<EvaluatedModel, Evaluation>& by_model) {
  if (json.contains("tasks") && json.contains("average")) {
    auto& scores = by_model[read_model(json)].tasks;
    for (const auto& [name, task] : json["tasks"].items())
      scores[name] = {task.at("accuracy"), task.at("stderr")};
  } else if (json.contains("layers") && json.contains("tokens_by")) {
    read_activations(json, file, by_model[read_model(json)]);
  } else if (json.contains("nll") && json.contains("perplexity")) {
    read_texts(json, file, by_model[read_model(json)]);
  } else if (json.contains("sweep")) {
    read_sweep(json, file, by_model);
  }
}

}  // namespace

ordered_json to_json(const EvaluatedModel& model) {
  ordered_json json = {{"step", model.step}};
  if (model.target_experts > 0) json["target_experts"] = model.target_experts;
  if (!model.p.empty()) json["p"] = model.p;
  if (model.in_bf16) json["precision"] = "bf16";
  return json;
}

std::string label_of(const EvaluatedModel& model) {
  std::string label = "step " + std::to_string(model.step);
  if (model.target_experts > 0) label += ", " + format("%g", model.target_experts) + " experts";
  return model.in_bf16 ? label + ", bf16" : label;
}

fs::path results_file(const fs::path& output, const std::string& kind, const EvaluatedModel& model,
                      const Json& measured) {
  fs::path file = output;
  if (!output.has_filename() || path_kind(output) == PathKind::kDirectory) {
    const std::string experts = model.target_experts > 0 ? format("-experts-%g", model.target_experts) : "";
    file /= kind + format("-step-%08ld", model.step) + experts + (model.in_bf16 ? "-bf16" : "") + ".json";
  }
  require_replaceable(file, model, measured);
  return file;
}

Evaluations read_evaluations(const fs::path& run) {
  std::vector<fs::path> files;
  for (const fs::path& path : list_directory(run)) {
    std::error_code gone;
    if (path.extension() == ".json" && fs::is_regular_file(path, gone)) files.push_back(path);
  }
  std::ranges::sort(files);
  Evaluations evaluations;
  for (const fs::path& file : files) {
    try {
      const Json json = parse_json(read_file(file, kMaxBytes), file.string());
      if (!json.is_object()) continue;
      auto by_model = evaluations.by_model;  // only complete files count
      read_one(json, file, by_model);
      evaluations.by_model = std::move(by_model);
    } catch (const DataError& error) {
      evaluations.skipped.push_back(std::string(error.what()) + "; skipped");
    } catch (const Json::exception& error) {
      evaluations.skipped.push_back(file.string() +
                                    ": is not a complete file of `dtopp evaluate --output`: " + error.what() +
                                    "; skipped");
    }
  }
  return evaluations;
}

}  // namespace dtopp::tasks
