// Defines the batches and the data that a model is trained on. Samples have one global order.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtopp/ops/core/named_tensors.h"

namespace dtopp {

struct Batch {
  // The index of the first sample in the global order. Random values of sample i are drawn at (seed, purpose,
  // position + i). They do not depend on micro-batch size, number of processes or restarts.
  uint64_t position = 0;
  NamedTensors tensors;

  bool has(std::string_view name) const;
  // Throws std::invalid_argument if no tensor has this name.
  const at::Tensor& tensor(std::string_view name) const { return find_tensor(tensors, name, "Batch"); }
  Batch to(const at::Device& device) const;
};

// The use of one weighted source up to a position of the training order.
struct SourceUse {
  std::string name;   // as it appears in metrics
  double share = 0;   // share of all samples
  double epochs = 0;  // passes over the source's own samples
};

// The source of training and validation batches.
struct TrainingData {
  std::string tokenizer_json;  // stored in checkpoints, like images_json; empty if the data has none
  std::string images_json{};
  // The name of each source and a hash of its content. The hash does not depend on the location.
  std::vector<std::pair<std::string, std::string>> content_hashes;
  // Returns `count` samples from `position` of the training order.
  std::function<Batch(uint64_t position, int64_t count)> training_batch;
  // Returns the use of each source before `position` of the training order. Empty if sources have no weights.
  std::function<std::vector<SourceUse>(uint64_t position)> sources;
  uint64_t validation_samples = 0;
  std::function<Batch(uint64_t position, int64_t count)> validation_batch;
};

}  // namespace dtopp
