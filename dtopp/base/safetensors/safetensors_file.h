// Reads untrusted safetensors files. It works on byte spans and does not need torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "dtopp/base/descriptor.h"
#include "dtopp/base/files.h"

namespace dtopp {

struct TensorView {
  std::string name;
  std::string dtype;           // "F32", "F64", "BF16", "I64", …
  std::vector<int64_t> shape;  // [] for a scalar
  std::span<const std::byte> bytes;
};

// A tensor of a file whose bytes are not in memory.
struct TensorPlace {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t begin;  // in the file
  uint64_t size;   // bytes
};

// Returns the places of all tensors, in the order of their data. `beginning` holds at least the header, or
// the whole file if that is shorter.
//
// Throws:        DataError (file, byte, cause) unless header, offsets, shapes and dtypes are consistent and
//                in bounds, the data has no gaps or overlaps, and the header has at most 100 MB
std::vector<TensorPlace> parse_safetensors(std::span<const std::byte> beginning, uint64_t file_bytes,
                                           const std::filesystem::path& path);

// A safetensors file that is read on demand, from any thread. Data that somebody may change in the meantime
// are read this way: a file that became shorter is a DataError, where a map raises SIGBUS. Throws like
// parse_safetensors.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::filesystem::path& path);
  const TensorPlace* find(const std::string& name) const;  // null if absent
  // Reads bytes [offset, offset + out.size()) of a tensor. Precondition: they lie within it.
  void read(const TensorPlace& tensor, uint64_t offset, std::span<std::byte> out) const {
    file_.read_at(tensor.begin + offset, out);
  }
  const Descriptor& file() const { return file_; }

 private:
  Descriptor file_;
  std::map<std::string, TensorPlace> tensors_;
};

// A memory-mapped safetensors file. Its views are valid during its lifetime. Throws like parse_safetensors.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  const std::vector<TensorView>& tensors() const { return tensors_; }  // in the order of their data
  const TensorView* find(const std::string& name) const;               // null if absent

 private:
  MappedFile file_;
  std::vector<TensorView> tensors_;
  std::map<std::string, size_t> by_name_;
};

}  // namespace dtopp
