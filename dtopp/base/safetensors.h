// Reads and writes safetensors files. Works on bytes, without torch; files are untrusted.
#pragma once

#include <array>
#include <functional>
#include <map>

#include "dtopp/base/files.h"

namespace dtopp {

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of Hugging Face's reader

// Bytes per element; 0 for an unknown dtype.
uint64_t element_bytes(std::string_view dtype);

// Bytes per tensor; nullopt if the product overflows.
std::optional<uint64_t> tensor_bytes(uint64_t element, const std::vector<int64_t>& shape);

// The floating-point formats that tensor files use.
enum class FloatType { kF32, kF16, kBF16 };

// The dtype.
constexpr auto enum_names(FloatType) { return std::to_array<std::string_view>({"F32", "F16", "BF16"}); }
uint64_t size_of(FloatType type);

// Converts all numbers to float exactly. `bytes` holds out.size() little-endian numbers.
void widen(FloatType type, std::span<const std::byte> bytes, std::span<float> out);

// True if no number is infinite or NaN.
bool all_finite(FloatType type, std::span<const std::byte> bytes);

struct TensorView {
  std::string name;
  std::string dtype;           // "F32", "F64", "BF16", "I64", …
  std::vector<int64_t> shape;  // [] for a scalar
  std::span<const std::byte> bytes;
};

// A tensor of a file whose bytes are not in memory.
struct TensorPlace {
  std::string name, dtype;
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
                                           const fs::path& path);

// A safetensors file that is read on demand, from any thread. Data that somebody may change in the meantime
// are read this way: a file that became shorter is a DataError, where a map raises SIGBUS. Throws like
// parse_safetensors.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const fs::path& path);
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
  explicit SafetensorsFile(const fs::path& path);
  const std::vector<TensorView>& tensors() const { return tensors_; }  // in the order of their data
  const TensorView* find(const std::string& name) const;               // null if absent

 private:
  MappedFile file_;
  std::vector<TensorView> tensors_;
  std::map<std::string, size_t> by_name_;
};

using TakeBytes = std::function<void(std::span<const std::byte>)>;

// A tensor to be written. Its bytes can be produced in parts while the file is written, so a file may be
// larger than memory.
struct TensorSource {
  // A tensor in memory; `bytes` must stay valid until they are written.
  TensorSource(std::string name, std::string dtype, std::vector<int64_t> shape,
               std::span<const std::byte> bytes)
      : TensorSource(std::move(name), std::move(dtype), std::move(shape), bytes.size(),
                     [bytes](uint64_t begin, uint64_t count, const TakeBytes& take) {
                       take(bytes.subspan(begin, count));
                     }) {}
  // `read` passes bytes [begin, begin + count) to `take` in order, in parts of any size. It may overwrite a
  // part as soon as `take` returns.
  using Read = std::function<void(uint64_t begin, uint64_t count, const TakeBytes& take)>;
  TensorSource(std::string name, std::string dtype, std::vector<int64_t> shape, uint64_t size, Read read)
      : name(std::move(name)),
        dtype(std::move(dtype)),
        shape(std::move(shape)),
        size(size),
        read(std::move(read)) {}

  std::string name, dtype;
  std::vector<int64_t> shape;
  uint64_t size;  // bytes
  Read read;      // reads each byte once, after all earlier bytes are in the file
};

// Everything before the tensor data, padded to a multiple of 64 bytes, or to `padded` bytes if that is not 0.
// It does not call the tensors' `read`.
//
// Throws:        DataError about `path` if a name is used twice, if dtype and shape do not fit the bytes, or
// if
//                `padded` is too small
std::string safetensors_head(const fs::path& path, const std::vector<TensorSource>& tensors,
                             const std::map<std::string, std::string>& metadata = {}, uint64_t padded = 0);

// Writes the tensors in order and returns the size of the file. An existing file is truncated. Every byte
// also updates `hasher` unless it is null. Throws DataError as safetensors_head() does or if a system call
// fails.
uint64_t write_safetensors(const fs::path& path, const std::vector<TensorSource>& tensors,
                           const std::map<std::string, std::string>& metadata = {}, Hasher* hasher = nullptr);

// Writes the tensors into a file that is already open (write_file_atomically).
void write_safetensors(OutputFile& file, const std::vector<TensorSource>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace dtopp
