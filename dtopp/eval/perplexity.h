// Measures the perplexity of a text under a language model.
#pragma once

#include <numbers>

#include "dtopp/data/text/token_file.h"
#include "dtopp/data/text/tokenizer.h"
#include "dtopp/inference/inference_model.h"
#include "dtopp/inference/shared_batches.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp::eval {

// Returns whether `path` names token data: a folder, a .npy file or a .bin/.idx prefix. Every other file is
// text.
bool is_token_data(const fs::path& path);

// Ids that windows cover: the model reads those from `begin` on and predicts those up to `last`.
struct TextSegment {
  uint64_t begin, last;
};

// The token ids of text files or token data. Each of them is a source.
class EvaluationText {
 public:
  // Opens token data. Throws DataError if they cannot be read; UsageError if an id is outside the model's
  // vocabulary.
  EvaluationText(const fs::path& path, int64_t vocab_size);
  // Encodes a text file. Throws DataError if it cannot be read.
  EvaluationText(const fs::path& path, const data::Tokenizer& tokenizer);

  void append(EvaluationText other);
  // Puts an id in front of a text of one source, so that the first id of the text can be predicted.
  void begin_with(int64_t id) { first_ = id; }

  uint64_t size() const;  // number of ids
  void read(uint64_t offset, std::span<int64_t> out) const;

  // The ids of each source. Throws DataError if one has no id to predict.
  std::vector<TextSegment> segments() const;
  // The name of each source, from its path. Throws UsageError if a path occurs twice.
  std::vector<std::string> source_names() const;

  // Returns the first windows of each source, on which the threshold p is solved (expert_budget.h).
  Tensor beginning(int64_t sequence_length) const;

 private:
  struct Source {
    fs::path path;
    std::optional<data::TokenStream> stream{};
    std::vector<int64_t> ids{};

    uint64_t size() const { return stream ? stream->size() : ids.size(); }
    void read(uint64_t offset, std::span<int64_t> out) const;
  };

  std::optional<int64_t> first_;
  std::vector<Source> sources_;
};

// The result for one source of a text.
struct SourcePerplexity {
  std::string name;
  double nll = 0;
  int64_t tokens = 0;
  moe::ActivationStatistics activations;
};

struct Perplexity {
  double nll = 0;      // mean over all predicted tokens, nats
  int64_t tokens = 0;  // predicted tokens
  double perplexity() const { return std::exp(nll); }
  // Returns the sum of -log2 P over all predicted tokens, divided by `bytes`, the size of the text they
  // spell.
  double bits_per_byte(int64_t bytes) const {
    return nll / std::numbers::ln2 * static_cast<double>(tokens) / static_cast<double>(bytes);
  }
  moe::ActivationStatistics activations;
  std::vector<SourcePerplexity> sources{};  // of a text with several
};

// Consecutive windows of a stream of ids. The first begins at id `offset`; each next one begins `stride` ids
// later.
struct TextWindows {
  Tensor ids_BL;  // the model's input
  uint64_t offset, stride;
};

// Receives each batch of this rank, the model's states for it, and the log probability of each next id.
class WindowObserver {
 public:
  virtual ~WindowObserver() = default;
  virtual void add(const TextWindows& windows, const models::HiddenStates& states,
                   const Tensor& log_probs_T) = 0;
};

// Makes routers that select the experts of a text's tokens, instead of the model's router.
class BatchRouters {
 public:
  virtual ~BatchRouters() = default;
  // For the tokens first, first + 1, … of the text.
  virtual std::shared_ptr<moe::Router> for_tokens(uint64_t first, int64_t count) const = 0;
};

struct PerplexityOptions {
  WindowObserver* observer = nullptr;
  const BatchRouters* routers = nullptr;  // null: the model's router
  // Windows begin anew at each id that ends a document: every document is predicted on its own, from its
  // first token on. It cannot be combined with the two above.
  std::optional<int64_t> end_of_text{};
};

// Measures each source of a text in windows of sequence_length + 1 ids with stride sequence_length.
//
// A shorter last window is kept and forms a batch of its own. Batches of `batch_size` windows are distributed
// over the ranks. The progress of the watch counts tokens.
//
// Returns:    the same result on every rank
// Throws:     DataError if a source has fewer than two ids; Stopped if a stop is requested on any rank
// Collective: every rank of `ranks`, in the same order
Perplexity measure_perplexity(const inference::InferenceModel& model, const EvaluationText& text,
                              int64_t batch_size, distributed::Collectives& ranks, inference::Watch& watch,
                              const PerplexityOptions& options = {});

// Returns the size in bytes of the text that all ids but the first spell. Special tokens spell nothing.
int64_t predicted_bytes(const EvaluationText& text, const data::Tokenizer& tokenizer);

}  // namespace dtopp::eval
