#include "dtopp/report/input.h"

#include <set>
#include <sstream>
#include <system_error>

#include "dtopp/base/errors.h"
#include "dtopp/checkpoint/tensor_files.h"
#include "dtopp/runs/run_directory.h"
#include "dtopp/study/run_folder.h"

namespace dtopp::report {
namespace {

constexpr char kMetricsFile[] = "metrics.jsonl";

std::optional<Samples> read_samples(const fs::path& folder) {
  constexpr uint64_t kMostBytes = uint64_t{4} << 20;
  if (path_kind(folder) != PathKind::kDirectory) return std::nullopt;
  std::error_code gone;
  fs::path newest;
  for (const fs::path& file : list_directory(folder)) {
    const bool is_sample = file.extension() == ".txt" || file.extension() == ".png";
    if (is_sample && checkpoint::is_checkpoint_name(file.stem().string()) && fs::is_regular_file(file, gone))
      newest = std::max(newest, file);
  }
  if (newest.empty()) return std::nullopt;
  Samples samples{newest};
  const std::string name = newest.stem().string();
  std::from_chars(name.data() + name.find('-') + 1, name.data() + name.size(), samples.step);
  if (fs::file_size(newest, gone) > kMostBytes) return samples;
  std::string content = read_file(newest, kMostBytes);
  if (newest.extension() == ".png") {
    samples.png = std::move(content);
    return samples;
  }
  std::istringstream lines(content);
  for (std::string line; std::getline(lines, line);) samples.texts.push_back(line);
  return samples;
}

ReportRun read_run(const fs::path& path, const FindCost& find_cost) {
  if (path_kind(path) == PathKind::kNothing) throw UsageError(path, ": the run does not exist");
  auto config = runs::config_of(path);
  if (!config)
    throw UsageError(path, ": is neither a run nor a study; config.yaml and study.json are missing");
  if (path_kind(path / kMetricsFile) == PathKind::kNothing)
    throw UsageError(path, ": the run has no metrics.jsonl yet; wait for its first step");
  ReportRun run;
  run.name = config->name.empty() ? path.filename().string() : config->name;
  run.path = path;
  run.history = runs::read_run_history(path / kMetricsFile);
  run.evaluations = tasks::read_evaluations(path);
  run.samples = read_samples(path / "samples");
  run.planned_bytes = find_cost != nullptr ? find_cost(*config) : std::nullopt;
  run.config = std::move(*config);
  return run;
}

// Makes names unique: runs with the same name also get their path.
void tell_apart(std::vector<ReportRun>& runs) {
  std::map<std::string, int> counts;
  for (const ReportRun& run : runs) ++counts[run.name];
  for (ReportRun& run : runs)
    if (counts[run.name] > 1) run.name += " (" + run.path.string() + ")";
}

// Makes row names unique: rows with the same name in several studies also get the path of their study.
void tell_rows_apart(std::map<fs::path, study::StudyFile>& studies) {
  std::map<std::string, int> counts;
  for (const auto& [path, study] : studies)
    for (const study::StudyRow& row : study.rows) ++counts[row.name];
  for (auto& [path, study] : studies) {
    const auto add_path = [&counts, &path = path](std::string& row) {
      if (counts[row] > 1) row += " (" + path.string() + ")";
    };
    for (study::StudyRow& row : study.rows) add_path(row.name);
    for (study::StudyFile::Run& run : study.runs) add_path(run.row);
    for (study::StudyCurve& curve : study.curves) add_path(curve.row);
  }
}

bool differ_in_seed_alone(const config::RunConfig& a, const config::RunConfig& b) {
  static const std::set<std::string> kFree = {"name", "output", "training.seed"};
  const auto keys = config::differing_keys(a, b);
  return std::ranges::all_of(keys, [](const std::string& key) { return kFree.contains(key); });
}

// Returns the common part of the names of a group's runs: "dtop-p" for "dtop-p-seed1" and "dtop-p-seed2".
std::string name_of_seeds(const std::vector<ReportRun>& runs, const RunGroup& group) {
  if (!runs[group.runs[0]].study_row.empty()) return runs[group.runs[0]].study_row;
  std::string name = runs[group.runs[0]].name;
  if (group.runs.size() == 1) return name;
  for (const size_t run : group.runs) name.erase(std::ranges::mismatch(name, runs[run].name).in1, name.end());
  name = name.substr(0, name.find(" ("));
  for (const std::string_view end : {"-", "_", " ", "seed", "-", "_", " "})
    if (name.ends_with(end)) name.erase(name.size() - end.size());
  return name.empty() ? runs[group.runs[0]].name : name;
}

std::vector<RunGroup> group_runs(const std::vector<ReportRun>& runs) {
  std::vector<RunGroup> groups;
  for (size_t run = 0; run < runs.size(); ++run) {
    const auto group = std::ranges::find_if(groups, [&](const RunGroup& candidate) {
      const config::RunConfig& first = runs[candidate.runs[0]].config;
      // Two runs with the same seed are not two samples, so they belong to different groups.
      return differ_in_seed_alone(first, runs[run].config) &&
             std::ranges::none_of(candidate.runs, [&](size_t other) {
               return runs[other].config.training.seed == runs[run].config.training.seed;
             });
    });
    if (group == groups.end())
      groups.push_back({runs[run].name, {run}});
    else
      group->runs.push_back(run);
  }
  for (RunGroup& group : groups) group.name = name_of_seeds(runs, group);
  return groups;
}

}  // namespace

ReportInput read_report_input(const std::vector<fs::path>& paths, const FindCost& find_cost) {
  std::map<fs::path, study::StudyFile> studies;
  for (const fs::path& path : paths)
    if (study::is_study(path)) studies.emplace(path, study::read_study_file(path));
  tell_rows_apart(studies);
  ReportInput input;
  for (const fs::path& path : paths) {
    const auto found = studies.find(path);
    if (found == studies.end()) {
      input.runs.push_back(read_run(path, find_cost));
      input.folders.push_back(path);
      continue;
    }
    const study::StudyFile& study = found->second;
    for (const study::StudyFile::Run& run : study.runs) {
      input.folders.push_back(run.path);
      if (path_kind(run.path / kMetricsFile) == PathKind::kNothing) continue;
      if (!run.hash.empty() && !study::holds_run(run.path, run.hash)) continue;
      input.runs.push_back(read_run(run.path, find_cost));
      input.runs.back().study_row = run.row;
    }
    std::ranges::copy(study.rows, std::back_inserter(input.study));
    std::ranges::copy(study.curves, std::back_inserter(input.curves));
    for (const auto& [status, n] : study.by_status) input.study_runs[status] += n;
    input.title = without_trailing_slash(path.lexically_normal()).filename().string();
  }
  if (input.runs.empty())
    throw UsageError(paths.at(0),
                     ": the study has no run with metrics yet; wait for the first step of a run");
  tell_apart(input.runs);
  input.groups = group_runs(input.runs);
  if (input.title.empty())
    input.title = input.runs.size() == 1 ? input.runs[0].name : std::to_string(input.runs.size()) + " runs";
  return input;
}

}  // namespace dtopp::report
