// Checkpoints: a directory that is complete or absent, verified when read (format: docs/files.md).
//   <checkpoints>/step-00001000/{model,optimizer}.safetensors, state.json, config.yaml, tokenizer.json,
//   manifest.json
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "dtopp/base/safetensors.h"
#include "dtopp/checkpoint/training_state.h"
#include "dtopp/config/run_config.h"

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

// Whether save_checkpoint would leave what is there: a checkpoint of this step that verifies and holds the
// same state.
bool is_already_saved(const std::filesystem::path& checkpoints, const TrainingState& state);

// What a checkpoint is opened for. Inference needs no moments: the optimiser's files, the largest, are not
// read then and need not be there.
enum class CheckpointUse { kTraining, kInference };

// A verified checkpoint: sizes and XXH3-128 of every file it is read for match its manifest. CheckpointError
// (naming file and cause) otherwise; UsageError when `path` is not a checkpoint at all. Files that the
// manifest does not list are ignored, but a tokenizer.json among them, which would be taken for the
// checkpoint's, is an error.
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& path, CheckpointUse use = CheckpointUse::kTraining);
  const std::filesystem::path& path() const { return path_; }
  const TrainingState& state() const { return state_; }
  const std::string& config_yaml() const { return config_yaml_; }
  // The configuration it was written with. UsageError (config.yaml, line, key) where this program does not
  // know it.
  RunConfig config() const;
  bool has_tokenizer() const { return has_tokenizer_; }
  std::filesystem::path tokenizer_path() const;
  // CheckpointError when the tensor is missing or has another dtype or shape. Moments: only for training.
  std::span<const std::byte> parameter(const std::string& name, const std::vector<int64_t>& shape) const;
  std::span<const std::byte> moment(const std::string& name, const std::vector<int64_t>& shape) const;

 private:
  std::filesystem::path path_;
  CheckpointUse use_;
  TrainingState state_;
  std::string config_yaml_;
  bool has_tokenizer_ = false;
  std::vector<SafetensorsFile> model_;
  std::vector<SafetensorsFile> optimizer_;
};

}  // namespace dtopp
