// The safetensors format: reading untrusted files and writing. Torch-free; data are byte spans.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtopp/base/files.h"

namespace dtopp {

struct TensorView {
  std::string name;
  std::string dtype;           // "F32", "F64", "BF16", "I64", …
  std::vector<int64_t> shape;  // [] for a scalar
  std::span<const std::byte> bytes;
};

// A safetensors file, memory-mapped. Throws DataError (file, byte, cause) unless header, offsets, shapes and
// dtypes are consistent, in bounds, without gaps or overlap, and the header is at most 100 MB.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  const std::vector<TensorView>& tensors() const { return tensors_; }  // in the order of their data
  const TensorView* find(const std::string& name) const;               // null when absent

 private:
  MappedFile file_;
  std::vector<TensorView> tensors_;
  std::map<std::string, size_t> by_name_;
};

using TakeBytes = std::function<void(std::span<const std::byte>)>;

// A tensor to be written. Its bytes may be made in pieces when their turn comes, so that a file may be larger
// than memory.
struct TensorSource {
  // From bytes in memory, which must stay there until they are written.
  TensorSource(std::string name, std::string dtype, std::vector<int64_t> shape,
               std::span<const std::byte> bytes)
      : TensorSource(std::move(name), std::move(dtype), std::move(shape), bytes.size(),
                     [bytes](uint64_t begin, uint64_t count, const TakeBytes& take) {
                       take(bytes.subspan(begin, count));
                     }) {}
  // `read` gives bytes [begin, begin + count) to `take` in order, in pieces of any size; a piece may be
  // overwritten as soon as `take` returns.
  using Read = std::function<void(uint64_t begin, uint64_t count, const TakeBytes& take)>;
  TensorSource(std::string name, std::string dtype, std::vector<int64_t> shape, uint64_t size, Read read)
      : name(std::move(name)),
        dtype(std::move(dtype)),
        shape(std::move(shape)),
        size(size),
        read(std::move(read)) {}

  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t size;  // bytes
  Read read;      // called for each byte once, when those before it are in the file
};

// What comes before the tensors' bytes, padded to `bytes`. `read` of the tensors is not called. DataError
// about `path` as below, and where it does not fit.
std::string safetensors_head(const std::filesystem::path& path, const std::vector<TensorSource>& tensors,
                             uint64_t bytes);

// A file that is written as the bytes of its tensors come, in order. The header is padded so that the data
// begin at a multiple of 64 bytes; the file is synced, and hashed where there is a `hasher`. DataError where
// the system refuses, a name is used twice, or dtype and shape do not fit the bytes.
class SafetensorsWriter {
 public:
  // `read` of the tensors is not called.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorSource>& tensors,
                    const std::map<std::string, std::string>& metadata = {}, Hasher* hasher = nullptr);
  void write(std::span<const std::byte> bytes);
  // Returns the file's size. DataError where more bytes or fewer came than the tensors have.
  uint64_t finish();

 private:
  SafetensorsWriter(const std::filesystem::path& path, const std::string& header, Hasher* hasher);

  OutputFile file_;
  uint64_t size_ = 0;  // that it is to have
};

// Writes the tensors, each read in its turn, and returns the file's size. DataError as SafetensorsWriter.
uint64_t write_safetensors(const std::filesystem::path& path, const std::vector<TensorSource>& tensors,
                           const std::map<std::string, std::string>& metadata = {}, Hasher* hasher = nullptr);

// The same into a file that is being written (write_file_atomically).
void write_safetensors(OutputFile& file, const std::vector<TensorSource>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace dtopp
