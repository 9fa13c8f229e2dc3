#include "dtopp/base/durable.h"

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtopp/base/files.h"

namespace dtopp {
namespace {

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

constexpr size_t kAppendBufferBytes = size_t{1} << 20;

}  // namespace

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
  sync_directory(path.has_parent_path() ? path.parent_path() : ".");
}

// Leaves the file position after the hashed bytes.
void AppendFile::read_hash(uint64_t size) {
  std::vector<std::byte> chunk(std::min<uint64_t>(size, kAppendBufferBytes));
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
  if (buffer_.size() >= kAppendBufferBytes) flush();
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
