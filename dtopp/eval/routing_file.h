// Stores the experts that each token of a text used in a safetensors file, and replays them on a model.
//
// The file holds one tensor per layer: "layer_00", "layer_01", …, bool [T, E]. T counts the tokens that the
// model reads, in text order. The replaying model may differ from the recorded one.
#pragma once

#include <filesystem>
#include <vector>

#include "dtopp/base/safetensors.h"
#include "dtopp/eval/perplexity.h"

namespace dtopp::eval {

// Collects the experts that a model selects. It keeps one byte per token, expert and layer in memory. Run
// measure_perplexity on one rank: other ranks' batches would be missing.
class RoutingDump final : public WindowObserver {
 public:
  // `num_tokens` is T. Throws UsageError if the model is dense.
  RoutingDump(const inference::InferenceModel& model, int64_t num_tokens);

  void add(const TextWindows& windows, const models::HiddenStates& states,
           const at::Tensor& log_probs_T) override;
  // Writes the file. Throws DataError if it cannot be written.
  void write(const std::filesystem::path& path) const;

 private:
  std::vector<at::Tensor> routing_map_LTE_;  // one tensor per layer, on the CPU
};

// The experts of a file, for measure_perplexity.
class RoutingReplay final : public BatchRouters {
 public:
  // Throws UsageError if the model is dense or a layer's tensor does not match the model and `num_tokens`;
  // the message names the layer. Throws DataError if the file is damaged.
  RoutingReplay(const std::filesystem::path& path, const inference::InferenceModel& model,
                int64_t num_tokens);

  std::shared_ptr<moe::Router> for_tokens(uint64_t first, int64_t count) const override;

 private:
  SafetensorsFile file_;
  config::RunConfig config_;
  at::Device device_;
  std::vector<const TensorView*> layers_;
};

}  // namespace dtopp::eval
