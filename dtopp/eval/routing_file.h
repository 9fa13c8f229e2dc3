// Which experts the tokens of a text took, as a safetensors file: bool [T, E] for each layer, "layer_00" on,
// T the tokens that the model reads of the text, in their order. To be replayed, by the same or another
// model.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "dtopp/eval/perplexity.h"

namespace dtopp {

// Collects what a model chose; a byte for each token, expert and layer is in memory.
class RoutingDump {
 public:
  // num_tokens: T. UsageError for a dense model.
  RoutingDump(const InferenceModel& model, int64_t num_tokens);

  void add(const TextWindows& windows, const HiddenStates& states);
  // DataError where it cannot be written.
  void write(const std::filesystem::path& path) const;

 private:
  std::vector<at::Tensor> selection_LTE_;  // of each layer, on the CPU
};

// The selections that a file holds, for measure_perplexity. UsageError naming the layer where it is not of
// `num_tokens` tokens of such a model, or the model is dense; DataError where the file is damaged.
ReplayWindows replay_of(const std::filesystem::path& path, const InferenceModel& model, int64_t num_tokens);

}  // namespace dtopp
