// Which files of prepared data were read through and had the checksums of their manifest, so that a start of
// training need not read terabytes again. The record, .verified.json in the folder, notes for each file what
// no write to it through the file system leaves as it is: device, inode, size, and the times of the last
// change of content and of status (ctime, which no program can set), to the nanosecond.
#pragma once

#include <filesystem>
#include <string>

#include "dtopp/base/manifest.h"

namespace dtopp {

inline constexpr char kVerifiedName[] = ".verified.json";

// How much of the files that a folder's manifest.json lists is compared with it: their sizes; also the
// contents of those that have changed since they were last found right; the contents of all.
enum class Verify { kSizes, kChanged, kAll };

// The manifest of this format in `folder`, its files compared with it. DataError naming what is missing or
// damaged, and what to do.
Manifest read_verified_manifest(const std::filesystem::path& folder, const std::string& format,
                                Verify verify);

// DataError naming the first file whose size or bytes are not those of the manifest. Files that the record
// knows and that have not changed since are read only if `also_known`. What was read is added to the record;
// where it cannot be written, or something else has its name, the files will be read again next time.
void verify_files(const std::filesystem::path& folder, const ManifestFiles& files, bool also_known);

}  // namespace dtopp
