#include "dtopp/convert/gguf.h"

#include <bit>

namespace dtopp::convert {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are little-endian");

constexpr std::string_view kMagic = "GGUF";
constexpr uint32_t kVersion = 3, kF32 = 0;
constexpr uint64_t kAlignment = 32;
// Types of values.
constexpr uint32_t kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9;

template <typename T>
void append_number(std::string& bytes, T number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void append_text(std::string& bytes, std::string_view text) {
  append_number<uint64_t>(bytes, text.size());
  bytes.append(text);
}

uint64_t aligned(uint64_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

void pad_tensors(OutputFile& file) {
  const std::string zeros(aligned(file.size()) - file.size(), '\0');
  file.write(zeros);
}

void begin_value(std::string& bytes, uint64_t& size, std::string_view key, uint32_t type) {
  append_text(bytes, key);
  append_number(bytes, type);
  ++size;
}

}  // namespace

void GgufMetadata::add(std::string_view key, std::string_view value) {
  begin_value(bytes_, size_, key, kString);
  append_text(bytes_, value);
}

void GgufMetadata::add(std::string_view key, bool value) {
  begin_value(bytes_, size_, key, kBool);
  append_number<uint8_t>(bytes_, value ? 1 : 0);
}

void GgufMetadata::add(std::string_view key, int64_t value) {
  begin_value(bytes_, size_, key, kUint32);
  append_number(bytes_, static_cast<uint32_t>(value));
}

void GgufMetadata::add(std::string_view key, double value) {
  begin_value(bytes_, size_, key, kFloat32);
  append_number(bytes_, static_cast<float>(value));
}

void GgufMetadata::add(std::string_view key, const std::vector<std::string>& values) {
  begin_value(bytes_, size_, key, kArray);
  append_number(bytes_, kString);
  append_number<uint64_t>(bytes_, values.size());
  for (const std::string& value : values) append_text(bytes_, value);
}

void GgufMetadata::add(std::string_view key, const std::vector<int32_t>& values) {
  begin_value(bytes_, size_, key, kArray);
  append_number(bytes_, kInt32);
  append_number<uint64_t>(bytes_, values.size());
  for (const int32_t value : values) append_number(bytes_, value);
}

void write_gguf(OutputFile& file, const GgufMetadata& metadata, const std::vector<TensorSource>& tensors) {
  std::string head(kMagic);
  append_number(head, kVersion);
  append_number<uint64_t>(head, tensors.size());
  append_number(head, metadata.size());
  head += metadata.bytes();
  uint64_t offset = 0;
  for (const TensorSource& tensor : tensors) {
    append_text(head, tensor.name);
    append_number(head, static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;)
      append_number<int64_t>(head, tensor.shape[i]);  // rows come first
    append_number(head, kF32);
    append_number(head, offset);
    offset = aligned(offset + tensor.size);
  }
  file.write(head);
  for (const TensorSource& tensor : tensors) {
    pad_tensors(file);
    tensor.read(0, tensor.size, [&](std::span<const std::byte> bytes) { file.write(bytes); });
  }
  pad_tensors(file);
}

}  // namespace dtopp::convert
