// Reads text files as batches of lines, or of documents of plain text, and encodes a batch to ids: the
// producer and the worker of prepare_text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtopp/data/text/text_reader.h"
#include "dtopp/data/tokenizer/tokenizer.h"

namespace dtopp::data {

// A tokenizer, or a stand-in for one.
struct TextEncoder {
  virtual ~TextEncoder() = default;
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;  // called from many threads

  int32_t end_of_text = 0;
  int64_t vocab_size = 0;
  std::string tokenizer_json;  // text of the tokenizer.json that is written beside the tokens
  std::string tokenizer_hash;
};

// Encodes with `tokenizer`, which must outlive the object.
class TokenizerEncoder : public TextEncoder {
 public:
  explicit TokenizerEncoder(const Tokenizer& tokenizer);
  std::vector<int32_t> encode(std::string_view text) const override { return tokenizer_.encode(text); }

 private:
  const Tokenizer& tokenizer_;
};

// A position in a list of files.
struct CorpusPosition {
  size_t source = 0;  // index of the file; at the end, the number of files
  TextPosition text;
  uint64_t input_bytes = 0;  // bytes read from all files so far, before decompression

  bool operator==(const CorpusPosition&) const = default;
};

// Lines of one file.
struct TextBatch {
  struct Line {
    uint64_t number;
    std::string text;
  };
  std::filesystem::path path;
  std::vector<Line> lines;
  uint64_t bytes = 0;  // of the text
  CorpusPosition end;  // the next batch begins here
};

class BatchReader {
 public:
  BatchReader(const std::vector<std::filesystem::path>& files, CorpusPosition start, uint64_t batch_bytes,
              LineOptions options = {});
  // Returns a batch of at least batch_bytes, or less at the end of a file; nullopt after the last file.
  // Throws DataError if a file is damaged or has changed since this object was constructed, and ResourceError
  // with the file if memory is too small.
  std::optional<TextBatch> next();

 private:
  struct FileState {
    std::filesystem::path path;
    uint64_t size;
    std::filesystem::file_time_type changed;
  };
  TextBatch read_batch();
  void finish_source();

  std::vector<FileState> files_;
  CorpusPosition position_;
  uint64_t bytes_before_ = 0;  // total size of the files before the current one
  uint64_t batch_bytes_;
  LineOptions options_;
  std::optional<LineReader> lines_;
};

// The documents of a batch, one after another. The end-of-text id follows each document.
struct EncodedBatch {
  std::vector<int32_t> ids;
  std::vector<size_t> document_ends;  // offsets in ids
  uint64_t text_bytes = 0;
  CorpusPosition end;
};

// The work of one of several threads.
class BatchEncoder {
 public:
  // Encodes the documents that `filter` selects.
  BatchEncoder(const TextEncoder& encoder, int num_workers, const DocumentFilter& filter = {})
      : encoder_(encoder) {
    for (int worker = 0; worker < num_workers; ++worker) parsers_.emplace_back(filter);
  }
  // Parses and encodes the documents of a batch in thread `worker`. Throws DataError if a line is not valid,
  // and ResourceError with the file if memory is too small.
  EncodedBatch operator()(TextBatch batch, int worker);

 private:
  EncodedBatch encode(TextBatch& batch, int worker);

  const TextEncoder& encoder_;
  std::vector<DocumentParser> parsers_;
};

}  // namespace dtopp::data
