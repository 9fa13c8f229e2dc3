// Documents out of text files: .jsonl, .jsonl.gz and .jsonl.zst hold one JSON object a line with the text
// under the key `text`; a file of any other name is one document. Streaming: memory is bounded by the longest
// line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "dtopp/data/text/byte_source.h"

namespace dtopp {

// The largest line (or document of its own), uncompressed.
inline constexpr uint64_t kMaxLineBytes = uint64_t{1} << 30;

// How far a file is read: uncompressed bytes and lines.
struct TextPosition {
  uint64_t offset = 0;
  uint64_t line = 0;

  bool operator==(const TextPosition&) const = default;
};

// The lines of a .jsonl file without their ends; any other file comes as one.
class LineReader {
 public:
  // Goes on at `start`, which an earlier reader of the same file gave.
  explicit LineReader(const std::filesystem::path& path, TextPosition start = {},
                      uint64_t max_bytes = kMaxLineBytes);

  // False at the end. DataError naming file and line (see ByteSource for the byte of a damaged stream).
  bool next(std::string& line);
  // After the last line that next() gave; its `line` is that line's number, from 1.
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

// The text in a line. Not for several threads at once.
class DocumentParser {
 public:
  DocumentParser();
  ~DocumentParser();
  // The document in line `number` of `path`, empty when the line is blank; valid until the next call or
  // change of `line`, which may be given more capacity. DataError naming file and line unless it is valid
  // UTF-8 and, in a .jsonl file, an object with a string under `text`.
  std::string_view parse(const std::filesystem::path& path, uint64_t number, std::string& line);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// All documents of a file that have any text.
class TextReader {
 public:
  explicit TextReader(const std::filesystem::path& path, uint64_t max_bytes = kMaxLineBytes);
  // False at the end; DataErrors as above.
  bool next(std::string& document);

 private:
  std::filesystem::path path_;
  LineReader lines_;
  DocumentParser parser_;
  std::string line_;
};

}  // namespace dtopp
