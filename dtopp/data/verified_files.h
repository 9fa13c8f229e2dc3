// Which token files were read through and had the checksums of their manifest, so that a start of training
// need not read terabytes again. The record, .verified.json in the folder, notes for each file what no write
// to it through the file system leaves as it is: device, inode, size, and the times of the last change of
// content and of status (ctime, which no program can set), to the nanosecond.
#pragma once

#include <filesystem>

#include "dtopp/base/manifest.h"

namespace dtopp {

inline constexpr char kVerifiedName[] = ".verified.json";

// DataError naming the first file whose size or bytes are not those of the manifest. Files that the record
// knows and that have not changed since are read only if `also_known`. What was read is added to the record;
// where it cannot be written, or something else has its name, the files will be read again next time.
void verify_files(const std::filesystem::path& folder, const ManifestFiles& files, bool also_known);

}  // namespace dtopp
