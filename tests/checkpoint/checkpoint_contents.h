// Builds small checkpoints whose tensors own their bytes.
#pragma once

#include <algorithm>
#include <list>
#include <random>
#include <string>
#include <vector>

#include "dtopp/checkpoint/checkpoint.h"

namespace dtopp::checkpoint {

inline std::filesystem::path save_checkpoint(const std::filesystem::path& checkpoints,
                                             const CheckpointContents& contents, int64_t keep,
                                             uint64_t shard_bytes = kShardBytes) {
  OneProcess alone;
  return save_checkpoint(checkpoints, contents, keep, alone, shard_bytes);
}

// The numbers depend on the seed and the step alone.
class SampleContents {
 public:
  explicit SampleContents(int64_t step, int64_t elements = 6) {
    std::mt19937 generator(static_cast<unsigned>(step) + 1);
    const auto tensor = [&](const std::string& name, std::vector<int64_t> shape,
                            std::vector<TensorSource>& to) {
      int64_t count = 1;
      for (const int64_t size : shape) count *= size;
      auto& values = storage_.emplace_back(count);
      for (auto& value : values) value = std::uniform_real_distribution<float>(-1, 1)(generator);
      to.push_back({name, "F32", std::move(shape), std::as_bytes(std::span(values))});
    };
    for (const std::string name : {"model.embed_tokens.weight", "model.norm.weight"}) {
      tensor(name, {2, elements}, contents.parameters);
      tensor(name + ".exp_avg", {2, elements}, contents.optimizer);
      tensor(name + ".exp_avg_sq", {2, elements}, contents.optimizer);
    }
    tensor("model.layers.0.mlp.gate.scale", {}, contents.parameters);
    tensor("threshold_C", {1}, contents.router);
    contents.state = {.step = step,
                      .tokens = step * 4096,
                      .assignments = step * 9000,
                      .sample_position = step * 8,
                      .seed = 17,
                      .skipped_steps = 2,
                      .consecutive_skips = 1};
    contents.config_yaml = "name: sample\nstep: " + std::to_string(step) + "\n";
    contents.tokenizer_json = "{\"model\": {}}";
  }
  SampleContents(const SampleContents&) = delete;
  SampleContents& operator=(const SampleContents&) = delete;

  CheckpointContents contents;

 private:
  std::list<std::vector<float>> storage_;
};

// Whether the checkpoint contains every byte that was saved.
inline bool holds(const Checkpoint& checkpoint, const CheckpointContents& contents) {
  const auto same = [](std::span<const std::byte> read, const TensorSource& source) {
    std::vector<std::byte> written;
    source.read(0, source.size, [&](std::span<const std::byte> bytes) {
      written.insert(written.end(), bytes.begin(), bytes.end());
    });
    return std::ranges::equal(read, written);
  };
  if (!(checkpoint.state() == contents.state) || checkpoint.config_yaml() != contents.config_yaml)
    return false;
  for (const auto& tensor : contents.parameters)
    if (!same(checkpoint.parameter(tensor.name, tensor.shape), tensor)) return false;
  for (const auto& tensor : contents.optimizer)
    if (!same(checkpoint.slot(tensor.name, tensor.shape), tensor)) return false;
  for (size_t i = 0; i < contents.router.size(); ++i)
    if (i >= checkpoint.router().size() || !same(checkpoint.router()[i].bytes, contents.router[i]))
      return false;
  return read_file(checkpoint.tokenizer_path()) == contents.tokenizer_json;
}

}  // namespace dtopp::checkpoint
