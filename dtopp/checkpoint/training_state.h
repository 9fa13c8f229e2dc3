// What state.json of a checkpoint holds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtopp {

// Everything besides tensors that a run needs to go on bit for bit.
struct TrainingState {
  int64_t step = 0;             // optimiser steps done (skipped ones included)
  int64_t tokens = 0;           // tokens trained on
  int64_t sample_position = 0;  // the next sample of the global order
  int64_t seed = 0;
  std::vector<double> threshold;      // p: one value, or one per layer; written as exact doubles
  std::vector<double> error_sum;      // sum of e, likewise
  bool per_layer = false;             // written as lists instead of numbers
  int64_t skipped_steps = 0;          // non-finite steps so far
  int64_t consecutive_skips = 0;      // of which the last ones in a row
  int64_t last_validation_step = -1;  // the newest step whose validation is recorded; -1: none
  // With global batch statistics: tokens of the last applied step that chose each expert, layer after layer.
  std::vector<int64_t> expert_counts{};

  bool operator==(const TrainingState&) const = default;
};

// The JSON text; doubles in a form that reads back to the same bits. threshold, error_sum and
// expert_counts are left out when empty. DataError when a double is not finite or several values are to be
// written as one number.
std::string format_training_state(const TrainingState& state);

// DataError naming `what` (the file) and the key where the text is not such a state.
TrainingState parse_training_state(const std::string& text, const std::string& what);

}  // namespace dtopp
