// Checkpoints: a directory that is complete or absent, verified when read (format: docs/files.md).
//   <checkpoints>/step-00001000/{model,optimizer,ema}.safetensors, state.json, config.yaml,
//   {tokenizer,images}.json, manifest.json
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dtopp/base/manifest.h"
#include "dtopp/base/safetensors.h"
#include "dtopp/checkpoint/saving_ranks.h"
#include "dtopp/checkpoint/training_state.h"
#include "dtopp/config/run_config.h"

namespace dtopp {

// Everything one checkpoint is made of. Tensors are read one after another while they are written, through
// the ranks where several save (saving_ranks.h).
struct CheckpointContents {
  TrainingState state;
  std::vector<TensorSource> parameters;  // fp32, names of ParameterSpec
  std::vector<TensorSource> optimizer;   // "<parameter>.exp_avg", "<parameter>.exp_avg_sq"
  std::string config_yaml;
  std::string tokenizer_json;            // empty: the data came without one
  std::string images_json{};             // of a model of images (data/images/image_layout_json.h)
  std::vector<TensorSource> averages{};  // fp32, under the parameters' names; none are kept
};

inline constexpr uint64_t kShardBytes = uint64_t{4} << 30;

// Writes checkpoints/step-XXXXXXXX atomically, then removes all but the newest `keep` complete ones (0: keeps
// all) up to this step; complete means that manifest and sizes match. Leftovers of interrupted writes are
// removed first. A checkpoint of this step that is already there stays when it verifies and holds the same
// state, otherwise the new one takes its place. {model,optimizer,ema}.safetensors are each split
// into model-0000i-of-0000n.safetensors + model.safetensors.index.json past `shard_bytes`. DataError when it
// cannot be written; what was there stays.
std::filesystem::path save_checkpoint(const std::filesystem::path& checkpoints,
                                      const CheckpointContents& contents, int64_t keep,
                                      uint64_t shard_bytes = kShardBytes);

// The same by several ranks, whose contents differ in nothing but who holds which bytes of a tensor: the
// files are shared out among the ranks that see rank 0's directory, and are those that one process writes.
// Returns when the checkpoint is there; where it fails on one rank it fails on all (SavingRanks::check).
std::filesystem::path save_checkpoint(const std::filesystem::path& checkpoints,
                                      const CheckpointContents& contents, int64_t keep, SavingRanks& ranks,
                                      uint64_t shard_bytes = kShardBytes);

// The files of a checkpoint, into an empty directory that has its place already.
void write_checkpoint(const std::filesystem::path& directory, const CheckpointContents& contents,
                      uint64_t shard_bytes = kShardBytes);

// What a checkpoint is opened for. Inference needs no moments: the optimiser's files, the largest, are not
// read then and need not be there.
enum class CheckpointUse { kTraining, kInference };

// Leaves of a checkpoint's files those that are read for that use.
void keep_files_for(CheckpointUse use, ManifestFiles& files);

// How a checkpoint's files are held against its manifest: DataError naming one that differs.
using VerifyFiles = std::function<void(const std::filesystem::path& directory, const ManifestFiles& files)>;

// A verified checkpoint: sizes and XXH3-128 of every file it is read for match its manifest. CheckpointError
// (naming file and cause) otherwise; UsageError when `path` is not a checkpoint at all. Files that the
// manifest does not list are ignored, but a tokenizer.json among them, which would be taken for the
// checkpoint's, is an error.
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& path, CheckpointUse use = CheckpointUse::kTraining,
                      const VerifyFiles& verify = verify_content);
  const std::filesystem::path& path() const { return path_; }
  const TrainingState& state() const { return state_; }
  const std::string& config_yaml() const { return config_yaml_; }
  // The configuration it was written with. UsageError (config.yaml, line, key) where this program does not
  // know it.
  RunConfig config() const;
  bool has_tokenizer() const { return has_tokenizer_; }
  std::filesystem::path tokenizer_path() const;
  // images.json; empty where there is none.
  const std::string& images_json() const { return images_json_; }
  // CheckpointError when the tensor is missing or has another dtype or shape. Moments: only for training.
  std::span<const std::byte> parameter(const std::string& name, const std::vector<int64_t>& shape) const;
  std::span<const std::byte> moment(const std::string& name, const std::vector<int64_t>& shape) const;
  // The moving average of a parameter. CheckpointError also where none is kept.
  std::span<const std::byte> average(const std::string& name, const std::vector<int64_t>& shape) const;

 private:
  std::filesystem::path path_;
  CheckpointUse use_;
  TrainingState state_;
  std::string config_yaml_, images_json_;
  bool has_tokenizer_ = false;
  std::vector<SafetensorsFile> model_;
  std::vector<SafetensorsFile> optimizer_;
  std::vector<SafetensorsFile> averages_;
};

}  // namespace dtopp
