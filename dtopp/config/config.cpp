#include "dtopp/config/config.h"

#include <array>
#include <cmath>
#include <sstream>
#include <system_error>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

namespace dtopp::config {
namespace {

using Kind = ConfigNode::Kind;

constexpr size_t kLongestKey = 100;  // longer keys get no suggestion

// Optimal string alignment distance: insertions, deletions, substitutions and swaps of neighbors.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before;
  std::vector<size_t> previous(b.size() + 1);
  std::vector<size_t> current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) current[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(previous, current);
    current[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitution = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, substitution});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        current[j] = std::min(current[j], before[j - 2] + 1);
    }
  }
  return current[b.size()];
}

bool is_null(const ConfigNode& node) {
  return node.kind == Kind::kNull || (node.kind == Kind::kScalar && !node.quoted &&
                                      (node.text.empty() || node.text == "~" || node.text == "null"));
}

std::string describe(const ConfigNode& node) {
  if (is_null(node)) return "nothing";
  if (node.kind == Kind::kList) return "a list";
  if (node.kind == Kind::kMapping) return "a section";
  return (node.quoted ? "the quoted text " : "") + quote_for_message(node.text);
}

template <class T>
T parse_number(const ConfigNode& node, const std::string& key, const std::string& expected) {
  const std::string text = detail::plain_text(node, key, expected);
  const char* begin = text.data();
  const char* end = begin + text.size();
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') ++begin;
  T value{};
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (stop == end && error == std::errc::result_out_of_range)
    throw UsageError(node.location(), ": ", key, ": ", quote_for_message(text), " is out of range for ",
                     expected);
  if (stop != end || error != std::errc()) detail::throw_wrong_type(node, key, expected);
  return value;
}

bool reads_as_text_everywhere(const std::string& text) {
  constexpr std::array<std::string_view, 9> kReserved = {"true", "false", "yes", "no", "on",
                                                         "off",  "null",  "y",   "n"};
  if (text.empty()) return false;
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  if (!is_letter(text[0]) && text[0] != '/') return false;
  std::string lower;
  for (const char c : text) {
    if (!is_letter(c) && !(c >= '0' && c <= '9') &&
        std::string_view("_-./").find(c) == std::string_view::npos)
      return false;
    lower += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  }
  return std::find(kReserved.begin(), kReserved.end(), lower) == kReserved.end();
}

std::string print_text(const std::string& text) {
  if (reads_as_text_everywhere(text)) return text;
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      out.append("\\x") += kHex[byte >> 4];
      out += kHex[byte & 15U];
    } else {
      out += c;
    }
  }
  return out + "\"";
}

template <class T>
std::string print_list(const std::vector<T>& values) {
  std::string out = "[";
  for (const T& value : values) out.append(out.size() > 1 ? ", " : "").append(detail::print_value(value));
  return out + "]";
}

// Reads a list; a single value counts as a list of one.
template <class T>
void read_list(const ConfigNode& node, const std::string& key, const char* expected, std::vector<T>& values) {
  const bool is_empty = is_null(node) || (node.kind == Kind::kScalar && node.text.empty());
  if (node.kind == Kind::kMapping || is_empty) detail::throw_wrong_type(node, key, expected);
  const bool is_list = node.kind == Kind::kList;
  std::vector<T> result(is_list ? node.items.size() : 1);
  for (size_t i = 0; i < result.size(); ++i)
    detail::read_value(is_list ? node.items[i] : node, is_list ? concat(key, "[", i, "]") : key, result[i]);
  values = std::move(result);
}

constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxNodes = 100000;
constexpr size_t kMaxKeys = 1000;  // per mapping; lookup is linear

// Builds the tree from the parser's events, so the parser stops as soon as a limit is exceeded.
//
// YAML::Load would need 70 lines less, but it expands aliases first, so they could not be rejected.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(std::shared_ptr<const std::string> source, bool with_lines)
      : source_(std::move(source)), with_lines_(with_lines) {}

  ConfigNode take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& /*mark*/) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override {
    add(make(Kind::kNull, mark, "?"));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override {
    fail(mark, "aliases (*name) are not allowed; share settings through base: other.yaml");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t /*anchor*/,
                const std::string& value) override {
    ConfigNode node = make(Kind::kScalar, mark, tag);
    node.text = value;
    node.quoted = tag == "!";  // yaml-cpp's tag for a quoted scalar
    add(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t /*anchor*/,
                       YAML::EmitterStyle::value /*style*/) override {
    open(make(Kind::kList, mark, tag), mark);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t /*anchor*/,
                  YAML::EmitterStyle::value /*style*/) override {
    open(make(Kind::kMapping, mark, tag), mark);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    ConfigNode node;
    int key_line = 0;
  };

  template <class... Parts>
  [[noreturn]] void fail(const YAML::Mark& mark, const Parts&... cause) const {
    throw UsageError(make_node(mark).location(), ": ", cause...);
  }

  ConfigNode make_node(const YAML::Mark& mark) const {
    ConfigNode node;
    node.source = source_;
    if (with_lines_) node.line = mark.line + 1;
    return node;
  }

  ConfigNode make(Kind kind, const YAML::Mark& mark, const std::string& tag) {
    if (++count_ > kMaxNodes) fail(mark, "more than " + std::to_string(kMaxNodes) + " values");
    if (!tag.empty() && tag != "?" && tag != "!")
      fail(mark, "tags (" + quote_for_message(tag) + ") are not allowed");
    ConfigNode node = make_node(mark);
    node.kind = kind;
    if (expects_key() && kind != Kind::kScalar) fail(mark, "a key must be a word (is a bracket left open?)");
    return node;
  }

  bool expects_key() const {
    return !open_.empty() && open_.back().node.kind == Kind::kMapping &&
           open_.back().node.keys.size() == open_.back().node.items.size();
  }

  void open(ConfigNode node, const YAML::Mark& mark) {
    if (open_.size() >= kMaxDepth) fail(mark, "nested deeper than " + std::to_string(kMaxDepth) + " levels");
    open_.push_back({std::move(node)});
  }

  void close() {
    ConfigNode node = std::move(open_.back().node);
    open_.pop_back();
    add(std::move(node));
  }

  void add(ConfigNode node) {
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = open_.back();
    if (expects_key()) {
      if (parent.node.find(node.text) != nullptr)
        throw UsageError(node.location(), ": duplicate key ", quote_for_message(node.text));
      if (parent.node.keys.size() >= kMaxKeys)
        throw UsageError(node.location(), ": more than ", kMaxKeys, " keys in one section");
      parent.node.keys.push_back(std::move(node.text));
      parent.key_line = node.line;
      return;
    }
    if (parent.node.kind == Kind::kMapping) node.line = parent.key_line;
    parent.node.items.push_back(std::move(node));
  }

  std::shared_ptr<const std::string> source_;
  bool with_lines_;
  ConfigNode root_;
  std::vector<Open> open_;
  size_t count_ = 0;
};

// The length of the UTF-8 character that begins at `at`; 0 if none does. Surrogates and overlong forms are
// accepted, because they do no harm here.
size_t utf8_length(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  const size_t length = lead < 0x80   ? 1
                        : lead < 0xC2 ? 0
                        : lead < 0xE0 ? 2
                        : lead < 0xF0 ? 3
                        : lead < 0xF5 ? 4
                                      : 0;
  if (at + length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((static_cast<unsigned char>(text[at + i]) & 0xC0U) != 0x80U) return 0;
  return length;
}

}  // namespace

namespace detail {

std::string_view last_part(std::string_view key) { return key.substr(key.rfind('.') + 1); }

std::string join_key(const std::string& section, std::string_view name) {
  return section.empty() ? std::string(name) : section + "." + std::string(name);
}

void throw_wrong_type(const ConfigNode& node, const std::string& key, const std::string& expected) {
  throw UsageError(node.location(), ": ", (key.empty() ? "" : key + ": "), "expected ", expected, ", got ",
                   describe(node));
}

void throw_unknown_key(const ConfigNode& value, const std::string& key,
                       const std::vector<std::string>& known) {
  // If no key is near, list the keys of the same section.
  const std::string section = key.substr(0, key.size() - last_part(key).size());
  std::vector<std::string> siblings;
  for (const std::string& name : known) {
    const bool is_sibling = name.size() > section.size() && name.starts_with(section) &&
                            name.find('.', section.size()) == std::string::npos;
    if (is_sibling) siblings.push_back(name);
  }
  throw UsageError(value.location(), ": unknown key ", quote_for_message(key), "; ",
                   suggest(key, known, "known keys:", siblings));
}

std::string plain_text(const ConfigNode& node, const std::string& key, const std::string& expected) {
  if (node.kind != Kind::kScalar || node.quoted || is_null(node)) throw_wrong_type(node, key, expected);
  return node.text;
}

std::string choice_text(const ConfigNode& node, const std::string& key,
                        const std::vector<std::string>& choices) {
  const std::string list = "one of " + joined(choices, ", ");
  std::string text = plain_text(node, key, list);
  if (std::ranges::find(choices, text) != choices.end()) return text;
  const std::string nearest = nearest_key(text, choices);
  throw UsageError(node.location(), ": ", key, ": expected ", list, ", got ", describe(node),
                   (nearest.empty() ? "" : "; did you mean " + nearest + "?"));
}

void read_value(const ConfigNode& node, const std::string& key, bool& value) {
  const std::string text = plain_text(node, key, "true or false");
  if (text != "true" && text != "false") throw_wrong_type(node, key, "true or false");
  value = text == "true";
}

void read_value(const ConfigNode& node, const std::string& key, int64_t& value) {
  value = parse_number<int64_t>(node, key, "an integer");
}

void read_value(const ConfigNode& node, const std::string& key, double& value) {
  const auto number = parse_number<double>(node, key, "a number");
  if (!std::isfinite(number)) throw_wrong_type(node, key, "a finite number");
  value = number;
}

void read_value(const ConfigNode& node, const std::string& key, std::string& value) {
  if (node.kind != Kind::kScalar || is_null(node)) throw_wrong_type(node, key, "text");
  if (node.text.find('\0') != std::string::npos) throw_wrong_type(node, key, "text without NUL characters");
  value = node.text;
}

void read_value(const ConfigNode& node, const std::string& key, std::vector<int64_t>& value) {
  read_list(node, key, "an integer or a list of integers", value);
}

void read_value(const ConfigNode& node, const std::string& key, std::vector<double>& value) {
  read_list(node, key, "a number or a list of numbers", value);
}

void read_value(const ConfigNode& node, const std::string& key, std::vector<std::string>& value) {
  read_list(node, key, "a list of texts", value);
}

std::string print_value(bool value) { return value ? "true" : "false"; }

std::string print_value(int64_t value) { return std::to_string(value); }

// Prints the shortest digits that read back exactly. The point is always present and the exponent signed, so
// YAML 1.1 readers also parse it as a number.
std::string print_value(double value) {
  std::array<char, 32> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  std::string text(buffer.data(), result.ptr);
  if (text.find('.') == std::string::npos) text.insert(std::min(text.find('e'), text.size()), ".0");
  return text;
}

std::string print_value(const std::string& value) { return print_text(value); }

std::string print_value(const std::vector<int64_t>& value) { return print_list(value); }

std::string print_value(const std::vector<double>& value) {
  if (value.size() == 1) return print_value(value[0]);
  return print_list(value);
}

std::string print_value(const std::vector<std::string>& value) { return print_list(value); }

}  // namespace detail

std::string nearest_key(const std::string& key, const std::vector<std::string>& known) {
  using detail::last_part;
  if (key.size() > kLongestKey) return "";
  std::string nearest;
  size_t best = 0;
  for (const std::string& candidate : known) {
    // The right name in the wrong section costs one edit.
    const size_t by_last_part = edit_distance(last_part(key), last_part(candidate)) + 1;
    // "target_experts" contains the word "experts".
    const bool is_word =
        std::string("_").append(last_part(key)).ends_with("_" + std::string(last_part(candidate)));
    const size_t distance = is_word ? 1 : std::min(edit_distance(key, candidate), by_last_part);
    if (nearest.empty() || distance < best) {
      nearest = candidate;
      best = distance;
    }
  }
  const size_t allowed = std::max<size_t>(1, last_part(key).size() / 3 + 1);
  return best <= allowed ? nearest : "";
}

std::string suggest(const std::string& word, const std::vector<std::string>& known, const std::string& list,
                    const std::vector<std::string>& listed) {
  const std::string nearest = nearest_key(word, known);
  if (!nearest.empty()) return "did you mean " + nearest + "?";
  return listed.empty() ? list : list + " " + joined(listed, ", ");
}

// YAML forbids control characters; yaml-cpp would treat some of them as the end of the file.
void require_text(std::string_view text, const std::string& source) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text, at);
    const auto byte = static_cast<unsigned char>(text[at]);
    const bool control = (byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r') || byte == 0x7F;
    if (length == 0 || control)
      throw UsageError(source, ": not a UTF-8 text file: byte ", at,
                       (control ? " is a control character" : " begins no character"));
    at += length;
  }
}

ConfigNode parse_config(const std::string& text, const std::string& source, bool with_lines) {
  if (text.size() > kMaxConfigBytes) throw UsageError(source, ": larger than ", kMaxConfigBytes, " bytes");
  require_text(text, source);
  const auto shared_source = std::make_shared<const std::string>(source);
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    TreeBuilder builder(shared_source, with_lines);
    if (!parser.HandleNextDocument(builder)) {
      ConfigNode empty;
      empty.source = shared_source;
      return empty;
    }
    TreeBuilder second(shared_source, with_lines);
    if (parser.HandleNextDocument(second)) throw UsageError(source, ": more than one YAML document");
    return builder.take();
  } catch (const YAML::Exception& error) {
    const std::string line =
        with_lines && !error.mark.is_null() ? ":" + std::to_string(error.mark.line + 1) : "";
    throw UsageError(source, line, ": not valid YAML: ", error.msg);
  }
}

void require_at_least(const char* key, int64_t least, int64_t value) {
  if (value < least) throw InvalidValue(key, "must be at least ", least, ", is ", value);
}

void require_between(const char* key, int64_t least, int64_t most, int64_t value) {
  if (value < least || value > most)
    throw InvalidValue(key, "must lie in [", least, ", ", most, "], is ", value);
}

void require_between(const char* key, double least, double most, double value) {
  if (!(value >= least && value <= most))
    throw InvalidValue(key, "must lie in [", detail::print_value(least), ", ", detail::print_value(most),
                       "], is ", detail::print_value(value));
}

void require_not_negative(const char* key, double value) {
  if (!(value >= 0)) throw InvalidValue(key, "must not be negative, is ", detail::print_value(value));
}

void require_share(const char* key, double value) {
  if (!(value >= 0 && value < 1))
    throw InvalidValue(key, "must lie in [0, 1), is ", detail::print_value(value));
}

void require_threshold(const char* key, double value) {
  if (!(value > 0 && value < 1))
    throw InvalidValue(key, "must lie between 0 and 1, both excluded, is ", detail::print_value(value));
}

}  // namespace dtopp::config
