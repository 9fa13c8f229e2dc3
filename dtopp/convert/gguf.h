// Writes GGUF files (version 3), the format of llama.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dtopp/base/files.h"
#include "dtopp/base/safetensors.h"

namespace dtopp::convert {

// The key-value pairs at the beginning of the file, in the order of the calls.
class GgufMetadata {
 public:
  void add(std::string_view key, std::string_view value);
  void add(std::string_view key, const char* value) { add(key, std::string_view(value)); }
  void add(std::string_view key, bool value);
  void add(std::string_view key, int64_t value);  // stored as 32 bits without sign
  void add(std::string_view key, double value);   // stored as fp32
  void add(std::string_view key, const std::vector<std::string>& values);
  void add(std::string_view key, const std::vector<int32_t>& values);

  uint64_t size() const { return size_; }
  const std::string& bytes() const { return bytes_; }

 private:
  uint64_t size_ = 0;
  std::string bytes_;
};

// Writes the whole file. The tensors must be F32.
void write_gguf(OutputFile& file, const GgufMetadata& metadata, const std::vector<TensorSource>& tensors);

}  // namespace dtopp::convert
