// Where documents begin and end in windows of tokens, for model.attend_across_documents: false.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dtopp/config/run_config.h"
#include "dtopp/data/tokens/token_file.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp {

// tokens_BL int64, on the CPU: sequences side by side. int32 [n + 1], the places in them, laid end to end,
// where documents begin, and B L. A document ends with `end_of_text` or with its sequence.
at::Tensor document_offsets(const at::Tensor& tokens_BL, int64_t end_of_text);

// What ends a document in the data of a run whose tokens see their own document alone: data.end_of_text, or
// the id of the tokenizer that the data were prepared with. nullopt where tokens see across documents.
// UsageError where nobody says, or they do not agree.
std::optional<int64_t> end_of_documents(const RunConfig& config, const std::vector<TokenStream>& train,
                                        const std::vector<TokenStream>& validation);

}  // namespace dtopp
