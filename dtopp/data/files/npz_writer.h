// Writes a NumPy .npz file, an uncompressed zip archive of .npy arrays. The bytes of an array are streamed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dtopp/base/files.h"

namespace dtopp::data {

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
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtopp::data
