// Splits a checkpoint's tensors into files, and lets several ranks write the files together.
#pragma once

#include "dtopp/base/manifest.h"
#include "dtopp/checkpoint/checkpoint.h"

namespace dtopp::checkpoint {

// Tensors of one kind are in "<kind>.safetensors", or in several "<kind>-0000i-of-0000n.safetensors" with an
// index that lists the file of each tensor.
inline constexpr char kModel[] = "model";
inline constexpr char kOptimizer[] = "optimizer";
inline constexpr char kEma[] = "ema";
inline std::string whole_file(std::string_view kind) { return std::string(kind) + ".safetensors"; }
inline std::string index_file(std::string_view kind) { return whole_file(kind) + ".index.json"; }
// The name of part `number`, counted from 1, of `count` parts.
std::string part_file(std::string_view kind, size_t number, size_t count);

inline constexpr char kRouterFile[] = "router.safetensors";
inline constexpr char kStateFile[] = "state.json";
inline constexpr char kConfigFile[] = "config.yaml";
inline constexpr char kTokenizerFile[] = "tokenizer.json";
inline constexpr char kImagesFile[] = "images.json";
inline constexpr char kCheckpointFormat[] = "dtopp checkpoint 1";

// True for the optimizer's tensors and their index, which only a resumed run needs.
bool is_optimizer_file(std::string_view name);

// For example "step-00001000".
std::string checkpoint_name(int64_t step);

bool is_checkpoint_name(const std::string& name);

// The steps of the checkpoints in the directory, newest first; empty if the directory does not exist. Throws
// DataError if it cannot be listed.
std::vector<int64_t> list_checkpoint_steps(const fs::path& checkpoints);

struct TensorFile {
  std::string_view kind;  // kModel, kOptimizer or kEma
  std::string name;       // in the checkpoint's directory
  std::vector<TensorSource> tensors;
};

struct TensorFiles {
  std::vector<TensorFile> files;
  // Index text by file name, for each kind with several files. The caller writes these files.
  std::map<std::string, std::string> indexes;
};

// Splits parameters, moments and averages into files, in order. Each file is filled up to `shard_bytes`; a
// larger tensor gets a file of its own. The split depends only on names and sizes, so it is the same on all
// ranks.
//
// Throws:        DataError if a tensor appears twice in a kind with several files
TensorFiles split_into_files(const CheckpointContents& contents, uint64_t shard_bytes);

// Reads an index in Hugging Face's format, as split_into_files writes it: the file of each tensor, by tensor
// name. Throws a DataError that names the index and the problem.
std::map<std::string, std::string> read_tensor_index(const fs::path& path);

// Writes `files` (not the indexes) into a directory that exists on rank 0. Every rank that can access the
// directory writes one file at a time. Meanwhile each rank holds up to twice kCollectedBytes.
//
// Returns:       size and checksum of all files, on every rank
// Throws:        DataError on a rank that cannot write; on the others the error of SavingRanks::check
// Collective:    every rank of `ranks`, in the same order, with the same files
ManifestFiles write_tensor_files(const fs::path& directory, const std::vector<TensorFile>& files,
                                 SavingRanks& ranks);

// Bytes that are sent between ranks at a time, over all files that are being written.
inline constexpr uint64_t kCollectedBytes = uint64_t{64} << 20;

}  // namespace dtopp::checkpoint
