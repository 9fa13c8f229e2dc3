// What lies at a path, and its plain name.
#pragma once

#include <filesystem>

namespace dtopp {

enum class PathKind { kNothing, kFile, kDirectory, kOther };

// Links are followed. DataError with the system's reason where it does not say, as in a folder that may not
// be looked into: std::filesystem::exists throws another type there, and its quiet form says no.
PathKind path_kind(const std::filesystem::path& path);

// "a/" names the same directory as "a", but has no file name and "a" for its parent.
inline std::filesystem::path without_trailing_slash(const std::filesystem::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace dtopp
