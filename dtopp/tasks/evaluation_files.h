// Reads the result files that `dtopp evaluate --output` has written into a run's folder.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace dtopp {

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

}  // namespace dtopp
