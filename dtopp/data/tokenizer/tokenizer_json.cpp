#include "dtopp/data/tokenizer/tokenizer_json.h"

#include <cctype>

#include "dtopp/base/errors.h"
#include "dtopp/data/tokenizer/field_reader.h"
#include "dtopp/data/tokenizer/pre_tokenizer.h"
#include "dtopp/data/tokenizer/vocabulary.h"

namespace dtopp::data {
namespace {

void require_text(const FieldReader& read, const element& part, const std::string& field, const char* key,
                  std::string_view wanted) {
  const auto value = read.find(part, key);
  const std::string name = field + "." + key;
  if (!value || read.text(*value, name) != wanted) read.fail(name, "must be " + quote(wanted));
}

// Requires a Replace of the text `from` by `to`.
void require_replacement(const FieldReader& read, const element& part, const std::string& field,
                         std::string_view from, std::string_view to) {
  const auto pattern = read.find(part, "pattern");
  if (!pattern || !pattern->is_object()) read.fail(field + ".pattern", "must be an object");
  require_text(read, *pattern, field + ".pattern", "String", from);
  require_text(read, part, field, "content", to);
}

void read_normalizer(const FieldReader& read, const element& root, TokenizerSpec& spec) {
  const auto normalizer = read.find(root, "normalizer");
  if (!normalizer) return;
  bool prepends = false;
  visit_parts(read, *normalizer, "normalizer", "normalizers",
              [&](const element& part, const std::string& field) {
                const std::string type = read.type(part, field);
                if (type == "NFC") {
                  spec.nfc = true;
                } else if (type == "Prepend") {
                  require_text(read, part, field, "prepend", kSpaceMark);
                  prepends = true;
                } else if (type == "Replace") {
                  require_replacement(read, part, field, " ", kSpaceMark);
                  spec.space_marks.emplace();
                } else {
                  read.fail(field, quote(type) + " is not supported; only NFC, Prepend, Replace or null is");
                }
              });
  if (spec.space_marks && spec.nfc) read.fail("normalizer", "must be NFC or Replace, not both");
  if (!prepends) return;
  if (!spec.space_marks) read.fail("normalizer", "has Prepend without Replace");
  spec.space_marks->first = FirstMark::kAll;
}

SplitSpec read_split(const FieldReader& read, const element& part, const std::string& field) {
  const auto pattern = read.find(part, "pattern");
  if (!pattern || !pattern->is_object()) read.fail(field + ".pattern", "must be an object");
  const auto regex = read.find(*pattern, "Regex"), text = read.find(*pattern, "String");
  if (!regex && !text) read.fail(field + ".pattern", "must have the key Regex or String");
  SplitSpec split;
  split.field = field + ".pattern";
  if (regex) {
    split.pattern = read.text(*regex, split.field + ".Regex");
  } else {
    for (const char c : read.text(*text, split.field + ".String")) {
      if (std::ispunct(static_cast<unsigned char>(c)) != 0) split.pattern += '\\';
      split.pattern += c;
    }
  }
  const auto behavior = read.find(part, "behavior");
  const std::string name = behavior ? read.text(*behavior, field + ".behavior") : "";
  if (name != "Isolated" && name != "Removed")
    read.fail(field + ".behavior", quote(name) + " is not supported; only Isolated and Removed are");
  const bool invert = read.flag(part, field, "invert");
  if (name == "Removed") (invert ? split.keep_rest : split.keep_matches) = false;
  return split;
}

SpaceMarks read_metaspace(const FieldReader& read, const element& part) {
  const std::string field = "pre_tokenizer";
  require_text(read, part, field, "replacement", kSpaceMark);
  const auto scheme = read.find(part, "prepend_scheme");
  const std::string name = scheme ? read.text(*scheme, field + ".prepend_scheme") : "always";
  SpaceMarks marks;
  if (name == "always")
    marks.first = FirstMark::kUnmarked;
  else if (name == "first")
    marks.first = FirstMark::kUnmarkedAtBegin;
  else if (name != "never")
    read.fail(field + ".prepend_scheme", "must be always, first or never");
  if (marks.first != FirstMark::kNone && !read.flag(part, field, "add_prefix_space", true))
    read.fail(field + ".add_prefix_space", "contradicts prepend_scheme");
  marks.split = read.flag(part, field, "split", true);
  return marks;
}

// Reads the marks of the normalizer, which has no pre-tokenizer, or those of Metaspace. Returns false if
// there are none.
bool read_space_marks(const FieldReader& read, const std::optional<element>& pre_tokenizer,
                      TokenizerSpec& spec) {
  const bool is_metaspace = pre_tokenizer && read.type(*pre_tokenizer, "pre_tokenizer") == "Metaspace";
  if (!spec.space_marks && !is_metaspace) return false;
  if (spec.space_marks && pre_tokenizer)
    read.fail("pre_tokenizer", "must be null, because the normalizer writes spaces as marks");
  if (is_metaspace && spec.nfc) read.fail("normalizer", "must be null with Metaspace");
  if (is_metaspace) spec.space_marks = read_metaspace(read, *pre_tokenizer);
  spec.use_regex = false;
  return true;
}

// Reads any number of Split and Digits, then ByteLevel; or marks for spaces.
void read_pre_tokenizer(const FieldReader& read, const element& root, TokenizerSpec& spec) {
  constexpr const char* kSupported = "; the last must be ByteLevel, and Split or Digits may precede it";
  const auto pre_tokenizer = read.find(root, "pre_tokenizer");
  if (read_space_marks(read, pre_tokenizer, spec)) return;
  if (!pre_tokenizer) read.fail("pre_tokenizer", std::string("is missing") + kSupported);
  bool complete = false;
  const auto read_part = [&](const element& part, const std::string& field) {
    const std::string type = read.type(part, field);
    if (!complete && type == "Split") {
      spec.splits.push_back(read_split(read, part, field));
    } else if (!complete && type == "Digits") {
      const bool each = read.flag(part, field, "individual_digits");
      spec.splits.push_back({each ? "\\p{N}" : "\\p{N}+", field});
    } else if (!complete && type == "ByteLevel") {
      spec.add_prefix_space = read.flag(part, field, "add_prefix_space");
      spec.use_regex = read.flag(part, field, "use_regex", true);
      complete = true;
    } else {
      read.fail(field, quote(type) + " is not supported here" + kSupported);
    }
  };
  visit_parts(read, *pre_tokenizer, "pre_tokenizer", "pretokenizers", read_part);
  if (!complete) read.fail("pre_tokenizer", std::string("has no ByteLevel") + kSupported);
  // The scanner for GPT-2's pattern is faster than the pattern.
  const bool scan = !spec.splits.empty() && spec.splits.back().pattern == kGpt2Pattern &&
                    spec.splits.back().keep_matches && spec.splits.back().keep_rest;
  if (scan && !spec.use_regex && !spec.add_prefix_space) {
    spec.splits.pop_back();
    spec.use_regex = true;
  }
}

// Reads Replace, ByteFallback, Fuse and optionally Strip.
void read_marks_decoder(const FieldReader& read, const element& decoder, SpaceMarks& marks) {
  std::string types;
  visit_parts(read, decoder, "decoder", "decoders", [&](const element& part, const std::string& field) {
    const std::string type = read.type(part, field);
    types += type + " ";
    if (type == "Replace") require_replacement(read, part, field, kSpaceMark, " ");
    if (type != "Strip") return;
    require_text(read, part, field, "content", " ");
    if (read.count(part, field, "start") != 1 || read.count(part, field, "stop") != 0)
      read.fail(field, "must have start 1 and stop 0");
  });
  marks.decodes = true;
  marks.strips_first = types == "Replace ByteFallback Fuse Strip ";
  if (!marks.strips_first && types != "Replace ByteFallback Fuse ")
    read.fail("decoder", "must be Replace, ByteFallback, Fuse and optionally Strip, is " + quote(types));
}

void read_decoder(const FieldReader& read, const element& root, TokenizerSpec& spec) {
  const auto decoder = read.find(root, "decoder");
  if (!decoder) return;
  if (spec.space_marks) return read_marks_decoder(read, *decoder, *spec.space_marks);
  visit_parts(read, *decoder, "decoder", "decoders", [&](const element& part, const std::string& field) {
    const std::string type = read.type(part, field);
    if (type != "ByteLevel" || spec.byte_level_decoder)
      read.fail(field, quote(type) + " is not supported; only one ByteLevel or null is");
    spec.byte_level_decoder = true;
  });
}

// Limits the number of entries: entries of a few bytes must not expand a file of 64 MiB to gigabytes of
// memory.
void check_count(const FieldReader& read, const char* field, size_t entries) {
  if (entries >= static_cast<size_t>(kMaxTokenId))
    read.fail(field, "has more than " + std::to_string(kMaxTokenId) + " entries");
}

void read_vocab(const FieldReader& read, const element& model, TokenizerSpec& spec) {
  const auto vocab = read.find(model, "vocab");
  if (!vocab) read.fail("model.vocab", "is missing");
  const auto entries = read.get<simdjson::dom::object>(*vocab, "model.vocab", "an object of ids");
  for (const auto entry : entries) {
    uint64_t id;
    if (entry.value.get(id) != simdjson::SUCCESS || id >= static_cast<uint64_t>(kMaxTokenId))
      read.fail("model.vocab[" + quote(entry.key) + "]",
                "must be an integer from 0 to " + std::to_string(kMaxTokenId - 1));
    check_count(read, "model.vocab", spec.vocab.size());
    spec.vocab.emplace_back(entry.key, static_cast<int32_t>(id));
  }
}

// A merge is "a b" or ["a", "b"].
std::pair<std::string, std::string> read_merge(const FieldReader& read, const element& merge,
                                               const std::string& field) {
  std::string_view text;
  if (merge.get(text) == simdjson::SUCCESS) {
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
      read.fail(field, "must be two tokens with one space between");
    return {std::string(text.substr(0, space)), std::string(text.substr(space + 1))};
  }
  simdjson::dom::array pair;
  std::string_view left, right;
  if (merge.get(pair) != simdjson::SUCCESS || pair.size() != 2 || pair.at(0).get(left) != simdjson::SUCCESS ||
      pair.at(1).get(right) != simdjson::SUCCESS)
    read.fail(field, "must be \"a b\" or [\"a\", \"b\"]");
  return {std::string(left), std::string(right)};
}

void read_merges(const FieldReader& read, const element& model, TokenizerSpec& spec) {
  const auto merges = read.find(model, "merges");
  if (!merges) read.fail("model.merges", "is missing");
  size_t index = 0;
  std::optional<bool> strings;
  for (const element merge : read.get<simdjson::dom::array>(*merges, "model.merges", "an array")) {
    const std::string field = "model.merges[" + std::to_string(index++) + "]";
    if (merge.is_string() != strings.value_or(merge.is_string()))
      read.fail(field, "strings and arrays may not be mixed");
    strings = merge.is_string();
    // Old files contain the header line of merges.txt. It has no rank.
    if (*strings && read.text(merge, field).starts_with("#version")) continue;
    check_count(read, "model.merges", spec.merges.size());
    spec.merges.push_back(read_merge(read, merge, field));
  }
}

void read_model(const FieldReader& read, const element& root, TokenizerSpec& spec) {
  const auto model = read.find(root, "model");
  if (!model || !model->is_object()) read.fail("model", "must be an object");
  const auto type = read.find(*model, "type");
  if (type && read.text(*type, "model.type") != "BPE")
    read.fail("model.type", quote(read.text(*type, "model.type")) + " is not supported; only BPE is");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto affix = read.find(*model, key);
    if (affix && !read.text(*affix, std::string("model.") + key).empty())
      read.fail(std::string("model.") + key, "is not supported; byte-level BPE has none");
  }
  const auto dropout = read.find(*model, "dropout");
  if (dropout && read.get<double>(*dropout, "model.dropout", "a number") != 0)
    read.fail("model.dropout", "is not supported; it makes ids random");
  if (const auto unk = read.find(*model, "unk_token")) spec.unk_token = read.text(*unk, "model.unk_token");
  spec.fuse_unk = read.flag(*model, "model", "fuse_unk", false);
  spec.byte_fallback = read.flag(*model, "model", "byte_fallback", false);
  if (spec.space_marks && !spec.byte_fallback)
    read.fail("model.byte_fallback", "must be true without ByteLevel");
  spec.ignore_merges = read.flag(*model, "model", "ignore_merges", false);
  read_vocab(read, *model, spec);
  read_merges(read, *model, spec);
}

void read_added_tokens(const FieldReader& read, const element& root, TokenizerSpec& spec) {
  const auto tokens = read.find(root, "added_tokens");
  if (!tokens) return;
  size_t index = 0;
  for (const element token : read.get<simdjson::dom::array>(*tokens, "added_tokens", "an array")) {
    const std::string field = "added_tokens[" + std::to_string(index++) + "]";
    if (!token.is_object()) read.fail(field, "must be an object");
    const auto content = read.find(token, "content");
    if (!content) read.fail(field + ".content", "is missing");
    AddedToken added;
    added.content = read.text(*content, field + ".content");
    if (added.content.size() > kMaxAddedTokenBytes)
      read.fail(field + ".content", "is longer than " + std::to_string(kMaxAddedTokenBytes) + " bytes");
    added.single_word = read.flag(token, field, "single_word");
    added.lstrip = read.flag(token, field, "lstrip");
    added.rstrip = read.flag(token, field, "rstrip");
    added.normalized = read.flag(token, field, "normalized");
    if (added.normalized && spec.space_marks && read.find(root, "normalizer"))
      read.fail(field + ".normalized", "must be false, because the normalizer writes spaces as marks");
    added.special = read.flag(token, field, "special");
    spec.added_tokens.push_back(std::move(added));
  }
}

}  // namespace

TokenizerSpec parse_tokenizer_json(std::string_view text, const std::string& file) {
  simdjson::dom::parser parser;
  element root;
  if (const auto error = parser.parse(simdjson::padded_string(text)).get(root); error != simdjson::SUCCESS)
    throw DataError(file + ": not a tokenizer.json: " + simdjson::error_message(error));
  if (!root.is_object()) throw DataError(file + ": not a tokenizer.json: must be an object");
  const FieldReader read(file);
  TokenizerSpec spec;
  const auto version = read.find(root, "version");
  if (version && read.text(*version, "version") != "1.0") read.fail("version", "must be \"1.0\"");
  read_normalizer(read, root, spec);
  read_pre_tokenizer(read, root, spec);
  read_decoder(read, root, spec);
  read_model(read, root, spec);
  read_added_tokens(read, root, spec);
  return spec;
}

}  // namespace dtopp::data
