#include "dtopp/data/text/added_tokens.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "dtopp/base/errors.h"
#include "dtopp/data/text/unicode.h"

namespace dtopp::data {
namespace {

uint8_t byte_at(std::string_view text, size_t offset) { return static_cast<uint8_t>(text[offset]); }

bool is_word_before(std::string_view text, size_t end) {
  return end > 0 && CodePointClasses::get().is_word(code_point_before(text, end).value);
}

bool is_word_at(std::string_view text, size_t begin) {
  return begin < text.size() && CodePointClasses::get().is_word(code_point_at(text, begin).value);
}

// Returns the start of the run of spaces that ends at `end`, but at least `limit`.
size_t skip_spaces_back(std::string_view text, size_t end, size_t limit) {
  while (end > limit) {
    const CodePoint c = code_point_before(text, end);
    if (!CodePointClasses::get().is_space(c.value)) break;
    end -= c.bytes;
  }
  return end;
}

size_t skip_spaces(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const CodePoint c = code_point_at(text, begin);
    if (!CodePointClasses::get().is_space(c.value)) break;
    begin += c.bytes;
  }
  return begin;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<Pattern> patterns) : patterns_(std::move(patterns)) {
  const auto less = [](const Pattern& a, const Pattern& b) {
    return a.text != b.text ? a.text < b.text : a.id < b.id;
  };
  std::sort(patterns_.begin(), patterns_.end(), less);
  const auto same = [](const Pattern& a, const Pattern& b) { return a.text == b.text; };
  patterns_.erase(std::unique(patterns_.begin(), patterns_.end(), same), patterns_.end());
  for (size_t i = 0; i < patterns_.size(); ++i) {
    const std::string& text = patterns_[i].text;
    const size_t first = byte_at(text, 0);
    if (first_bytes_[first].end == 0) first_bytes_[first].begin = i;
    first_bytes_[first].end = i + 1;
    for (size_t second = 0; second < 256; ++second) {
      if (text.size() == 1 || second == byte_at(text, 1)) first_pairs_.set(first << 8 | second);
    }
  }
}

bool AddedTokenMatcher::may_start(std::string_view text, size_t offset) const {
  const size_t first = byte_at(text, offset);
  if (first_bytes_[first].end == 0) return false;
  return offset + 1 == text.size() || first_pairs_[first << 8 | byte_at(text, offset + 1)];
}

// Narrows the sorted patterns, byte by byte, to those that match the text. The shortest of them comes first.
const AddedTokenMatcher::Pattern* AddedTokenMatcher::longest_at(std::string_view text, size_t offset) const {
  const Pattern* longest = nullptr;
  const Range range = first_bytes_[byte_at(text, offset)];
  auto begin = patterns_.begin() + static_cast<ptrdiff_t>(range.begin);
  auto end = patterns_.begin() + static_cast<ptrdiff_t>(range.end);
  for (size_t depth = 1; begin != end; ++depth) {
    if (begin->text.size() == depth) {
      longest = &*begin;
      if (++begin == end) break;
    }
    if (offset + depth == text.size()) break;
    const uint8_t next = byte_at(text, offset + depth);
    begin = std::partition_point(begin, end, [&](const Pattern& p) { return byte_at(p.text, depth) < next; });
    end = std::partition_point(begin, end, [&](const Pattern& p) { return byte_at(p.text, depth) == next; });
  }
  return longest;
}

void AddedTokenMatcher::split(std::string_view text, std::vector<TextSegment>& segments) const {
  const auto report = [&](int32_t id, size_t begin, size_t end) {
    if (begin < end) segments.push_back({id, begin, end});
  };
  size_t done = 0;  // everything before this offset is reported
  // End of the last spaces that an rstrip skipped. Many tokens may lie within them, so they are scanned once.
  size_t spaces_end = 0;
  for (size_t i = 0; i < text.size() && !patterns_.empty();) {
    const Pattern* pattern = may_start(text, i) ? longest_at(text, i) : nullptr;
    if (pattern == nullptr) {
      ++i;
      continue;
    }
    size_t begin = i;
    size_t end = i + pattern->text.size();
    i = end;
    if (pattern->single_word && (is_word_before(text, begin) || is_word_at(text, end))) continue;
    if (pattern->lstrip) begin = std::max(done, skip_spaces_back(text, begin, done));
    if (pattern->rstrip) {
      if (end >= spaces_end) spaces_end = skip_spaces(text, end);
      end = spaces_end;
    }
    report(-1, done, begin);
    report(pattern->id, begin, end);
    done = end;
  }
  report(-1, done, text.size());
}

AddedTokens assign_added_tokens(const TokenizerSpec& spec, const Vocabulary& vocabulary,
                                const std::string& file) {
  AddedTokens added;
  int64_t next_id = static_cast<int64_t>(vocabulary.size());
  for (const AddedToken& token : spec.added_tokens) {
    if (token.content.empty()) continue;
    const auto known = added.ids.find(token.content);
    std::optional<int32_t> id = known != added.ids.end() ? known->second : vocabulary.id(token.content);
    if (!id && next_id >= kMaxTokenId)
      throw DataError(file + ": added_tokens: more than " + std::to_string(kMaxTokenId) + " tokens");
    if (!id) id = static_cast<int32_t>(next_id++);
    added.ids[token.content] = *id;
    std::string storage;
    const std::string_view spelling =
        spec.nfc && token.normalized ? normalize_nfc(token.content, storage) : token.content;
    added.by_id[*id] = {token, std::string(spelling)};
    if (token.special) added.special.insert(token.content);
  }
  return added;
}

AddedTokenMatcher make_matcher(const AddedTokens& added, bool normalized) {
  std::vector<AddedTokenMatcher::Pattern> patterns;
  for (const auto& [id, entry] : added.by_id) {
    const AddedToken& token = entry.token;
    if (token.normalized == normalized)
      patterns.push_back({entry.spelling, id, token.single_word, token.lstrip, token.rstrip});
  }
  return AddedTokenMatcher(std::move(patterns));
}

}  // namespace dtopp::data
