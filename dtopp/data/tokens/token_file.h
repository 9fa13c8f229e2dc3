// Token streams on disk: Megatron .bin + .idx pairs in a folder with manifest.json, a .bin/.idx prefix, or
// .npy arrays with or without a header. All are read through memory maps; every header field is checked
// before use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dtopp/data/files/verified_files.h"

namespace dtopp {

// What manifest.json calls a folder of token files.

// The tokenizer.json in a folder of data; none where there is no such file, or the data are no folder.
std::optional<std::filesystem::path> tokenizer_beside(const std::filesystem::path& data);

// A stream of token ids: the documents of one or more files, joined in order.
class TokenStream {
 public:
  // `path`: a folder with token files (read in the order of their names), a .bin/.idx prefix, or a .npy file.
  // Throws DataError naming the file and byte that is missing, truncated or damaged. Only a folder's manifest
  // is read. Headerless .npy files hold uint16, or uint32 when `vocab_size` does not fit that.
  static TokenStream open(const std::filesystem::path& path, Verify verify = Verify::kChanged,
                          int64_t vocab_size = 0);
  TokenStream(TokenStream&&) noexcept;
  ~TokenStream();

  uint64_t size() const;  // tokens
  // Copies tokens [offset, offset + out.size()); std::out_of_range beyond the end.
  void read(uint64_t offset, std::span<int64_t> out) const;
  // Number of documents, where the format records them; .npy files count none.
  uint64_t documents() const;
  // The tokenizer's hash as recorded in manifest.json, where there is one.
  std::optional<std::string> tokenizer_hash() const;
  // The id that ends its documents, as manifest.json has it, where there is one.
  std::optional<int64_t> end_of_text() const;
  // The largest id in the stream (from the manifest, else by one scan).
  int64_t max_token() const;
  // Of what it holds, wherever that lies: of a manifest's checksums, else of the ids, by the same scan.
  const std::string& content_hash() const;
  // UsageError where that is not below a model's vocab_size.
  void require_ids_below(int64_t vocab_size) const;
  const std::filesystem::path& path() const;

 private:
  struct Impl;
  explicit TokenStream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtopp
