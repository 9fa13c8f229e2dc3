// Names unfinished files: ".tmp-<name>.<16 hexadecimal digits>", beside the final name. The digits are
// random, so two writers never share a name, and no other process can create a file under it in advance.
#pragma once

#include <filesystem>
#include <string_view>

namespace dtopp {

// A new temporary name beside `path`.
std::filesystem::path temporary_sibling(const std::filesystem::path& path);

// The path beside which temporary_sibling() made this name; another path itself. Errors name it.
std::filesystem::path finished_sibling(const std::filesystem::path& path);

// True if temporary_sibling() may have made `name` for any path, or for a path whose file name is `of`.
bool is_temporary_name(std::string_view name);
bool is_temporary_name_of(std::string_view of, std::string_view name);

// Removes the temporary files that interrupted writes of `path` left beside it. A file stays if a writer
// still holds its lock. Errors are ignored.
void remove_abandoned(const std::filesystem::path& path);

// Locks a temporary file for as long as its descriptor is open. Returns false if remove_abandoned() removed
// the file between its creation and this call; the caller must then create another one.
bool hold_temporary(int descriptor);

}  // namespace dtopp
