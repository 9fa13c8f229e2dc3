#include "dtopp/convert/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "dtopp/base/errors.h"
#include "dtopp/base/format.h"
#include "dtopp/data/text/tokenizer_json.h"

namespace dtopp::convert {
namespace {

// Types of tokens.
constexpr int32_t kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5;

// llama.cpp's names for the patterns that divide text into words. GPT-2's is the one of ByteLevel.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kPatterns = {
    {{R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      "llama-bpe"},
     {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      "qwen2"}}};

std::optional<std::string_view> pattern_name(const data::TokenizerSpec& spec) {
  if (spec.space_marks || spec.add_prefix_space || spec.byte_fallback) return std::nullopt;
  if (spec.use_regex) return spec.splits.empty() ? std::optional("gpt-2") : std::nullopt;
  if (spec.splits.size() != 1) return std::nullopt;
  for (const auto& [pattern, name] : kPatterns)
    if (spec.splits[0].pattern == pattern) return name;
  return std::nullopt;
}

}  // namespace

void add_tokenizer(GgufMetadata& metadata, const data::Tokenizer& tokenizer, int64_t vocab_size,
                   const std::string& file) {
  const data::TokenizerSpec spec = data::parse_tokenizer_json(tokenizer.file_text(), file);
  const auto pattern = pattern_name(spec);
  if (!pattern)
    throw UsageError(file +
                     ": its pre_tokenizer has no name in llama.cpp; GPT-2's, Llama 3's and Qwen 2's have");
  const auto size = static_cast<size_t>(std::max(vocab_size, tokenizer.vocab_size()));
  std::vector<std::string> tokens(size), merges;
  std::vector<int32_t> types(size, kUnused);
  for (size_t id = 0; id < size; ++id) tokens[id] = format("[unused %zu]", id);
  const auto set = [&](int32_t id, const std::string& token, int32_t type) {
    tokens[static_cast<size_t>(id)] = token;
    types[static_cast<size_t>(id)] = type;
  };
  for (const auto& [token, id] : spec.vocab) set(id, token, kNormal);
  for (const data::AddedToken& token : spec.added_tokens)
    set(tokenizer.token_to_id(token.content).value(), token.content, token.special ? kControl : kUserDefined);
  for (const auto& [left, right] : spec.merges) merges.push_back(left + " " + right);
  metadata.add("tokenizer.ggml.model", "gpt2");
  metadata.add("tokenizer.ggml.pre", *pattern);
  metadata.add("tokenizer.ggml.tokens", tokens);
  metadata.add("tokenizer.ggml.token_type", types);
  metadata.add("tokenizer.ggml.merges", merges);
  metadata.add("tokenizer.ggml.add_bos_token", false);
  if (!tokenizer.end_of_text_token()) return;
  for (const char* role : {"bos", "eos", "padding"})
    metadata.add("tokenizer.ggml." + std::string(role) + "_token_id", int64_t{tokenizer.end_of_text()});
}

}  // namespace dtopp::convert
