#include "dtopp/data/tokenizer/added_tokens.h"

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "dtopp/base/errors.h"
#include "dtopp/data/text/unicode.h"

namespace dtopp::data {

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
