// manifest.json of a checkpoint: size and XXH3-128 of every other file, and a checksum of itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace dtopp {

struct ManifestEntry {
  uint64_t size = 0;
  std::string xxh3_128;

  bool operator==(const ManifestEntry&) const = default;
};

using Manifest = std::map<std::string, ManifestEntry>;  // by file name

// The text ends with the checksum of everything before it, so that no flipped bit goes unseen.
std::string format_manifest(const Manifest& files);

// The manifest of the checkpoint `directory`. CheckpointError when it is missing, damaged or names anything
// but plain files of the directory.
Manifest read_manifest(const std::filesystem::path& directory);

// CheckpointError naming the first file that is missing or has another size than the manifest says.
void verify_sizes(const std::filesystem::path& directory, const Manifest& files);

// verify_sizes, then CheckpointError naming the first file whose bytes have another checksum.
void verify_content(const std::filesystem::path& directory, const Manifest& files);

}  // namespace dtopp
