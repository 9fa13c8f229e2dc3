// Creates directories atomically: they appear complete or not at all.
#pragma once

#include <filesystem>

namespace dtopp {

// A directory that has a temporary name beside `path` (base/temporary.h) until commit().
class AtomicDirectory {
 public:
  // Throws DataError if `path` exists and `replace` is false, or if the parent of `path` is missing. With
  // `replace`, commit() exchanges the two directories in one step. On a file system that cannot exchange
  // names (NFS), it takes two steps; see put_back_replaced().
  explicit AtomicDirectory(std::filesystem::path path, bool replace = false);
  ~AtomicDirectory();  // removes the written files unless commit() was called
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  // The directory to write into before commit().
  const std::filesystem::path& temporary() const { return temporary_; }
  // Syncs every file, renames the directory to `path`, syncs the parent and removes the replaced directory.
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  bool exists_ = false;
};

// Creates the directory `path` atomically from the files that `fill` writes into the directory passed to it.
template <class Fill>
void write_directory_atomically(const std::filesystem::path& path, Fill&& fill, bool replace = false) {
  AtomicDirectory directory(path, replace);
  fill(directory.temporary());
  directory.commit();
}

// Completes the replacements in `directory` that a crash interrupted. Each one left a directory named
// ".replaced-<name>". It is renamed back to <name>, or removed if the new directory already has that name.
// Call it only as the sole writer of `directory` (DirectoryLock).
void put_back_replaced(const std::filesystem::path& directory);

}  // namespace dtopp
