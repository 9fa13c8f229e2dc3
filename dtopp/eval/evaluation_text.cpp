#include "dtopp/eval/evaluation_text.h"

#include <algorithm>
#include <set>
#include <utility>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/config/data_config.h"
#include "dtopp/data/text/prepare_text.h"
#include "dtopp/inference/expert_budget.h"

namespace dtopp::eval {

bool is_token_data(const std::filesystem::path& path) {
  if (path.extension() == ".npy" || path.extension() == ".bin") return true;
  const PathKind kind = path_kind(path);
  return kind == PathKind::kDirectory ||
         (kind == PathKind::kNothing && path_kind(path.string() + ".idx") != PathKind::kNothing);
}

void EvaluationText::Source::read(uint64_t offset, std::span<int64_t> out) const {
  if (stream) return stream->read(offset, out);
  std::copy_n(ids.begin() + static_cast<int64_t>(offset), out.size(), out.begin());
}

EvaluationText::EvaluationText(const std::filesystem::path& path, int64_t vocab_size) {
  sources_.push_back({path, data::TokenStream::open(path, data::Verify::kChanged, vocab_size)});
  sources_.back().stream->require_ids_below(vocab_size);
}

EvaluationText::EvaluationText(const std::filesystem::path& path, const data::Tokenizer& tokenizer) {
  sources_.push_back({path, std::nullopt, data::encode_file(path, tokenizer)});
}

void EvaluationText::append(EvaluationText other) {
  for (Source& source : other.sources_) sources_.push_back(std::move(source));
}

uint64_t EvaluationText::size() const {
  uint64_t size = first_ ? 1 : 0;
  for (const Source& source : sources_) size += source.size();
  return size;
}

void EvaluationText::read(uint64_t offset, std::span<int64_t> out) const {
  if (first_ && offset == 0 && !out.empty()) {
    out[0] = *first_;
    out = out.subspan(1);
  } else if (first_) {
    offset -= 1;
  }
  for (const Source& source : sources_) {
    if (offset >= source.size()) {
      offset -= source.size();
      continue;
    }
    const auto count = std::min<uint64_t>(out.size(), source.size() - offset);
    source.read(offset, out.first(count));
    out = out.subspan(count);
    offset = 0;
  }
}

std::vector<TextSegment> EvaluationText::segments() const {
  std::vector<TextSegment> segments;
  uint64_t begin = 0;
  for (const Source& source : sources_) {
    const uint64_t size = source.size() + (first_ ? 1 : 0);
    if (size < 2)
      throw DataError(source.path.string() + ": has no token to predict; it needs at least two tokens");
    segments.push_back({begin, begin + size - 1});
    begin += size;
  }
  return segments;
}

std::vector<std::string> EvaluationText::source_names() const {
  std::vector<config::DataSource> sources;
  for (const Source& source : sources_) sources.push_back({.path = source.path.string()});
  std::set<std::filesystem::path> paths;
  for (const Source& source : sources_)
    if (!paths.insert(source.path.lexically_normal()).second)
      throw UsageError("--text: names " + source.path.string() + " twice; give it once");
  return config::source_names(sources);
}

at::Tensor EvaluationText::beginning(int64_t sequence_length) const {
  const auto length = static_cast<uint64_t>(sequence_length);
  const uint64_t room = static_cast<uint64_t>(models::kSolveTokens) / sources_.size();
  std::vector<int64_t> ids;
  for (const Source& source : sources_) {
    uint64_t count = std::min(source.size(), std::max(room, length));
    if (sources_.size() > 1) count -= count % length;  // windows of one source alone
    ids.resize(ids.size() + count);
    source.read(0, std::span(ids).last(count));
  }
  return inference::solving_windows(ids, sequence_length, sources_.front().path.string());
}

}  // namespace dtopp::eval
