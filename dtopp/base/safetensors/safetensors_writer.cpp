#include "dtopp/base/safetensors/safetensors_writer.h"

#include <set>
#include <string_view>

#include <nlohmann/json.hpp>

#include "dtopp/base/json.h"
#include "dtopp/base/safetensors/tensor_bytes.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kAlignment = 64;

std::string header_of(const fs::path& path, const std::vector<TensorSource>& tensors,
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
  std::string text = dump_json(header);
  text.append((kAlignment - (sizeof(uint64_t) + text.size()) % kAlignment) % kAlignment, ' ');
  if (text.size() > kMaxHeaderBytes) throw DataError(path.string() + ": too many tensors for one file");
  return text;
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
  std::string header = header_of(path, tensors, {});
  if (sizeof(uint64_t) + header.size() > bytes) throw DataError(path.string() + ": too many tensors");
  header.resize(bytes - sizeof(uint64_t), ' ');
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + header;
}

SafetensorsWriter::SafetensorsWriter(const fs::path& path, const std::vector<TensorSource>& tensors,
                                     const std::map<std::string, std::string>& metadata, Hasher* hasher)
    : SafetensorsWriter(path, header_of(path, tensors, metadata), hasher) {
  for (const auto& tensor : tensors) size_ += tensor.size;
}

SafetensorsWriter::SafetensorsWriter(const fs::path& path, const std::string& header, Hasher* hasher)
    : file_(path, hasher) {
  const uint64_t size = header.size();
  file_.write(std::as_bytes(std::span(&size, 1)));
  file_.write(header);
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
  const std::string header = header_of(file.path(), tensors, metadata);
  const uint64_t size = header.size();
  file.write(std::as_bytes(std::span(&size, 1)));
  file.write(header);
  read_all(file.path(), tensors, [&](std::span<const std::byte> bytes) { file.write(bytes); });
}

}  // namespace dtopp
