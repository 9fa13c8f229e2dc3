// What a report is made of: runs with their metrics and what was measured on them, and a study's table.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtopp/config/run_config.h"
#include "dtopp/metrics/run_history.h"
#include "dtopp/study/token_cost.h"

namespace dtopp {

// What `dtopp plan` says of a run.
struct PlannedCost {
  TokenCost token;
  double memory_bytes = 0;  // of one process at its peak
};
using FindCost = std::function<std::optional<PlannedCost>(const RunConfig&)>;

// A file that `evaluate --output` has written into the run's folder, by what it holds.
struct TaskScore {
  double accuracy = 0, standard_error = 0;  // fractions
};
struct LayerActivations {
  std::vector<double> histogram;    // [n]: tokens with n experts
  std::vector<double> expert_load;  // [e]: the share of tokens that chose e
};
struct KindOfTokens {
  std::string by, kind;
  double tokens = 0, mean = 0, deviation = 0;
};
struct SweepPoint {
  double experts = 0, value = 0;  // value: nll in nats a token, or the average accuracy
};
struct Evaluations {
  std::map<std::string, TaskScore> tasks;
  std::vector<LayerActivations> layers;
  std::vector<KindOfTokens> kinds;
  std::vector<SweepPoint> loss_sweep, accuracy_sweep;
};
// Of all *.json below `run`; other JSON is passed over. DataError where one is no JSON or lacks a part.
Evaluations read_evaluations(const std::filesystem::path& run);

struct ReportRun {
  std::string name;  // unlike all others
  std::filesystem::path path;
  RunConfig config;
  RunHistory history;
  Evaluations evaluations;
  std::optional<PlannedCost> cost;
  std::string study_row;  // of a study's run: StudyRow::name
};

// Runs that differ in their seeds alone.
struct RunGroup {
  std::string name;
  std::vector<size_t> runs;
};

// A number of study.json: none where it could not be computed.
struct StudyValue {
  std::optional<double> mean, half_width, p, p_holm;
};
struct StudyRow {
  std::string name;  // variant and grid point; where another study has the same, its path too
  int64_t n = 0;
  std::map<std::string, StudyValue> values, differences;  // by measure
  std::vector<std::string> notes;                         // why something could not be computed
};

// A measure over training: its mean over a row's seeds, with the half-widths of its intervals (NaN: none).
struct StudyCurve {
  std::string row, measure, axis;  // "tokens", "active_flops", "seconds"
  size_t n = 0;                    // seeds
  std::vector<double> x, mean, half_width;
};

struct ReportInput {
  std::string title;
  std::vector<ReportRun> runs;
  std::vector<std::filesystem::path> folders;  // of runs, also of those that cannot be taken yet
  std::vector<RunGroup> groups;                // every run is in one
  std::vector<StudyCurve> curves;
  std::vector<StudyRow> study;               // empty: no study
  std::map<std::string, size_t> study_runs;  // by status
};

// Of folders of runs and of studies (those that hold a study.json, whose runs that have metrics are taken,
// but those of another configuration than the study gives them now). UsageError where there is no such run or
// study, DataError where metrics or another file is damaged.
ReportInput read_report_input(const std::vector<std::filesystem::path>& paths, const FindCost& find_cost);

}  // namespace dtopp
