#include "dtopp/tasks/token_kinds.h"

#include <algorithm>
#include <bit>
#include <string_view>
#include <unordered_map>

namespace dtopp::tasks {
namespace {

TokenKinds by_frequency(std::span<const int64_t> ids) {
  std::unordered_map<int64_t, int64_t> counts;
  for (const int64_t id : ids) ++counts[id];
  std::vector<int64_t> ranked;
  ranked.reserve(counts.size());
  for (const auto& [id, count] : counts) ranked.push_back(id);
  std::ranges::sort(
      ranked, [&](int64_t a, int64_t b) { return counts[a] != counts[b] ? counts[a] > counts[b] : a < b; });
  std::unordered_map<int64_t, uint8_t> kind_of;
  for (size_t rank = 0; rank < ranked.size(); ++rank) {
    uint8_t kind = 0;
    for (size_t end = 10; kind < 4 && rank >= end; end *= 10) ++kind;
    kind_of.emplace(ranked[rank], kind);
  }
  TokenKinds kinds{
      "frequency", {"rank 1-10", "rank 11-100", "rank 101-1000", "rank 1001-10000", "rank over 10000"}, {}};
  for (const int64_t id : ids) kinds.kind.push_back(kind_of.at(id));
  return kinds;
}

TokenKinds by_position(size_t tokens, int64_t sequence_length, std::span<const uint64_t> begins) {
  const auto length = static_cast<uint64_t>(sequence_length);
  TokenKinds kinds{"position", {"0"}, {}};
  for (uint64_t first = 1; first < length; first *= 2) {
    const uint64_t last = std::min(2 * first, length) - 1;
    kinds.names.push_back(first == last ? std::to_string(first)
                                        : std::to_string(first) + "-" + std::to_string(last));
  }
  uint64_t begin = 0;
  for (size_t i = 0; i < tokens; ++i) {
    if (!begins.empty() && begins.front() == i) {
      begin = i;
      begins = begins.subspan(1);
    }
    kinds.kind.push_back(static_cast<uint8_t>(std::bit_width((i - begin) % length)));
  }
  return kinds;
}

enum class Spelling : uint8_t { kWord, kNumber, kPunctuation, kWhiteSpace, kNothing };

struct TokenText {
  Spelling spelling = Spelling::kNothing;
  bool joins = false;  // no white space before its first character
  bool open = false;   // ends with a letter
};

// Bytes of characters outside ASCII count as letters, because a token may hold only a part of such a
// character.
bool is_letter(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x80 || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
}

TokenText describe(std::string_view text) {
  if (text.empty()) return {};
  const size_t first = text.find_first_not_of(" \t\r\n\v\f");
  if (first == std::string_view::npos)
    return {.spelling = Spelling::kWhiteSpace, .joins = false, .open = false};
  const char c = text[first];
  const Spelling spelling = is_letter(c)           ? Spelling::kWord
                            : c >= '0' && c <= '9' ? Spelling::kNumber
                                                   : Spelling::kPunctuation;
  return {.spelling = spelling, .joins = first == 0, .open = is_letter(text.back())};
}

TokenKinds by_part_of_word(std::span<const int64_t> ids, const data::Tokenizer& tokenizer) {
  enum Kind : uint8_t { kWhole, kBeginning, kRest, kNumber, kPunctuation, kWhiteSpace, kNothing };
  std::unordered_map<int64_t, TokenText> texts;
  const auto text_of = [&](int64_t id) -> const TokenText& {
    const auto [found, added] = texts.try_emplace(id);
    const auto narrow = static_cast<int32_t>(id);
    if (added) found->second = describe(tokenizer.decode_generated(std::span(&narrow, 1)));
    return found->second;
  };
  TokenKinds kinds{"part_of_word",
                   {"whole word", "beginning of a word", "rest of a word", "number", "punctuation",
                    "white space", "special"},
                   {}};
  for (size_t i = 0; i < ids.size(); ++i) {
    const TokenText text = text_of(ids[i]);
    if (text.spelling != Spelling::kWord) {
      constexpr Kind kOthers[] = {kWhole, kNumber, kPunctuation, kWhiteSpace, kNothing};
      kinds.kind.push_back(kOthers[static_cast<size_t>(text.spelling)]);
      continue;
    }
    const bool goes_on = i + 1 < ids.size() && text.open && text_of(ids[i + 1]).spelling == Spelling::kWord &&
                         text_of(ids[i + 1]).joins;
    const bool continues = text.joins && i > 0 && text_of(ids[i - 1]).open;
    kinds.kind.push_back(continues ? kRest : goes_on ? kBeginning : kWhole);
  }
  return kinds;
}

}  // namespace

std::vector<TokenKinds> find_token_kinds(std::span<const int64_t> ids, const data::Tokenizer& tokenizer,
                                         int64_t sequence_length, std::span<const uint64_t> begins) {
  return {by_frequency(ids), by_position(ids.size(), sequence_length, begins),
          by_part_of_word(ids, tokenizer)};
}

}  // namespace dtopp::tasks
