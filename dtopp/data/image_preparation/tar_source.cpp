// Reads a tar file, plain or compressed (.gz, .zst). Nothing is extracted to disk: names are only text, and
// links are not followed.
#include <algorithm>
#include <cerrno>
#include <exception>
#include <memory>
#include <new>
#include <vector>

#include <archive.h>
#include <archive_entry.h>

#include "dtopp/base/errors.h"
#include "dtopp/data/image_preparation/image_source.h"
#include "dtopp/data/text/byte_source.h"

namespace dtopp::data {
namespace {

constexpr size_t kTarBlockBytes = size_t{1} << 18;
constexpr uint64_t kEndMarkBytes = 1024;  // two blocks of zeros

// Returns the name's bytes as stored. pathname() returns null for a UTF-8 name that the locale cannot
// represent.
std::string name_of(archive_entry* entry) {
  if (const char* name = archive_entry_pathname(entry)) return name;
  const char* name = archive_entry_pathname_utf8(entry);
  return name ? name : "";
}

std::string fault_of(archive_entry* entry, const std::string& name, uint64_t size) {
  if (const std::string fault = name_fault(name); !fault.empty()) return fault;
  if (archive_entry_hardlink(entry) || archive_entry_filetype(entry) == AE_IFLNK)
    return "is a link, which is not followed";
  if (archive_entry_filetype(entry) != AE_IFREG) return "is not a regular file";
  // Its gaps cost memory and no bytes of the archive.
  if (archive_entry_sparse_count(entry) > 0) return "is a sparse file; store it whole";
  if (size > kMaxMemberBytes)
    return "claims " + std::to_string(size) + " bytes, more than the " + std::to_string(kMaxMemberBytes) +
           " allowed";
  return "";
}

class TarSource : public SampleGroups {
 public:
  // Throws DataError, naming the file and the byte (in the compressed file), if it is truncated, damaged or
  // not a tar file; so do the other methods.
  explicit TarSource(const std::filesystem::path& path)
      : path_(path), source_(open_bytes(path)), block_(kTarBlockBytes), archive_(archive_read_new()) {
    if (!archive_) throw std::bad_alloc();
    archive* tar = archive_.get();
    archive_read_support_format_tar(tar);
    archive_read_set_options(tar, "read_concatenated_archives");
    archive_read_set_read_callback(tar, &TarSource::on_read);
    archive_read_set_skip_callback(tar, &TarSource::on_skip);
    archive_read_set_callback_data(tar, this);
    if (archive_read_open1(tar) != ARCHIVE_OK) fail_as_archive();
  }

 private:
  struct FreeArchive {
    void operator()(archive* tar) const { archive_read_free(tar); }
  };

  std::optional<Named> next_member() override {
    while (!at_end_) {
      archive_entry* entry = nullptr;
      const int status = archive_read_next_header(archive_.get(), &entry);
      if (status == ARCHIVE_EOF) {
        if (zeros_at_end_ < kEndMarkBytes) fail("ends without a tar's end mark: the file is truncated");
        at_end_ = true;
        break;
      }
      if (status != ARCHIVE_OK && status != ARCHIVE_WARN) fail_as_archive();
      if (archive_entry_filetype(entry) == AE_IFDIR && !archive_entry_hardlink(entry)) continue;
      size_ = static_cast<uint64_t>(std::max<int64_t>(archive_entry_size(entry), 0));
      const std::string name = name_of(entry);
      return Named{name, fault_of(entry, name, size_)};
    }
    return std::nullopt;
  }

  RawMember content(bool load) override { return {load ? read() : "", {}}; }

  std::string location_of(const std::string& name) const override {
    return path_.string() + ": " + printable(name);
  }

  std::string read() {
    std::string bytes;
    while (bytes.size() < size_) {
      // The header's size is not trusted: memory grows only with the bytes that are read.
      const size_t begin = bytes.size();
      bytes.resize(std::min<uint64_t>(size_, begin + kTarBlockBytes));
      const auto count = archive_read_data(archive_.get(), bytes.data() + begin, bytes.size() - begin);
      if (count < 0) fail_as_archive();
      bytes.resize(begin + static_cast<size_t>(count));
      if (count == 0) fail("a member ends early");
    }
    return bytes;
  }

  // Stores exceptions, because they must not pass through libarchive, which is C.
  template <class Call>
  auto guarded(archive* reader, Call call) -> decltype(call()) {
    try {
      return call();
    } catch (...) {
      error_ = std::current_exception();
      archive_set_error(reader, EIO, "reading failed");
      return ARCHIVE_FATAL;
    }
  }

  static ptrdiff_t on_read(archive* reader, void* self, const void** block) {
    auto& tar = *static_cast<TarSource*>(self);
    return tar.guarded(reader, [&] {
      const size_t count = tar.source_->read(tar.block_);
      tar.note_end(count);
      *block = tar.block_.data();
      return static_cast<ptrdiff_t>(count);
    });
  }

  static int64_t on_skip(archive* reader, void* self, int64_t count) {
    auto& tar = *static_cast<TarSource*>(self);
    return tar.guarded(reader, [&] {
      const uint64_t skipped = tar.source_->skip(static_cast<uint64_t>(count));
      if (skipped > 0) tar.zeros_at_end_ = 0;
      return static_cast<int64_t>(skipped);
    });
  }

  void note_end(size_t count) {
    const auto end = block_.rend(), begin = end - static_cast<ptrdiff_t>(count);
    const auto zeros = std::find_if(begin, end, [](char c) { return c != 0; }) - begin;
    zeros_at_end_ =
        static_cast<size_t>(zeros) == count ? zeros_at_end_ + count : static_cast<uint64_t>(zeros);
  }

  [[noreturn]] void fail(const std::string& cause) const {
    throw DataError(path_.string() + ": byte " + std::to_string(source_->file_bytes()) + ": " + cause +
                    "; restore the file from its source");
  }

  [[noreturn]] void fail_as_archive() {
    if (error_) std::rethrow_exception(error_);
    const char* cause = archive_error_string(archive_.get());
    fail(cause ? cause : "not a tar file");
  }

  std::filesystem::path path_;
  std::unique_ptr<ByteSource> source_;
  std::vector<char> block_;
  uint64_t zeros_at_end_ = 0;  // zero bytes at the end of the bytes read so far
  std::exception_ptr error_;   // exception that the source threw inside libarchive
  uint64_t size_ = 0;          // size of the current member
  bool at_end_ = false;
  std::unique_ptr<archive, FreeArchive> archive_;
};

}  // namespace

std::unique_ptr<ImageSource> open_image_tar(const std::filesystem::path& path) {
  return std::make_unique<TarSource>(path);
}

}  // namespace dtopp::data
