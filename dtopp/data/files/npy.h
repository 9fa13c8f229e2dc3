// NumPy arrays in files: .npy headers, and .npz archives.
#pragma once

#include <exception>

#include <sys/types.h>

#include "dtopp/base/byte_reader.h"
#include "dtopp/base/files.h"

struct archive;

namespace dtopp::data {

// The values in the header of a .npy file, format versions 1 to 3 (numpy.lib.format). The views refer to the
// reader's bytes.
struct NpyHeader {
  std::string_view descr;  // as Python writes it: "'<f4'"
  bool fortran_order = false;
  std::vector<int64_t> shape;  // at most 8 sizes
};

// Reads the beginning of a file, which holds the header if the file is .npy.
std::vector<std::byte> read_npy_beginning(const Descriptor& file);

// Returns true if `bytes` begin with the magic string of the .npy format.
bool begins_as_npy(std::span<const std::byte> bytes);

// Reads the header and leaves `reader` at the array's first byte. Throws DataError if the header is
// truncated, has another version, is larger than 64 KiB, lacks one of the three values or has no valid
// shape. Precondition: the bytes begin as .npy.
NpyHeader read_npy_header(ByteReader& reader);

// Throws DataError unless the array has exactly `remaining` bytes, those that follow the header.
void require_npy_bytes(const ByteReader& reader, const std::vector<int64_t>& shape, uint64_t element_bytes,
                       uint64_t remaining);

// Writes a NumPy .npz file, an uncompressed zip archive of .npy arrays. The bytes of an array are streamed.
class NpzWriter {
 public:
  // Appends to `file`, which must outlive the writer. Every method throws DataError if writing fails.
  explicit NpzWriter(OutputFile& file);
  ~NpzWriter();
  NpzWriter(const NpzWriter&) = delete;
  NpzWriter& operator=(const NpzWriter&) = delete;

  // Begins the next array; "|u1" [2, 3] takes 6 bytes. Throws std::invalid_argument if the previous array
  // lacks bytes or if the dtype is not "|u1", "<f4" or "<i8".
  void begin(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape);
  // Writes the next bytes of the array, in C order. Throws std::invalid_argument if they exceed the array.
  void write(std::span<const std::byte> bytes);
  // Ends the archive. Throws std::invalid_argument if the last array lacks bytes.
  void finish();

 private:
  static ssize_t write_to_file(archive* zip, void* self, const void* bytes, size_t count);
  void check(ssize_t result) const;

  OutputFile& file_;
  archive* zip_;
  std::exception_ptr
      error_;             // thrown by file_; stored because it must not pass through libarchive, which is C
  uint64_t missing_ = 0;  // bytes that the current array still lacks
};

}  // namespace dtopp::data
