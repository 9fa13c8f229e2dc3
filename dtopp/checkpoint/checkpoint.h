// Saves checkpoints and opens them. A checkpoint is a directory that is complete or absent. It is verified
// when it is opened (format: docs/reference/files.md):
//
//   <checkpoints>/step-00001000/{model,optimizer,ema,router}.safetensors, state.json,
//   config.yaml, {tokenizer,images}.json, manifest.json
#pragma once

#include <exception>

#include "dtopp/base/manifest.h"
#include "dtopp/base/safetensors.h"
#include "dtopp/config/run_config.h"

namespace dtopp::checkpoint {

// Everything besides the parameters, moments and router that a run needs to resume with the same bits
// (state.json).
struct TrainingState {
  int64_t step = 0;             // optimizer steps done (skipped ones included)
  int64_t tokens = 0;           // tokens trained on
  int64_t assignments = 0;      // token-expert pairs computed so far, in all layers
  int64_t sample_position = 0;  // next sample in the global order
  int64_t seed = 0;
  int64_t skipped_steps = 0;          // non-finite steps so far
  int64_t consecutive_skips = 0;      // non-finite steps in a row, up to the current one
  int64_t last_validation_step = -1;  // newest step whose validation is recorded; -1: none
  // A hash of the content of each source in data.train; empty if it was not recorded.
  std::vector<std::string> training_data{};

  bool operator==(const TrainingState&) const = default;
};

std::string format_training_state(const TrainingState& state);

// Parses such a state. Throws a DataError that names `what` (the file) and the key if the text is invalid.
TrainingState parse_training_state(const std::string& text, const std::string& what);

// Bytes [begin, begin + count) of a tensor, in whole elements; no bytes if `tensor` is null.
struct TensorByteRange {
  std::string_view kind{};               // kModel, kOptimizer or kEma (tensor_files.h)
  const TensorSource* tensor = nullptr;  // kind and name identify its bytes; `read` may be null
  uint64_t begin = 0, count = 0;
};

// The communication between ranks that save one checkpoint together. It is only an interface, because
// checkpoint/ must not depend on distributed/. train/run.cpp implements it.
//
// Collective:    gather, collect and check, on every rank, in the same order
class SavingRanks {
 public:
  virtual ~SavingRanks() = default;

  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  // Returns the text of every rank, in rank order.
  virtual std::vector<std::string> gather(const std::string& text) = 0;
  // Sends the bytes of by_rank[r] to rank r, from the ranks that store them.
  //
  // `by_rank` has size() entries, which are the same ranges on all ranks. `take` receives the bytes of
  // by_rank[rank()] in order, in one or more parts. It must not throw, because the other ranks would wait
  // forever. Keep its error for check().
  virtual void collect(const std::vector<TensorByteRange>& by_rank, const TakeBytes& take) = 0;
  // Takes this rank's error, or null. Returns if no rank has an error. Otherwise every rank throws: its own
  // error if it has one, else an error that names a rank with one.
  virtual void check(const std::exception_ptr& error) = 0;
};

// A single process that saves alone. It reads all bytes with TensorSource::read.
class OneProcess : public SavingRanks {
 public:
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  std::vector<std::string> gather(const std::string& text) override { return {text}; }
  void collect(const std::vector<TensorByteRange>& by_rank, const TakeBytes& take) override {
    for (const TensorByteRange& range : by_rank)
      if (range.tensor) range.tensor->read(range.begin, range.count, take);
  }
  void check(const std::exception_ptr& error) override {
    if (error) std::rethrow_exception(error);
  }
};

// The contents of one checkpoint. Tensors are read in parts while they are written.
//
// If several ranks save, SavingRanks::collect supplies the bytes of parameters, optimizer and ema. The `read`
// of these tensors may then be null.
struct CheckpointContents {
  TrainingState state;
  std::vector<TensorSource> parameters;  // fp32, under the names of ParameterSpec
  std::vector<TensorSource> optimizer;   // "<parameter>.<slot>", e.g. ".exp_avg"
  std::string config_yaml;
  std::string tokenizer_json;  // empty: the data has no tokenizer
  std::string images_json{};   // image models only (data/images/image_data.h)
  // The moving averages in fp32, under the parameters' names; empty if there are none.
  std::vector<TensorSource> ema{};
  // The router's state (moe/make_router.h), the same on every rank; empty if it has none.
  std::vector<TensorSource> router{};
};

inline constexpr uint64_t kShardBytes = uint64_t{4} << 30;

// Writes checkpoints/step-XXXXXXXX atomically and returns its path.
//
// It first removes the leftovers of interrupted writes. If a checkpoint of this step exists, verifies and
// holds the same TrainingState and router, it stays; otherwise the new one replaces it. Parameters are not
// compared. Afterwards it calls remove_old. A checkpoint is complete if its manifest and file sizes match.
//
// Each of {model,optimizer,ema}.safetensors that would exceed `shard_bytes` is split into
// model-0000i-of-0000n.safetensors and model.safetensors.index.json.
//
// The ranks save it together. The tensors have the same names and sizes on all ranks. Rank 0 stores its own
// state, texts and router. The ranks that can access rank 0's directory share the tensor files among them.
// The files are the same as those of a single process.
//
// Returns:       the path, on every rank, when the checkpoint is complete
// Throws:        on all ranks if saving fails on one (SavingRanks::check); the existing checkpoints then stay
// Collective:    every rank of `ranks`, in the same order
fs::path save_checkpoint(const fs::path& checkpoints, const CheckpointContents& contents, int64_t keep,
                         SavingRanks& ranks, uint64_t shard_bytes = kShardBytes);

// Removes the checkpoints that are older than the newest `keep` complete ones up to `step` (0: removes none).
// Checkpoints of later steps stay: they are damaged, and the run passed over them when it resumed.
void remove_old(const fs::path& checkpoints, int64_t step, int64_t keep);

// Writes the files of a checkpoint into an existing empty directory, not atomically.
void write_checkpoint(const fs::path& directory, const CheckpointContents& contents,
                      uint64_t shard_bytes = kShardBytes);

// The purpose for which a checkpoint is opened. Inference does not need the optimizer's files, the largest:
// they are not read and may be missing.
enum class CheckpointUse { kTraining, kInference };

// Removes the files from `files` that this use does not read.
void keep_files_for(CheckpointUse use, ManifestFiles& files);

// Compares a checkpoint's files with its manifest. Throws a DataError that names the first file that differs.
using VerifyFiles = std::function<void(const fs::path& directory, const ManifestFiles& files)>;

// A system call failed. The checkpoint may be intact, so no older one may replace it.
struct UnreadableCheckpoint : CheckpointError {
  using CheckpointError::CheckpointError;
};

// A verified checkpoint: the sizes and XXH3-128 checksums of all files that it reads match its manifest.
// Files that the manifest does not list are ignored, with one exception: an unlisted tokenizer.json is an
// error, because it would be used as the checkpoint's tokenizer.
//
// The files stay mapped: returned spans are valid while this object exists.
//
// Throws:        UsageError if `path` is not a checkpoint; CheckpointError (file, cause) if it does not
//                verify; UnreadableCheckpoint if it cannot be read
class Checkpoint {
 public:
  explicit Checkpoint(const fs::path& path, CheckpointUse use = CheckpointUse::kTraining,
                      const VerifyFiles& verify = verify_content);
  const fs::path& path() const { return path_; }
  // One checksum of all files that the manifest lists.
  const std::string& hash() const { return hash_; }
  const TrainingState& state() const { return state_; }
  const std::string& config_yaml() const { return config_yaml_; }
  // The configuration of the run that wrote it. Throws UsageError (config.yaml, line, key) if this version of
  // dtopp does not accept it.
  config::RunConfig config() const;
  bool has_tokenizer() const { return has_tokenizer_; }
  fs::path tokenizer_path() const;  // requires has_tokenizer()
  // The text of images.json; empty if there is none.
  const std::string& images_json() const { return images_json_; }
  // The fp32 bytes of a parameter, or of its slot "<parameter>.<slot>". slot() requires
  // CheckpointUse::kTraining.
  //
  // Throws:        CheckpointError if the tensor is missing or has another dtype or shape
  std::span<const std::byte> parameter(const std::string& name, const std::vector<int64_t>& shape) const;
  std::span<const std::byte> slot(const std::string& name, const std::vector<int64_t>& shape) const;
  // The router's state; empty if it has none.
  std::span<const TensorView> router() const;
  // The moving average of a parameter. Throws CheckpointError also if the run keeps none.
  std::span<const std::byte> ema(const std::string& name, const std::vector<int64_t>& shape) const;

 private:
  fs::path path_;
  CheckpointUse use_;
  std::string hash_;
  TrainingState state_;
  std::string config_yaml_, images_json_;
  bool has_tokenizer_ = false;
  std::vector<SafetensorsFile> model_;
  std::vector<SafetensorsFile> optimizer_;
  std::vector<SafetensorsFile> ema_files_;
  std::optional<SafetensorsFile> router_;
};

}  // namespace dtopp::checkpoint
