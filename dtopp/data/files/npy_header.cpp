#include "dtopp/data/files/npy_header.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

namespace dtopp {
namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr uint64_t kMaxHeaderBytes = 1 << 16;  // the headers that NumPy writes have about a hundred bytes

// Returns the text of `key`'s value in the header's Python dictionary, up to `end`.
std::optional<std::string_view> value_of(std::string_view header, std::string_view key,
                                         std::string_view end) {
  const std::string quoted = "'" + std::string(key) + "':";
  const size_t found = header.find(quoted);
  if (found == header.npos) return std::nullopt;
  std::string_view rest = header.substr(found + quoted.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  const size_t stop = rest.find(end);
  if (stop == rest.npos) return std::nullopt;
  return rest.substr(0, stop);
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
  return {*descr, *fortran_order, *shape};
}

}  // namespace dtopp
