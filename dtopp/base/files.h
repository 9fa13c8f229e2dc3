// Reads files, and writes files that are complete or absent. All of dtopp's output that must survive a crash
// is written with these functions.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/hash.h"

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

// The error of a failed system call.
struct FileError : DataError {
  FileError(const std::string& message, int error_number) : DataError(message), error_number(error_number) {}
  int error_number;
};

// Builds such an error: the path, the action, the system's reason and a remedy.
FileError file_error(const std::string& action, const fs::path& path, int error_number);

// Repeats the call while a signal interrupts it, and returns its result.
template <class Call>
auto retry(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// An open descriptor that the destructor closes. `action` describes the purpose in the error message if
// open() fails.
class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags, const std::string& action)
      : Descriptor(path, flags, action, path) {}
  // Errors name `shown` instead of the path.
  Descriptor(const fs::path& path, int flags, const std::string& action, fs::path shown)
      : path_(std::move(shown)),
        value_(retry([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); })) {
    if (value_ < 0) throw file_error(action, path_, errno);
  }
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(Descriptor&& other) noexcept : path_(std::move(other.path_)), value_(other.release()) {}

  int get() const { return value_; }
  const fs::path& path() const { return path_; }
  int release() { return std::exchange(value_, -1); }

  uint64_t size() const { return static_cast<uint64_t>(status().st_size); }
  struct stat status() const {
    struct stat status {};
    if (::fstat(value_, &status) != 0) throw file_error("read", path_, errno);
    return status;
  }

  // A buffer for reading the file: at most 1 MiB, and smaller for small files.
  std::vector<std::byte> make_buffer() const {
    constexpr uint64_t kLargest = uint64_t{1} << 20;
    const auto file = status();
    const uint64_t size = S_ISREG(file.st_mode) ? static_cast<uint64_t>(file.st_size) + 1 : kLargest;
    return std::vector<std::byte>(std::min(size, kLargest));
  }

  // Reads up to `size` bytes; returns 0 at the end of the file.
  size_t read(void* data, size_t size) const {
    const auto count = retry([&] { return ::read(value_, data, size); });
    if (count < 0) throw file_error("read", path_, errno);
    return static_cast<size_t>(count);
  }

  // Fills `out` with the bytes from `offset` on. Any thread may call it. Throws DataError if the file ends
  // earlier, where a map would raise SIGBUS.
  void read_at(uint64_t offset, std::span<std::byte> out) const {
    while (!out.empty()) {
      const auto count =
          retry([&] { return ::pread(value_, out.data(), out.size(), static_cast<off_t>(offset)); });
      if (count < 0) throw file_error("read", path_, errno);
      if (count == 0)
        throw DataError(path_, ": byte ", offset,
                        ": the file ends: it became shorter since it was opened; restore it");
      offset += static_cast<uint64_t>(count);
      out = out.subspan(static_cast<size_t>(count));
    }
  }

  void write(std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const auto count = retry([&] { return ::write(value_, bytes.data(), bytes.size()); });
      if (count <= 0) throw file_error("write", path_, count < 0 ? errno : ENOSPC);
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
  }
  void sync() const {
    if (retry([&] { return ::fsync(value_); }) != 0) throw file_error("sync", path_, errno);
  }
  // The descriptor is invalid afterwards whatever close() returns. EINTR is no error, because the data was
  // synced before.
  void close() {
    if (::close(release()) != 0 && errno != EINTR) throw file_error("close", path_, errno);
  }

 private:
  fs::path path_;
  int value_;
};

// Opens a file for reading. Throws DataError if it is not a regular file. O_NONBLOCK: opening a named pipe
// must not wait for a writer.
inline Descriptor open_regular(const fs::path& path) {
  Descriptor descriptor(path, O_RDONLY | O_NONBLOCK, "open");
  if (!S_ISREG(descriptor.status().st_mode)) throw DataError(path, ": not a regular file; check the path");
  return descriptor;
}

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

// 16 hexadecimal digits from the kernel's random numbers.
std::string random_digits();

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

// A directory that has a temporary name beside `path` (temporary_sibling) until commit().
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
  uint64_t head_bytes_ = 0, size_ = 0;
  Hasher hasher_;
  std::vector<std::byte> buffer_;
};

}  // namespace dtopp
