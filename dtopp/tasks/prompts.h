// Builds the prompts of a task's items, as strings and as token ids.
#pragma once

#include <limits>

#include "dtopp/data/text/tokenizer.h"
#include "dtopp/tasks/task.h"

namespace dtopp::tasks {

// Draws the items that serve as examples before each item of a data set. It reproduces llm-foundry's draw
// with seed 1234, which depends on CPython's random.Random(1234).sample() and on the iteration order of a
// Python set.

// From this number of items on, CPython's sample() draws as implemented here. No task has fewer.
inline constexpr int64_t kFewestItemsWithExemplars = 22;

// For each of the items 0 … count-1 of a data set of `num_items`: the indices of `shots` (at most 5) other
// items, in prompt order. One generator serves all items in order, so the first ones do not depend on
// `count`.
//
// Throws:        DataError if there are fewer than kFewestItemsWithExemplars items
std::vector<std::vector<int64_t>> draw_exemplars(int64_t num_items, int64_t shots, int64_t count);

// The maximum length of context and continuation, whatever the model's own sequence length. Longer contexts
// lose their first tokens.
inline constexpr int64_t kMaxPromptTokens = 2048;

// The strings of one item. The three parts are tokenized separately, so no token spans two of them.
struct PromptText {
  std::string preamble;                    // the examples
  std::vector<std::string> contexts;       // one, or one per choice (schema)
  std::vector<std::string> continuations;  // one per choice; none for generation
};

// The token ids of one item. Contexts include the preamble and are cut to kMaxPromptTokens.
struct Request {
  int64_t index = 0;  // index of the item in its data set
  // One that all choices share, or one per choice: for a schema, or if continuations of different lengths cut
  // the contexts differently.
  std::vector<std::vector<int32_t>> contexts;
  std::vector<int64_t> cut_tokens;                  // cut from the left of each context
  std::vector<std::vector<int32_t>> continuations;  // one per choice; none for generation
  int64_t max_new_tokens = 0;                       // generation only

  size_t num_sequences() const { return continuations.empty() ? 1 : continuations.size(); }
  const std::vector<int32_t>& context(size_t choice) const {
    return contexts[contexts.size() == 1 ? 0 : choice];
  }
  int64_t cut(size_t choice) const { return cut_tokens[cut_tokens.size() == 1 ? 0 : choice]; }
  // Tokens of the longest sequence, generated ones included.
  int64_t longest() const;
};

// `exemplars` are indices into `items`, in prompt order.
PromptText make_prompt_text(const Task& task, std::span<const TaskItem> items, int64_t index,
                            std::span<const int64_t> exemplars);

// Requests for the first `limit` items of a data set. The other items still serve as examples.
//
// Throws:        DataError if a continuation leaves no tokens for a context
std::vector<Request> make_requests(const Task& task, const DataSet& data, const data::Tokenizer& tokenizer,
                                   int64_t limit = std::numeric_limits<int64_t>::max());

}  // namespace dtopp::tasks
