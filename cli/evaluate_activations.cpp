#include <cstdio>

#include <nlohmann/json.hpp>

#include "cli/evaluate.h"
#include "dtopp/distributed/groups/rank_agreement.h"
#include "dtopp/eval/activation_analysis.h"

namespace dtopp::cli {

void evaluate_activations(const EvaluateOptions& options, Collectives& ranks) {
  const Checkpoint checkpoint = open_shared_checkpoint(options, ranks);
  InferenceModel model = load_model(options.inference, checkpoint);
  model.routing.agree = agreement(ranks);
  const ModelConfig& config = model.config.model;
  const Tokenizer tokenizer = load_tokenizer(checkpoint, options.inference.tokenizer, config.vocab_size);
  const EvaluationText text = open_text(options, checkpoint, config);
  require_same_work(options, checkpoint, text.size(), ranks);
  meet_target(model, options.inference, checkpoint, &text);
  std::vector<int64_t> ids(text.size());
  text.read(0, ids);
  const ActivationAnalysis analysis =
      analyze_activations(model, ids, find_token_kinds(ids, tokenizer, config.sequence_length),
                          options.batch_size, ranks, watch("activations", "tok", ids.size(), ranks));
  if (ranks.rank() == 0) report(options, to_json(analysis, model), format_table(analysis));
}

}  // namespace dtopp::cli
