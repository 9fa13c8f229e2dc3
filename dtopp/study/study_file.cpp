#include "dtopp/study/study_file.h"

#include <nlohmann/json.hpp>

#include "dtopp/base/files.h"
#include "dtopp/base/json.h"

namespace dtopp::study {
namespace {

using Json = nlohmann::json;

constexpr char kStudyFile[] = "study.json";
constexpr char kCurvesFile[] = "curves.json";

fs::path file_of(const fs::path& path) { return path.filename() == kStudyFile ? path : path / kStudyFile; }

std::optional<double> number(const Json& json, const char* key) {
  const Json value = json.value(key, Json());
  return value.is_null() ? std::nullopt : std::optional(value.get<double>());
}

std::map<std::string, Comparison> read_measures(const Json& row) {
  std::map<std::string, Comparison> measures;
  for (const auto& [measure, value] : row.at("values").items()) {
    measures[measure].values = {number(value, "mean"), number(value, "half_width"),
                                integer_of(value.at("n"))};
    measures[measure].diverged = integer_of(value.at("diverged"));
  }
  const Json differences = row.value("difference", Json());
  for (const auto& [measure, value] : differences.items()) {
    measures[measure].difference = {number(value, "mean"), number(value, "half_width"), number(value, "p"),
                                    integer_of(value.at("n"))};
    measures[measure].p_holm = number(value, "p_holm");
  }
  return measures;
}

// "dtop-p, model.num_experts 64"
std::string name_of(const Json& row) {
  std::string name = row.at("variant").get<std::string>();
  for (const auto& [key, value] : row.at("grid").items())
    name += ", " + key + " " + (value.is_string() ? value.get<std::string>() : dump_json(value));
  return name;
}

std::vector<StudyCurve> read_curves(const fs::path& file) {
  const Json json = parse_json(read_file(file), file.string());
  std::vector<StudyCurve> curves;
  try {
    for (const Json& curve : json.at("curves")) {
      curves.push_back({name_of(curve), curve.at("measure"), curve.at("axis"),
                        static_cast<size_t>(integer_of(curve.at("n"))), numbers_of(curve.at("x")),
                        numbers_of(curve.at("mean")), numbers_of(curve.at("half_width"))});
      const StudyCurve& made = curves.back();
      if (made.mean.size() != made.x.size() || made.half_width.size() != made.x.size())
        throw DataError(file, ": ", made.row, ": x, mean and half_width differ in length");
    }
  } catch (const Json::exception& error) {
    throw DataError(file, ": is not a study's curves.json: ", error.what());
  }
  return curves;
}

// Returns the folder of a run: its recorded path, or the folder beside study.json if the study was moved.
fs::path find_run(const fs::path& path, const fs::path& folder) {
  if (path.is_absolute() || path_kind(path) != PathKind::kNothing) return path;
  return folder / "runs" / path.filename();
}

}  // namespace

bool is_study(const fs::path& path) { return path_kind(file_of(path)) == PathKind::kFile; }

StudyFile read_study_file(const fs::path& path) {
  const fs::path file = file_of(path);
  const Json json = parse_json(read_file(file), file.string());
  StudyFile study;
  try {
    for (const Json& run : json.at("runs")) {
      const auto status = run.at("status").get<std::string>();
      study.runs.push_back({find_run(run.at("path").get<std::string>(), file.parent_path()), name_of(run),
                            status == "pending" ? run.at("config_hash").get<std::string>() : ""});
      ++study.by_status[status];
    }
    for (const Json& row : json.at("table")) {
      study.rows.push_back({name_of(row), integer_of(row.at("n")), read_measures(row),
                            row.value("notes", std::vector<std::string>())});
    }
  } catch (const Json::exception& error) {
    throw DataError(file, ": is not a study.json file: ", error.what());
  }
  if (path_kind(file.parent_path() / kCurvesFile) == PathKind::kFile)
    study.curves = read_curves(file.parent_path() / kCurvesFile);
  return study;
}

}  // namespace dtopp::study
