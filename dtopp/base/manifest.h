// manifest.json of a folder: what it holds, size and XXH3-128 of every other file, and a checksum of itself,
// so that no flipped bit goes unseen.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace dtopp {

inline constexpr char kManifestName[] = "manifest.json";

struct ManifestEntry {
  uint64_t size = 0;
  std::string xxh3_128;

  bool operator==(const ManifestEntry&) const = default;
};

using ManifestFiles = std::map<std::string, ManifestEntry>;  // by file name

struct Manifest {
  std::string format;  // "dtopp checkpoint 1"
  std::string about;   // facts about the content: a JSON object; empty: none
  ManifestFiles files;
};

// One checksum of all files: of their names and checksums.
std::string hash_of(const ManifestFiles& files);

// The text ends with the checksum of everything before it.
std::string format_manifest(const Manifest& manifest);

// <directory>/<name>. DataError when it is missing, damaged, of another format or names anything but plain
// files of the directory.
Manifest read_manifest(const std::filesystem::path& directory, const std::string& format,
                       const std::string& name = kManifestName);

// Whether the file begins as a manifest of this format does, be it damaged further on or cut. What does not
// is not dtopp's. False also where there is no file or it cannot be read.
bool begins_as_manifest(const std::filesystem::path& path, const std::string& format);

// DataError naming the first file that is missing or has another size than the manifest says.
void verify_sizes(const std::filesystem::path& directory, const ManifestFiles& files);

// verify_sizes, then DataError naming the first file whose bytes have another checksum.
void verify_content(const std::filesystem::path& directory, const ManifestFiles& files);

}  // namespace dtopp
