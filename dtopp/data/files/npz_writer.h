// NumPy's .npz: a zip archive of arrays, not compressed, written as their bytes come.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dtopp/base/files.h"

namespace dtopp {

class NpzWriter {
 public:
  // Appends to `file`, which must outlive it. DataError where the system refuses.
  explicit NpzWriter(OutputFile& file);
  ~NpzWriter();
  NpzWriter(const NpzWriter&) = delete;
  NpzWriter& operator=(const NpzWriter&) = delete;

  // The next array; "|u1" [2, 3] takes 6 bytes. std::invalid_argument for a dtype other than "|u1", "<f4" and
  // "<i8", or where the one before lacks bytes.
  void begin(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape);
  // Bytes of the array, in C order; std::invalid_argument where they are more than it has.
  void write(std::span<const std::byte> bytes);
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtopp
