// Derives an answer, right or wrong, from what a model computed for a request.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dtopp/tasks/task.h"
#include "dtopp/tasks/task_data.h"

namespace dtopp::tasks {

// The output of a model for one Request.
struct Scores {
  // log p of each token of each continuation, in nats. The softmax is over the model's whole vocabulary, in
  // fp32.
  std::vector<std::vector<float>> log_probs;
  // Per continuation: true if each of its tokens was the most likely one (for ties, the lowest id).
  std::vector<bool> greedy;
  // Generation only: the new ids, without the end of text, and their text.
  std::vector<int32_t> generated;
  std::string generated_text;
};

struct Answer {
  int64_t choice = 0;     // multiple choice and schema
  std::string text = {};  // generation: the extracted answer, normalized
  // The choice is the right one, each token was the most likely one (language modeling), or `text` begins
  // with the normalized right answer.
  bool correct = false;
  // Sum of -log p, in nats, over the tokens of the right continuation, and their number. 0 for generation.
  double nll = 0;
  int64_t tokens = 0;
};

// Evaluates the scores of one item. Throws NumericalError if a log probability is not finite.
Answer judge(const Task& task, const TaskItem& item, const Scores& scores);

// The index of the continuation with the smallest mean of -log p per token; for ties, the first.
int64_t predict_choice(const std::vector<std::vector<float>>& log_probs);

// Strings that end a generated answer.
inline constexpr std::array<std::string_view, 2> kStopStrings = {"\n\n", "Q:"};

// The text before the first stop string. Generation may end as soon as the result is shorter than the text.
std::string_view cut_at_stop_string(std::string_view text);

// Converts to lower case, removes punctuation and the articles a, an and the, and leaves single spaces
// between words. Invalid UTF-8 counts as U+FFFD.
std::string normalize_answer(std::string_view text);

// The normalized answer in a generated text. It is the part after the last " #### " and before any stop
// string; without " #### ", it is everything before the first stop string.
std::string extract_answer(std::string_view generated);

}  // namespace dtopp::tasks
