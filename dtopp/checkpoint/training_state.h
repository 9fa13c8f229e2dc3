// Defines the training state in a checkpoint's state.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtopp::checkpoint {

// Everything besides the parameters, moments and router that a run needs to resume with the same bits.
struct TrainingState {
  int64_t step = 0;             // optimizer steps done (skipped ones included)
  int64_t tokens = 0;           // tokens trained on
  int64_t assignments = 0;      // token-expert pairs computed so far, in all layers
  int64_t sample_position = 0;  // next sample in the global order
  int64_t seed = 0;
  int64_t skipped_steps = 0;          // non-finite steps so far
  int64_t consecutive_skips = 0;      // non-finite steps in a row, up to the current one
  int64_t last_validation_step = -1;  // newest step whose validation is recorded; -1: none
  // A hash of the content of each source in data.train; empty if it was not recorded.
  std::vector<std::string> training_data{};

  bool operator==(const TrainingState&) const = default;
};

// The JSON text.
std::string format_training_state(const TrainingState& state);

// Parses such a state. Throws a DataError that names `what` (the file) and the key if the text is invalid.
TrainingState parse_training_state(const std::string& text, const std::string& what);

}  // namespace dtopp::checkpoint
