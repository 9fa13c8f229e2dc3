// Text files as batches of lines, and each batch as ids: the two ends of what prepare_text does in parallel.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dtopp/data/text/text_reader.h"
#include "dtopp/data/text_preparation/prepare_text.h"

namespace dtopp {

// A place in a list of files.
struct CorpusPosition {
  size_t source = 0;  // index of the file; at the end, the number of files
  TextPosition text;
  uint64_t input_bytes = 0;  // read of all files so far, before decompression

  bool operator==(const CorpusPosition&) const = default;
};

// Lines of one file, and where the next batch begins.
struct TextBatch {
  struct Line {
    uint64_t number;
    std::string text;
  };
  std::filesystem::path path;
  std::vector<Line> lines;
  CorpusPosition end;
};

class BatchReader {
 public:
  BatchReader(const std::vector<std::filesystem::path>& files, CorpusPosition start, uint64_t batch_bytes);
  // At least batch_bytes, less at the end of a file; nothing after the last file. DataError also when a file
  // has changed since this object was made.
  std::optional<TextBatch> next();

 private:
  struct FileState {
    std::filesystem::path path;
    uint64_t size;
    std::filesystem::file_time_type changed;
  };
  void finish_source();

  std::vector<FileState> files_;
  CorpusPosition position_;
  uint64_t bytes_before_ = 0;  // size of the files before the current one
  uint64_t batch_bytes_;
  std::optional<LineReader> lines_;
};

// The documents of a batch, one after another, each closed by the end-of-text id.
struct EncodedBatch {
  std::vector<int32_t> ids;
  std::vector<size_t> document_ends;  // in ids
  uint64_t text_bytes = 0;
  CorpusPosition end;
};

EncodedBatch encode_batch(TextBatch batch, const TextEncoder& encoder, DocumentParser& parser);

}  // namespace dtopp
