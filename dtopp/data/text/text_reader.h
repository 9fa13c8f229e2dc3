// Reads documents from text files.
//
// Files named .jsonl, .jsonl.gz or .jsonl.zst hold one JSON object per line, with the text under the key
// `text`. Any other file is one document. Files are streamed; the longest line bounds the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "dtopp/base/errors.h"
#include "dtopp/data/text/byte_source.h"

namespace dtopp::data {

// The largest size of a line, or of a file that is one document, uncompressed.
inline constexpr uint64_t kMaxLineBytes = uint64_t{1} << 30;

// Position in a file: uncompressed bytes and lines read so far.
struct TextPosition {
  uint64_t offset = 0;
  uint64_t line = 0;

  bool operator==(const TextPosition&) const = default;
};

// Reads the lines of a .jsonl file, without their newlines. Any other file is returned as one line.
class LineReader {
 public:
  // Resumes at `start`, the position() of an earlier reader of the same file.
  explicit LineReader(const std::filesystem::path& path, TextPosition start = {},
                      uint64_t max_bytes = kMaxLineBytes);

  // Reads the next line; returns false at the end. Throws DataError if the line is too long (naming file and
  // line) or if the file is damaged (ByteSource names file and byte).
  bool next(std::string& line);
  // The position after the last line that next() read; `line` is the number of that line, from 1.
  TextPosition position() const { return position_; }
  uint64_t file_bytes() const { return source_->file_bytes(); }

 private:
  bool refill();
  void append(std::string& line, size_t count);

  std::filesystem::path path_;
  std::unique_ptr<ByteSource> source_;
  bool by_line_;
  uint64_t max_bytes_;
  TextPosition position_;
  std::string chunk_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

// Calls `encode`, which processes the document in line `number` of `path`, and names both in a DataError that
// it throws.
template <class Encode>
auto at_line(const std::filesystem::path& path, uint64_t number, Encode encode) {
  try {
    return encode();
  } catch (const DataError& error) {
    throw DataError(path.string() + ": line " + std::to_string(number) + ": " + error.what());
  }
}

// Extracts the text from a line. Each thread needs its own parser.
class DocumentParser {
 public:
  DocumentParser();
  ~DocumentParser();
  // Returns the document in line `number` of `path`; empty if the line is blank. The view is valid until the
  // next call or change of `line`, whose capacity may grow. Throws DataError, naming file and line, unless
  // the line is valid UTF-8 and, in a .jsonl file, an object with a string under `text`.
  std::string_view parse(const std::filesystem::path& path, uint64_t number, std::string& line);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Reads all documents of a file that are not empty.
class TextReader {
 public:
  explicit TextReader(const std::filesystem::path& path, uint64_t max_bytes = kMaxLineBytes);
  // Reads the next document; returns false at the end. Throws as LineReader and DocumentParser do.
  bool next(std::string& document);
  uint64_t line() const { return lines_.position().line; }  // of the last document

 private:
  std::filesystem::path path_;
  LineReader lines_;
  DocumentParser parser_;
  std::string line_;
};

}  // namespace dtopp::data
