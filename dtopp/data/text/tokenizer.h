// Encodes and decodes text with the BPE of a Hugging Face tokenizer.json.
//
// It supports byte-level BPE: an optional NFC normalizer, Split and Digits pre-tokenizers before ByteLevel,
// the BPE model and added tokens. It supports also SentencePiece's BPE, as Llama 2 and Mixtral have it:
// spaces are written as marks (tokenizer_json.h), and unknown characters as bytes. encode() returns the ids
// that Hugging Face `tokenizers` returns with add_special_tokens=False: a post-processor that adds a token at
// the beginning is ignored.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "dtopp/base/errors.h"

namespace dtopp::data {

class Tokenizer {
 public:
  // Loads a tokenizer.json. Throws DataError, naming the file and the field, if it is damaged or not
  // supported.
  static Tokenizer load(const fs::path& path);

  // Returns the ids of `text`. Throws DataError if it is not valid UTF-8. Safe to call from many threads.
  std::vector<int32_t> encode(std::string_view text) const;
  // Returns the text of `ids`, special tokens included. Invalid UTF-8, as an incomplete character leaves it,
  // becomes U+FFFD, as in Hugging Face. Throws DataError if an id does not exist.
  std::string decode(std::span<const int32_t> ids) const;
  // Returns the text of ids that a model generated. Special tokens and ids that do not exist are skipped; a
  // model's vocabulary is often padded. A space at the begin is kept, because the ids continue a text.
  std::string decode_generated(std::span<const int32_t> ids) const;

  // Returns the bytes that the id adds to a text; 0 for special tokens and for ids that do not exist.
  int64_t text_bytes(int32_t id) const;

  int64_t vocab_size() const;  // 1 + the largest id
  std::optional<int32_t> token_to_id(std::string_view token) const;
  // The token that ends a document: "<|endoftext|>" or another family's; nullopt if the tokenizer has none.
  std::optional<std::string_view> end_of_text_token() const;
  // The id of that token. Throws DataError if the tokenizer has none.
  int32_t end_of_text() const;
  const std::string& file_text() const;  // the text of tokenizer.json, byte for byte
  const std::string& hash() const;       // XXH3-128 of that text

 private:
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;  // copies share it
};

}  // namespace dtopp::data
