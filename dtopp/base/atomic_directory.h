// Directories that appear complete or not at all.
#pragma once

#include <filesystem>
#include <functional>

namespace dtopp {

// Until commit() it lies beside `path` under a temporary name (base/temporary.h).
class AtomicDirectory {
 public:
  // An existing `path` is an error; with `replace` it is exchanged for the new one in one step, or in two
  // where the file system cannot (NFS): see put_back_replaced().
  explicit AtomicDirectory(std::filesystem::path path, bool replace = false);
  ~AtomicDirectory();  // without commit(), removes what was written
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  // Where to write what `path` is to hold.
  const std::filesystem::path& temporary() const { return temporary_; }
  // Syncs every file, renames to `path`, syncs the parent and removes what was replaced.
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  bool exists_ = false;
};

// Makes the directory `path` so, of what `fill` writes into the directory it is given.
void write_directory_atomically(const std::filesystem::path& path,
                                const std::function<void(const std::filesystem::path&)>& fill,
                                bool replace = false);

// What a crash in the midst of a replacement left in `directory` (".replaced-<name>") gets its name back, or
// goes where the new one has it. Only for who alone writes there (DirectoryLock).
void put_back_replaced(const std::filesystem::path& directory);

}  // namespace dtopp
