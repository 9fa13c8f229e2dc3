// Writes that a crash leaves complete or absent: directories, and files that grow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dtopp/base/descriptor.h"
#include "dtopp/base/hash.h"

namespace dtopp {

// A directory that has a temporary name beside `path` (base/files.h) until commit().
class AtomicDirectory {
 public:
  // Throws DataError if `path` exists and `replace` is false, or if the parent of `path` is missing. With
  // `replace`, commit() exchanges the two directories in one step. On a file system that cannot exchange
  // names (NFS), it takes two steps; see put_back_replaced().
  explicit AtomicDirectory(fs::path path, bool replace = false);
  ~AtomicDirectory();  // removes the written files unless commit() was called
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  // The directory to write into before commit().
  const fs::path& temporary() const { return temporary_; }
  // Syncs every file, renames the directory to `path`, syncs the parent and removes the replaced directory.
  void commit();

 private:
  fs::path path_, temporary_;
  bool exists_ = false;
};

// Creates the directory `path` atomically from the files that `fill` writes into the directory passed to it.
template <class Fill>
void write_directory_atomically(const fs::path& path, Fill&& fill, bool replace = false) {
  AtomicDirectory directory(path, replace);
  fill(directory.temporary());
  directory.commit();
}

// Completes the replacements in `directory` that a crash interrupted. Each one left a directory named
// ".replaced-<name>". It is renamed back to <name>, or removed if the new directory already has that name.
// Call it only as the sole writer of `directory` (DirectoryLock).
void put_back_replaced(const fs::path& directory);

// A file that several runs of a program append to, one after another.
//
// The caller records the file's size after each sync(). The next run passes the recorded size, and the
// constructor cuts off the bytes beyond it, which an interrupted run left.
//
// A head of `head_bytes` bytes may be reserved at the start of the file and written last. It counts neither
// in size() nor in hash().

class AppendFile {
 public:
  // Opens or creates `path`, cuts it to its first `size` bytes after the head, and appends from there.
  //
  // Throws:        DataError, and leaves the file unchanged, if it is shorter, if the checksum of those bytes
  //                differs from a non-empty `hash`, if `path` is a symbolic link, or if a system call fails
  AppendFile(const fs::path& path, uint64_t size, const std::string& hash = "", uint64_t head_bytes = 0);
  // The destructor drops buffered bytes and reports no errors; call sync() first.

  void write(std::span<const std::byte> bytes);
  // Writes at most head_bytes bytes at the start of the file. They are on the device after the next sync().
  void write_head(std::span<const std::byte> bytes);
  // Passes the buffered bytes to the system.
  void flush();
  // Returns once every written byte is on the device.
  void sync();

  uint64_t size() const { return size_; }  // includes bytes that are still buffered
  std::string hash() const { return hasher_.hexdigest(); }
  const fs::path& path() const { return file_.path(); }

 private:
  void read_hash(uint64_t size);

  Descriptor file_;
  uint64_t head_bytes_ = 0;
  uint64_t size_ = 0;
  Hasher hasher_;
  std::vector<std::byte> buffer_;
};

}  // namespace dtopp
