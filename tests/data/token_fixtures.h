// Small token files and texts. Fixtures for a reader's tests do not use the code under test.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/data/text/prepare_text.h"
#include "dtopp/data/text/token_file.h"

namespace dtopp::data {

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path.string());
}

template <class T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
std::string array_bytes(const std::vector<T>& values) {
  std::string bytes;
  for (const T value : values) put(bytes, value);
  return bytes;
}

// The fields of a Megatron index; a test may damage each of them.
struct IndexFields {
  std::string magic{"MMIDIDX\0\0", 9};
  uint64_t version = 1;
  uint8_t type = 8;
  uint64_t sequences = 3;
  uint64_t bounds = 4;
  std::vector<int32_t> lengths = {2, 0, 3};
  std::vector<int64_t> pointers = {0, 4, 4};
  std::vector<int64_t> documents = {0, 1, 2, 3};

  std::string bytes() const {
    std::string text = magic;
    put(text, version);
    put(text, type);
    put(text, sequences);
    put(text, bounds);
    return text + array_bytes(lengths) + array_bytes(pointers) + array_bytes(documents);
  }
};

inline std::vector<int64_t> all_tokens(const TokenStream& stream) {
  std::vector<int64_t> tokens(stream.size());
  stream.read(0, tokens);
  return tokens;
}

// Each byte of the text is one id from 1 to 256, and 0 ends a document. An independent reader needs no
// tokenizer.
struct ByteEncoder : TextEncoder {
  explicit ByteEncoder(int64_t vocabulary = 257) {
    vocab_size = vocabulary;
    tokenizer_json = "{\"a\": \"tokenizer\"}";
    tokenizer_hash = "0123456789abcdef0123456789abcdef";
  }
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c) + 1);
    return ids;
  }
};

// Prepares the text, or stops after `batches` batches.
inline PrepareTextProgress prepare_text(const PrepareTextOptions& options,
                                        const TextEncoder& encoder = ByteEncoder(), int batches = 1 << 30) {
  TextPreparation preparation(options, encoder);
  while (preparation.next())
    if (--batches == 0) preparation.stop();
  return preparation.progress();
}

inline std::vector<int64_t> byte_ids(const std::vector<std::string>& documents) {
  std::vector<int64_t> ids;
  for (const std::string& document : documents) {
    for (const char c : document) ids.push_back(static_cast<unsigned char>(c) + 1);
    ids.push_back(0);
  }
  return ids;
}

// Expects that opening fails and that the message contains the file and the problem.
inline void expect_named(const std::filesystem::path& open, const std::string& file, const std::string& what,
                         Verify verify = Verify::kAll) {
  const auto message = error_of<DataError>([&] { TokenStream::open(open, verify); });
  EXPECT_NE(message.find(file), message.npos) << message;
  EXPECT_NE(message.find(what), message.npos) << message;
}

}  // namespace dtopp::data
