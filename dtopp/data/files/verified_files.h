// Verifies the files of prepared data against their manifest and records which files have been verified.
//
// The record lets a training run start without reading terabytes again. It is .verified.json in the folder
// and lists, per file, device, inode, size, and the times of the last change of content (mtime) and of status
// (ctime) to the nanosecond. Every write through the file system changes one of them; no program can set
// ctime.
#pragma once

#include "dtopp/base/manifest.h"

namespace dtopp::data {

inline constexpr char kVerifiedName[] = ".verified.json";

// The extent of a comparison with manifest.json.
enum class Verify {
  kSizes,    // the sizes of all files
  kChanged,  // also the contents of the files that have changed since they were last verified
  kAll       // also the contents of all files
};

// Reads the manifest in `folder` and compares the files with it. Throws DataError, naming the file and the
// remedy, if the manifest or a file is missing or damaged.
Manifest read_verified_manifest(const fs::path& folder, const std::string& format, Verify verify);

}  // namespace dtopp::data
