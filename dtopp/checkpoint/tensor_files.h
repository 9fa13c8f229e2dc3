// The files in which a checkpoint's tensors lie, and how ranks write them together.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "dtopp/base/manifest.h"
#include "dtopp/checkpoint/checkpoint.h"

namespace dtopp {

struct TensorFile {
  std::string_view kind;  // checkpoint_layout.h
  std::string name;
  std::vector<TensorSource> tensors;
};

struct TensorFiles {
  std::vector<TensorFile> files;
  std::map<std::string, std::string> indexes;  // text by file name, of each kind that is split
};

// Parameters, moments and averages in order, each file filled up to `shard_bytes`; a larger tensor has a file
// of its own. It follows from names and sizes alone. DataError where a tensor comes twice.
TensorFiles split_into_files(const CheckpointContents& contents, uint64_t shard_bytes);

// Which file each tensor is in, by its name: what an index of Hugging Face's says, as split_into_files makes
// them. DataError naming the file and what is wrong with it.
std::map<std::string, std::string> read_tensor_index(const std::filesystem::path& path);

// Writes the files, as many at a time as ranks see `directory`, and returns size and checksum of all of them.
// Each rank holds up to twice kCollectedBytes meanwhile. Collective.
ManifestFiles write_tensor_files(const std::filesystem::path& directory, const std::vector<TensorFile>& files,
                                 SavingRanks& ranks);

// What travels between ranks at a time, of all files that are being written.
inline constexpr uint64_t kCollectedBytes = uint64_t{64} << 20;

}  // namespace dtopp
