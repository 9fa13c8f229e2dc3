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

namespace dtopp {

// What state.json holds: everything besides tensors that a run needs to go on bit for bit.
struct TrainingState {
  int64_t step = 0;             // optimiser steps done (skipped ones included)
  int64_t tokens = 0;           // tokens trained on
  int64_t sample_position = 0;  // the next sample of the global order
  int64_t seed = 0;
  std::vector<double>
      threshold;  // p: one value, or one per layer; written as exact doubles; empty without a controller
  std::vector<double> error_sum;      // sum of e, likewise
  bool per_layer = false;             // written as lists instead of numbers
  int64_t skipped_steps = 0;          // non-finite steps so far
  int64_t consecutive_skips = 0;      // of which the last ones in a row
  int64_t last_validation_step = -1;  // the newest step whose validation is recorded; -1: none

  bool operator==(const TrainingState&) const = default;
};

// Everything one checkpoint is made of. The spans of the tensors must outlive the call that takes it.
struct CheckpointContents {
  TrainingState state;
  std::vector<TensorView> parameters;  // fp32, names of ParameterSpec
  std::vector<TensorView> optimizer;   // "<parameter>.exp_avg", "<parameter>.exp_avg_sq"
  std::string config_yaml;
  std::string tokenizer_json;  // empty: the data came without one
};

// Writes checkpoints/step-XXXXXXXX atomically, then removes all but the newest `keep` complete ones (0: keeps
// all) and leftovers of interrupted writes. model.safetensors is split into model-0000i-of-0000n.safetensors
// + model.safetensors.index.json past `shard_bytes`. DataError when it cannot be written; what was there
// stays.
std::filesystem::path save_checkpoint(const std::filesystem::path& checkpoints,
                                      const CheckpointContents& contents, int64_t keep,
                                      uint64_t shard_bytes = uint64_t{4} << 30);

// A verified checkpoint: sizes and XXH3-128 of every file match its manifest. CheckpointError (naming file
// and cause) otherwise; UsageError when `path` is not a checkpoint at all.
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
