// From what a model computed for a request to its answer, right or wrong.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dtopp/tasks/task.h"
#include "dtopp/tasks/task_data.h"

namespace dtopp {

// What a model computed for one Request.
struct Scores {
  // log p of each token of each continuation, nats; the softmax over the model's whole vocabulary, in fp32.
  std::vector<std::vector<float>> log_probs;
  // One a continuation: each of its tokens was the likeliest (of equal ones the lowest id).
  std::vector<bool> greedy;
  // Generation: the new ids, without the end of text, and their text.
  std::vector<int32_t> generated;
  std::string generated_text;
};

struct Answer {
  int64_t choice = 0;     // multiple choice and schema
  std::string text = {};  // generation: the extracted answer, normalised
  bool correct = false;
  // Of the right continuation: the sum of -log p over its tokens, nats, and their number; none of a
  // generation.
  double nll = 0;
  int64_t tokens = 0;
};

// NumericalError where a log probability is not finite.
Answer judge(const Task& task, const TaskItem& item, const Scores& scores);

// The continuation with the smallest mean of -log p a token; of equal ones the first.
int64_t predict_choice(const std::vector<std::vector<float>>& log_probs);

// Where a generated answer ends.
inline constexpr std::array<std::string_view, 2> kStopStrings = {"\n\n", "Q:"};

// The text before the first stop string. Generation may end once that is shorter than the text.
std::string_view cut_at_stop_string(std::string_view text);

// Lower case; punctuation and the articles a, an, the gone; single spaces between words. Invalid UTF-8 counts
// as U+FFFD.
std::string normalize_answer(std::string_view text);

// The normalised answer in a generated text: what follows the last " #### " before any stop string, all of it
// where there is none.
std::string extract_answer(std::string_view generated);

}  // namespace dtopp
