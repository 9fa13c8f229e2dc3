#include "dtopp/data/text/byte_source.h"

#include <new>

#include <zlib.h>
#include <zstd.h>

#include "dtopp/base/files.h"

namespace dtopp::data {
namespace {

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
  explicit PlainSource(const fs::path& path) : file_(path, O_RDONLY, "open") {}

  const fs::path& path() const { return file_.path(); }

  // The first four bytes, or fewer. Empty for a pipe, which cannot be read twice.
  std::string peek() const {
    std::string bytes(4, '\0');
    const auto count = retry([&] { return ::pread(file_.get(), bytes.data(), bytes.size(), 0); });
    if (count < 0 && errno != ESPIPE) throw file_error("read", path(), errno);
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
    if (::lseek(file_.get(), static_cast<off_t>(count), SEEK_CUR) < 0)
      throw file_error("read", path(), errno);
    file_bytes_ += count;
    return count;
  }

  uint64_t file_bytes() const override { return file_bytes_; }

 private:
  Descriptor file_;
  uint64_t file_bytes_ = 0;
};

// Decompresses a file, which it reads chunk by chunk.
class CompressedSource : public ByteSource {
 public:
  size_t read(std::span<char> out) final {
    size_t filled = 0;
    while (filled < out.size()) {
      if (unread_.empty()) unread_ = std::span(chunk_).first(file_->read(chunk_));
      const bool at_end = unread_.empty();
      if (at_end && !is_inside_) break;
      const size_t count = decompress(out.subspan(filled));
      if (at_end && count == 0) fail("the ", format_, " stream ends early: the file is truncated");
      filled += count;
    }
    return filled;
  }

  uint64_t file_bytes() const final { return file_->file_bytes() - unread_.size(); }

 protected:
  CompressedSource(std::unique_ptr<PlainSource> file, const char* format)
      : format_(format), file_(std::move(file)), chunk_(kPieceBytes) {}

  // Decompresses some of unread(), calls consume() and returns the number of bytes written to `out`. It is 0
  // only if nothing more comes without more input.
  virtual size_t decompress(std::span<char> out) = 0;

  std::span<char> unread() const { return unread_; }
  // `at_boundary`: the file may end after these bytes, or another stream may follow.
  void consume(size_t count, bool at_boundary) {
    unread_ = unread_.subspan(count);
    is_inside_ = !at_boundary;
    is_first_ = is_first_ && !at_boundary;
  }

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... cause) const {
    throw DataError(file_->path(), ": byte ", file_bytes(), ": ", cause..., kRemedy);
  }
  // The bytes are not in the format.
  [[noreturn]] void fail_format() const {
    if (is_first_) fail("not a ", format_, " file");
    fail("other data follow the ", format_, " stream");
  }

 private:
  std::string format_;
  std::unique_ptr<PlainSource> file_;
  std::vector<char> chunk_;
  std::span<char> unread_;
  bool is_inside_ = true;  // true at the start: a file without any stream counts as truncated
  bool is_first_ = true;
};

class GzipSource : public CompressedSource {
 public:
  explicit GzipSource(std::unique_ptr<PlainSource> file) : CompressedSource(std::move(file), "gzip") {
    constexpr int kGzipOnly = 16;
    if (::inflateInit2(&stream_, MAX_WBITS + kGzipOnly) != Z_OK) throw std::bad_alloc();
  }
  ~GzipSource() override { ::inflateEnd(&stream_); }

 private:
  size_t decompress(std::span<char> out) override {
    stream_.next_in = reinterpret_cast<Bytef*>(unread().data());
    stream_.avail_in = static_cast<uInt>(unread().size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    const auto room = static_cast<uInt>(std::min(out.size(), kPieceBytes));
    stream_.avail_out = room;
    const int status = ::inflate(&stream_, Z_NO_FLUSH);
    consume(unread().size() - stream_.avail_in, status == Z_STREAM_END);
    if (status == Z_STREAM_END) {
      ::inflateReset(&stream_);
    } else if (status == Z_MEM_ERROR) {
      throw std::bad_alloc();
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      const std::string cause = stream_.msg ? stream_.msg : "damaged";
      if (cause == "incorrect header check") fail_format();
      fail("damaged gzip stream: ", cause);
    }
    return room - stream_.avail_out;
  }

  z_stream stream_ = {};
};

class ZstdSource : public CompressedSource {
 public:
  explicit ZstdSource(std::unique_ptr<PlainSource> file)
      : CompressedSource(std::move(file), "zstd"), stream_(::ZSTD_createDStream()) {
    if (!stream_) throw std::bad_alloc();
  }

 private:
  size_t decompress(std::span<char> out) override {
    ZSTD_inBuffer in{unread().data(), unread().size(), 0};
    ZSTD_outBuffer piece{out.data(), out.size(), 0};
    const size_t status = ::ZSTD_decompressStream(stream_.get(), &piece, &in);
    if (::ZSTD_isError(status)) fail_with(::ZSTD_getErrorName(status));
    // 0: the frame is decoded and flushed. Until then, output may remain even without more input.
    consume(in.pos, status == 0);
    return piece.pos;
  }

  [[noreturn]] void fail_with(const std::string& name) const {
    if (name == "Unknown frame descriptor") fail_format();
    if (name == "Frame requires too much memory for decoding")
      fail("the zstd window is larger than 128 MiB (compressed with --long?)");
    fail("damaged zstd stream: ", name);
  }

  std::unique_ptr<ZSTD_DStream, decltype([](auto* stream) { ::ZSTD_freeDStream(stream); })> stream_;
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
  if (compression == Compression::kGzip) return std::make_unique<GzipSource>(std::move(plain));
  return std::make_unique<ZstdSource>(std::move(plain));
}

}  // namespace dtopp::data
