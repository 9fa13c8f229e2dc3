// Opens token data on disk as a stream of token ids.
//
// The data are a folder of Megatron .bin and .idx pairs with manifest.json, a .bin/.idx prefix, or .npy
// arrays with or without a header. Ids are read on demand. Every header field is checked before use.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/manifest.h"
#include "dtopp/data/files/resumable_folder.h"
#include "dtopp/data/files/verified_files.h"

namespace dtopp::data {

enum class TokenType { kUint8, kInt8, kUint16, kInt16, kUint32, kInt32, kUint64, kInt64 };

uint64_t size_of(TokenType type);  // bytes per id

// The token ids of a .bin or .npy file: one array of one integer type.
class TokenArray {
 public:
  // Wraps the `count` ids that begin at byte `offset` of `file`. Throws DataError if the file is too short.
  TokenArray(Descriptor file, uint64_t offset, TokenType type, uint64_t count);

  uint64_t size() const { return count_; }
  // Reads ids [offset, offset + out.size()). Precondition: they lie within the array. Throws DataError if the
  // file became shorter.
  void read(uint64_t offset, std::span<int64_t> out) const;
  // Reads all ids and returns the largest; -1 if there are none. Adds each id to the hash `ids` as eight
  // bytes. Throws DataError, naming file and byte, if an id is negative.
  int64_t scan(Hasher& ids) const;
  const fs::path& path() const { return file_.path(); }

 private:
  Descriptor file_;
  uint64_t offset_;
  TokenType type_;
  uint64_t count_;
};

inline constexpr char kTokenDataFormat[] = "dtopp token data 2";       // manifest.json
inline constexpr char kPrepareRecordFormat[] = "dtopp preparation 2";  // progress.json
inline constexpr char kIndexName[] = "tokens.idx";
inline constexpr char kLengthsName[] = "progress.lengths";
inline constexpr char kTokenizerName[] = "tokenizer.json";

// The files of a folder that `dtopp prepare text` fills.
FolderKind token_folder_kind();

// The facts about a folder of token files: in manifest.json when it is complete, in progress.json before.
struct TokenFacts {
  std::string tokenizer_hash;
  int64_t end_of_text = 0;
  uint64_t documents = 0, tokens = 0;
  int64_t max_token = -1;  // -1: no tokens
};

// Returns the facts except for the tokenizer's, which are in the folder's job. `max_token` is -1 without
// tokens.
nlohmann::ordered_json to_json(uint64_t documents, uint64_t tokens, int64_t max_token);
// Reads the facts from the `about` object of the manifest at `path`. Throws DataError, naming `path` and the
// key, if a value is missing or has a wrong type.
TokenFacts read_facts(const Manifest& manifest, const fs::path& path);

// Opens a .npy file with NumPy's header (one dimension, integers, little-endian) or without a header. OLMo
// writes raw ids without a header: uint16, or uint32 if `vocab_size` exceeds 65536. Throws DataError if the
// header is not supported or the file is truncated.
TokenArray open_npy(const fs::path& path, int64_t vocab_size);

// The .idx file of Megatron's IndexedDataset, version 1, little-endian:
//
//   "MMIDIDX\0\0"
//   uint64    1, the version
//   uint8     type of the ids
//   uint64    n: number of sequences
//   uint64    d: number of document bounds
//   int32[n]  lengths in ids
//   int64[n]  byte offsets in the .bin file
//   int64[d]  document bounds, 0 … n

// The tokens of a Megatron .bin file and the number of documents in its .idx file.
struct TokenPair {
  TokenArray tokens;
  uint64_t documents;
};

// Opens a .bin file and its .idx file. Throws DataError if the index is damaged or does not match the .bin
// file.
TokenPair open_megatron(const fs::path& bin, const fs::path& idx);

// Writes the index of consecutive documents, each of which is one sequence. `lengths` holds one int32 per
// document; `type` is uint16 or int32. Returns the checksum of the index.
std::string write_megatron_index(const fs::path& path, TokenType type, const MappedFile& lengths);

// Returns the path of the tokenizer.json in a folder of data. Returns nullopt if there is no such file or
// `data` is not a folder.
std::optional<fs::path> tokenizer_beside(const fs::path& data);

// A stream of token ids: the documents of one or more files, concatenated in order.
class TokenStream {
 public:
  // Opens a folder of token files (read in the order of their names), a .bin/.idx prefix, or a .npy file.
  // Without a manifest, all ids are read once. With one, `verify` decides which files are read. Headerless
  // .npy files hold uint16, or uint32 if `vocab_size` exceeds 65536. Throws DataError, naming file and byte,
  // if a file is missing, truncated or damaged.
  static TokenStream open(const fs::path& path, Verify verify = Verify::kChanged, int64_t vocab_size = 0);

  uint64_t size() const { return first_token_.back(); }  // tokens
  // Copies tokens [offset, offset + out.size()). Throws std::out_of_range if they exceed the stream.
  void read(uint64_t offset, std::span<int64_t> out) const;
  // The number of documents that the format records. A .npy file records none and counts 0.
  uint64_t documents() const { return documents_; }
  // The tokenizer's hash in manifest.json; nullopt without a manifest.
  const std::optional<std::string>& tokenizer_hash() const { return tokenizer_hash_; }
  // The end-of-text id in manifest.json; nullopt without a manifest.
  std::optional<int64_t> end_of_text() const { return end_of_text_; }
  // The largest id in the stream, from the manifest or from the scan that open() makes without one.
  int64_t max_token() const { return max_token_; }
  // A hash of the content, independent of its path: of the manifest's checksums, or else of all ids.
  const std::string& content_hash() const { return content_hash_; }
  // Throws UsageError if the largest id is not below a model's vocab_size.
  void require_ids_below(int64_t vocab_size) const;
  const fs::path& path() const { return path_; }

 private:
  explicit TokenStream(fs::path path) : path_(std::move(path)) {}
  void open_folder(Verify verify, int64_t vocab_size);
  void open_single(int64_t vocab_size);
  void add_pair(const fs::path& prefix);
  void scan();

  fs::path path_;
  std::vector<TokenArray> arrays_;
  std::vector<uint64_t> first_token_{0};  // offset of each array's first token, then the total
  uint64_t documents_ = 0;
  std::optional<std::string> tokenizer_hash_;
  std::optional<int64_t> end_of_text_;
  int64_t max_token_ = -1;
  std::string content_hash_;
};

}  // namespace dtopp::data
