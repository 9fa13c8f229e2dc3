#include <cstring>
#include <memory>
#include <new>
#include <string_view>

#include <libdeflate.h>

#include "dtopp/data/image_codec/decode_picture.h"

namespace dtopp {
namespace {

void append_u32(std::string& out, uint32_t number) {
  for (const int shift : {24, 16, 8, 0}) out += static_cast<char>(number >> shift);
}

// Begins a chunk and returns where its checksum begins. The caller appends `data_bytes` bytes.
size_t begin_chunk(std::string& out, std::string_view type, size_t data_bytes) {
  append_u32(out, static_cast<uint32_t>(data_bytes));
  out += type;
  return out.size() - type.size();
}

void end_chunk(std::string& out, size_t begin) {
  append_u32(out, libdeflate_crc32(0, out.data() + begin, out.size() - begin));
}

// Returns the rows, each preceded by the filter type 0 (not filtered).
Pixels scan_lines(const Picture& picture) {
  Pixels lines(static_cast<size_t>(picture.height) * (picture.row_bytes() + 1));
  uint8_t* line = lines.data();
  for (int y = 0; y < picture.height; ++y, line += picture.row_bytes() + 1) {
    line[0] = 0;
    std::memcpy(line + 1, picture.row(y), picture.row_bytes());
  }
  return lines;
}

struct FreeCompressor {
  void operator()(libdeflate_compressor* compressor) const { libdeflate_free_compressor(compressor); }
};

// Returns a zlib stream of stored (uncompressed) blocks.
Pixels stored(const Pixels& bytes) {
  const std::unique_ptr<libdeflate_compressor, FreeCompressor> compressor(libdeflate_alloc_compressor(0));
  if (!compressor) throw std::bad_alloc();
  Pixels out(libdeflate_zlib_compress_bound(compressor.get(), bytes.size()));
  out.resize(libdeflate_zlib_compress(compressor.get(), bytes.data(), bytes.size(), out.data(), out.size()));
  return out;
}

}  // namespace

std::string encode_png(const Picture& picture) {
  const Pixels data = stored(scan_lines(picture));
  constexpr size_t kHeaderBytes = 13, kFraming = 8 + 3 * 12;
  std::string out;
  out.reserve(kFraming + kHeaderBytes + data.size());
  out += "\x89PNG\r\n\x1a\n";
  size_t begin = begin_chunk(out, "IHDR", kHeaderBytes);
  append_u32(out, static_cast<uint32_t>(picture.width));
  append_u32(out, static_cast<uint32_t>(picture.height));
  out += '\x08';                                 // bits per channel
  out += picture.channels == 1 ? '\0' : '\x02';  // grey or RGB
  out.append(3, '\0');  // the only methods of compression and filtering; not interlaced
  end_chunk(out, begin);
  begin = begin_chunk(out, "IDAT", data.size());
  out.append(reinterpret_cast<const char*>(data.data()), data.size());
  end_chunk(out, begin);
  end_chunk(out, begin_chunk(out, "IEND", 0));
  return out;
}

}  // namespace dtopp
