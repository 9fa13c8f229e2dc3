// Byte-level BPE, read from a Hugging Face tokenizer.json (GPT-NeoX and GPT-2 family: optional NFC
// normaliser, ByteLevel pre-tokenizer, BPE model, added tokens). encode() gives the ids that Hugging Face
// `tokenizers` gives with add_special_tokens=False.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dtopp {

class Tokenizer {
 public:
  // Throws DataError naming the file and what in it is damaged or outside the family above.
  static Tokenizer load(const std::filesystem::path& path);
  Tokenizer(Tokenizer&&) noexcept;
  ~Tokenizer();

  // The ids of `text` (UTF-8; DataError at the first invalid byte). Const and safe to call from many threads.
  std::vector<int32_t> encode(std::string_view text) const;
  // The text of `ids`; invalid UTF-8 that a cut token leaves becomes U+FFFD, as in Hugging Face. Special
  // tokens are written out. DataError for an id that does not exist.
  std::string decode(std::span<const int32_t> ids) const;
  // The same of ids that a model made: special tokens have no text, nor have ids that do not exist (a model's
  // vocabulary is often padded).
  std::string decode_generated(std::span<const int32_t> ids) const;

  int64_t vocab_size() const;  // 1 + the largest id
  std::optional<int32_t> token_to_id(std::string_view token) const;
  int32_t end_of_text() const;           // the id of "<|endoftext|>"; DataError when the tokenizer has none
  const std::string& file_text() const;  // the tokenizer.json it came from, byte for byte
  const std::string& hash() const;       // XXH3-128 of that text

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtopp
