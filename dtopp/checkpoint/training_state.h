// Defines the training state in a checkpoint's state.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtopp {

// Everything besides tensors that a run needs to resume with the same bits.
struct TrainingState {
  int64_t step = 0;             // optimizer steps done (skipped ones included)
  int64_t tokens = 0;           // tokens trained on
  int64_t sample_position = 0;  // next sample in the global order
  int64_t seed = 0;
  std::vector<double> threshold;      // p: one value, or one per layer; written as exact doubles
  std::vector<double> error_sum;      // sum of e: one value, or one per layer
  bool per_layer = false;             // written as lists instead of numbers
  int64_t skipped_steps = 0;          // non-finite steps so far
  int64_t consecutive_skips = 0;      // non-finite steps in a row, up to the current one
  int64_t last_validation_step = -1;  // newest step whose validation is recorded; -1: none
  // With global batch statistics: the number of tokens per expert in the last applied step, layer after
  // layer.
  std::vector<int64_t> tokens_per_expert{};

  bool operator==(const TrainingState&) const = default;
};

// The JSON text. Doubles are printed such that they read back to the same bits. threshold, error_sum and
// expert_counts are left out if they are empty.
//
// Throws:        DataError if a double is not finite, or if several values are to be written as one number
std::string format_training_state(const TrainingState& state);

// Parses such a state. Throws a DataError that names `what` (the file) and the key if the text is invalid.
TrainingState parse_training_state(const std::string& text, const std::string& what);

}  // namespace dtopp
