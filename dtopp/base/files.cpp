#include "dtopp/base/files.h"

#include <system_error>

#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "dtopp/base/format.h"

namespace dtopp {
PathKind path_kind(const fs::path& path) {
  std::error_code error;
  const auto status = fs::status(path, error);
  switch (status.type()) {
    case fs::file_type::not_found:
      return PathKind::kNothing;
    case fs::file_type::regular:
      return PathKind::kFile;
    case fs::file_type::directory:
      return PathKind::kDirectory;
    case fs::file_type::none:
      throw file_error("read its status", path, error.value());
    default:
      return PathKind::kOther;
  }
}

bool is_there(const fs::path& path) {
  std::error_code unused;
  return fs::exists(fs::symlink_status(path, unused));
}

namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

const char* remedy(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      return "free space there or choose another directory";
    case EACCES:
    case EPERM:
    case EROFS:
      return "check its permissions or choose another directory";
    case ENOENT:
    case ENOTDIR:
      return "check the path";
    case EMFILE:
    case ENFILE:
      return "raise the limit on open files (ulimit -n)";
    case EIO:
      return "check the device it lies on";
    default:
      return "check the path and the file system it lies on";
  }
}

void sync_path(const fs::path& path, int flags) {
  Descriptor descriptor(path, flags, "open");
  // EINVAL: this file system has nothing to sync for directories.
  if (retry([&] { return ::fsync(descriptor.get()); }) != 0 && !((flags & O_DIRECTORY) && errno == EINVAL))
    throw file_error("sync", path, errno);
  descriptor.close();
}

bool directory_exists(const fs::path& path) {
  std::error_code no_answer;  // treat as missing; the call that needs the directory reports the error
  return fs::is_directory(path, no_answer);
}

// The parent of "a" is "", the working directory.
fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// A rename would replace a device or a pipe by a file.
void refuse_what_is_no_file(const fs::path& path) {
  std::error_code no_answer;  // creating the file reports the error
  const auto status = fs::status(path, no_answer);
  if (fs::status_known(status) && fs::is_other(status))
    throw DataError(path, ": not a regular file; choose another path");
}

constexpr std::string_view kPrefix = ".tmp-";
constexpr size_t kDigits = 16;

// The part between the prefix and the digits; empty if the name is not a temporary one.
std::string_view finished_name(std::string_view name) {
  if (name.size() < kPrefix.size() + 1 + 1 + kDigits || !name.starts_with(kPrefix)) return {};
  const auto tail = name.substr(name.size() - kDigits - 1);
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (tail.front() != '.' || !std::ranges::all_of(tail.substr(1), is_digit)) return {};
  return name.substr(kPrefix.size(), name.size() - kPrefix.size() - tail.size());
}

// Unlinks while the lock is held. A writer that gets the lock later then detects that its file is gone.
void remove_if_abandoned(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return;
  struct stat status {};
  if (::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) &&
      ::flock(descriptor, LOCK_EX | LOCK_NB) == 0)
    ::unlink(path.c_str());
  ::close(descriptor);
}

Descriptor lock_directory(const fs::path& directory) {
  for (;;) {
    Descriptor file(directory / ".lock", O_RDWR | O_CREAT | O_NOFOLLOW, "lock");
    if (retry([&] { return ::flock(file.get(), LOCK_EX | LOCK_NB); }) != 0) {
      if (errno != EWOULDBLOCK) throw file_error("lock", file.path(), errno);
      throw UsageError("another dtopp process is writing ", directory,
                       "; wait for it, stop it or choose another output directory");
    }
    // The former holder may have removed the file before it released the lock.
    if (file.status().st_nlink > 0) return file;
  }
}

constexpr std::string_view kReplaced = ".replaced-";

// The name that the old directory has while the new one is renamed to `path`.
fs::path replaced_name(const fs::path& path) {
  const fs::path plain = without_trailing_slash(path);
  return plain.parent_path() / (std::string(kReplaced) + plain.filename().string());
}

void finish_replacement(const fs::path& replaced, const fs::path& path) {
  if (!is_there(replaced)) return;
  if (is_there(path))
    remove_tree(replaced);
  else
    rename_durably(replaced, path);
}

// Both names exist at every moment. A file system without RENAME_EXCHANGE gets two renames instead.
void exchange_durably(const fs::path& fresh, const fs::path& old) {
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, old.c_str(), RENAME_EXCHANGE) == 0)
    return sync_directory(fs::absolute(fresh).parent_path());
  if (errno != EINVAL && errno != ENOSYS) throw file_error("exchange with " + old.string(), fresh, errno);
  const fs::path replaced = replaced_name(old);
  rename_durably(old, replaced);
  rename_durably(fresh, old);
  remove_tree(replaced);
}

void sync_tree(const fs::path& directory) {
  for (const auto& path : list_directory(directory)) {
    if (path_kind(path) == PathKind::kDirectory)
      sync_tree(path);
    else
      sync_file(path);
  }
  sync_directory(directory);
}

}  // namespace

bool may_pass(const DataError& error) {
  const auto* system = dynamic_cast<const FileError*>(&error);
  if (!system) return false;
  const int number = system->error_number;
  return number != ENOENT && number != ENOTDIR && number != EISDIR && number != ELOOP;
}

FileError file_error(const std::string& action, const fs::path& path, int error_number) {
  return {path.string() + ": cannot " + action + ": " + std::generic_category().message(error_number) + "; " +
              remedy(error_number),
          error_number};
}

std::string read_file(const fs::path& path, uint64_t limit) {
  const Descriptor descriptor = open_regular(path);
  const uint64_t size = descriptor.size();
  const auto too_large = [&] { return DataError(path, ": larger than the ", limit, " bytes allowed here"); };
  if (size > limit) throw too_large();
  std::string text;
  text.reserve(size);
  auto chunk = descriptor.make_buffer();
  for (;;) {
    const auto count = descriptor.read(chunk.data(), chunk.size());
    if (count == 0) return text;
    if (count > limit - text.size()) throw too_large();
    text.append(reinterpret_cast<const char*>(chunk.data()), count);
  }
}

OutputFile::OutputFile(fs::path path, Hasher* hasher, Existing existing)
    : path_(std::move(path)),
      hasher_(hasher),
      file_(path_, O_WRONLY | O_CREAT | O_NOFOLLOW | (existing == Existing::kRefused ? O_EXCL : O_TRUNC),
            "create", finished_sibling(path_)) {}

void OutputFile::write(std::span<const std::byte> bytes) {
  size_ += bytes.size();
  if (hasher_) hasher_->update(bytes);
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() >= kBufferBytes) return file_.write(bytes);
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void OutputFile::flush() {
  file_.write(buffer_);
  buffer_.clear();
}

void OutputFile::sync() {
  flush();
  file_.sync();
}

void sync_file(const fs::path& path) { sync_path(path, O_RDONLY); }

void sync_directory(const fs::path& path) { sync_path(path, O_RDONLY | O_DIRECTORY); }

std::vector<fs::path> list_directory(const fs::path& directory) {
  std::error_code error;
  std::vector<fs::path> paths;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    paths.push_back(it->path());
  if (error) throw file_error("list", directory, error.value());
  return paths;
}

void make_directories(const fs::path& path) {
  if (path.empty() || directory_exists(path)) return;
  make_directories(path.parent_path());
  const int error_number = ::mkdir(path.c_str(), 0777) == 0 ? 0 : errno;
  // EEXIST: another process created it first, or a file has that name.
  if (error_number != 0 && !(error_number == EEXIST && directory_exists(path)))
    throw file_error("create the directory", path, error_number == EEXIST ? ENOTDIR : error_number);
  sync_directory(parent_of(path));
}

void rename_durably(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw file_error("rename to " + to.string(), from, errno);
  sync_directory(parent_of(to));
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw file_error("remove", path, error.value());
}

void remove_durably(const fs::path& path) {
  const auto doomed = temporary_sibling(path);
  rename_durably(path, doomed);
  remove_tree(doomed);
}

void remove_leftovers(const fs::path& directory) {
  for (const auto& path : list_directory(directory)) {
    std::error_code gone;
    const auto type = fs::symlink_status(path, gone).type();
    if ((type == fs::file_type::regular || type == fs::file_type::directory) &&
        is_temporary_name(path.filename().string()))
      remove_tree(path);
  }
}

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)) {
  refuse_what_is_no_file(path_);
  remove_abandoned(path_);
  do {
    file_.emplace(temporary_sibling(path_), nullptr, OutputFile::Existing::kRefused);
  } while (!hold_temporary(file_->descriptor()));
}

AtomicFile::~AtomicFile() {
  if (file_) ::unlink(file_->path().c_str());  // frees the disk space
}

void AtomicFile::commit() {
  file_->sync();
  if (::rename(file_->path().c_str(), path_.c_str()) != 0) throw file_error("replace", path_, errno);
  sync_directory(parent_of(path_));
  file_->close();  // not earlier: closing the file releases its lock
  file_.reset();
}

void write_file_atomically(const fs::path& path, std::string_view bytes) {
  write_file_atomically(path, [&](OutputFile& file) { file.write(bytes); });
}

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  const Descriptor descriptor = open_regular(path_);
  size_ = descriptor.size();
  if (size_ == 0) return;  // mmap rejects empty maps
  void* const data = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor.get(), 0);
  if (data == MAP_FAILED) throw file_error("map", path_, errno);
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

DirectoryLock::DirectoryLock(const fs::path& directory) : file_(lock_directory(directory)) {}

std::string random_digits() {
  uint64_t number = 0;
  if (retry([&] { return ::getrandom(&number, sizeof(number), 0); }) != sizeof(number))
    throw file_error("read", "the kernel's random numbers", errno);
  return format("%016lx", number);
}

fs::path temporary_sibling(const fs::path& path) {
  const fs::path plain = without_trailing_slash(path);
  return plain.parent_path() / (std::string(kPrefix) + plain.filename().string() + "." + random_digits());
}

fs::path finished_sibling(const fs::path& path) {
  const std::string name = path.filename().string();
  const std::string_view finished = finished_name(name);
  return finished.empty() ? path : path.parent_path() / finished;
}

bool is_temporary_name(std::string_view name) { return !finished_name(name).empty(); }

bool is_temporary_name_of(std::string_view of, std::string_view name) {
  return !of.empty() && finished_name(name) == of;
}

void remove_abandoned(const fs::path& path) {
  const std::string of = path.filename().string();
  std::error_code unreadable;  // remove nothing
  for (fs::directory_iterator it(parent_of(path), unreadable), end; !unreadable && it != end;
       it.increment(unreadable)) {
    if (is_temporary_name_of(of, it->path().filename().string())) remove_if_abandoned(it->path());
  }
}

bool hold_temporary(int descriptor) {
  // A file system without locks: remove_abandoned() cannot lock the file either, and does not remove it.
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) return errno != EWOULDBLOCK;
  struct stat status {};
  return ::fstat(descriptor, &status) == 0 && status.st_nlink > 0;
}

AtomicDirectory::AtomicDirectory(fs::path path, bool replace) : path_(std::move(path)) {
  if (replace) finish_replacement(replaced_name(path_), path_);
  exists_ = is_there(path_);
  if (exists_ && !replace) throw file_error("create the directory", path_, EEXIST);
  temporary_ = temporary_sibling(path_);
  if (::mkdir(temporary_.c_str(), 0777) != 0) throw file_error("create the directory", temporary_, errno);
}

AtomicDirectory::~AtomicDirectory() {
  std::error_code ignored;  // an earlier error is already being reported; the remains are a leftover
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

void AtomicDirectory::commit() {
  sync_tree(temporary_);
  if (exists_)
    exchange_durably(temporary_, path_);
  else
    rename_durably(temporary_, path_);
  remove_tree(std::exchange(temporary_, {}));  // after an exchange: the old directory
}

void put_back_replaced(const fs::path& directory) {
  for (const fs::path& path : list_directory(directory)) {
    const std::string name = path.filename().string();
    if (name.starts_with(kReplaced)) finish_replacement(path, directory / name.substr(kReplaced.size()));
  }
}

AppendFile::AppendFile(const fs::path& path, uint64_t size, const std::string& hash, uint64_t head_bytes)
    : file_(path, O_RDWR | O_CREAT | O_NOFOLLOW, "create"), head_bytes_(head_bytes), size_(size) {
  const uint64_t all = file_.size(), there = all - std::min(all, head_bytes);
  if (there < size)
    throw DataError(path, ": has ", there, " bytes, but ", size,
                    " were written: damaged; start again in a new folder");
  if (::lseek(file_.get(), static_cast<off_t>(head_bytes_), SEEK_SET) < 0)
    throw file_error("read", path, errno);
  read_hash(size);
  if (size > 0 && !hash.empty() && this->hash() != hash)
    throw DataError(path, ": changed or damaged since it was written; start again in a new folder");
  if (retry([&] { return ::ftruncate(file_.get(), static_cast<off_t>(head_bytes_ + size)); }) != 0)
    throw file_error("truncate", path, errno);
  sync_directory(parent_of(path));
}

// Leaves the file position after the hashed bytes.
void AppendFile::read_hash(uint64_t size) {
  std::vector<std::byte> chunk(std::min<uint64_t>(size, kBufferBytes));
  while (size > 0) {
    const size_t count = file_.read(chunk.data(), std::min<uint64_t>(size, chunk.size()));
    if (count == 0) throw DataError(path(), ": became shorter while it was read; start again");
    hasher_.update(std::span(chunk).first(count));
    size -= count;
  }
}

void AppendFile::write(std::span<const std::byte> bytes) {
  hasher_.update(bytes);
  size_ += bytes.size();
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  if (buffer_.size() >= kBufferBytes) flush();
}

void AppendFile::write_head(std::span<const std::byte> bytes) {
  if (bytes.size() > head_bytes_)
    throw std::invalid_argument("AppendFile: the head is longer than head_bytes");
  for (size_t done = 0; done < bytes.size();) {
    const auto rest = bytes.subspan(done);
    const auto count =
        retry([&] { return ::pwrite(file_.get(), rest.data(), rest.size(), static_cast<off_t>(done)); });
    if (count <= 0) throw file_error("write", path(), count < 0 ? errno : ENOSPC);
    done += static_cast<size_t>(count);
  }
}

void AppendFile::flush() {
  file_.write(buffer_);
  buffer_.clear();
}

void AppendFile::sync() {
  flush();
  file_.sync();
}

}  // namespace dtopp
