// Determines what kind of file a path names, and removes trailing slashes.
#pragma once

#include <filesystem>

namespace dtopp {

enum class PathKind { kNothing, kFile, kDirectory, kOther };

// The kind of file at `path`, after following links.
//
// std::filesystem::exists is no substitute: without permission on a parent folder, one overload throws
// another type and the other returns false.
//
// Throws:        DataError with the system's reason if the kind cannot be determined
PathKind path_kind(const std::filesystem::path& path);

// Returns true if the path exists, even as a broken link. Returns false also if its status cannot be read;
// opening it then reports the reason.
bool is_there(const std::filesystem::path& path);

// "a/" names the same directory as "a", but it has no file name, and its parent_path() is "a".
inline std::filesystem::path without_trailing_slash(const std::filesystem::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace dtopp
