#include "dtopp/inference/text_generation.h"

#include <sstream>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"

namespace dtopp::inference {
std::vector<std::string> read_prompts(const fs::path& path) {
  std::istringstream text(read_file(path));
  std::vector<std::string> prompts;
  for (std::string line; std::getline(text, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) prompts.push_back(line);
  }
  if (prompts.empty()) throw DataError(path, ": holds no prompt; write one prompt per line");
  return prompts;
}

EncodedPrompts encode_prompts(const std::vector<std::string>& prompts, const data::Tokenizer& tokenizer,
                              int64_t sequence_length, int64_t max_tokens) {
  EncodedPrompts encoded;
  for (const std::string& prompt : prompts) {
    encoded.ids.push_back(tokenizer.encode(prompt));
    const auto length = static_cast<int64_t>(encoded.ids.back().size());
    if (length >= sequence_length)
      throw UsageError("a prompt of ", length, " tokens leaves no space for new tokens in ",
                       "the model's sequence length of ", sequence_length);
    encoded.max_new_tokens.push_back(std::min(max_tokens, sequence_length - length));
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

TextSession::TextSession(const InferenceModel& model, const data::Tokenizer& tokenizer,
                         const SamplingOptions& options, int64_t max_tokens)
    : model_(model),
      tokenizer_(tokenizer),
      options_(options),
      max_tokens_(
          std::clamp<int64_t>(max_tokens, 1, std::max<int64_t>(model.config.model.sequence_length / 2, 1))) {}

void TextSession::add(std::string_view text) {
  const std::vector<int32_t> added = tokenizer_.encode(text);
  ids_.insert(ids_.end(), added.begin(), added.end());
  if (!added.empty()) piece_.reset();
}

int64_t TextSession::begin_piece() {
  if (ids_.empty()) ids_.push_back(tokenizer_.end_of_text());
  const int64_t most = std::max<int64_t>(model_.config.model.sequence_length - max_tokens_, 1);
  const int64_t dropped = std::max<int64_t>(std::ssize(ids_) - most, 0);
  ids_.erase(ids_.begin(), ids_.begin() + dropped);
  if (dropped > 0) recompute();
  piece_ = ids_.size();
  if (generation_) {
    generation_->extend(0, std::span(ids_).subspan(computed_), max_tokens_);
  } else {
    generation_.emplace(model_, std::span(&ids_, 1), std::span(&max_tokens_, 1), options_);
    options_.seed += 1;  // the next cache does not repeat these random numbers
  }
  computed_ = ids_.size();
  return dropped;
}

std::optional<GeneratedToken> TextSession::step() {
  const std::vector<GeneratedToken> tokens = generation_->step();
  if (tokens.empty()) return std::nullopt;
  ids_.push_back(tokens[0].id);
  computed_ = ids_.size();
  if (tokens[0].id == tokenizer_.end_of_text()) generation_->finish(0);
  return tokens[0];
}

bool TextSession::remove_piece() {
  if (!piece_) return false;
  ids_.resize(*piece_);
  piece_.reset();
  recompute();
  return true;
}

void TextSession::clear() {
  ids_.clear();
  piece_.reset();
  recompute();
}

void TextSession::set_temperature(double temperature) {
  options_.temperature = temperature;
  recompute();
}

}  // namespace dtopp::inference
