// Reads documents from text files.
//
// Files named .jsonl, .ndjson or .json hold one JSON object per line, with the text under the key `text`. Any
// other file is plain text: one document, or several with a separator between them. A compression's ending
// (byte_source.h) may follow the name. Files are streamed; the longest line or document bounds the memory.
#pragma once

#include "dtopp/base/errors.h"
#include "dtopp/data/text/byte_source.h"

namespace dtopp::data {

// The largest size of a line, or of a document of plain text, uncompressed.
inline constexpr uint64_t kMaxLineBytes = uint64_t{1} << 30;

bool is_json_lines(const fs::path& path);

// Position in a file: uncompressed bytes and newlines read so far.
struct TextPosition {
  uint64_t offset = 0, line = 0;

  bool operator==(const TextPosition&) const = default;
};

struct LineOptions {
  uint64_t max_bytes = kMaxLineBytes;
  // Separates the documents of plain text; at most kMaxSeparatorBytes. They lose the line breaks at both
  // ends. Empty: the file is one document.
  std::string separator{};
};

inline constexpr size_t kMaxSeparatorBytes = 1024;

// Reads the lines of JSON lines, without their newlines, or the documents of plain text.
class LineReader {
 public:
  // Resumes at `start`, the position() of an earlier reader of the same file.
  explicit LineReader(const fs::path& path, TextPosition start = {}, LineOptions options = {});

  // Reads the next line or document; returns false at the end. Throws DataError if it is too long (naming
  // file and line) or if the file is damaged (ByteSource names file and byte).
  bool next(std::string& line);
  // The number of the line, from 1, on which the result of the last next() begins.
  uint64_t line_number() const { return line_number_; }
  TextPosition position() const { return position_; }  // after that result
  uint64_t file_bytes() const { return source_->file_bytes(); }

 private:
  bool refill();
  void append(std::string& line, size_t count);
  void strip_line_breaks(std::string& document);

  fs::path path_;
  LineOptions options_;
  bool json_lines_;
  std::unique_ptr<ByteSource> source_;
  uint64_t line_number_ = 0;
  TextPosition position_;
  std::string chunk_;
  size_t begin_ = 0, end_ = 0;
};

// Calls `encode`, which processes the document that begins in line `number` of `path`, and names both in a
// DataError that it throws.
template <class Encode>
auto at_line(const fs::path& path, uint64_t number, Encode encode) {
  try {
    return encode();
  } catch (const DataError& error) {
    throw DataError(path, ": line ", number, ": ", error.what());
  }
}

// Selects the JSON lines whose string under `key` is `value`. An empty key selects all documents.
struct DocumentFilter {
  std::string key{}, value{};
};

// Extracts the text from a line. Each thread needs its own parser.
class DocumentParser {
 public:
  explicit DocumentParser(DocumentFilter filter = {});
  ~DocumentParser();
  DocumentParser(DocumentParser&&) noexcept;
  // Returns the document in `line`, which LineReader read from line `number` of `path`, without a byte order
  // mark at its start; empty if the line is blank or not selected. The view is valid until the next call or
  // change of `line`, which may lose its own mark and grow in capacity. Throws DataError, naming file and
  // line, unless the line is valid UTF-8 and, in JSON lines, an object with a string under `text`. Plain text
  // may not begin with such an object.
  std::string_view parse(const fs::path& path, uint64_t number, std::string& line);
  // Returns the string under `key` in such a line of JSON lines; empty if the line is blank. Throws
  // DataError, naming file and line, if there is none.
  std::string_view value_of(const std::string& key, const fs::path& path, uint64_t number, std::string& line);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtopp::data
