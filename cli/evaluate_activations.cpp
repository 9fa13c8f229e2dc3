#include <cstdio>

#include <nlohmann/json.hpp>

#include "cli/evaluate.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/progress.h"
#include "dtopp/eval/activation_analysis.h"

namespace dtopp::cli {

void evaluate_activations(const EvaluateOptions& options) {
  const Checkpoint checkpoint = open_named_checkpoint(options.inference);
  InferenceModel model = load_model(options.inference, checkpoint);
  const ModelConfig& config = model.config.model;
  const Tokenizer tokenizer = load_tokenizer(checkpoint, options.inference.tokenizer, config.vocab_size);
  const EvaluationText text = open_text(options, checkpoint, config);
  meet_target(model, options.inference, checkpoint, &text);
  std::vector<int64_t> ids(text.size());
  text.read(0, ids);
  ProgressBar bar("activations", "tok", ids.size());
  const ActivationAnalysis analysis =
      analyze_activations(model, ids, find_token_kinds(ids, tokenizer, config.sequence_length),
                          options.batch_size, [&](uint64_t done) { bar.update(done); });
  report(options, to_json(analysis, model), format_table(analysis));
}

}  // namespace dtopp::cli
