#include "dtopp/data/files/npy.h"

#include <charconv>

#include <archive.h>
#include <archive_entry.h>

namespace dtopp::data {
namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr uint64_t kMaxHeaderBytes = 1 << 16;  // the headers that NumPy writes have about a hundred bytes

// Returns the text of `key`'s value in the header's Python dictionary, up to `end`.
std::optional<std::string_view> value_of(std::string_view header, std::string_view key,
                                         std::string_view end) {
  std::string quoted = "'";
  quoted.append(key).append("':");
  const size_t found = header.find(quoted);
  if (found == header.npos) return std::nullopt;
  std::string_view rest = header.substr(found + quoted.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  const size_t stop = rest.find(end);
  if (stop == rest.npos) return std::nullopt;
  return rest.substr(0, stop);
}

// Parses the sizes of a shape. The text lacks its closing parenthesis: "(3, 4,".
std::vector<int64_t> parse_shape(std::string_view text, const ByteReader& reader) {
  std::vector<int64_t> shape;
  const char* at = text.data() + text.starts_with('(');
  const char* const end = text.data() + text.size();
  while (at < end) {
    int64_t side = 0;
    const auto [after, error] = std::from_chars(at, end, side);
    if (error != std::errc() || side < 0 || shape.size() == 8)
      reader.fail("shape ", text.substr(0, 40), ") is not a list of at most 8 sizes");
    shape.push_back(side);
    at = after;
    while (at < end && (*at == ',' || *at == ' ')) ++at;
  }
  return shape;
}

uint64_t header_size(ByteReader& reader) {
  const auto major = reader.read<uint8_t>();
  const auto minor = reader.read<uint8_t>();
  if (major < 1 || major > 3 || minor != 0)
    reader.fail("NumPy format version ", major, ".", minor,
                " is not supported; only versions 1.0, 2.0 and 3.0 are");
  const uint64_t size = major == 1 ? reader.read<uint16_t>() : reader.read<uint32_t>();
  if (size > kMaxHeaderBytes) reader.fail("a header of ", size, " bytes is too large");
  return size;
}

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

std::vector<std::byte> read_npy_beginning(const Descriptor& file) {
  std::vector<std::byte> beginning(std::min(file.size(), 2 * kMaxHeaderBytes));
  file.read_at(0, beginning);
  return beginning;
}

bool begins_as_npy(std::span<const std::byte> bytes) {
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()).starts_with(kNpyMagic);
}

NpyHeader read_npy_header(ByteReader& reader) {
  reader.take(kNpyMagic.size());
  const auto header = reader.take_text(header_size(reader));
  const auto descr = value_of(header, "descr", ",");
  const auto fortran_order = value_of(header, "fortran_order", ",");
  const auto shape = value_of(header, "shape", ")");
  if (!descr || !fortran_order || !shape)
    reader.fail("the header before this byte lacks descr, fortran_order or shape");
  return {*descr, *fortran_order != "False", parse_shape(*shape, reader)};
}

void require_npy_bytes(const ByteReader& reader, const std::vector<int64_t>& shape, uint64_t element_bytes,
                       uint64_t remaining) {
  uint64_t count = 1;
  for (const int64_t side : shape)
    if (__builtin_mul_overflow(count, static_cast<uint64_t>(side), &count)) reader.fail("its size overflows");
  if (count > remaining / element_bytes)
    reader.fail("needs ", count, " x ", element_bytes, " bytes, has ", remaining);
  if (count * element_bytes != remaining)
    reader.fail(remaining - count * element_bytes, " bytes follow the array of ", count);
}

NpzWriter::NpzWriter(OutputFile& file) : file_(file), zip_(archive_write_new()) {
  if (zip_ == nullptr) throw std::bad_alloc();
  check(archive_write_set_format_zip(zip_));
  check(archive_write_zip_set_compression_store(zip_));
  check(archive_write_set_bytes_in_last_block(zip_, 1));  // no padding after the end
  check(archive_write_open(zip_, this, nullptr, write_to_file, nullptr));
}
NpzWriter::~NpzWriter() { archive_write_free(zip_); }

ssize_t NpzWriter::write_to_file(archive* /*zip*/, void* self, const void* bytes, size_t count) {
  auto& writer = *static_cast<NpzWriter*>(self);
  if (writer.error_) return -1;  // archive_write_free() closes the archive and so writes again
  try {
    writer.file_.write(std::span(static_cast<const std::byte*>(bytes), count));
  } catch (...) {
    writer.error_ = std::current_exception();
    return -1;
  }
  return static_cast<ssize_t>(count);
}

void NpzWriter::check(ssize_t result) const {
  if (error_) std::rethrow_exception(error_);
  if (result >= 0) return;
  const char* reason = archive_error_string(zip_);
  throw DataError(file_.path(), ": ", reason == nullptr ? "cannot be written" : reason);
}

void NpzWriter::begin(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape) {
  if (missing_ != 0) throw std::invalid_argument("NpzWriter: an array lacks bytes");
  const std::string header = npy_header(dtype, shape);
  missing_ = size_of(dtype);
  for (const int64_t size : shape) missing_ *= static_cast<uint64_t>(size);
  const std::unique_ptr<archive_entry, void (*)(archive_entry*)> entry(archive_entry_new(),
                                                                       archive_entry_free);
  if (!entry) throw std::bad_alloc();
  archive_entry_set_pathname(entry.get(), (name + ".npy").c_str());
  archive_entry_set_size(entry.get(), static_cast<la_int64_t>(header.size() + missing_));
  archive_entry_set_filetype(entry.get(), AE_IFREG);
  archive_entry_set_perm(entry.get(), 0644);
  check(archive_write_header(zip_, entry.get()));
  check(archive_write_data(zip_, header.data(), header.size()));
}

void NpzWriter::write(std::span<const std::byte> bytes) {
  if (bytes.size() > missing_) throw std::invalid_argument("NpzWriter: more bytes than the array has");
  check(archive_write_data(zip_, bytes.data(), bytes.size()));
  missing_ -= bytes.size();
}

void NpzWriter::finish() {
  if (missing_ != 0) throw std::invalid_argument("NpzWriter: an array lacks bytes");
  check(archive_write_close(zip_));
}

}  // namespace dtopp::data
