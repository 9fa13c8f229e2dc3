#include "dtopp/inference/text_generation.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"

namespace dtopp::inference {

std::vector<std::string> read_prompts(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  std::vector<std::string> prompts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) prompts.push_back(std::move(line));
    begin = end + 1;
  }
  if (prompts.empty()) throw DataError(path.string() + ": holds no prompt; write one prompt per line");
  return prompts;
}

EncodedPrompts encode_prompts(const std::vector<std::string>& prompts, const data::Tokenizer& tokenizer,
                              int64_t sequence_length, int64_t max_tokens) {
  EncodedPrompts encoded;
  for (const std::string& prompt : prompts) {
    encoded.ids.push_back(tokenizer.encode(prompt));
    const auto length = static_cast<int64_t>(encoded.ids.back().size());
    if (length >= sequence_length)
      throw UsageError("a prompt of " + std::to_string(length) +
                       " tokens leaves no space for new tokens in " + "the model's sequence length of " +
                       std::to_string(sequence_length));
    encoded.room.push_back(std::min(max_tokens, sequence_length - length));
  }
  return encoded;
}

std::string TextStream::add(int32_t id) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  constexpr size_t kMostBytes = 4;  // UTF-8 bytes per character; a token has at least one
  pending_.push_back(id);
  std::string text = tokenizer_.decode_generated(pending_);
  if (text.ends_with(kReplacement) && pending_.size() < kMostBytes) return {};
  pending_.clear();
  return text;
}

}  // namespace dtopp::inference
