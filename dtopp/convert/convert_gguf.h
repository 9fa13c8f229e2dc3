// Converts checkpoints to files that llama.cpp loads (docs/how-to/hugging-face.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "dtopp/base/files.h"
#include "dtopp/base/safetensors.h"
#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/data/text/tokenizer.h"

namespace dtopp::convert {

// Writes GGUF files (version 3), the format of llama.cpp.

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

// Describes a tokenizer to llama.cpp.

// Adds the tokens, their types, the merges and the pre-tokenizer's name. Ids up to `vocab_size` that the
// tokenizer does not have become unused tokens. Throws UsageError, with `file` in front, if llama.cpp has no
// tokenizer of this kind.
void add_tokenizer(GgufMetadata& metadata, const data::Tokenizer& tokenizer, int64_t vocab_size,
                   const std::string& file);

// Writes a GGUF file in fp32 with the weights and the tokenizer, if the checkpoint has one. llama.cpp has two
// architectures that fit Top-k models: olmoe (QK-norm over all heads, gates as they are) and qwen3moe
// (QK-norm for each head, renormalized gates). The file appears complete or not at all.
//
// Throws:        UsageError that names the key if neither fits the model, or if llama.cpp has no such
//                tokenizer
void convert_to_gguf(const checkpoint::Checkpoint& checkpoint, const std::filesystem::path& file);

}  // namespace dtopp::convert
