// Checkpoints: a directory that is complete or absent, verified when read (format: docs/files.md).
//   <checkpoints>/step-00001000/{model,optimizer}.safetensors, state.json, config.yaml, tokenizer.json,
//   manifest.json
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dtopp/base/safetensors.h"
#include "dtopp/checkpoint/training_state.h"

namespace dtopp {

// Everything one checkpoint is made of. Tensors are read one after another while they are written.
struct CheckpointContents {
  TrainingState state;
  std::vector<TensorSource> parameters;  // fp32, names of ParameterSpec
  std::vector<TensorSource> optimizer;   // "<parameter>.exp_avg", "<parameter>.exp_avg_sq"
  std::string config_yaml;
  std::string tokenizer_json;  // empty: the data came without one
};

// Writes checkpoints/step-XXXXXXXX atomically, then removes all but the newest `keep` complete ones (0: keeps
// all) up to this step; complete means that manifest and sizes match. Leftovers of interrupted writes are
// removed first. A checkpoint of this step that is already there stays when it verifies and holds the same
// state, otherwise the new one takes its place. model.safetensors is split into
// model-0000i-of-0000n.safetensors + model.safetensors.index.json past `shard_bytes`. DataError when it
// cannot be written; what was there stays.
std::filesystem::path save_checkpoint(const std::filesystem::path& checkpoints,
                                      const CheckpointContents& contents, int64_t keep,
                                      uint64_t shard_bytes = uint64_t{4} << 30);

// A verified checkpoint: sizes and XXH3-128 of every file match its manifest. CheckpointError (naming file
// and cause) otherwise; UsageError when `path` is not a checkpoint at all. Files that the manifest does not
// list are ignored, but a tokenizer.json among them, which would be taken for the checkpoint's, is an error.
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& path);
  const std::filesystem::path& path() const { return path_; }
  const TrainingState& state() const { return state_; }
  const std::string& config_yaml() const { return config_yaml_; }
  std::filesystem::path tokenizer_path() const { return path_ / "tokenizer.json"; }
  // CheckpointError when the tensor is missing or has another dtype or shape.
  std::span<const std::byte> parameter(const std::string& name, const std::vector<int64_t>& shape) const;
  std::span<const std::byte> moment(const std::string& name, const std::vector<int64_t>& shape) const;

 private:
  std::filesystem::path path_;
  TrainingState state_;
  std::string config_yaml_;
  std::vector<SafetensorsFile> model_;
  std::vector<SafetensorsFile> optimizer_;
};

// The newest checkpoint in the directory that verifies; damaged ones are passed over, each reported through
// `warn`. nullopt when there is none. (A run directory: pass its "checkpoints" folder. CheckpointError when
// there are checkpoints but none verifies.)
std::optional<Checkpoint> newest_checkpoint(const std::filesystem::path& checkpoints,
                                            const std::function<void(const std::string&)>& warn);

// What a user names on the command line: a checkpoint directory, or a run directory (its newest valid
// checkpoint).
Checkpoint open_checkpoint(const std::filesystem::path& path,
                           const std::function<void(const std::string&)>& warn);

}  // namespace dtopp
