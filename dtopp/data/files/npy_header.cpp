#include "dtopp/data/files/npy_header.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>

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
      reader.fail("shape " + std::string(text.substr(0, 40)) + ") is not a list of at most 8 sizes");
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
    reader.fail("NumPy format version " + std::to_string(major) + "." + std::to_string(minor) +
                " is not supported; only versions 1.0, 2.0 and 3.0 are");
  const uint64_t size = major == 1 ? reader.read<uint16_t>() : reader.read<uint32_t>();
  if (size > kMaxHeaderBytes) reader.fail("a header of " + std::to_string(size) + " bytes is too large");
  return size;
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
  for (const int64_t side : shape) {
    if (__builtin_mul_overflow(count, static_cast<uint64_t>(side), &count)) reader.fail("its size overflows");
  }
  if (count > remaining / element_bytes)
    reader.fail("needs " + std::to_string(count) + " x " + std::to_string(element_bytes) + " bytes, has " +
                std::to_string(remaining));
  if (count * element_bytes != remaining)
    reader.fail(std::to_string(remaining - count * element_bytes) + " bytes follow the array of " +
                std::to_string(count));
}

}  // namespace dtopp::data
