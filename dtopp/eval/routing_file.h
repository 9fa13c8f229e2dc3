// Stores the experts that each token of a text used in a safetensors file, and replays them on a model.
//
// The file holds one tensor per layer: "layer_00", "layer_01", …, bool [T, E]. T counts the tokens that the
// model reads, in text order. The replaying model may differ from the recorded one.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "dtopp/eval/perplexity.h"

namespace dtopp {

// Collects the experts that a model selects. It keeps one byte per token, expert and layer in memory.
class RoutingDump {
 public:
  // `num_tokens` is T. Throws UsageError if the model is dense.
  RoutingDump(const InferenceModel& model, int64_t num_tokens);

  void add(const TextWindows& windows, const HiddenStates& states);
  // Writes the file. Throws DataError if it cannot be written.
  void write(const std::filesystem::path& path) const;

 private:
  std::vector<at::Tensor> routing_map_LTE_;  // one tensor per layer, on the CPU
};

// Opens a file of selections for measure_perplexity.
//
// Throws: UsageError if the model is dense or a layer's tensor does not match the model and `num_tokens`; the
//         message names the layer. DataError if the file is damaged.
ReplayWindows replay_of(const std::filesystem::path& path, const InferenceModel& model, int64_t num_tokens);

}  // namespace dtopp
