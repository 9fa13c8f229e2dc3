#include "dtopp/data/image_preparation/tar_reader.h"

#include <algorithm>
#include <cerrno>
#include <new>

#include <archive.h>
#include <archive_entry.h>

#include "dtopp/base/errors.h"

namespace dtopp {
namespace {

constexpr size_t kTarBlockBytes = size_t{1} << 18;
constexpr uint64_t kEndMarkBytes = 1024;  // two blocks of zeros

MemberKind kind_of(archive_entry* entry) {
  if (archive_entry_hardlink(entry) || archive_entry_filetype(entry) == AE_IFLNK) return MemberKind::kLink;
  return archive_entry_filetype(entry) == AE_IFREG ? MemberKind::kFile : MemberKind::kOther;
}

// Returns the name's bytes as stored. pathname() returns null for a UTF-8 name that the locale cannot
// represent.
std::string name_of(archive_entry* entry) {
  if (const char* name = archive_entry_pathname(entry)) return name;
  const char* name = archive_entry_pathname_utf8(entry);
  return name ? name : "";
}

}  // namespace

TarReader::TarReader(const std::filesystem::path& path)
    : path_(path), source_(open_bytes(path)), block_(kTarBlockBytes), archive_(archive_read_new()) {
  if (!archive_) throw std::bad_alloc();
  archive_read_support_format_tar(archive_);
  archive_read_set_options(archive_, "read_concatenated_archives");
  archive_read_set_read_callback(archive_, &TarReader::on_read);
  archive_read_set_skip_callback(archive_, &TarReader::on_skip);
  archive_read_set_callback_data(archive_, this);
  try {
    if (archive_read_open1(archive_) != ARCHIVE_OK) fail_as_archive();
  } catch (...) {
    archive_read_free(archive_);
    throw;
  }
}

TarReader::~TarReader() { archive_read_free(archive_); }

// Stores exceptions, because they must not pass through libarchive, which is C.
template <class Call>
auto TarReader::guarded(archive* reader, Call call) -> decltype(call()) {
  try {
    return call();
  } catch (...) {
    error_ = std::current_exception();
    archive_set_error(reader, EIO, "reading failed");
    return ARCHIVE_FATAL;
  }
}

ptrdiff_t TarReader::on_read(archive* reader, void* self, const void** block) {
  auto& tar = *static_cast<TarReader*>(self);
  return tar.guarded(reader, [&] {
    const size_t count = tar.source_->read(tar.block_);
    tar.note_end(count);
    *block = tar.block_.data();
    return static_cast<ptrdiff_t>(count);
  });
}

int64_t TarReader::on_skip(archive* reader, void* self, int64_t count) {
  auto& tar = *static_cast<TarReader*>(self);
  return tar.guarded(reader, [&] {
    const uint64_t skipped = tar.source_->skip(static_cast<uint64_t>(count));
    if (skipped > 0) tar.zeros_at_end_ = 0;
    return static_cast<int64_t>(skipped);
  });
}

void TarReader::note_end(size_t count) {
  const auto end = block_.rend(), begin = end - static_cast<ptrdiff_t>(count);
  const auto zeros = std::find_if(begin, end, [](char c) { return c != 0; }) - begin;
  zeros_at_end_ = static_cast<size_t>(zeros) == count ? zeros_at_end_ + count : static_cast<uint64_t>(zeros);
}

void TarReader::fail(const std::string& cause) {
  throw DataError(path_.string() + ": byte " + std::to_string(file_bytes()) + ": " + cause +
                  "; restore the file from its source");
}

void TarReader::fail_as_archive() {
  if (error_) std::rethrow_exception(error_);
  const char* cause = archive_error_string(archive_);
  fail(cause ? cause : "not a tar file");
}

std::optional<TarMember> TarReader::next() {
  while (!at_end_) {
    archive_entry* entry = nullptr;
    const int status = archive_read_next_header(archive_, &entry);
    if (status == ARCHIVE_EOF) {
      if (zeros_at_end_ < kEndMarkBytes) fail("ends without a tar's end mark: the file is cut");
      at_end_ = true;
      break;
    }
    if (status != ARCHIVE_OK && status != ARCHIVE_WARN) fail_as_archive();
    if (archive_entry_filetype(entry) == AE_IFDIR && !archive_entry_hardlink(entry)) continue;
    size_ = static_cast<uint64_t>(std::max<int64_t>(archive_entry_size(entry), 0));
    return TarMember{name_of(entry), kind_of(entry), size_};
  }
  return std::nullopt;
}

std::string TarReader::read() {
  std::string bytes;
  while (bytes.size() < size_) {
    // The header's size is not trusted: memory grows only with the bytes that are read.
    const size_t begin = bytes.size();
    bytes.resize(std::min<uint64_t>(size_, begin + kTarBlockBytes));
    const auto count = archive_read_data(archive_, bytes.data() + begin, bytes.size() - begin);
    if (count < 0) fail_as_archive();
    bytes.resize(begin + static_cast<size_t>(count));
    if (count == 0) fail("a member ends early");
  }
  return bytes;
}

}  // namespace dtopp
