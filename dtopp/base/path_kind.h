// What lies at a path.
#pragma once

#include <filesystem>

namespace dtopp {

enum class PathKind { kNothing, kFile, kDirectory, kOther };

// Links are followed. DataError with the system's reason where it does not say, as in a folder that may not
// be looked into: std::filesystem::exists throws another type there, and its quiet form says no.
PathKind path_kind(const std::filesystem::path& path);

}  // namespace dtopp
