#include "dtopp/data/text/byte_source.h"

#include <algorithm>
#include <new>
#include <string>
#include <vector>

#include <zlib.h>
#include <zstd.h>

#include "dtopp/base/descriptor.h"
#include "dtopp/base/errors.h"

namespace dtopp::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPieceBytes = size_t{1} << 18;
constexpr const char* kRemedy = "; restore the file from its source";

enum class Compression { kNone, kGzip, kZstd };

// The bytes decide; the name does where they have no mark of a format, as in an empty or damaged file.
Compression compression_of(const fs::path& path, std::string_view first_bytes) {
  if (first_bytes.starts_with("\x1f\x8b")) return Compression::kGzip;
  if (first_bytes.starts_with("\x28\xb5\x2f\xfd")) return Compression::kZstd;
  const std::string_view ending = compression_ending(path);
  return ending.empty() ? Compression::kNone : ending == ".gz" ? Compression::kGzip : Compression::kZstd;
}

class PlainSource : public ByteSource {
 public:
  explicit PlainSource(const fs::path& path) : path_(path), file_(path_, O_RDONLY, "open") {}

  // The first four bytes, or fewer. Empty for a pipe, which cannot be read twice.
  std::string peek() const {
    std::string bytes(4, '\0');
    const auto count = retry([&] { return ::pread(file_.get(), bytes.data(), bytes.size(), 0); });
    if (count < 0 && errno != ESPIPE) throw file_error("read", path_, errno);
    bytes.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
    return bytes;
  }

  size_t read(std::span<char> out) override {
    size_t filled = 0;
    while (filled < out.size()) {
      const size_t count = file_.read(out.data() + filled, out.size() - filled);
      if (count == 0) break;
      filled += count;
    }
    file_bytes_ += filled;
    return filled;
  }

  uint64_t skip(uint64_t count) override {
    const auto status = file_.status();
    if (!S_ISREG(status.st_mode)) return 0;
    const auto size = static_cast<uint64_t>(status.st_size);
    count = std::min(count, size - std::min(size, file_bytes_));
    if (::lseek(file_.get(), static_cast<off_t>(count), SEEK_CUR) < 0) throw file_error("read", path_, errno);
    file_bytes_ += count;
    return count;
  }

  uint64_t file_bytes() const override { return file_bytes_; }

 private:
  fs::path path_;
  Descriptor file_;
  uint64_t file_bytes_ = 0;
};

// Buffers the compressed file for a decompressor and refills the buffer chunk by chunk.
class CompressedInput {
 public:
  CompressedInput(const fs::path& path, std::unique_ptr<PlainSource> source)
      : path_(path), source_(std::move(source)), chunk_(kPieceBytes) {}

  // The bytes that are not consumed yet; empty only at the end of the file.
  std::span<char> unread() {
    if (begin_ == end_) {
      begin_ = 0;
      end_ = source_->read(chunk_);
    }
    return std::span(chunk_).subspan(begin_, end_ - begin_);
  }
  void consume(size_t count) { begin_ += count; }
  uint64_t offset() const { return source_->file_bytes() - (end_ - begin_); }

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... cause) const {
    throw DataError(path_, ": byte ", offset(), ": ", cause..., kRemedy);
  }

 private:
  fs::path path_;
  std::unique_ptr<PlainSource> source_;
  std::vector<char> chunk_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

class GzipSource : public ByteSource {
 public:
  explicit GzipSource(CompressedInput input) : input_(std::move(input)) {
    constexpr int kGzipOnly = 16;
    if (::inflateInit2(&stream_, MAX_WBITS + kGzipOnly) != Z_OK) throw std::bad_alloc();
  }
  ~GzipSource() override { ::inflateEnd(&stream_); }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;

  size_t read(std::span<char> out) override {
    size_t filled = 0;
    while (filled < out.size()) {
      const auto unread = input_.unread();
      if (unread.empty()) {
        if (in_member_) input_.fail("the gzip stream ends early: the file is truncated");
        break;
      }
      filled += inflate_some(unread, out.subspan(filled));
    }
    return filled;
  }

  uint64_t file_bytes() const override { return input_.offset(); }

 private:
  size_t inflate_some(std::span<char> in, std::span<char> out) {
    in_member_ = true;
    stream_.next_in = reinterpret_cast<Bytef*>(in.data());
    stream_.avail_in = static_cast<uInt>(in.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    const auto room = static_cast<uInt>(std::min(out.size(), kPieceBytes));
    stream_.avail_out = room;
    const int status = ::inflate(&stream_, Z_NO_FLUSH);
    input_.consume(in.size() - stream_.avail_in);
    if (status == Z_STREAM_END) {  // another member may follow
      in_member_ = false;
      first_member_ = false;
      ::inflateReset(&stream_);
    } else if (status == Z_MEM_ERROR) {
      throw std::bad_alloc();
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      const std::string cause = stream_.msg ? stream_.msg : "damaged";
      input_.fail(cause == "incorrect header check"
                      ? (first_member_ ? "not a gzip file" : "other data follow the gzip stream")
                      : "damaged gzip stream: " + cause);
    }
    return room - stream_.avail_out;
  }

  CompressedInput input_;
  z_stream stream_ = {};
  bool in_member_ = true;  // true at the start: a file without any member counts as truncated
  bool first_member_ = true;
};

class ZstdSource : public ByteSource {
 public:
  explicit ZstdSource(CompressedInput input) : input_(std::move(input)), stream_(::ZSTD_createDStream()) {
    if (!stream_) throw std::bad_alloc();
  }

  size_t read(std::span<char> out) override {
    size_t filled = 0;
    while (filled < out.size()) {
      const auto unread = input_.unread();
      if (unread.empty() && !in_frame_) break;
      ZSTD_inBuffer in{unread.data(), unread.size(), 0};
      ZSTD_outBuffer piece{out.data(), out.size(), filled};
      const size_t status = ::ZSTD_decompressStream(stream_.get(), &piece, &in);
      if (::ZSTD_isError(status)) fail(status);
      input_.consume(in.pos);
      // 0: the frame is decoded and flushed. Until then, output may remain even without more input.
      in_frame_ = status != 0;
      if (!in_frame_) first_frame_ = false;
      if (unread.empty() && piece.pos == filled)
        input_.fail("the zstd stream ends early: the file is truncated");
      filled = piece.pos;
    }
    return filled;
  }

  uint64_t file_bytes() const override { return input_.offset(); }

 private:
  [[noreturn]] void fail(size_t status) const {
    const std::string name = ::ZSTD_getErrorName(status);
    if (name == "Unknown frame descriptor")
      input_.fail(first_frame_ ? "not a zstd file" : "other data follow the zstd stream");
    if (name == "Frame requires too much memory for decoding")
      input_.fail("the zstd window is larger than 128 MiB (compressed with --long?)");
    input_.fail("damaged zstd stream: ", name);
  }

  struct Free {
    void operator()(ZSTD_DStream* stream) const { ::ZSTD_freeDStream(stream); }
  };

  CompressedInput input_;
  std::unique_ptr<ZSTD_DStream, Free> stream_;
  bool in_frame_ = true;  // true at the start: a file without any frame counts as truncated
  bool first_frame_ = true;
};

}  // namespace

std::string_view compression_ending(const fs::path& path) {
  const std::string_view name = path.native();
  for (const std::string_view ending : {".gz", ".zst", ".zstd"})
    if (name.ends_with(ending)) return ending;
  return {};
}

std::unique_ptr<ByteSource> open_bytes(const fs::path& path) {
  auto plain = std::make_unique<PlainSource>(path);
  const Compression compression = compression_of(path, plain->peek());
  if (compression == Compression::kNone) return plain;
  CompressedInput input(path, std::move(plain));
  if (compression == Compression::kGzip) return std::make_unique<GzipSource>(std::move(input));
  return std::make_unique<ZstdSource>(std::move(input));
}

}  // namespace dtopp::data
