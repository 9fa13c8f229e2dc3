#include "dtopp/models/language_model/documents.h"

#include "dtopp/base/errors.h"
#include "dtopp/data/text/tokenizer.h"

namespace dtopp::models {
namespace {

// The id from the stream's manifest, or from the tokenizer next to its tokens.
std::optional<int64_t> end_of_text_of(const data::TokenStream& stream) {
  if (const auto id = stream.end_of_text()) return id;
  const auto path = data::tokenizer_beside(stream.path());
  if (!path) return std::nullopt;
  return data::Tokenizer::load(*path).end_of_text();
}

}  // namespace

at::Tensor document_offsets(const at::Tensor& tokens_BL, int64_t end_of_text) {
  TORCH_CHECK(tokens_BL.dim() == 2 && tokens_BL.scalar_type() == at::kLong && tokens_BL.is_cpu(),
              "document_offsets: expected tokens int64 [B, L] on the CPU");
  const int64_t B = tokens_BL.size(0), L = tokens_BL.size(1);
  const auto tokens = tokens_BL.accessor<int64_t, 2>();
  std::vector<int32_t> offsets;
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t i = 0; i < L; ++i) {
      if (i == 0 || tokens[b][i - 1] == end_of_text) offsets.push_back(static_cast<int32_t>(b * L + i));
    }
  }
  offsets.push_back(static_cast<int32_t>(B * L));
  return at::tensor(offsets, at::kInt);
}

std::optional<int64_t> end_of_documents(const config::RunConfig& config,
                                        const std::vector<data::TokenStream>& train,
                                        const std::vector<data::TokenStream>& validation) {
  if (config.model.attend_across_documents) return std::nullopt;
  std::optional<int64_t> found;
  if (config.data.end_of_text >= 0) found = config.data.end_of_text;
  std::string said_by = "data.end_of_text";
  for (const auto* streams : {&train, &validation}) {
    for (const data::TokenStream& stream : *streams) {
      const auto id = end_of_text_of(stream);
      if (!id) continue;
      if (found && *id != *found)
        throw UsageError(stream.path().string() + " ends documents with id " + std::to_string(*id) + ", " +
                         said_by + " with " + std::to_string(*found) +
                         "; set data.end_of_text to that of the data");
      if (!found) said_by = stream.path().string();
      found = id;
    }
  }
  if (!found)
    throw UsageError(
        "data.end_of_text: model.attend_across_documents: false needs the id that ends a document, but no "
        "data source has a tokenizer with one; set data.end_of_text");
  return found;
}

}  // namespace dtopp::models
