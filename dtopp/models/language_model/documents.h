// Finds the documents in sequences of tokens, for model.attend_across_documents: false.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dtopp/config/run_config.h"
#include "dtopp/data/text/token_file.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp::models {

// Offsets of documents in the concatenated sequences, followed by B L: int32 [n + 1]. A document ends with
// `end_of_text` or with its sequence. tokens_BL: int64 on the CPU.
at::Tensor document_offsets(const at::Tensor& tokens_BL, int64_t end_of_text);

// The token id that ends a document if tokens attend only within their document: data.end_of_text, or the id
// from the data's tokenizer. nullopt if tokens attend across documents. Throws UsageError if the id is
// unknown or ambiguous.
std::optional<int64_t> end_of_documents(const config::RunConfig& config,
                                        const std::vector<data::TokenStream>& train,
                                        const std::vector<data::TokenStream>& validation);

}  // namespace dtopp::models
