#include "dtopp/data/text/text_reader.h"

#include <algorithm>
#include <cstring>
#include <new>

#include <simdjson.h>

#include "dtopp/base/errors.h"
#include "dtopp/data/text/unicode.h"

namespace dtopp::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kChunkBytes = size_t{1} << 18;

bool is_plain_text(const fs::path& path) {
  const std::string name = path.filename().string();
  return !name.ends_with(".jsonl") && !name.ends_with(".jsonl.gz") && !name.ends_with(".jsonl.zst");
}

[[noreturn]] void fail(const fs::path& path, uint64_t line, const std::string& cause) {
  throw DataError(path.string() + ": line " + std::to_string(line) + ": " + cause);
}

// Reports the first invalid byte of `text`. `first_line` is the line number of the beginning of `text`.
[[noreturn]] void fail_utf8(const fs::path& path, uint64_t first_line, std::string_view text) {
  const size_t bad = find_invalid_utf8(text).value_or(text.size());
  const size_t line_start = text.substr(0, bad).rfind('\n') + 1;  // npos + 1 is 0
  const auto lines = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(bad), '\n');
  fail(path, first_line + static_cast<uint64_t>(lines),
       "byte " + std::to_string(bad - line_start) + ": invalid UTF-8");
}

}  // namespace

LineReader::LineReader(const fs::path& path, TextPosition start, uint64_t max_bytes)
    : path_(path), max_bytes_(max_bytes) {
  by_line_ = !is_plain_text(path);
  source_ = open_bytes(path);
  chunk_.resize(kChunkBytes);
  for (uint64_t left = start.offset; left > 0;) {
    if (!refill())
      throw DataError(path.string() + ": ends before byte " + std::to_string(start.offset) +
                      " of its text, which an earlier run read; the file has changed since then");
    begin_ = std::min<uint64_t>(left, end_);
    left -= begin_;
  }
  position_ = start;
}

bool LineReader::refill() {
  begin_ = 0;
  end_ = source_->read(std::span(chunk_.data(), chunk_.size()));
  return end_ > 0;
}

void LineReader::append(std::string& line, size_t count) {
  if (count > max_bytes_ - line.size())
    fail(path_, position_.line + 1, "longer than the " + std::to_string(max_bytes_) + " bytes allowed");
  line.append(chunk_, begin_, count);
  begin_ += count;
  position_.offset += count;
}

bool LineReader::next(std::string& line) {
  line.clear();
  bool any = false;
  while (begin_ < end_ || refill()) {
    any = true;
    const char* const start = chunk_.data() + begin_;
    const void* const found = by_line_ ? std::memchr(start, '\n', end_ - begin_) : nullptr;
    if (!found) {
      append(line, end_ - begin_);
      continue;
    }
    append(line, static_cast<size_t>(static_cast<const char*>(found) - start));
    ++begin_;  // the newline
    ++position_.offset;
    break;
  }
  position_.line += any ? 1 : 0;
  return any;
}

struct DocumentParser::Impl {
  simdjson::dom::parser parser;
};

DocumentParser::DocumentParser() : impl_(std::make_unique<Impl>()) {}
DocumentParser::~DocumentParser() = default;

std::string_view DocumentParser::parse(const fs::path& path, uint64_t number, std::string& line) {
  if (is_plain_text(path)) {
    if (!simdjson::validate_utf8(line)) fail_utf8(path, number, line);
    return line;
  }
  if (line.find_first_not_of(" \t\r") == line.npos) return {};
  line.reserve(line.size() + simdjson::SIMDJSON_PADDING);
  simdjson::dom::element value;
  const auto error = impl_->parser.parse(line.data(), line.size(), /*realloc_if_needed=*/false).get(value);
  if (error == simdjson::MEMALLOC) throw std::bad_alloc();
  if (error == simdjson::UTF8_ERROR) fail_utf8(path, number, line);
  if (error) fail(path, number, std::string("invalid JSON: ") + simdjson::error_message(error));
  simdjson::dom::object object;
  if (value.get(object)) fail(path, number, "must be a JSON object with the key \"text\"");
  simdjson::dom::element text;
  if (object.at_key("text").get(text)) fail(path, number, "has no key \"text\"");
  std::string_view document;
  if (text.get(document)) fail(path, number, "the value of \"text\" must be a string");
  return document;
}

TextReader::TextReader(const fs::path& path, uint64_t max_bytes) : path_(path), lines_(path, {}, max_bytes) {}

bool TextReader::next(std::string& document) {
  while (lines_.next(line_)) {
    const auto text = parser_.parse(path_, lines_.position().line, line_);
    if (text.empty()) continue;
    document.assign(text);
    return true;
  }
  return false;
}

}  // namespace dtopp::data
