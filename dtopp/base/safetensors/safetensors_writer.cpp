#include "dtopp/base/safetensors/safetensors_writer.h"

#include <cstring>
#include <set>
#include <string_view>

#include <nlohmann/json.hpp>

#include "dtopp/base/json.h"
#include "dtopp/base/safetensors/tensor_bytes.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kAlignment = 64;

// Writes the size of the header into its first 8 bytes.
void set_size(std::string& head) {
  const uint64_t size = head.size() - sizeof(uint64_t);
  std::memcpy(head.data(), &size, sizeof(size));
}

// Returns everything before the tensor data.
std::string head_of(const fs::path& path, const std::vector<TensorSource>& tensors,
                    const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::set<std::string_view> names;
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const auto& tensor : tensors) {
    const auto bytes = tensor_bytes(element_bytes(tensor.dtype), tensor.shape);
    if (bytes != tensor.size || element_bytes(tensor.dtype) == 0 || tensor.name == "__metadata__" ||
        !names.insert(tensor.name).second)
      throw DataError(path.string() + ": tensor \"" + tensor.name +
                      "\": its name is taken or its dtype and shape do not fit its bytes");
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + tensor.size}}};
    offset += tensor.size;
  }
  std::string head = std::string(sizeof(uint64_t), '\0') + dump_json(header);
  head.append((kAlignment - head.size() % kAlignment) % kAlignment, ' ');
  if (head.size() - sizeof(uint64_t) > kMaxHeaderBytes)
    throw DataError(path.string() + ": too many tensors for one file");
  set_size(head);
  return head;
}

void read_all(const fs::path& path, const std::vector<TensorSource>& tensors, const TakeBytes& take) {
  for (const auto& tensor : tensors) {
    uint64_t count = 0;
    tensor.read(0, tensor.size, [&](std::span<const std::byte> bytes) {
      count += bytes.size();
      take(bytes);
    });
    if (count != tensor.size)
      throw DataError(path.string() + ": tensor \"" + tensor.name + "\": its size in bytes is not " +
                      std::to_string(tensor.size));
  }
}

}  // namespace

std::string safetensors_head(const fs::path& path, const std::vector<TensorSource>& tensors, uint64_t bytes) {
  std::string head = head_of(path, tensors, {});
  if (head.size() > bytes) throw DataError(path.string() + ": too many tensors");
  head.resize(bytes, ' ');
  set_size(head);
  return head;
}

SafetensorsWriter::SafetensorsWriter(const fs::path& path, const std::vector<TensorSource>& tensors,
                                     const std::map<std::string, std::string>& metadata, Hasher* hasher)
    : SafetensorsWriter(path, head_of(path, tensors, metadata), hasher) {
  for (const auto& tensor : tensors) size_ += tensor.size;
}

SafetensorsWriter::SafetensorsWriter(const fs::path& path, const std::string& head, Hasher* hasher)
    : file_(path, hasher) {
  file_.write(head);
  size_ = file_.size();
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) { file_.write(bytes); }

uint64_t SafetensorsWriter::finish() {
  if (file_.size() != size_)
    throw DataError(file_.path().string() + ": " + std::to_string(file_.size()) + " bytes were written of " +
                    std::to_string(size_));
  file_.sync_and_close();
  return size_;
}

uint64_t write_safetensors(const fs::path& path, const std::vector<TensorSource>& tensors,
                           const std::map<std::string, std::string>& metadata, Hasher* hasher) {
  SafetensorsWriter writer(path, tensors, metadata, hasher);
  read_all(path, tensors, [&](std::span<const std::byte> bytes) { writer.write(bytes); });
  return writer.finish();
}

void write_safetensors(OutputFile& file, const std::vector<TensorSource>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  file.write(head_of(file.path(), tensors, metadata));
  read_all(file.path(), tensors, [&](std::span<const std::byte> bytes) { file.write(bytes); });
}

}  // namespace dtopp
