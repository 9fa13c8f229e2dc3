// Names of what is not finished yet: ".tmp-<name>.<16 hexadecimal digits>", beside the name it will get. The
// digits are random, so that no two writers share a name and nobody can plant something under it beforehand.
#pragma once

#include <filesystem>
#include <string_view>

namespace dtopp {

// A name beside `path` that nobody else has.
std::filesystem::path temporary_sibling(const std::filesystem::path& path);

// Whether temporary_sibling() may have made `name`, for any path, or for one whose file name is `of`.
bool is_temporary_name(std::string_view name);
bool is_temporary_name_of(std::string_view of, std::string_view name);

// Removes the files beside `path` that writes of `path` left when they were interrupted: they carry a
// temporary name of it, and nobody holds the lock that a writer keeps on his. Best effort.
void remove_abandoned(const std::filesystem::path& path);

// Locks a temporary file as long as its descriptor is open. False when remove_abandoned() came between
// creating it and this call: it is lost, take another.
bool hold_temporary(int descriptor);

}  // namespace dtopp
