// Reads and writes manifest.json, which lists the size and XXH3-128 checksum of every other file in a folder.
// The manifest also ends with a checksum of itself, so every flipped bit is detected.
#pragma once

#include <cstdint>
#include <map>

#include "dtopp/base/errors.h"

namespace dtopp {

inline constexpr char kManifestName[] = "manifest.json";

struct ManifestEntry {
  uint64_t size = 0;
  std::string xxh3_128;

  bool operator==(const ManifestEntry&) const = default;
};

using ManifestFiles = std::map<std::string, ManifestEntry>;  // by file name

struct Manifest {
  std::string format;  // for example "dtopp checkpoint 1"
  std::string about;   // a JSON object with facts about the content; empty: none
  ManifestFiles files;
};

// One checksum over the names and checksums of all files.
std::string hash_of(const ManifestFiles& files);

// The text of the manifest. It ends with the checksum of everything before it.
std::string format_manifest(const Manifest& manifest);

// Parses the text of the manifest at `path`.
//
// Throws:        DataError if it is damaged, has another format, or names anything but plain files of the
//                directory
Manifest parse_manifest(const std::string& text, const fs::path& path, const std::string& format);

// Reads <directory>/<name>. Throws like parse_manifest, and DataError if the file is missing.
Manifest read_manifest(const fs::path& directory, const std::string& format,
                       const std::string& name = kManifestName);

// True if the file begins like a manifest of this format, even if the rest is damaged or missing. Any other
// file was not written by dtopp. False if `path` is not a regular file or cannot be read.
bool begins_as_manifest(const fs::path& path, const std::string& format);

// Throws a DataError that names the first file that is missing or whose size differs from the manifest.
void verify_sizes(const fs::path& directory, const ManifestFiles& files);

// Calls verify_sizes, then throws a DataError that names the first file whose checksum differs.
void verify_content(const fs::path& directory, const ManifestFiles& files);

}  // namespace dtopp
