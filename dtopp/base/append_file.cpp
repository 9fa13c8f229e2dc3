#include "dtopp/base/append_file.h"

#include <algorithm>
#include <stdexcept>

#include <unistd.h>

#include "dtopp/base/descriptor.h"

namespace dtopp {
namespace {

constexpr size_t kAppendBufferBytes = size_t{1} << 20;

}  // namespace

AppendFile::AppendFile(std::filesystem::path path, uint64_t size, const std::string& hash,
                       uint64_t head_bytes)
    : path_(std::move(path)), head_bytes_(head_bytes), size_(size) {
  Descriptor descriptor(path_, O_RDWR | O_CREAT | O_NOFOLLOW, "create");
  const auto all = static_cast<uint64_t>(descriptor.status().st_size);
  const uint64_t there = all - std::min(all, head_bytes_);
  if (there < size)
    throw DataError(path_.string() + ": has " + std::to_string(there) + " bytes, but " +
                    std::to_string(size) + " were written: damaged; start again in a new folder");
  if (::lseek(descriptor.get(), static_cast<off_t>(head_bytes_), SEEK_SET) < 0)
    throw file_error("read", path_, errno);
  read_hash(descriptor, size);
  if (size > 0 && !hash.empty() && this->hash() != hash)
    throw DataError(path_.string() +
                    ": changed or damaged since it was written; start again in a new folder");
  if (retry([&] { return ::ftruncate(descriptor.get(), static_cast<off_t>(head_bytes_ + size)); }) != 0)
    throw file_error("truncate", path_, errno);
  sync_directory(path_.has_parent_path() ? path_.parent_path() : ".");
  descriptor_ = descriptor.release();
}

AppendFile::~AppendFile() { ::close(descriptor_); }

// Leaves the file position after the hashed bytes.
void AppendFile::read_hash(const Descriptor& descriptor, uint64_t size) {
  std::vector<std::byte> chunk(std::min<uint64_t>(size, kAppendBufferBytes));
  while (size > 0) {
    const size_t count = descriptor.read(chunk.data(), std::min<uint64_t>(size, chunk.size()));
    if (count == 0) throw DataError(path_.string() + ": became shorter while it was read; start again");
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
        retry([&] { return ::pwrite(descriptor_, rest.data(), rest.size(), static_cast<off_t>(done)); });
    if (count <= 0) throw file_error("write", path_, count < 0 ? errno : ENOSPC);
    done += static_cast<size_t>(count);
  }
}

void AppendFile::flush() {
  std::span<const std::byte> rest = buffer_;
  while (!rest.empty()) {
    const auto count = retry([&] { return ::write(descriptor_, rest.data(), rest.size()); });
    if (count <= 0) throw file_error("write", path_, count < 0 ? errno : ENOSPC);
    rest = rest.subspan(static_cast<size_t>(count));
  }
  buffer_.clear();
}

void AppendFile::sync() {
  flush();
  if (retry([&] { return ::fsync(descriptor_); }) != 0) throw file_error("sync", path_, errno);
}

}  // namespace dtopp
