// What a model is trained on: samples of a global order, as named tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtopp/ops/core/torch.h"

namespace dtopp {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// std::invalid_argument, naming `owner`, where none has this name.
const at::Tensor& find_tensor(const NamedTensors& tensors, std::string_view name, const char* owner);

struct Batch {
  // The place of its first sample in the global order. What is drawn at random for sample i is drawn at
  // (seed, purpose, position + i): the same at every micro-batch size, number of processes and restart.
  uint64_t position = 0;
  NamedTensors tensors;

  bool has(std::string_view name) const;
  // std::invalid_argument where there is none of this name.
  const at::Tensor& tensor(std::string_view name) const { return find_tensor(tensors, name, "Batch"); }
  Batch to(const at::Device& device) const;
};

// What a weighted source was of the samples so far.
struct SourceUse {
  std::string name;   // in metrics
  double share = 0;   // of the samples
  double epochs = 0;  // how many times over its own samples
};

// Where batches come from.
struct TrainingData {
  std::string tokenizer_json;  // kept in checkpoints, like images_json; empty when the data names none
  std::string images_json{};
  // Each source's name and a hash of what it holds, the same wherever that lies.
  std::vector<std::pair<std::string, std::string>> content_hashes;
  // `count` samples from `position` of the training order.
  std::function<Batch(uint64_t position, int64_t count)> training_batch;
  // Of the samples before a position of the training order; none where sources have no weights.
  std::function<std::vector<SourceUse>(uint64_t position)> sources;
  uint64_t validation_samples = 0;
  std::function<Batch(uint64_t position, int64_t count)> validation_batch;
};

}  // namespace dtopp
