// Reads files, and writes files that are complete or absent. All of dtopp's output that must survive a crash
// is written with these functions.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtopp/base/descriptor.h"

namespace dtopp {

enum class PathKind { kNothing, kFile, kDirectory, kOther };

// The kind of file at `path`, after following links.
//
// std::filesystem::exists is no substitute: without permission on a parent folder, one overload throws
// another type and the other returns false.
//
// Throws:        DataError with the system's reason if the kind cannot be determined
PathKind path_kind(const fs::path& path);

// Returns true if the path exists, even as a broken link. Returns false also if its status cannot be read;
// opening it then reports the reason.
bool is_there(const fs::path& path);

// "a/" names the same directory as "a", but it has no file name, and its parent_path() is "a".
inline fs::path without_trailing_slash(const fs::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

class Hasher;

// Whether a system call failed for a reason that may pass (EACCES, EIO, EMFILE, …). Such an error tells
// nothing about the file's content; wrong content and a path that leads to no file do.
bool may_pass(const DataError& error);

// Reads the whole file. Throws DataError if it is missing, unreadable, not a regular file or larger than
// `limit` bytes.
std::string read_file(const fs::path& path, uint64_t limit = uint64_t{1} << 32);

// A file that is being written. Every call checks the system's result and throws a DataError with path and
// cause.
class OutputFile {
 public:
  enum class Existing { kTruncated, kRefused };

  // Creates `path`. An existing file is truncated or refused; a symbolic link is never followed. Every
  // written byte also updates `hasher` unless it is null.
  explicit OutputFile(fs::path path, Hasher* hasher = nullptr, Existing existing = Existing::kTruncated);
  // The destructor drops buffered bytes and reports no errors; call sync_and_close() first.

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  // Flushes buffers and forces the bytes to the device (fsync).
  void sync();
  // Drops bytes that are still buffered; call sync() first.
  void close() { file_.close(); }
  void sync_and_close() {
    sync();
    close();
  }
  uint64_t size() const { return size_; }
  const fs::path& path() const { return path_; }
  int descriptor() const { return file_.get(); }

 private:
  void flush();

  fs::path path_;
  Hasher* hasher_;
  Descriptor file_;
  uint64_t size_ = 0;
  std::vector<std::byte> buffer_;
};

// A file that has a temporary name beside `path` until commit().
//
// If several processes write the same path, the last one to finish wins, and a reader gets one complete
// version. Temporary files that interrupted writes of `path` left are removed.
class AtomicFile {
 public:
  // Throws DataError if `path` exists and is not a regular file (a device, a pipe).
  explicit AtomicFile(fs::path path);
  ~AtomicFile();  // removes what was written unless commit() was called
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  OutputFile& file() { return *file_; }
  // Syncs the file, renames it to `path` and syncs the directory.
  void commit();

 private:
  fs::path path_;
  std::optional<OutputFile> file_;
};

// Writes a file atomically. `fill` writes into an OutputFile.
template <std::invocable<OutputFile&> Fill>
void write_file_atomically(const fs::path& path, Fill&& fill) {
  AtomicFile atomic(path);
  fill(atomic.file());
  atomic.commit();
}
void write_file_atomically(const fs::path& path, std::string_view bytes);

// The paths of a directory's entries, in no order. Throws DataError if it cannot be listed.
std::vector<fs::path> list_directory(const fs::path& directory);

// Creates `path` and its missing parents; each one is synced.
void make_directories(const fs::path& path);

// Renames within one directory and replaces an existing file `to`. Returns once the new name is durable.
void rename_durably(const fs::path& from, const fs::path& to);

// Removes a file, or a directory with everything in it. A missing path is not an error.
void remove_tree(const fs::path& path);

// Removes a path like remove_tree(), but removes its name durably before its content. If a crash interrupts
// it, the rest has a temporary name. Throws DataError if the path is missing.
void remove_durably(const fs::path& path);

// Removes the files and directories with a temporary name in `directory`, which interrupted writes and
// removals left. Links and all other names stay. Call it only as the sole writer of `directory`
// (DirectoryLock).
void remove_leftovers(const fs::path& directory);

// Syncs a file that somebody else wrote, so that its content survives a power loss.
void sync_file(const fs::path& path);

// Syncs a directory, so that new and renamed entries survive a power loss.
void sync_directory(const fs::path& path);

// A read-only memory map of a whole file. Throws DataError if it cannot be mapped.
class MappedFile {
 public:
  explicit MappedFile(const fs::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  MappedFile(const MappedFile&) = delete;
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// An exclusive lock on a directory (flock on "<directory>/.lock") for the lifetime of the object. It prevents
// two processes from writing one run directory. The file stays unless its holder removes it.
//
// Throws:        UsageError if another process holds the lock; DataError if the directory is missing
class DirectoryLock {
 public:
  explicit DirectoryLock(const fs::path& directory);

 private:
  Descriptor file_;
};

// Names unfinished files: ".tmp-<name>.<16 hexadecimal digits>", beside the final name. The digits are
// random, so two writers never share a name, and no other process can create a file under it in advance.

fs::path temporary_sibling(const fs::path& path);

// The path beside which temporary_sibling() made this name; another path itself. Errors name it.
fs::path finished_sibling(const fs::path& path);

// True if temporary_sibling() may have made `name` for any path, or for a path whose file name is `of`.
bool is_temporary_name(std::string_view name);
bool is_temporary_name_of(std::string_view of, std::string_view name);

// Removes the temporary files that interrupted writes of `path` left beside it. A file stays if a writer
// still holds its lock. Errors are ignored.
void remove_abandoned(const fs::path& path);

// Locks a temporary file for as long as its descriptor is open. Returns false if remove_abandoned() removed
// the file between its creation and this call; the caller must then create another one.
bool hold_temporary(int descriptor);

}  // namespace dtopp
