// Reads the result files that `dtopp evaluate --output` has written into a run's folder.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace dtopp {

// Results of `evaluate --output` files in the run's folder, by kind.
struct TaskScore {
  double accuracy = 0, standard_error = 0;  // fractions of 1
};
struct LayerActivations {
  std::vector<double> histogram;    // [n]: number of tokens with n experts
  std::vector<double> expert_load;  // [e]: share of tokens that selected expert e
};
struct KindOfTokens {
  std::string by, kind;
  double tokens = 0, mean = 0, deviation = 0;
};
struct SweepPoint {
  double experts = 0, value = 0;  // value: nll in nats per token, or the average accuracy
};
struct Evaluations {
  std::map<std::string, TaskScore> tasks;
  std::vector<LayerActivations> layers;
  std::vector<KindOfTokens> kinds;
  std::vector<SweepPoint> loss_sweep, accuracy_sweep;
};
// Reads all *.json files in `run` and ignores JSON of other kinds. Throws DataError if a file is invalid or
// incomplete.
Evaluations read_evaluations(const std::filesystem::path& run);

}  // namespace dtopp
