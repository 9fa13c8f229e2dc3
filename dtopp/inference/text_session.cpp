#include "dtopp/inference/text_session.h"

#include <algorithm>
#include <string>

namespace dtopp::inference {

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
  const int64_t dropped = std::max<int64_t>(static_cast<int64_t>(ids_.size()) - most, 0);
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
