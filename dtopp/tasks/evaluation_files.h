// Reads the result files that `dtopp evaluate --output` has written into a run's folder.
#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace dtopp::tasks {

// The checkpoint, the budget and the precision that results belong to.
struct EvaluatedModel {
  int64_t step = 0;            // of the checkpoint
  double target_experts = 0;   // active experts per token that p was solved for; 0: the checkpoint's own p
  std::vector<double> p = {};  // thresholds by layer; empty if the routing has none
  bool in_bf16 = false;        // computed in bf16; false: in fp32

  // p follows from the other members.
  auto operator<=>(const EvaluatedModel& other) const {
    return std::tuple(step, target_experts, in_bf16) <=>
           std::tuple(other.step, other.target_experts, other.in_bf16);
  }
  bool operator==(const EvaluatedModel& other) const { return std::is_eq(*this <=> other); }
};

// {"step", "target_experts", "p", "precision"}. "target_experts" and "p" are missing if there is none,
// "precision" if it is fp32.
nlohmann::ordered_json to_json(const EvaluatedModel& model);

// "step 512", or "step 512, 4 experts, bf16" for a target and bf16.
std::string label_of(const EvaluatedModel& model);

// Returns the file for results of `kind` ("tasks", "text-novels", …). If `output` is a folder, it is
// `output`/tasks-step-00000512.json, with "-experts-4" for a target and "-bf16" for bf16; otherwise it is
// `output`. `measured` is the part of the results that names the texts or images and their options.
//
// Throws: UsageError if the file holds results of another checkpoint, budget, precision, text, folder of
//         images or option, or no results
std::filesystem::path results_file(const std::filesystem::path& output, const std::string& kind,
                                   const EvaluatedModel& model, const nlohmann::json& measured);

// Results of `evaluate --output` files for one checkpoint and budget, by kind.
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
// The active experts of the texts of one file.
struct TextActivations {
  std::string texts;
  std::vector<LayerActivations> layers = {};
  std::vector<KindOfTokens> kinds = {};
};
// The loss of a text, or of one of its sources.
struct TextLoss {
  std::string text;           // paths or the source, and options that change the loss
  double nll = 0;             // nats per token
  double bits_per_byte = 0;   // NaN if it was not measured
  double active_experts = 0;  // per token; NaN if it was not measured
};
struct SweepPoint {
  double experts = 0, accuracy = 0;  // the average over tasks
};
struct Evaluation {
  std::map<std::string, TaskScore> tasks;
  std::vector<TextActivations> activations;
  std::vector<TextLoss> texts;
  std::vector<SweepPoint> accuracy_sweep;
};

struct Evaluations {
  std::map<EvaluatedModel, Evaluation> by_model;
  std::vector<std::string> skipped;  // one line per file that could not be read
};
// Reads all *.json files in `run` and ignores JSON of other kinds. Skips files that are damaged or
// incomplete.
Evaluations read_evaluations(const std::filesystem::path& run);

}  // namespace dtopp::tasks
