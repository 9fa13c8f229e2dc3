#include "dtopp/data/text/tokenizer_json.h"

#include <algorithm>
#include <cctype>
#include <random>

#include <simdjson.h>
#include <xxhash.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/json.h"

// Lets JsonFields' reader read values of simdjson, which parses a tokenizer.json in a tenth of nlohmann's
// time.
namespace dtopp {
template <>
inline constexpr const char* kExpected<simdjson::dom::array> = "must be an array";
template <>
inline constexpr const char* kExpected<simdjson::dom::object> = "must be an object of ids";

}  // namespace dtopp

namespace dtopp::data {
namespace {

// The parser owns the values, so it must outlive them.
struct SimdJson {
  using Value = simdjson::dom::element;

  static std::optional<Value> find(const Value& object, const std::string& key) {
    Value value;
    if (object.at_key(key).get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
    return value;
  }
  static bool is_object(const Value& value) { return value.is_object(); }
  template <class T>
  static bool read(const Value& value, T& result) {
    return value.get(result) == simdjson::SUCCESS;
  }
  static bool read(const Value& value, std::string& result) {
    std::string_view text;
    if (!read(value, text)) return false;
    result = text;
    return true;
  }
};

using TokenizerFields = BasicJsonFields<SimdJson>;

// Calls visit(part) for a single part, or for each part of a (nested) Sequence that lists its parts under
// `list`.
template <class Visit>
void visit_parts(const TokenizerFields& object, const char* list, const Visit& visit) {
  if (object.text("type") != "Sequence") return visit(object);
  size_t index = 0;
  for (const SimdJson::Value part : object.get<simdjson::dom::array>(list))
    visit_parts(object.part(part, TokenizerFields::at(list, index++)), list, visit);
}

// Returns the length of the contraction ('s 't 'm 'd 're 've 'll) whose apostrophe is at `begin`, or 0.
size_t contraction_length(std::string_view text, size_t begin) {
  const auto at = [&](size_t i) { return begin + i < text.size() ? text[begin + i] : '\0'; };
  switch (at(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return at(2) == 'e' ? 3 : 0;
    case 'l':
      return at(2) == 'l' ? 3 : 0;
    default:
      return 0;
  }
}

constexpr std::string_view kHexDigits = "0123456789ABCDEF";

std::optional<uint8_t> digit(char c) {
  if (c >= 'a' && c <= 'f') c = static_cast<char>(c - 'a' + 'A');
  const size_t value = kHexDigits.find(c);
  return value == std::string_view::npos ? std::nullopt : std::optional(static_cast<uint8_t>(value));
}

std::optional<uint8_t> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const auto high = digit(token[3]), low = digit(token[4]);
  if (!high || !low) return std::nullopt;
  return static_cast<uint8_t>(*high << 4 | *low);
}

void append_with_spaces(std::string_view token, std::string& text) {
  for (size_t begin = 0; begin < token.size();) {
    const size_t mark = std::min(token.find(kSpaceMark, begin), token.size());
    text += token.substr(begin, mark - begin);
    if (mark < token.size()) text += ' ';
    begin = mark + kSpaceMark.size();
  }
}

void append_bytes(const std::string& bytes, std::string& text) {
  if (!find_invalid_utf8(bytes)) {
    text += bytes;
    return;
  }
  for (size_t i = 0; i < bytes.size(); ++i) text += "\uFFFD";
}

void require_text(const TokenizerFields& fields, const char* key, std::string_view wanted) {
  if (fields.get<std::string>(key, "") != wanted) fields.fail(key, "must be ", quote(wanted));
}

void require_replacement(const TokenizerFields& part, std::string_view from, std::string_view to) {
  require_text(part.object("pattern"), "String", from);
  require_text(part, "content", to);
}

void read_normalizer(const TokenizerFields& root, TokenizerSpec& spec) {
  if (!root.has("normalizer")) return;
  bool prepends = false;
  visit_parts(root.object("normalizer"), "normalizers", [&](const TokenizerFields& part) {
    const std::string type = part.text("type");
    if (type == "NFC") {
      spec.nfc = true;
    } else if (type == "Prepend") {
      require_text(part, "prepend", kSpaceMark);
      prepends = true;
    } else if (type == "Replace") {
      require_replacement(part, " ", kSpaceMark);
      spec.space_marks.emplace();
    } else {
      part.fail("type", quote(type), " is not supported; only NFC, Prepend, Replace or null is");
    }
  });
  if (spec.space_marks && spec.nfc) root.fail("normalizer", "must be NFC or Replace, not both");
  if (!prepends) return;
  if (!spec.space_marks) root.fail("normalizer", "has Prepend without Replace");
  spec.space_marks->first = FirstMark::kAll;
}

SplitSpec read_split(const TokenizerFields& part) {
  const TokenizerFields pattern = part.object("pattern");
  SplitSpec split;
  split.field = part.field("pattern");
  if (pattern.has("Regex")) {
    split.pattern = pattern.text("Regex");
  } else if (pattern.has("String")) {
    for (const char c : pattern.text("String")) {
      if (std::ispunct(static_cast<unsigned char>(c)) != 0) split.pattern += '\\';
      split.pattern += c;
    }
  } else {
    part.fail("pattern", "must have the key Regex or String");
  }
  const auto name = part.get<std::string>("behavior", "");
  if (name != "Isolated" && name != "Removed")
    part.fail("behavior", quote(name), " is not supported; only Isolated and Removed are");
  const bool invert = part.get<bool>("invert");
  if (name == "Removed") (invert ? split.keep_rest : split.keep_matches) = false;
  return split;
}

SpaceMarks read_metaspace(const TokenizerFields& part) {
  require_text(part, "replacement", kSpaceMark);
  const auto name = part.get<std::string>("prepend_scheme", "always");
  SpaceMarks marks;
  if (name == "always")
    marks.first = FirstMark::kUnmarked;
  else if (name == "first")
    marks.first = FirstMark::kUnmarkedAtBegin;
  else if (name != "never")
    part.fail("prepend_scheme", "must be always, first or never");
  if (marks.first != FirstMark::kNone && !part.get("add_prefix_space", true))
    part.fail("add_prefix_space", "contradicts prepend_scheme");
  marks.split = part.get("split", true);
  return marks;
}

// Reads the marks of the normalizer, which has no pre-tokenizer, or those of Metaspace. Returns false if
// there are none.
bool read_space_marks(const TokenizerFields& root, TokenizerSpec& spec) {
  const bool has_pre_tokenizer = root.has("pre_tokenizer");
  const bool is_metaspace = has_pre_tokenizer && root.object("pre_tokenizer").text("type") == "Metaspace";
  if (!spec.space_marks && !is_metaspace) return false;
  if (spec.space_marks && has_pre_tokenizer)
    root.fail("pre_tokenizer", "must be null, because the normalizer writes spaces as marks");
  if (is_metaspace && spec.nfc) root.fail("normalizer", "must be null with Metaspace");
  if (is_metaspace) spec.space_marks = read_metaspace(root.object("pre_tokenizer"));
  spec.use_regex = false;
  return true;
}

// The characters of Digits. For it, tokenizers 0.23 uses Unicode 17, and for regular expressions an older
// one.
constexpr char kDigit[] = "[\\p{N}\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}]";

// Reads any number of Split and Digits, then ByteLevel; or marks for spaces.
void read_pre_tokenizer(const TokenizerFields& root, TokenizerSpec& spec) {
  constexpr const char* kSupported = "; the last must be ByteLevel, and Split or Digits may precede it";
  if (read_space_marks(root, spec)) return;
  if (!root.has("pre_tokenizer")) root.fail("pre_tokenizer", "is missing", kSupported);
  bool complete = false;
  visit_parts(root.object("pre_tokenizer"), "pretokenizers", [&](const TokenizerFields& part) {
    const std::string type = part.text("type");
    if (!complete && type == "Split") {
      spec.splits.push_back(read_split(part));
    } else if (!complete && type == "Digits") {
      const bool each = part.get<bool>("individual_digits");
      spec.splits.push_back({std::string(kDigit) + (each ? "" : "+"), part.field("type")});
    } else if (!complete && type == "ByteLevel") {
      spec.add_prefix_space = part.get<bool>("add_prefix_space");
      spec.use_regex = part.get("use_regex", true);
      complete = true;
    } else {
      part.fail("type", quote(type), " is not supported here", kSupported);
    }
  });
  if (!complete) root.fail("pre_tokenizer", "has no ByteLevel", kSupported);
  // The scanner for GPT-2's pattern is faster than the pattern.
  const bool scan = !spec.splits.empty() && spec.splits.back().pattern == kGpt2Pattern &&
                    spec.splits.back().keep_matches && spec.splits.back().keep_rest;
  if (scan && !spec.use_regex && !spec.add_prefix_space) {
    spec.splits.pop_back();
    spec.use_regex = true;
  }
}

// Reads Replace, ByteFallback, Fuse and optionally Strip.
void read_marks_decoder(const TokenizerFields& root, SpaceMarks& marks) {
  std::string types;
  visit_parts(root.object("decoder"), "decoders", [&](const TokenizerFields& part) {
    const std::string type = part.text("type");
    types += type + " ";
    if (type == "Replace") require_replacement(part, kSpaceMark, " ");
    if (type != "Strip") return;
    require_text(part, "content", " ");
    part.integer("start", 1, 1);
    part.integer("stop", 0, 0);
  });
  marks.decodes = true;
  marks.strips_first = types == "Replace ByteFallback Fuse Strip ";
  if (!marks.strips_first && types != "Replace ByteFallback Fuse ")
    root.fail("decoder", "must be Replace, ByteFallback, Fuse and optionally Strip, is ", quote(types));
}

void read_decoder(const TokenizerFields& root, TokenizerSpec& spec) {
  if (!root.has("decoder")) return;
  if (spec.space_marks) return read_marks_decoder(root, *spec.space_marks);
  visit_parts(root.object("decoder"), "decoders", [&](const TokenizerFields& part) {
    const std::string type = part.text("type");
    if (type != "ByteLevel" || spec.byte_level_decoder)
      part.fail("type", quote(type), " is not supported; only one ByteLevel or null is");
    spec.byte_level_decoder = true;
  });
}

// Limits the number of entries: entries of a few bytes must not expand a file of 64 MiB to gigabytes of
// memory.
void check_count(const TokenizerFields& model, const char* key, size_t entries) {
  if (entries >= static_cast<size_t>(kMaxTokenId)) model.fail(key, "has more than ", kMaxTokenId, " entries");
}

void read_vocab(const TokenizerFields& model, TokenizerSpec& spec) {
  for (const auto entry : model.get<simdjson::dom::object>("vocab")) {
    uint64_t id;
    if (entry.value.get(id) != simdjson::SUCCESS || id >= static_cast<uint64_t>(kMaxTokenId))
      model.fail("vocab[", quote(entry.key), "]", "must be an integer from 0 to ", kMaxTokenId - 1);
    check_count(model, "vocab", spec.vocab.size());
    spec.vocab.emplace_back(entry.key, static_cast<int32_t>(id));
  }
}

// A merge is "a b" or ["a", "b"].
std::pair<std::string, std::string> read_merge(const TokenizerFields& model, const SimdJson::Value& merge,
                                               const std::string& key) {
  std::string_view text;
  if (merge.get(text) == simdjson::SUCCESS) {
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
      model.fail(key, "must be two tokens with one space between");
    return {std::string(text.substr(0, space)), std::string(text.substr(space + 1))};
  }
  simdjson::dom::array pair;
  std::string_view left, right;
  if (merge.get(pair) != simdjson::SUCCESS || pair.size() != 2 || pair.at(0).get(left) != simdjson::SUCCESS ||
      pair.at(1).get(right) != simdjson::SUCCESS)
    model.fail(key, "must be \"a b\" or [\"a\", \"b\"]");
  return {std::string(left), std::string(right)};
}

void read_merges(const TokenizerFields& model, TokenizerSpec& spec) {
  size_t index = 0;
  std::optional<bool> strings;
  for (const SimdJson::Value merge : model.get<simdjson::dom::array>("merges")) {
    const std::string key = TokenizerFields::at("merges", index++);
    std::string_view text;
    const bool is_string = SimdJson::read(merge, text);
    if (is_string != strings.value_or(is_string)) model.fail(key, "strings and arrays may not be mixed");
    strings = is_string;
    // Old files contain the header line of merges.txt. It has no rank.
    if (text.starts_with("#version")) continue;
    check_count(model, "merges", spec.merges.size());
    spec.merges.push_back(read_merge(model, merge, key));
  }
}

void read_model(const TokenizerFields& root, TokenizerSpec& spec) {
  const TokenizerFields model = root.object("model");
  if (const auto type = model.get<std::string>("type", "BPE"); type != "BPE")
    model.fail("type", quote(type), " is not supported; only BPE is");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!model.get<std::string>(key, "").empty())
      model.fail(key, "is not supported; byte-level BPE has none");
  if (model.get("dropout", 0.0) != 0) model.fail("dropout", "is not supported; it makes ids random");
  if (model.has("unk_token")) spec.unk_token = model.text("unk_token");
  spec.fuse_unk = model.get("fuse_unk", false);
  spec.byte_fallback = model.get("byte_fallback", false);
  if (spec.space_marks && !spec.byte_fallback) model.fail("byte_fallback", "must be true without ByteLevel");
  spec.ignore_merges = model.get("ignore_merges", false);
  read_vocab(model, spec);
  read_merges(model, spec);
}

void read_added_tokens(const TokenizerFields& root, TokenizerSpec& spec) {
  if (!root.has("added_tokens")) return;
  for (const SimdJson::Value token : root.get<simdjson::dom::array>("added_tokens")) {
    const TokenizerFields fields =
        root.part(token, TokenizerFields::at("added_tokens", spec.added_tokens.size()));
    AddedToken added;
    added.content = fields.text("content");
    if (added.content.size() > kMaxAddedTokenBytes)
      fields.fail("content", "is longer than ", kMaxAddedTokenBytes, " bytes");
    added.single_word = fields.get<bool>("single_word");
    added.lstrip = fields.get<bool>("lstrip");
    added.rstrip = fields.get<bool>("rstrip");
    added.normalized = fields.get<bool>("normalized");
    if (added.normalized && spec.space_marks && root.has("normalizer"))
      fields.fail("normalized", "must be false, because the normalizer writes spaces as marks");
    added.special = fields.get<bool>("special");
    spec.added_tokens.push_back(std::move(added));
  }
}

}  // namespace

ByteAlphabet::ByteAlphabet() {
  bytes_.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
    characters_[byte] = printable ? static_cast<char32_t>(byte) : next++;
    bytes_[characters_[byte]] = static_cast<int16_t>(byte);
  }
}

std::string ByteAlphabet::encode(std::string_view bytes) const {
  std::string text;
  for (const char byte : bytes) append_utf8(text, characters_[static_cast<uint8_t>(byte)]);
  return text;
}

void ByteAlphabet::append_bytes(std::string& bytes, std::string_view token) const {
  const size_t before = bytes.size();
  for (size_t i = 0; i < token.size();) {
    const CodePoint c = code_point_at(token, i);
    const int byte = c.value < bytes_.size() ? bytes_[c.value] : -1;
    if (byte < 0) {
      bytes.resize(before);
      bytes += token;
      return;
    }
    bytes += static_cast<char>(byte);
    i += c.bytes;
  }
}

std::string quote(std::string_view token) {
  constexpr size_t kShown = 60;
  std::string text(1, '"');
  text += replace_invalid_utf8(token.substr(0, kShown));
  text += token.size() > kShown ? "...\"" : "\"";
  return text;
}

uint64_t make_hash_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

size_t Vocabulary::SeededHash::operator()(std::string_view text) const {
  return XXH3_64bits_withSeed(text.data(), text.size(), seed);
}

Vocabulary::Vocabulary(const std::vector<std::pair<std::string, int32_t>>& entries, const std::string& file)
    : ids_(entries.size(), SeededHash{make_hash_seed()}) {
  for (const auto& [token, id] : entries) ids_.insert_or_assign(token, id);
  int32_t largest = -1;
  for (const auto& [token, id] : ids_) largest = std::max(largest, id);
  tokens_.resize(largest + 1, nullptr);
  for (const auto& [token, id] : ids_) {
    if (tokens_[id] != nullptr)
      throw DataError(file, ": model.vocab: ", quote(*tokens_[id]), " and ", quote(token), " share the id ",
                      id);
    tokens_[id] = &token;
  }
}

std::optional<int32_t> Vocabulary::id(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const std::string* Vocabulary::token(int32_t id) const {
  if (id < 0 || id >= std::ssize(tokens_)) return nullptr;
  return tokens_[id];
}

size_t find_word_end(std::string_view text, size_t begin, const CodePointClasses& classes) {
  if (text[begin] == '\'') {
    const size_t length = contraction_length(text, begin);
    if (length > 0) return begin + length;
  }
  const CodePoint first = code_point_at(text, begin);
  const Category category = classes.category(first.value);
  const size_t second = begin + first.bytes;
  const auto skip = [&](size_t offset, Category of) {
    return skip_code_points(text, offset, [&](char32_t c) { return classes.category(c) == of; });
  };
  if (category != Category::kSpace) return skip(second, category);
  if (first.value == ' ' && second < text.size()) {
    const CodePoint next = code_point_at(text, second);
    const Category next_category = classes.category(next.value);
    if (next_category != Category::kSpace) return skip(second + next.bytes, next_category);
  }
  const size_t end = skip(second, Category::kSpace);
  if (end == text.size()) return end;
  // The last of several spaces begins the next word, because \s+(?!\S) does not match it.
  const size_t last = end - code_point_before(text, end).bytes;
  return last > begin ? last : end;
}

void mark_spaces(std::string_view piece, bool at_begin, FirstMark first, std::string& marked) {
  const bool is_marked = piece.starts_with(' ') || piece.starts_with(kSpaceMark);
  const bool adds =
      first == FirstMark::kAll ||
      (!is_marked && (first == FirstMark::kUnmarked || (first == FirstMark::kUnmarkedAtBegin && at_begin)));
  marked.assign(adds ? kSpaceMark : "");
  for (const char c : piece) {
    if (c == ' ')
      marked += kSpaceMark;
    else
      marked += c;
  }
}

size_t find_marked_end(std::string_view text, size_t begin) {
  return std::min(text.find(kSpaceMark, begin + 1), text.size());
}

std::string byte_token(uint8_t byte) {
  return {'<', '0', 'x', kHexDigits[byte >> 4], kHexDigits[byte & 15], '>'};
}

std::string unmark(std::span<const std::string* const> tokens) {
  std::string text, bytes;
  for (const std::string* token : tokens) {
    if (const auto byte = byte_of(*token)) {
      bytes += static_cast<char>(*byte);
      continue;
    }
    append_bytes(bytes, text);
    bytes.clear();
    append_with_spaces(*token, text);
  }
  append_bytes(bytes, text);
  return text;
}

int64_t marked_bytes(std::string_view token) {
  if (byte_of(token)) return 1;
  std::string text;
  append_with_spaces(token, text);
  return std::ssize(text);
}

TokenizerSpec parse_tokenizer_json(std::string_view text, const std::string& file) {
  simdjson::dom::parser parser;
  SimdJson::Value value;
  if (const auto error = parser.parse(simdjson::padded_string(text)).get(value); error != simdjson::SUCCESS)
    throw DataError(file, ": not a tokenizer.json: ", simdjson::error_message(error));
  const TokenizerFields root(value, file);
  TokenizerSpec spec;
  if (root.get<std::string>("version", "1.0") != "1.0") root.fail("version", "must be \"1.0\"");
  read_normalizer(root, spec);
  read_pre_tokenizer(root, spec);
  read_decoder(root, spec);
  read_model(root, spec);
  read_added_tokens(root, spec);
  return spec;
}

}  // namespace dtopp::data
