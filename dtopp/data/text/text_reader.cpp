#include "dtopp/data/text/text_reader.h"

#include <algorithm>
#include <new>

#include <simdjson.h>

#include "dtopp/data/text/unicode.h"

namespace dtopp::data {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 18;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

[[noreturn]] void fail(const fs::path& path, uint64_t line, const std::string& cause) {
  throw DataError(path, ": line ", line, ": ", cause);
}

uint64_t count_newlines(std::string_view text) {
  return static_cast<uint64_t>(std::count(text.begin(), text.end(), '\n'));
}

// Reports the first invalid byte of `text`. `first_line` is the line number of the beginning of `text`.
[[noreturn]] void fail_utf8(const fs::path& path, uint64_t first_line, std::string_view text) {
  const size_t bad = find_invalid_utf8(text).value_or(text.size());
  const size_t line_start = text.substr(0, bad).rfind('\n') + 1;  // npos + 1 is 0
  fail(path, first_line + count_newlines(text.substr(0, bad)),
       "byte " + std::to_string(bad - line_start) + ": invalid UTF-8");
}

std::string_view without_byte_order_mark(std::string_view text) {
  text.remove_prefix(text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0);
  return text;
}

}  // namespace

bool is_json_lines(const fs::path& path) {
  std::string_view name = path.native();
  name.remove_suffix(compression_ending(path).size());
  return name.ends_with(".jsonl") || name.ends_with(".ndjson") || name.ends_with(".json");
}

LineReader::LineReader(const fs::path& path, TextPosition start, LineOptions options)
    : path_(path), options_(std::move(options)), json_lines_(is_json_lines(path)), source_(open_bytes(path)) {
  if (json_lines_) options_.separator = "\n";
  chunk_.resize(kChunkBytes);
  for (uint64_t left = start.offset; left > 0; left -= begin_) {
    if (!refill())
      throw DataError(path, ": ends before byte ", start.offset,
                      " of its text, which an earlier run read; the file has changed since then");
    begin_ = std::min<uint64_t>(left, end_);
  }
  position_ = start;
}

// Replaces the bytes before begin_, which are read, and keeps those after it.
bool LineReader::refill() {
  std::copy(chunk_.begin() + static_cast<ptrdiff_t>(begin_), chunk_.begin() + static_cast<ptrdiff_t>(end_),
            chunk_.begin());
  end_ -= begin_;
  begin_ = 0;
  const size_t count = source_->read(std::span(chunk_).subspan(end_));
  end_ += count;
  return count > 0;
}

void LineReader::append(std::string& line, size_t count) {
  if (count > options_.max_bytes - line.size())
    fail(path_, line_number_, "longer than the " + std::to_string(options_.max_bytes) + " bytes allowed");
  line.append(chunk_, begin_, count);
  begin_ += count;
  position_.offset += count;
}

bool LineReader::next(std::string& line) {
  const std::string& separator = options_.separator;
  line.clear();
  line_number_ = position_.line + 1;
  // The last bytes of a chunk may be the start of a separator. They stay in it until the next ones are there.
  const size_t kept = separator.empty() ? 0 : separator.size() - 1;
  bool found = false;
  do {
    const std::string_view chunk(chunk_.data() + begin_, end_ - begin_);
    const size_t at = separator.empty() ? chunk.npos : chunk.find(separator);
    found = at != chunk.npos;
    append(line, found ? at : chunk.size() - std::min(chunk.size(), kept));
  } while (!found && refill());
  if (found) {
    begin_ += separator.size();
    position_.offset += separator.size();
  } else {
    append(line, end_ - begin_);
  }
  if (!found && line.empty()) return false;
  if (json_lines_) {
    position_.line += found ? 1 : 0;
    return true;
  }
  position_.line += count_newlines(line) + (found ? count_newlines(separator) : 0);
  if (!separator.empty()) strip_line_breaks(line);
  return true;
}

void LineReader::strip_line_breaks(std::string& document) {
  const size_t begin = std::min(document.find_first_not_of("\r\n"), document.size());
  line_number_ += count_newlines(std::string_view(document).substr(0, begin));
  document.erase(document.find_last_not_of("\r\n") + 1);  // npos + 1 is 0
  document.erase(0, begin);
}

struct DocumentParser::Impl {
  explicit Impl(DocumentFilter filter) : filter(std::move(filter)) {}

  // True if the first line that is not blank is a JSON object with the key `text`.
  bool begins_with_json_line(std::string_view text) {
    const size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == text.npos || text[begin] != '{') return false;
    const std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
    simdjson::dom::element value;
    return parser.parse(simdjson::padded_string(line)).at_key("text").get(value) == simdjson::SUCCESS;
  }

  // Returns the object in a line of JSON lines; nullopt if the line is blank.
  std::optional<simdjson::dom::object> object_of(const fs::path& path, uint64_t number, std::string& line) {
    if (line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == line.npos) return std::nullopt;
    if (line[first] == '[')
      fail(path, number,
           "a JSON array; write it as JSON lines, one object with the key \"text\" per line: jq -c '.[]'");
    line.reserve(line.size() + simdjson::SIMDJSON_PADDING);
    simdjson::dom::element value;
    const auto error = parser.parse(line.data(), line.size(), /*realloc_if_needed=*/false).get(value);
    if (error == simdjson::MEMALLOC) throw std::bad_alloc();
    if (error == simdjson::UTF8_ERROR) fail_utf8(path, number, line);
    if (error) fail(path, number, std::string("invalid JSON: ") + simdjson::error_message(error));
    simdjson::dom::object object;
    if (value.get(object)) fail(path, number, "must be a JSON object with the key \"text\"");
    return object;
  }

  static std::string_view string_at(const simdjson::dom::object& object, const std::string& key,
                                    const fs::path& path, uint64_t number) {
    simdjson::dom::element value;
    if (object.at_key(key).get(value)) fail(path, number, "has no key \"" + key + "\"");
    std::string_view text;
    if (value.get(text)) fail(path, number, "the value of \"" + key + "\" must be a string");
    return text;
  }

  DocumentFilter filter;
  simdjson::dom::parser parser{};
};

DocumentParser::DocumentParser(DocumentFilter filter) : impl_(std::make_unique<Impl>(std::move(filter))) {}
DocumentParser::~DocumentParser() = default;
DocumentParser::DocumentParser(DocumentParser&&) noexcept = default;

std::string_view DocumentParser::parse(const fs::path& path, uint64_t number, std::string& line) {
  if (!is_json_lines(path)) {
    if (!simdjson::validate_utf8(line)) fail_utf8(path, number, line);
    const std::string_view document = without_byte_order_mark(line);
    if (number == 1 && impl_->begins_with_json_line(document))
      throw DataError(path, ": looks like JSON lines; rename it to .jsonl");
    return document;
  }
  const auto object = impl_->object_of(path, number, line);
  if (!object) return {};
  const DocumentFilter& filter = impl_->filter;
  const std::string_view document = Impl::string_at(*object, "text", path, number);
  if (filter.key.empty() || Impl::string_at(*object, filter.key, path, number) == filter.value)
    return without_byte_order_mark(document);
  return {};
}

std::string_view DocumentParser::value_of(const std::string& key, const fs::path& path, uint64_t number,
                                          std::string& line) {
  const auto object = impl_->object_of(path, number, line);
  return object ? Impl::string_at(*object, key, path, number) : std::string_view();
}

}  // namespace dtopp::data
