// Opens token data on disk as a stream of token ids.
//
// The data are a folder of Megatron .bin and .idx pairs with manifest.json, a .bin/.idx prefix, or .npy
// arrays with or without a header. Ids are read on demand. Every header field is checked before use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dtopp/data/files/verified_files.h"

namespace dtopp::data {

// Returns the path of the tokenizer.json in a folder of data. Returns nullopt if there is no such file or
// `data` is not a folder.
std::optional<std::filesystem::path> tokenizer_beside(const std::filesystem::path& data);

// A stream of token ids: the documents of one or more files, concatenated in order.
class TokenStream {
 public:
  // Opens a folder of token files (read in the order of their names), a .bin/.idx prefix, or a .npy file.
  // Without a manifest, all ids are read once. With one, `verify` decides which files are read. Headerless
  // .npy files hold uint16, or uint32 if `vocab_size` exceeds 65536. Throws DataError, naming file and byte,
  // if a file is missing, truncated or damaged.
  static TokenStream open(const std::filesystem::path& path, Verify verify = Verify::kChanged,
                          int64_t vocab_size = 0);
  TokenStream(TokenStream&&) noexcept;
  ~TokenStream();

  uint64_t size() const;  // tokens
  // Copies tokens [offset, offset + out.size()). Throws std::out_of_range if they exceed the stream.
  void read(uint64_t offset, std::span<int64_t> out) const;
  // The number of documents that the format records. A .npy file records none and counts 0.
  uint64_t documents() const;
  // The tokenizer's hash in manifest.json; nullopt without a manifest.
  std::optional<std::string> tokenizer_hash() const;
  // The end-of-text id in manifest.json; nullopt without a manifest.
  std::optional<int64_t> end_of_text() const;
  // The largest id in the stream, from the manifest or from the scan that open() makes without one.
  int64_t max_token() const;
  // A hash of the content, independent of its path: of the manifest's checksums, or else of all ids.
  const std::string& content_hash() const;
  // Throws UsageError if the largest id is not below a model's vocab_size.
  void require_ids_below(int64_t vocab_size) const;
  const std::filesystem::path& path() const;

 private:
  struct Impl;
  explicit TokenStream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtopp::data
