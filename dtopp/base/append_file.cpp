#include "dtopp/base/append_file.h"

#include <algorithm>

#include <unistd.h>

#include "dtopp/base/descriptor.h"

namespace dtopp {
namespace {

constexpr size_t kAppendBufferBytes = size_t{1} << 20;

}  // namespace

AppendFile::AppendFile(std::filesystem::path path, uint64_t size) : path_(std::move(path)), size_(size) {
  Descriptor descriptor(path_, O_RDWR | O_CREAT | O_NOFOLLOW, "create");
  const auto there = static_cast<uint64_t>(descriptor.status().st_size);
  if (there < size)
    throw DataError(path_.string() + ": has " + std::to_string(there) + " bytes where " +
                    std::to_string(size) + " were written: it is damaged; delete it and start again");
  descriptor_ = descriptor.release();
  try {
    if (retry([&] { return ::ftruncate(descriptor_, static_cast<off_t>(size)); }) != 0)
      throw file_error("truncate", path_, errno);
    read_hash();  // leaves the position at the end
    sync_directory(path_.has_parent_path() ? path_.parent_path() : ".");
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

AppendFile::~AppendFile() { ::close(descriptor_); }

void AppendFile::read_hash() {
  std::vector<std::byte> chunk(kAppendBufferBytes);
  for (;;) {
    const auto count = retry([&] { return ::read(descriptor_, chunk.data(), chunk.size()); });
    if (count < 0) throw file_error("read", path_, errno);
    if (count == 0) return;
    hasher_.update(std::span(chunk).first(static_cast<size_t>(count)));
  }
}

void AppendFile::write(std::span<const std::byte> bytes) {
  hasher_.update(bytes);
  size_ += bytes.size();
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  if (buffer_.size() >= kAppendBufferBytes) flush();
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
