#include "dtopp/data/files/npz_writer.h"

#include <exception>
#include <stdexcept>
#include <string_view>

#include <archive.h>
#include <archive_entry.h>

namespace dtopp::data {
namespace {

constexpr uint64_t kNpyAlignment = 64;
constexpr size_t kNpyPrefix = 10;  // bytes of the magic string, the version and the header's length

uint64_t size_of(const std::string& dtype) {
  if (dtype == "|u1") return 1;
  if (dtype == "<f4") return 4;
  if (dtype == "<i8") return 8;
  throw std::invalid_argument("NpzWriter: dtype " + dtype);
}

// Returns a header of version 1.0 of numpy.lib.format.
std::string npy_header(const std::string& dtype, const std::vector<int64_t>& shape) {
  std::string header = "{'descr': '" + dtype + "', 'fortran_order': False, 'shape': (";
  for (const int64_t size : shape) header += std::to_string(size) + ",";
  header += "), }";
  while ((kNpyPrefix + header.size() + 1) % kNpyAlignment != 0) header += ' ';
  header += '\n';
  const auto low = static_cast<char>(header.size() & 0xff), high = static_cast<char>(header.size() >> 8);
  return std::string("\x93NUMPY\x01\x00", 8) + low + high + header;
}

}  // namespace

struct NpzWriter::Impl {
  OutputFile& file;
  archive* zip = archive_write_new();
  std::exception_ptr
      error;             // thrown by `file`; stored because it must not pass through libarchive, which is C
  uint64_t missing = 0;  // bytes that the current array still lacks

  explicit Impl(OutputFile& file) : file(file) {
    if (zip == nullptr) throw std::bad_alloc();
    check(archive_write_set_format_zip(zip));
    check(archive_write_zip_set_compression_store(zip));
    check(archive_write_set_bytes_in_last_block(zip, 1));  // no padding after the end
    check(archive_write_open(zip, this, nullptr, write_to_file, nullptr));
  }
  ~Impl() { archive_write_free(zip); }

  static la_ssize_t write_to_file(archive* /*zip*/, void* self, const void* bytes, size_t count) {
    auto& impl = *static_cast<Impl*>(self);
    if (impl.error) return -1;  // archive_write_free() closes the archive and so writes again
    try {
      impl.file.write(std::span(static_cast<const std::byte*>(bytes), count));
    } catch (...) {
      impl.error = std::current_exception();
      return -1;
    }
    return static_cast<la_ssize_t>(count);
  }

  void check(la_ssize_t result) const {
    if (error) std::rethrow_exception(error);
    if (result >= 0) return;
    const char* reason = archive_error_string(zip);
    throw DataError(file.path().string() + ": " + (reason == nullptr ? "cannot be written" : reason));
  }

  void write(std::span<const std::byte> bytes) const {
    check(archive_write_data(zip, bytes.data(), bytes.size()));
  }
};

NpzWriter::NpzWriter(OutputFile& file) : impl_(std::make_unique<Impl>(file)) {}
NpzWriter::~NpzWriter() = default;

void NpzWriter::begin(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape) {
  if (impl_->missing != 0) throw std::invalid_argument("NpzWriter: an array lacks bytes");
  const std::string header = npy_header(dtype, shape);
  impl_->missing = size_of(dtype);
  for (const int64_t size : shape) impl_->missing *= static_cast<uint64_t>(size);
  const std::unique_ptr<archive_entry, void (*)(archive_entry*)> entry(archive_entry_new(),
                                                                       archive_entry_free);
  if (!entry) throw std::bad_alloc();
  archive_entry_set_pathname(entry.get(), (name + ".npy").c_str());
  archive_entry_set_size(entry.get(), static_cast<la_int64_t>(header.size() + impl_->missing));
  archive_entry_set_filetype(entry.get(), AE_IFREG);
  archive_entry_set_perm(entry.get(), 0644);
  impl_->check(archive_write_header(impl_->zip, entry.get()));
  impl_->write(std::as_bytes(std::span(header)));
}

void NpzWriter::write(std::span<const std::byte> bytes) {
  if (bytes.size() > impl_->missing) throw std::invalid_argument("NpzWriter: more bytes than the array has");
  impl_->write(bytes);
  impl_->missing -= bytes.size();
}

void NpzWriter::finish() {
  if (impl_->missing != 0) throw std::invalid_argument("NpzWriter: an array lacks bytes");
  impl_->check(archive_write_close(impl_->zip));
}

}  // namespace dtopp::data
